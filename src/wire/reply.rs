//! The frames that one client gets and no other: ready, ack, error, pong, gap and the like. JSON text in every dialect.

use super::event::EventKind;
use super::frame::{HEADER_BYTES_MAX, Opcode, put_header};
use super::json::{put_number, put_string};
use super::position::show_epoch;
use crate::base::Ulid;

/// Writes one JSON object, member by member.
struct Object(Vec<u8>);

impl Object {
    fn new(kind: EventKind) -> Self {
        let mut out = Vec::with_capacity(160);
        out.extend_from_slice(b"{\"type\":");
        put_string(&mut out, kind.row().name);
        Self(out)
    }

    fn name(&mut self, name: &str) {
        self.0.extend_from_slice(b",\"");
        self.0.extend_from_slice(name.as_bytes());
        self.0.extend_from_slice(b"\":");
    }

    fn text(mut self, name: &str, text: &str) -> Self {
        self.name(name);
        put_string(&mut self.0, text);
        self
    }

    fn number(mut self, name: &str, number: u64) -> Self {
        self.name(name);
        put_number(&mut self.0, number);
        self
    }

    fn json(mut self, name: &str, json: &str) -> Self {
        self.name(name);
        self.0.extend_from_slice(json.as_bytes());
        self
    }

    /// Echoes a command's id, if it had one.
    fn id(self, id: Option<&str>) -> Self {
        match id {
            Some(json) => self.json("id", json),
            None => self,
        }
    }

    fn frame(mut self) -> Vec<u8> {
        self.0.push(b'}');
        let mut frame = Vec::with_capacity(HEADER_BYTES_MAX + self.0.len());
        put_header(&mut frame, Opcode::Text, self.0.len());
        frame.extend_from_slice(&self.0);
        frame
    }
}

/// What a connection is told when its place in a channel is certain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ready<'a> {
    /// Opaque id of the connection.
    pub conn: &'a str,
    /// The channel, for `subscribed`.
    pub channel: &'a str,
    /// `{channel}/{shard}/{n}`; empty without a channel.
    pub room: &'a str,
    /// The channel's numbering.
    pub epoch: u64,
    /// The head of the channel: the last stored seq.
    pub seq: u64,
    /// Whether the position asked for is honoured; `None` when nothing was asked.
    pub recovered: Option<bool>,
    /// After so much silence the node pings, in seconds.
    pub ping_interval_s: u32,
    /// Connections in the channel, as far as is known.
    pub viewers: u64,
}

fn recovered_json(recovered: Option<bool>) -> &'static str {
    match recovered {
        None => "null",
        Some(true) => "true",
        Some(false) => "false",
    }
}

/// `connection.ready` of a connection that watches a channel.
#[must_use]
pub fn ready(r: &Ready<'_>) -> Vec<u8> {
    Object::new(EventKind::ConnectionReady)
        .text("conn", r.conn)
        .text("room", r.room)
        .text("epoch", &show_epoch(r.epoch))
        .number("seq", r.seq)
        .json("recovered", recovered_json(r.recovered))
        .number("ping_interval_s", u64::from(r.ping_interval_s))
        .number("viewers", r.viewers)
        .frame()
}

/// `connection.ready` of a connection that has no channel yet.
#[must_use]
pub fn ready_without_channel(conn: &str, ping_interval_s: u32) -> Vec<u8> {
    Object::new(EventKind::ConnectionReady)
        .text("conn", conn)
        .json("room", "null")
        .json("epoch", "null")
        .json("seq", "null")
        .json("recovered", "null")
        .number("ping_interval_s", u64::from(ping_interval_s))
        .json("viewers", "null")
        .frame()
}

/// `subscribed`.
#[must_use]
pub fn subscribed(id: Option<&str>, r: &Ready<'_>) -> Vec<u8> {
    Object::new(EventKind::Subscribed)
        .id(id)
        .text("conn", r.conn)
        .text("channel", r.channel)
        .text("room", r.room)
        .text("epoch", &show_epoch(r.epoch))
        .number("seq", r.seq)
        .json("recovered", recovered_json(r.recovered))
        .number("ping_interval_s", u64::from(r.ping_interval_s))
        .number("viewers", r.viewers)
        .frame()
}

/// `unsubscribed`.
#[must_use]
pub fn unsubscribed(id: Option<&str>, channel: &str) -> Vec<u8> {
    Object::new(EventKind::Unsubscribed).id(id).text("channel", channel).frame()
}

/// `pong`, the answer to the command `ping`.
#[must_use]
pub fn pong(id: Option<&str>) -> Vec<u8> {
    Object::new(EventKind::Pong).id(id).frame()
}

/// `health.check`.
#[must_use]
pub fn health_check(ts_ms: u64) -> Vec<u8> {
    Object::new(EventKind::HealthCheck).number("ts", ts_ms).frame()
}

/// `error`: what was wrong with a command.
#[must_use]
pub fn error(id: Option<&str>, code: &str, message: &str) -> Vec<u8> {
    Object::new(EventKind::Error).id(id).text("code", code).text("message", message).frame()
}

/// `ack`: the message is durable.
#[must_use]
pub fn ack(
    id: Option<&str>,
    message: Ulid,
    seq: u64,
    epoch: u64,
    created_at_ms: u64,
    client_id: Option<&str>,
) -> Vec<u8> {
    let object = Object::new(EventKind::Ack)
        .id(id)
        .text("message", &message.to_string())
        .number("seq", seq)
        .text("epoch", &show_epoch(epoch))
        .number("created_at", created_at_ms);
    match client_id {
        Some(client_id) => object.text("client_id", client_id).frame(),
        None => object.frame(),
    }
}

/// `ack` of an event that is not stored: it was taken.
#[must_use]
pub fn ack_taken(id: Option<&str>) -> Vec<u8> {
    Object::new(EventKind::Ack).id(id).frame()
}

/// `authenticated`: the token holds, until then in Unix milliseconds.
#[must_use]
pub fn authenticated(id: Option<&str>, user: &str, expires_at_ms: u64) -> Vec<u8> {
    Object::new(EventKind::Authenticated).id(id).text("user", user).number("expires_at", expires_at_ms).frame()
}

/// `token.expiring`: the token ends then, in Unix milliseconds.
#[must_use]
pub fn token_expiring(expires_at_ms: u64) -> Vec<u8> {
    Object::new(EventKind::TokenExpiring).number("expires_at", expires_at_ms).frame()
}

/// `history`: `body` is the members of a page as the HTTP call answers it, without the braces.
#[must_use]
pub fn history(id: Option<&str>, channel: &str, body: &str) -> Vec<u8> {
    let mut object = Object::new(EventKind::History).id(id).text("channel", channel);
    object.0.push(b',');
    object.0.extend_from_slice(body.as_bytes());
    object.frame()
}

/// `draining`: the node goes away; come back after so many milliseconds.
#[must_use]
pub fn draining(retry_after_ms: u32) -> Vec<u8> {
    Object::new(EventKind::Draining).number("retry_after_ms", u64::from(retry_after_ms)).frame()
}

/// `gap`: what was lost on this connection, in its place. Without stored events among the lost, both seqs are `null`.
#[must_use]
pub fn gap(channel: &str, from_seq: u64, to_seq: u64, dropped: &[(EventKind, u32)]) -> Vec<u8> {
    let mut object = Object::new(EventKind::Gap).text("channel", channel);
    object = if from_seq == 0 {
        object.json("from_seq", "null").json("to_seq", "null")
    } else {
        object.number("from_seq", from_seq).number("to_seq", to_seq)
    };
    object.name("dropped");
    for (i, (kind, count)) in dropped.iter().enumerate() {
        object.0.push(if i == 0 { b'{' } else { b',' });
        put_string(&mut object.0, kind.row().name);
        object.0.push(b':');
        put_number(&mut object.0, u64::from(*count));
    }
    if dropped.is_empty() {
        object.0.push(b'{');
    }
    object.0.push(b'}');
    object.frame()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn json(frame: &[u8]) -> serde_json::Value {
        let at = if frame[1] == 126 { 4 } else { 2 };
        serde_json::from_slice(&frame[at..]).unwrap()
    }

    #[test]
    fn replies_are_whole_json() {
        let r = Ready {
            conn: "c",
            channel: "race",
            room: "race/0/1",
            epoch: 255,
            seq: 3,
            recovered: Some(true),
            ping_interval_s: 60,
            viewers: 9,
        };
        assert_eq!(json(&ready(&r))["epoch"], "00000000000000ff");
        assert_eq!(json(&subscribed(Some("\"x\""), &r))["id"], "x");
        assert_eq!(json(&pong(Some("7")))["id"], 7);
        assert_eq!(json(&error(None, "bad", "a \"b\""))["message"], "a \"b\"");
        let told = json(&gap("race", 4, 9, &[(EventKind::MessageNew, 6), (EventKind::TypingStart, 1)]));
        assert_eq!((&told["to_seq"], &told["dropped"]["message.new"]), (&9.into(), &6.into()));
        assert!(json(&gap("race", 0, 0, &[]))["from_seq"].is_null());
        assert_eq!(json(&ack(None, Ulid(1), 1, 2, 3, Some("q")))["client_id"], "q");
    }
}
