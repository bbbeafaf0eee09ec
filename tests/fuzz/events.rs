//! JSON of clients and hooks, and sealed events of other nodes.

use std::collections::BTreeMap;

use ringcast::base::Name;
use ringcast::wire::command::{self, Command, ID_BYTES_MAX, PostBody};
use ringcast::wire::hook::{HookUrl, Verdict, verdict};
use ringcast::wire::sealed::{ARCHIVE_BYTES_MAX, Sealed, WIRE_HEADER_BYTES};
use ringcast::wire::topic::TopicHasher;

use crate::{Target, run};

const WORDS: &[&str] = &[
    "\"type\":",
    "\"subscribe\"",
    "\"message\"",
    "\"history\"",
    "\"reaction\"",
    "\"event\"",
    "\"channel\":\"race\"",
    "\"since\":",
    "\"epoch\":\"ff\"",
    "\"filter\":\"message.*,custom.goal\"",
    "\"data\":",
    "\"id\":",
    "\\u0000",
    "\\ud800",
    "null",
    "[[[[[[[[",
    "{\"a\":",
    "1e999",
    "01JAAAAAAAAAAAAAAAAAAAAAAA",
    "true",
];

#[test]
fn command() {
    run(&Target { name: "command", words: WORDS, cost: 1 }, |input, _| {
        let text = String::from_utf8_lossy(input);
        match command::parse(&text) {
            Ok(parsed) => {
                // Members that nobody asked for may be what not every reader reads.
                let members: BTreeMap<String, &serde_json::value::RawValue> =
                    serde_json::from_str(&text).expect("a command is JSON");
                let member = |name| serde_json::from_str::<String>(members.get(name)?.get()).ok();
                assert!(parsed.id.is_none_or(|id| id.len() <= ID_BYTES_MAX));
                assert!(parsed.id.is_none_or(|id| !id.starts_with(['{', '['])), "an id is a string or a number");
                let kind = member("type").expect("a type");
                if let Command::Message { body: PostBody { data: Some(data), .. }, .. }
                | Command::Event { data: Some(data), .. } = &parsed.command
                {
                    serde_json::from_str::<serde_json::Value>(data.get()).expect("data that every reader reads");
                }
                let channel = match &parsed.command {
                    Command::Ping | Command::Auth { .. } | Command::Status { .. } => None,
                    Command::Subscribe { channel, .. }
                    | Command::Unsubscribe { channel }
                    | Command::Message { channel, .. }
                    | Command::Typing { channel, .. }
                    | Command::Reaction { channel, .. }
                    | Command::History { channel, .. }
                    | Command::Event { channel, .. } => Some(channel),
                };
                assert_eq!(channel.map(Name::as_str), channel.and(member("channel")).as_deref(), "{kind}");
            }
            Err(error) => {
                assert!(["malformed", "unknown_type", "missing_field", "bad_field"].contains(&error.code));
                assert!(error.id.is_none_or(|id| id.len() <= ID_BYTES_MAX));
            }
        }
    });
}

#[test]
fn hook() {
    let words = &["{\"allow\":true}", "{\"allow\":false,\"reason\":\"", "http://", "[::1]", ":0", "10.0.0.1:80", "#"];
    run(&Target { name: "hook", words, cost: 1 }, |input, rng| {
        match verdict(rng.pick(&[200, 204, 201, 500]), input) {
            Verdict::No(reason) => assert!(reason.len() <= 1_024, "a reason is bounded"),
            Verdict::Yes | Verdict::None => {}
        }
        if let Ok(url) = HookUrl::parse(&String::from_utf8_lossy(input)) {
            assert!(url.address.port() != 0 && url.target.starts_with('/'));
            assert!(url.target.bytes().chain(url.host.bytes()).all(|byte| byte.is_ascii_graphic()), "{url:?}");
        }
    });
}

#[test]
fn sealed() {
    let hasher = TopicHasher::new(7);
    run(
        &Target { name: "sealed", words: &["RCEV", "race", "demo", "custom.goal", "\u{81}"], cost: 2 },
        |input, rng| {
            let mut bytes = input.to_vec();
            // Most of them with a header that fits, so that what lies behind the checksum is reached.
            if bytes.len() > WIRE_HEADER_BYTES && rng.chance(90) {
                let archive = &bytes[WIRE_HEADER_BYTES..];
                let (length, sum) = (archive.len() as u32, crc32fast::hash(archive));
                bytes[..4].copy_from_slice(b"RCEV");
                bytes[4..6].copy_from_slice(&1_u16.to_le_bytes());
                bytes[8..12].copy_from_slice(&length.to_le_bytes());
                bytes[12..16].copy_from_slice(&sum.to_le_bytes());
            }
            let Ok(sealed) = Sealed::from_wire(&bytes, &hasher) else { return };
            assert!(bytes.len() <= ARCHIVE_BYTES_MAX + WIRE_HEADER_BYTES);
            let again = Sealed::from_wire(&sealed.to_wire(), &hasher).expect("what was read can be passed on");
            assert_eq!((again.topic(), again.kind(), again.seq()), (sealed.topic(), sealed.kind(), sealed.seq()));
            assert_eq!(again.json_frame(), sealed.json_frame());
            assert_eq!(sealed.to_event(), again.to_event());
            assert!(!sealed.json_frame().is_empty() && sealed.kind().row().stored == (sealed.seq() != 0));
            let _ = (sealed.rkyv_frame(), format!("{sealed:?}"));
        },
    );
}
