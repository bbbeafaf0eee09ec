//! Limits of the node at their edges: what is refused, with which status or close, and that what is free again is given.

use std::time::{Duration, Instant};

use serde_json::json;

use crate::client::{Answer, CLOSE, Client, PATIENCE, PING, PONG, frame, handshake};
use crate::node::{LOOK, Node, temp_dir};

fn node(config: &str) -> Node {
    let dir = temp_dir();
    let file = dir.path().join("ringcast.toml");
    std::fs::write(&file, config).unwrap();
    Node::start_keeping(dir, &["--shards", "1", "--config", file.to_str().unwrap()])
}

fn refusal(node: &Node, channel: &str) -> Answer {
    let mut client = Client::raw(node.listen);
    client.send(handshake(&format!("/v1/demo/channels/{channel}/ws"), "").as_bytes());
    client.refusal()
}

fn watch(node: &Node, channel: &str) -> Client {
    let mut client = node.watch(channel);
    client.ready();
    client
}

/// Comes in as soon as there is a place, within the patience of all tests.
fn watch_soon(node: &Node, channel: &str, code: &str) -> Client {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let mut client = Client::raw(node.listen);
        client.send(handshake(&format!("/v1/demo/channels/{channel}/ws"), "").as_bytes());
        let head = client.head().expect("an answer");
        if head.starts_with("HTTP/1.1 101 ") {
            client.ready();
            return client;
        }
        let body = String::from_utf8(client.rest_until_end()).unwrap();
        assert!(body.contains(code) && Instant::now() < deadline, "{head}{body}");
        std::thread::sleep(LOOK);
    }
}

#[test]
fn a_core_takes_so_many_connections_and_one_more_when_one_has_left() {
    let node = node("[shard]\nclients_max = 2\nreport_ms = 200\n");
    let (first, _second) = (watch(&node, "a"), watch(&node, "a"));
    let answer = refusal(&node, "a");
    answer.assert_problem(503, "connections_full");
    assert_eq!(answer.field("retry-after"), Some("5"));
    first.close();
    let _third = watch_soon(&node, "a", "connections_full");
    refusal(&node, "a").assert_problem(503, "connections_full");
}

#[test]
fn rooms_are_limited_and_a_channel_without_one_has_no_seat() {
    let node = node("[seating]\nrooms_max = 2\nroom_capacity = 2\n[shard]\nreport_ms = 200\n");
    let mut held = [watch(&node, "a"), watch(&node, "a"), watch(&node, "b"), watch(&node, "b")].map(Some);
    for channel in ["a", "b", "c"] {
        let answer = refusal(&node, channel);
        answer.assert_problem(503, "rooms_full");
        assert!(answer.field("retry-after").is_some());
    }
    let mut client = Client::open(node.listen, "/v1/demo/ws");
    client.ready();
    client.say(&json!({"type": "subscribe", "id": 1, "channel": "c"}));
    assert_eq!(client.event()["code"], "rooms_full");
    held[0].take().expect("a client").close();
    let _again = watch_soon(&node, "a", "rooms_full");
}

#[test]
fn who_is_silent_is_asked_and_then_closed_with_4408_and_who_answers_is_not() {
    let node = node("[liveness]\nping_after_s = 1\nclose_after_s = 3\n");
    let (mut silent, mut alive) = (watch(&node, "a"), watch(&node, "a"));
    let began = Instant::now();
    let mut pings = 0;
    while pings < 3 {
        let heard = alive.next();
        if heard.opcode == PING {
            alive.send(&frame(0x80 | PONG, &heard.payload));
            pings += 1;
        }
    }
    let mut asked = false;
    let close = loop {
        let heard = silent.next();
        asked |= heard.opcode == PING;
        if heard.opcode == CLOSE {
            break heard;
        }
    };
    assert!(asked && began.elapsed() >= Duration::from_secs(2), "it was asked first");
    assert_eq!(close.code(), 4408);
    silent.expect_end();
    assert!(alive.settle().iter().all(|event| event["type"] != "error"));
    let metrics = node.await_metrics("one was silent", |metrics| metrics.sum("ringcast_closed_silent_total", "") == 1);
    metrics.assert_balanced();
}

#[test]
fn a_head_that_does_not_come_in_time_is_408_and_a_body_too() {
    let node = node("[limits]\nhead_timeout_ms = 500\n");
    let mut client = Client::raw(node.listen);
    client.send(b"GET /v1/demo/ws HTTP/1.1\r\nHost: h\r\n");
    client.refusal().assert_problem(408, "head_too_slow");
    let mut client = Client::raw(node.listen);
    client.send(b"POST /v1/demo/channels/a/messages HTTP/1.1\r\nHost: h\r\nContent-Length: 10\r\n\r\n{");
    let head = client.head().expect("an answer");
    assert!(head.starts_with("HTTP/1.1 408 "), "{head}");
}

#[test]
fn queued_posts_are_bounded_and_what_does_not_fit_comes_back_later() {
    let node = node("[store]\nqueued_events_max = 1\nbatch_events_max = 1\ncredits_max = 2\n");
    let statuses: Vec<u16> = std::thread::scope(|scope| {
        let posts: Vec<_> = (0..24)
            .map(|_| {
                scope.spawn(|| {
                    let answer = node.post("a", &json!({"text": "x"}));
                    if answer.status != 201 {
                        answer.assert_problem(503, "busy");
                        assert_eq!(answer.field("retry-after"), Some("1"));
                    }
                    answer.status
                })
            })
            .collect();
        posts.into_iter().map(|post| post.join().unwrap()).collect()
    });
    let taken = statuses.iter().filter(|status| **status == 201).count() as u64;
    assert!(taken >= 1, "{statuses:?}");
    let head = node.http().get("/v1/demo/channels/a/messages").json()["head"].clone();
    assert_eq!(head, json!(taken), "what was acknowledged is there, and nothing else");
    assert_eq!(node.post_text("a", "later"), taken + 1);
}

#[test]
fn pages_of_other_origins_come_in_by_the_app_s_list_only() {
    let hash = ringcast::admission::auth::hash_server_key("rk_x").map(|byte| format!("{byte:02x}")).concat();
    let node = node(&format!(
        "[[app]]\nname = \"shop\"\nserver_key_sha256 = \"{hash}\"\nanonymous_read = true\norigins = [\"https://shop.example\"]\n\
         [[app]]\nname = \"closed\"\nserver_key_sha256 = \"{hash}\"\n"
    ));
    let good = "Origin: https://shop.example\r\n";
    let path = "/v1/shop/channels/a";
    Client::open_with(node.listen, &format!("{path}/ws"), good).ready();
    Client::open(node.listen, &format!("{path}/ws")).ready();
    let answer = node.http().request("GET", &format!("{path}/messages"), good, "");
    assert_eq!((answer.status, answer.field("access-control-allow-origin")), (200, Some("https://shop.example")));
    for origin in ["https://evil.example", "https://shop.example.evil.example", "http://shop.example", "null"] {
        let field = format!("Origin: {origin}\r\n");
        let mut refused = Client::raw(node.listen);
        refused.send(handshake(&format!("{path}/ws"), &field).as_bytes());
        refused.refusal().assert_problem(403, "origin_not_allowed");
        let mut stream = Client::raw(node.listen);
        stream.send(format!("GET {path}/sse HTTP/1.1\r\nHost: h\r\n{field}\r\n").as_bytes());
        stream.refusal().assert_problem(403, "origin_not_allowed");
        let answer = node.http().request("GET", &format!("{path}/messages"), &field, "");
        answer.assert_problem(403, "origin_not_allowed");
        assert_eq!(answer.field("access-control-allow-origin"), None);
    }
    // An app whose readers need a token.
    let mut refused = Client::raw(node.listen);
    refused.send(handshake("/v1/closed/channels/a/ws", "").as_bytes());
    refused.refusal().assert_problem(401, "token_needed");
    for what in ["messages", "viewers"] {
        node.http().get(&format!("/v1/closed/channels/a/{what}")).assert_problem(401, "token_needed");
    }
}
