//! Golden bytes: what clients see of every event type, reply, close and refusal. A changed byte is a visible diff of
//! `golden.txt`; `RINGCAST_GOLDEN=write` writes the file anew.

#![allow(missing_docs, reason = "a test, not a library")]

use std::fmt::Write;
use std::path::Path;

use ringcast::base::{Name, Ulid};
use ringcast::wire::close::Closing;
use ringcast::wire::event::{EventKind, REGISTRY};
use ringcast::wire::http::{Dialect, switching_protocols};
use ringcast::wire::presence;
use ringcast::wire::problem::Problem;
use ringcast::wire::reply;
use ringcast::wire::sealed::{Event, Member, Sealed};
use ringcast::wire::topic::{Scope, TopicHasher};

/// One line: a name and bytes, those that are no printable ASCII escaped.
fn line(out: &mut String, name: &str, bytes: &[u8]) {
    let _ = writeln!(out, "{name}: {}", bytes.escape_ascii());
}

fn event(kind: EventKind) -> Event {
    let name = |text| Name::new(text).unwrap();
    let topic = TopicHasher::new(1).topic(Scope::Channel, &name("demo"), &name("race-42"));
    let event = Event::new(kind, topic, 1_796_050_000_123);
    let stored = Event {
        seq: 1_201,
        epoch: 0x00C0_FFEE,
        id: Some(Ulid::new(1_796_050_000_123, 5)),
        user_id: "u1".into(),
        user_name: "Ann \"A\" é".into(),
        ..event.clone()
    };
    let message = |e: Event| Event { members: vec![("message".into(), Member::Text("01J".into()))], ..e };
    match kind {
        EventKind::MessageNew => {
            Event { text: Some("hi\n\u{7f}".into()), data: Some("{\"a\":[1,null]}".into()), ..stored }
        }
        EventKind::MessageUpdated => Event { text: Some("better".into()), ..message(stored) },
        EventKind::ReactionNew | EventKind::ReactionDeleted => {
            let mut reaction = message(stored);
            reaction.members.push(("kind".into(), Member::Text("+1".into())));
            reaction
        }
        kind if kind.row().stored => message(stored),
        EventKind::Custom => Event { custom_name: "custom.goal".into(), data: Some("9".into()), ..event },
        EventKind::TypingStart | EventKind::TypingStop => Event { user_id: "u1".into(), ..event },
        EventKind::ViewersUpdated => presence::viewers_event(event.topic, u64::MAX, 3, true, event.ts_ms),
        EventKind::MemberJoined | EventKind::MemberLeft => {
            presence::member_event(kind, event.topic, "u1", "Ann", event.ts_ms)
        }
        EventKind::PresenceChanged => {
            let status = presence::Status { state: presence::PresenceState::Away, text: "back at 9".into() };
            presence::status_event(event.topic, "u1", "Ann", &status, event.ts_ms)
        }
        _ => Event { members: vec![("more".into(), Member::Json("{\"b\":true}".into()))], ..event },
    }
}

fn events(out: &mut String) {
    for row in REGISTRY {
        let sealed = Sealed::seal(&event(row.kind)).unwrap();
        line(out, &format!("event {}", row.name), sealed.json_frame());
    }
    let user = TopicHasher::new(1).topic(Scope::User, &Name::new("demo").unwrap(), &Name::new("u1").unwrap());
    let event = Event { topic: user, ..event(EventKind::Custom) };
    line(out, "event to a user", Sealed::seal(&event).unwrap().json_frame());
    let sealed = Sealed::seal(&self::event(EventKind::MessageNew)).unwrap();
    line(out, "archive for a client", &sealed.rkyv_frame().unwrap());
    line(out, "archive for a peer", &sealed.to_wire());
}

fn replies(out: &mut String) {
    let ready = reply::Ready {
        conn: "00000000000000ff",
        channel: "race-42",
        room: "race-42/0/1",
        epoch: 0x00C0_FFEE,
        seq: 1_201,
        recovered: None,
        ping_interval_s: 60,
        viewers: 9,
    };
    line(out, "ready", &reply::ready(&ready));
    for recovered in [true, false] {
        let ready = reply::Ready { recovered: Some(recovered), ..ready.clone() };
        line(out, &format!("ready, recovered {recovered}"), &reply::ready(&ready));
    }
    line(out, "ready without channel", &reply::ready_without_channel("00000000000000ff", 60));
    line(out, "subscribed", &reply::subscribed(Some("\"a\""), &ready));
    line(out, "unsubscribed", &reply::unsubscribed(Some("7"), "race-42"));
    line(out, "pong", &reply::pong(None));
    line(out, "pong with id", &reply::pong(Some("7")));
    line(out, "health.check", &reply::health_check(1_796_050_000_123));
    line(out, "error", &reply::error(Some("7"), "bad_field", "channel \"a b\""));
    let id = Ulid::new(1_796_050_000_123, 5);
    line(out, "ack", &reply::ack(Some("7"), id, 1_201, 0x00C0_FFEE, 1_796_050_000_123, Some("c1")));
    line(out, "ack, taken", &reply::ack_taken(Some("7")));
    line(out, "draining", &reply::draining(5_000));
    let lost = [(EventKind::MessageNew, 3), (EventKind::TypingStart, 1)];
    line(out, "gap", &reply::gap("race-42", 7, 9, &lost));
    line(out, "gap, nothing stored", &reply::gap("race-42", 0, 0, &lost[1..]));
}

fn closes(out: &mut String) {
    for closing in [
        Closing::Normal,
        Closing::Protocol("a client's frame is not masked"),
        Closing::NotUtf8,
        Closing::Policy("too many fragments"),
        Closing::TooBig,
        Closing::Draining { retry_after_ms: 5_000 },
        Closing::BadInput,
        Closing::TokenExpired,
        Closing::Revoked,
        Closing::Silent,
        Closing::OverRate,
        Closing::TooSlow,
        Closing::Overloaded("too many unfinished messages"),
    ] {
        line(out, &format!("close {}", closing.name()), &closing.frame());
    }
}

fn heads(out: &mut String) {
    line(out, "101", &switching_protocols("s3pPLMBiTxaQ9kYGzzhZRbK+xOo=", None));
    for dialect in [Dialect::Json, Dialect::Rkyv] {
        let name = format!("101 {}", dialect.name());
        line(out, &name, &switching_protocols("s3pPLMBiTxaQ9kYGzzhZRbK+xOo=", Some(dialect)));
    }
    line(out, "refusal", &Problem::new(404, "unknown_app", "no app \"x\" on this node").response());
    let again = Problem::new(503, "draining", "this node is going away").retry_after(5);
    line(out, "refusal, to be tried again", &again.response());
    let crowd = Problem::new(409, "too_many_watch", "501 connections watch");
    line(out, "refusal with a number", &crowd.body_with(&[("connections", 501)]));
    let version = Problem::new(426, "websocket_version", "this node speaks WebSocket version 13");
    line(out, "refusal with a field", &version.with_header("sec-websocket-version", "13").response());
}

#[test]
fn clients_see_these_bytes_and_no_others() {
    let mut now = String::new();
    events(&mut now);
    replies(&mut now);
    closes(&mut now);
    heads(&mut now);
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/wire/golden.txt");
    if std::env::var("RINGCAST_GOLDEN").is_ok_and(|value| value == "write") {
        std::fs::write(&path, &now).unwrap();
    }
    let golden = std::fs::read_to_string(&path).unwrap_or_default();
    for (was, is) in golden.lines().zip(now.lines()) {
        assert_eq!(was, is, "if this change is meant, run again with RINGCAST_GOLDEN=write");
    }
    assert_eq!(golden.lines().count(), now.lines().count(), "if this is meant, run again with RINGCAST_GOLDEN=write");
}
