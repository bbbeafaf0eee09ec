//! The pace: which post is due when, for which channel, and its bytes.
//!
//! The number of a post flows in, its moment and its request flow out; what is always true is that both follow from the
//! number alone, so a post that is late is known to be.

use std::io::Write;
use std::net::SocketAddr;
use std::sync::Arc;

use super::foreign::{Foreign, Post};
use super::plan::channel_name;
use super::probe::Probe;

/// What a post is.
#[derive(Clone, Debug)]
pub(super) enum Say {
    /// A message, which is stored.
    Message,
    /// A custom event, which is not.
    Custom,
    /// That somebody began to type; one token a typist, who take turns.
    Typing(Arc<[String]>),
}

impl Say {
    /// Whether the node keeps it.
    pub(super) fn is_stored(&self) -> bool {
        matches!(self, Self::Message)
    }
}

/// What is posted, where and how fast.
#[derive(Clone, Debug)]
pub(super) struct Pace {
    /// The node.
    pub(super) addr: SocketAddr,
    /// What the Host header says.
    pub(super) host: String,
    /// The app.
    pub(super) app: String,
    /// The server key.
    pub(super) key: String,
    /// The first channel that is posted to.
    pub(super) first_channel: u32,
    /// Channels, served in turn.
    pub(super) channels: u32,
    /// Posts a second over all channels.
    pub(super) rate: f64,
    /// Posts that are due at the same moment.
    pub(super) burst: u64,
    /// How many there are.
    pub(super) posts: u64,
    /// Bytes of text.
    pub(super) payload: usize,
    /// What is said.
    pub(super) say: Say,
    /// The run's mark.
    pub(super) run: u32,
    /// A server that is not ringcast.
    pub(super) foreign: Option<Foreign>,
    /// When the first is due.
    pub(super) begin_ns: u64,
    /// How long after the last was due a post may still leave, and an answer still come.
    pub(super) patience_ns: u64,
    /// Connections.
    pub(super) connections: usize,
}

impl Pace {
    /// When the post `number` is due.
    pub(super) fn due_ns(&self, number: u64) -> u64 {
        let first = number / self.burst * self.burst;
        self.begin_ns + (first as f64 * 1e9 / self.rate) as u64
    }

    /// Which channel it goes to.
    pub(super) fn channel(&self, number: u64) -> u32 {
        self.first_channel + (number % u64::from(self.channels)) as u32
    }

    /// The status of an answer that acknowledges.
    pub(super) fn right_status(&self) -> u16 {
        match &self.foreign {
            Some(Foreign { post: Post::Http { status, .. }, .. }) => *status,
            _ if self.say.is_stored() => 201,
            _ => 202,
        }
    }

    /// Its number within that channel, from 1.
    pub(super) fn in_channel(&self, number: u64) -> u64 {
        number / u64::from(self.channels) + 1
    }
}

/// Appends the request of the post `number`.
pub(super) fn put_request(out: &mut Vec<u8>, pace: &Pace, number: u64) {
    let probe = Probe { run: pace.run, number, in_channel: pace.in_channel(number), due_ns: pace.due_ns(number) };
    if let Some(foreign) = &pace.foreign {
        let mut text = Vec::with_capacity(pace.payload + 64);
        probe.put(&mut text, pace.payload);
        out.clear();
        foreign.put_post(out, pace.addr, &channel_name(pace.channel(number)), &text);
        return;
    }
    let (call, credential, open, close): (_, _, &[u8], &[u8]) = match &pace.say {
        Say::Message => ("messages", &pace.key, br#"{"user":"load","text":""#, br#""}"#),
        Say::Custom => ("events", &pace.key, br#"{"type":"custom.load","data":{"probe":""#, br#""}}"#),
        Say::Typing(typists) => {
            ("events", &typists[number as usize % typists.len()], br#"{"type":"typing.start"}"#, b"")
        }
    };
    let mut text = Vec::with_capacity(pace.payload + 64);
    if !matches!(pace.say, Say::Typing(_)) {
        probe.put(&mut text, pace.payload);
    }
    let length = open.len() + text.len() + close.len();
    let channel = channel_name(pace.channel(number));
    out.clear();
    // A Vec takes every byte.
    let _ = write!(
        out,
        "POST /v1/{}/channels/{channel}/{call} HTTP/1.1\r\nHost: {}\r\nAuthorization: Bearer {}\r\n\
         Content-Type: application/json\r\nContent-Length: {length}\r\n\r\n",
        pace.app, pace.host, credential
    );
    out.extend_from_slice(open);
    out.extend_from_slice(&text);
    out.extend_from_slice(close);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::probe;

    fn pace() -> Pace {
        Pace {
            addr: "127.0.0.1:1".parse().unwrap(),
            host: "h".into(),
            app: "demo".into(),
            key: "rk_x".into(),
            first_channel: 0,
            channels: 3,
            rate: 100.0,
            burst: 1,
            posts: 10,
            payload: 100,
            say: Say::Message,
            run: 9,
            foreign: None,
            begin_ns: 1_000,
            patience_ns: 0,
            connections: 2,
        }
    }

    #[test]
    fn posts_are_due_at_the_rate_and_bursts_together() {
        let single = pace();
        assert_eq!([0, 1, 2].map(|n| single.due_ns(n)), [1_000, 10_001_000, 20_001_000]);
        let burst = Pace { burst: 5, ..pace() };
        assert_eq!([0, 4, 5, 9, 10].map(|n| burst.due_ns(n)), [1_000, 1_000, 50_001_000, 50_001_000, 100_001_000]);
    }

    #[test]
    fn a_request_says_its_length_and_carries_json_of_the_payload() {
        for say in [Say::Message, Say::Custom] {
            let stored = say.is_stored();
            let mut out = Vec::new();
            put_request(&mut out, &Pace { say, ..pace() }, 7);
            let text = String::from_utf8(out).unwrap();
            let (head, body) = text.split_once("\r\n\r\n").unwrap();
            assert!(head.contains(&format!("Content-Length: {}", body.len())));
            assert!(head.starts_with("POST /v1/demo/channels/load-1/"));
            let body: serde_json::Value = serde_json::from_str(body).unwrap();
            let carried = if stored { &body["text"] } else { &body["data"]["probe"] };
            let carried = carried.as_str().unwrap();
            assert_eq!(carried.len(), 100);
            let probe = Probe::read(&carried.as_bytes()[probe::MARK.len()..]).unwrap();
            assert_eq!((probe.number, probe.in_channel, probe.run), (7, 3, 9));
        }
    }

    #[test]
    fn typists_take_turns_on_their_own_channels() {
        let typists = ["tok-0".to_owned(), "tok-1".to_owned()];
        let pace = Pace { say: Say::Typing(typists.into()), first_channel: 5, ..pace() };
        let mut out = Vec::new();
        put_request(&mut out, &pace, 4);
        let text = String::from_utf8(out).unwrap();
        assert!(text.starts_with("POST /v1/demo/channels/load-6/events"), "{text}");
        assert!(text.contains("Authorization: Bearer tok-0\r\n"), "{text}");
        assert!(text.ends_with("\r\n\r\n{\"type\":\"typing.start\"}"), "{text}");
        assert_eq!(pace.right_status(), 202);
    }
}
