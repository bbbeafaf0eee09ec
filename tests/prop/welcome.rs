//! What a connection is told first.
//!
//! A connection whose first channel the store has not told yet, and what it asks meanwhile, flow in; what its socket gets
//! flows out. Always true: nothing but the answer to the upgrade stands before `connection.ready`, and nothing of a channel
//! before the answer that lets it in.

use crate::stage::{Stage, empty_page};
use ringcast::base::ClientId;
use ringcast::shard::{Action, ShardOptions};
use ringcast::wire::event::EventKind;

/// A connection to channel "late", of which the store has said nothing yet.
struct Early {
    stage: Stage,
    client: ClientId,
    page: u64,
    bytes: Vec<u8>,
}

impl Early {
    fn new() -> Self {
        let mut stage = Stage::new(ShardOptions::default());
        // Channel "race" is known here before.
        stage.join(&mut |_| {});
        stage.settle();
        stage.withheld = Some(Vec::new());
        let mut client = None;
        stage.join_channel("late", &mut |action| {
            if let Action::Install { client: id, .. } = action {
                client = Some(*id);
            }
        });
        let page = stage.withheld.as_ref().expect("pages are withheld")[0];
        let mut early = Self { stage, client: client.expect("it is in"), page, bytes: Vec::new() };
        early.submit();
        assert!(early.bytes.starts_with(b"HTTP/1.1 101 ") && early.bytes.ends_with(b"\r\n\r\n"));
        early.bytes.clear();
        early
    }

    fn submit(&mut self) {
        let (client, bytes) = (self.client, &mut self.bytes);
        while self.stage.submit(&mut |_| {}, |id, send| {
            if id == client {
                bytes.extend_from_slice(send);
            }
            send.len()
        }) {}
    }

    fn say(&mut self, command: &str) {
        let mut frame = vec![0x81, 0x80 | u8::try_from(command.len()).expect("a short command"), 0, 0, 0, 0];
        frame.extend_from_slice(command.as_bytes());
        self.stage.shard.on_bytes(self.stage.now, self.client, &frame);
        self.stage.act(&mut |_| {});
        self.submit();
    }

    fn publish(&mut self) {
        let event = self.stage.event(EventKind::Custom, 0, "");
        self.stage.shard.on_sealed(self.stage.now, &event);
        self.submit();
    }

    /// The types of the frames that came, in order.
    fn types(&self) -> Vec<String> {
        let text = String::from_utf8_lossy(&self.bytes);
        let types = text.split("{\"type\":\"").skip(1);
        types.map(|rest| rest.split('"').next().expect("a type").to_owned()).collect()
    }
}

#[test]
fn ready_comes_before_the_answer_to_a_subscribe_that_was_faster() {
    let mut early = Early::new();
    early.say(r#"{"type":"subscribe","channel":"race","id":7}"#);
    early.publish();
    early.say(r#"{"type":"ping","id":8}"#);
    assert_eq!(early.bytes, b"", "nothing stands before ready");
    early.stage.shard.on_letter(early.stage.now, empty_page(early.page));
    early.submit();
    let mut types = early.types();
    assert_eq!(types.remove(0), "connection.ready");
    types.sort_unstable();
    assert_eq!(types, ["pong", "subscribed"]);
    // It is in both now, and was owed nothing of what was said before.
    early.publish();
    assert_eq!(early.types()[3..], ["custom.*"]);
    assert_eq!(early.stage.shard.queued(), [0; 3]);
}

#[test]
fn who_leaves_before_it_is_in_gets_ready_and_then_the_other_channel() {
    let mut early = Early::new();
    early.say(r#"{"type":"subscribe","channel":"race","id":7}"#);
    early.say(r#"{"type":"unsubscribe","channel":"late","id":8}"#);
    assert_eq!(early.types(), ["connection.ready", "subscribed", "unsubscribed"]);
    early.publish();
    assert_eq!(early.types()[3..], ["custom.*"]);
    // The page that was asked for finds nobody.
    early.stage.shard.on_letter(early.stage.now, empty_page(early.page));
    early.submit();
    assert_eq!(early.types().len(), 4);
}

#[test]
fn who_leaves_a_channel_that_waits_for_ready_is_told_and_is_counted_nowhere() {
    let mut early = Early::new();
    early.say(r#"{"type":"subscribe","channel":"race","id":7}"#);
    early.say(r#"{"type":"unsubscribe","channel":"race","id":8}"#);
    early.stage.shard.on_letter(early.stage.now, empty_page(early.page));
    early.submit();
    assert_eq!(early.types(), ["connection.ready", "error", "unsubscribed"]);
    early.publish();
    assert_eq!(early.types().len(), 3);
    assert_eq!(early.stage.shard.queued(), [0; 3]);
}
