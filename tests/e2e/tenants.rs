//! Apps beside one another: the rush of one stays its own, and who asks the wrong cell is told the right one.

use serde_json::json;

use crate::client::{Answer, Client, PATIENCE, handshake};
use crate::node::{LOOK, Node, run_to_end, temp_dir};

const KEY: &str = "rk_of-all-of-them";

/// A node with an app `small` that has limits, and an app `large` that has none.
fn node(limits: &str) -> Node {
    let dir = temp_dir();
    let file = dir.path().join("ringcast.toml");
    let hash = ringcast::admission::auth::hash_server_key(KEY).map(|byte| format!("{byte:02x}")).concat();
    let app =
        |name: &str| format!("[[app]]\nname = \"{name}\"\nserver_key_sha256 = \"{hash}\"\nanonymous_read = true\n");
    let cell = "[[other_cell]]\naddress = \"https://b.example\"\napps = [\"moved\"]\n";
    std::fs::write(&file, format!("{cell}{}{limits}\n{}{}", app("small"), app("large"), app("moved"))).unwrap();
    Node::start_keeping(dir, &["--shards", "2", "--config", file.to_str().unwrap()])
}

fn join(node: &Node, app: &str, channel: &str) -> Result<Client, Answer> {
    let mut client = Client::raw(node.listen);
    client.send(handshake(&format!("/v1/{app}/channels/{channel}/ws"), "").as_bytes());
    let head = client.head().expect("an answer");
    if head.starts_with("HTTP/1.1 101 ") {
        client.ready();
        return Ok(client);
    }
    let body = String::from_utf8(client.rest_until_end()).unwrap();
    Err(Answer { status: head[9..12].parse().unwrap(), head, body })
}

fn post(node: &Node, app: &str, channel: &str) -> Answer {
    node.http().post(&format!("/v1/{app}/channels/{channel}/messages"), KEY, r#"{"text":"x"}"#)
}

fn assert_refused(answer: &Answer, code: &str) {
    answer.assert_problem(429, code);
    assert!(answer.field("retry-after").is_some_and(|seconds| seconds.parse::<u32>().is_ok_and(|s| s > 0)));
}

#[test]
fn connections_of_an_app_are_counted_and_a_place_that_is_left_is_free_again() {
    let node = node("connections_max = 3");
    let mut held: Vec<Client> = (0..3).map(|n| join(&node, "small", &format!("c{n}")).expect("a place")).collect();
    for _ in 0..3 {
        assert_refused(&join(&node, "small", "c0").err().expect("no place"), "app_connections_full");
    }
    // Streams are connections, too; and another app has its own places.
    let mut stream = Client::raw(node.listen);
    stream.send(b"GET /v1/small/channels/c0/sse HTTP/1.1\r\nHost: h\r\n\r\n");
    stream.refusal().assert_problem(429, "app_connections_full");
    let _others: Vec<Client> = (0..10).map(|_| join(&node, "large", "c0").expect("a place")).collect();
    assert_eq!(post(&node, "small", "c0").status, 201, "posts need no place");
    let metrics = node.metrics();
    assert_eq!(metrics.sum("ringcast_used", "what=\"app_connections\",app=\"small\""), 3);
    assert_eq!(metrics.sum("ringcast_limit", "what=\"app_connections\",app=\"small\""), 3);
    assert!(!metrics.0.contains("app=\"large\""), "what has no limit has no gauge");
    held.pop().expect("a client").close();
    let deadline = std::time::Instant::now() + PATIENCE;
    while let Err(answer) = join(&node, "small", "c0").map(|client| held.push(client)) {
        assert_refused(&answer, "app_connections_full");
        assert!(std::time::Instant::now() < deadline);
        std::thread::sleep(LOOK);
    }
    assert_refused(&join(&node, "small", "c0").err().expect("no place"), "app_connections_full");
}

#[test]
fn channels_of_an_app_are_counted_while_somebody_watches_them() {
    let node = node("channels_max = 2");
    let mut one = join(&node, "small", "a").expect("a place");
    let _two = join(&node, "small", "b").expect("a place");
    let _again = join(&node, "small", "b").expect("a channel that is watched already");
    assert_refused(&join(&node, "small", "c").err().expect("no place"), "app_channels_full");
    one.say(&json!({"type": "subscribe", "id": 1, "channel": "c"}));
    let error = one.event();
    assert_eq!(
        (&error["type"], &error["code"], &error["id"]),
        (&json!("error"), &json!("app_channels_full"), &json!(1))
    );
    one.say(&json!({"type": "subscribe", "id": 2, "channel": "b"}));
    assert_eq!(one.event()["type"], "subscribed");
    for channel in ["a", "b", "c", "d"] {
        join(&node, "large", channel).expect("a place");
    }
    // Who was refused its channel holds no place of any other limit: it may ask as often as it likes.
    for _ in 0..20 {
        assert_refused(&join(&node, "small", "c").err().expect("no place"), "app_channels_full");
    }
    node.assert_alive();
}

#[test]
fn messages_of_an_app_are_counted_in_each_second() {
    let node = node("messages_per_s = 5");
    let mut refused = 0;
    for _ in 0..12 {
        let answer = post(&node, "small", "a");
        if answer.status != 201 {
            assert_refused(&answer, "app_over_rate");
            assert_eq!(answer.field("retry-after"), Some("1"));
            refused += 1;
        }
        assert_eq!(post(&node, "large", "a").status, 201);
    }
    // On a slow machine the twelve may take more than a second, and each second lets five pass.
    let head = node.http().get("/v1/small/channels/a/messages").json()["head"].as_u64().unwrap();
    assert_eq!(head, 12 - refused);
    let metrics = node.metrics();
    assert_eq!(metrics.sum("ringcast_limit", "what=\"app_messages_per_s\""), 5);
}

#[test]
fn bytes_of_an_app_that_wait_for_the_disk_are_bounded_and_come_back() {
    // A lone message waits a while for company, so that the second finds it waiting.
    let node = node("queued_bytes_max = 100\n[store]\nbatch_wait_max_us = 100_000");
    let body = json!({"text": "x".repeat(60)}).to_string();
    let post_at_once = |app: &str| -> Vec<Answer> {
        let path = format!("/v1/{app}/channels/a/messages");
        std::thread::scope(|scope| {
            let posts: Vec<_> = (0..8).map(|_| scope.spawn(|| node.http().post(&path, KEY, &body))).collect();
            posts.into_iter().map(|post| post.join().unwrap()).collect()
        })
    };
    let (taken, refused): (Vec<_>, Vec<_>) = post_at_once("small").into_iter().partition(|answer| answer.status == 201);
    assert!(!taken.is_empty() && !refused.is_empty(), "{} were taken", taken.len());
    for answer in &refused {
        answer.assert_problem(503, "app_queue_full");
        assert_eq!(answer.field("retry-after"), Some("1"));
    }
    assert!(post_at_once("large").iter().all(|answer| answer.status == 201), "another app does not feel it");
    let head = node.http().get("/v1/small/channels/a/messages").json()["head"].clone();
    assert_eq!(head, json!(taken.len()), "what was refused is not there");
    let metrics = node.metrics();
    assert_eq!(metrics.sum("ringcast_limit", "what=\"app_queued_bytes\""), 100);
    assert_eq!(metrics.sum("ringcast_used", "what=\"app_queued_bytes\""), 0, "every byte came back");
    // One alone always may, however long it is.
    let long = json!({"text": "x".repeat(5_000)}).to_string();
    assert_eq!(node.http().post("/v1/small/channels/a/messages", KEY, &long).status, 201);
}

#[test]
fn an_app_of_another_cell_is_answered_421_with_its_address() {
    let node = node("");
    let assert_moved = |answer: &Answer| {
        answer.assert_problem(421, "wrong_cell");
        assert_eq!(answer.json()["cell"], "https://b.example");
        assert_eq!(answer.field("location"), Some("https://b.example/v1/moved"));
    };
    assert_moved(&join(&node, "moved", "a").err().expect("a refusal"));
    assert_moved(&post(&node, "moved", "a"));
    assert_moved(&node.http().get("/v1/moved/channels/a/messages"));
    let mut stream = Client::raw(node.listen);
    stream.send(b"GET /v1/moved/channels/a/sse HTTP/1.1\r\nHost: h\r\n\r\n");
    assert_moved(&stream.refusal());
    post(&node, "nobody", "a").assert_problem(404, "unknown_app");
    assert_eq!(post(&node, "small", "a").status, 201);
}

#[test]
fn a_configuration_that_puts_an_app_on_two_cells_or_none_starts_nothing() {
    let dir = temp_dir();
    let file = dir.path().join("x.toml");
    let app = format!("[[app]]\nname = \"shop\"\nserver_key_sha256 = \"{}\"\n", "0".repeat(64));
    for (cell, why) in [
        ("[cell]\napps = [\"other\"]\n", "there is no [[app]] of the name other"),
        (
            "[cell]\napps = [\"shop\"]\n[[other_cell]]\naddress = \"https://b.example\"\napps = [\"shop\"]\n",
            "app shop is on another cell, too",
        ),
    ] {
        std::fs::write(&file, format!("{cell}{app}")).unwrap();
        let (code, said) = run_to_end(&[crate::node::BINARY, "check-config", file.to_str().unwrap()]);
        assert!(code == Some(1) && said.contains(why), "{said}");
    }
}
