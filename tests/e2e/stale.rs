//! Events that have a time of their own: who reads later than that does not get them.

use std::time::Duration;

use crate::client::Client;
use crate::node::Node;

/// Together more than the kernel takes for a reader with a small window, and less than a queue holds.
const MESSAGES: usize = 24;
const MESSAGE_BYTES: usize = 14_000;

#[test]
fn what_is_too_old_when_its_turn_comes_is_dropped_and_all_else_arrives() {
    let node = Node::configured("[shard]\nreport_ms = 200\n[presence]\ntyping_ms = 60000\n", &["--shards", "1"]);
    let path = "/v1/demo/channels/old";
    let mut slow = Client::open_narrow(node.listen, &format!("{path}/ws"), 4_096);
    slow.ready();
    let mut healthy = node.watch("old");
    healthy.ready();
    for _ in 0..MESSAGES {
        node.post_text("old", &"x".repeat(MESSAGE_BYTES));
        assert_eq!(healthy.next_of("message.")["type"], "message.new");
    }
    node.await_metrics("messages wait for the slow one", |metrics| {
        metrics.sum("ringcast_deliveries_queued", "class=\"ordered\"") > 0
    });
    let ann = node.token("ann");
    let say = |body: &str| assert_eq!(node.http().post(&format!("{path}/events"), &ann, body).status, 202);
    say(r#"{"type":"typing.start"}"#);
    assert_eq!(healthy.next_of("typing.")["user"]["id"], "ann");
    // A typing event is of interest for 5 s; that they pass is all there is to wait for.
    std::thread::sleep(Duration::from_millis(5_500));
    say(r#"{"type":"custom.fresh"}"#);
    assert_eq!(healthy.next_of("custom.")["type"], "custom.fresh");
    let mut kinds = Vec::new();
    while kinds.last().is_none_or(|kind| kind != "custom.fresh") {
        kinds.push(slow.event()["type"].as_str().unwrap().to_owned());
    }
    assert_eq!(kinds.len(), MESSAGES + 1, "{kinds:?}");
    assert!(kinds[..MESSAGES].iter().all(|kind| kind == "message.new"), "{kinds:?}");
    let metrics = node.await_metrics("one was too old", |metrics| {
        metrics.sum("ringcast_deliveries_total", "class=\"ordered\",outcome=\"stale\"") == 1
            && metrics.sum("ringcast_deliveries_queued", "") == 0
    });
    metrics.assert_balanced();
}
