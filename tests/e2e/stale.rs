//! Events that have a time of their own: who reads later than that does not get them.

use std::time::Duration;

use crate::client::Client;
use crate::node::Node;

const MESSAGE_BYTES: usize = 14_000;
/// A slow viewer is behind when so many wait for it; its queue takes some more.
const BEHIND: i64 = 4;
/// The kernel takes some before it says no, and not always as many.
const MESSAGES_MAX: usize = 400;

#[test]
fn what_is_too_old_when_its_turn_comes_is_dropped_and_all_else_arrives() {
    let node = Node::configured("[shard]\nreport_ms = 200\n[presence]\ntyping_ms = 60000\n", &["--shards", "1"]);
    let path = "/v1/demo/channels/old";
    let mut slow = Client::open_narrow(node.listen, &format!("{path}/ws"), 4_096);
    slow.ready();
    let mut healthy = node.watch("old");
    healthy.ready();
    let mut messages = 0;
    loop {
        for _ in 0..BEHIND {
            node.post_text("old", &"x".repeat(MESSAGE_BYTES));
            assert_eq!(healthy.next_of("message.")["type"], "message.new");
            messages += 1;
        }
        let metrics = node.await_metrics("the last one is counted", |metrics| {
            metrics.sum("ringcast_deliveries_total", "class=\"ordered\",outcome=\"published\"") == 2 * messages as i64
        });
        if metrics.sum("ringcast_deliveries_queued", "class=\"ordered\"") >= BEHIND {
            break;
        }
        assert!(messages < MESSAGES_MAX, "the kernel takes everything");
    }
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
    assert_eq!(kinds.len(), messages + 1, "{kinds:?}");
    assert!(kinds[..messages].iter().all(|kind| kind == "message.new"), "{kinds:?}");
    let metrics = node.await_metrics("one was too old", |metrics| {
        metrics.sum("ringcast_deliveries_total", "class=\"ordered\",outcome=\"stale\"") == 1
            && metrics.sum("ringcast_deliveries_queued", "") == 0
    });
    metrics.assert_balanced();
}
