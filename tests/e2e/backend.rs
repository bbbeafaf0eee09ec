//! What an app's backend may ask for beside posting: alarms, limits of channels, who is connected, and events of every
//! type that is its own.

use jsonwebtoken::{EncodingKey, Header, encode};
use serde_json::{Value, json};

use crate::client::{Answer, Client, handshake};
use crate::node::{Node, fresh, shared, temp_dir, unix_ms, unix_s};

fn call(node: &Node, method: &str, path: &str, credential: &str, body: &str) -> Answer {
    node.http().request(method, &format!("/v1/demo/{path}"), &format!("Authorization: Bearer {credential}\r\n"), body)
}

/// A token with whatever else it shall claim.
fn token_with(node: &Node, user: &str, more: &Value) -> String {
    let mut claims = json!({"sub": user, "exp": unix_s() + 600});
    claims.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    encode(&Header::default(), &claims, &EncodingKey::from_secret(node.secret().as_bytes()).unwrap()).unwrap()
}

#[test]
fn an_alarm_rings_when_it_is_due_once_and_the_last_one_set_counts() {
    let (node, channel) = (shared(), fresh("alarm"));
    let path = format!("channels/{channel}/alarm");
    let mut viewer = node.watch(&channel);
    viewer.ready();
    let set = |at: u64, name: &str| {
        let body = json!({"at": at, "event": {"type": name, "data": {"n": 1}, "user": "ann"}}).to_string();
        call(node, "PUT", &path, &node.key(), &body)
    };
    assert_eq!(set(unix_ms() + 3_600_000, "custom.never").status, 200);
    let at = unix_ms() + 300;
    assert_eq!(set(at, "custom.bell").status, 200);
    let bell = viewer.event();
    assert!(unix_ms() >= at, "not early");
    assert_eq!(
        (&bell["type"], &bell["data"], &bell["user"]["id"]),
        (&json!("custom.bell"), &json!({"n": 1}), &json!("ann"))
    );
    assert_eq!(bell["retry"], Value::Null, "the first ringing is no second one");
    // One that is taken back does not ring: the next does, and nothing came before it.
    assert_eq!(set(unix_ms() + 400, "custom.not").status, 200);
    assert_eq!(call(node, "DELETE", &path, &node.key(), "").status, 200);
    assert_eq!(set(unix_ms() + 800, "custom.next").status, 200);
    assert_eq!(viewer.event()["type"], "custom.next");
    assert_eq!(call(node, "DELETE", &path, &node.key(), "").status, 200, "there is none any more, and that is fine");
}

#[test]
fn an_alarm_outlives_the_process() {
    let dir = temp_dir();
    let mut node = Node::start_in(dir.path(), &["--shards", "1"]);
    // So far ahead that it cannot ring before the process is gone.
    let at = unix_ms() + 2_500;
    let body = json!({"at": at, "event": {"type": "custom.bell"}}).to_string();
    assert_eq!(call(&node, "PUT", "channels/a/alarm", &node.key(), &body).status, 200);
    node.kill();
    let node = Node::start_in(dir.path(), &["--shards", "1"]);
    let mut viewer = node.watch("a");
    let first = viewer.ready();
    if unix_ms() < at {
        assert_eq!(viewer.next_of("custom.bell")["channel"], "a", "{first}");
        assert!(unix_ms() >= at);
    }
}

#[test]
fn bad_alarms_are_refused() {
    let (node, channel) = (shared(), fresh("bad-alarm"));
    let path = format!("channels/{channel}/alarm");
    let soon = unix_ms() + 60_000;
    for (body, status, code) in [
        ("{}".to_owned(), 400, "malformed_body"),
        (json!({"at": "soon", "event": {"type": "custom.x"}}).to_string(), 400, "malformed_body"),
        (json!({"at": soon, "event": "custom.x"}).to_string(), 400, "malformed_body"),
        (json!({"at": 1, "event": {"type": "custom.x"}}).to_string(), 400, "bad_at"),
        (json!({"at": u64::MAX, "event": {"type": "custom.x"}}).to_string(), 400, "bad_at"),
        (json!({"at": soon, "event": {"type": "nonsense"}}).to_string(), 400, "unknown_type"),
        (json!({"at": soon, "event": {"type": "message.new"}}).to_string(), 400, "type_not_allowed"),
        (
            json!({"at": soon, "event": {"type": "custom.x", "data": "x".repeat(17_000)}}).to_string(),
            413,
            "message_too_large",
        ),
    ] {
        call(node, "PUT", &path, &node.key(), &body).assert_problem(status, code);
    }
    let good = json!({"at": soon, "event": {"type": "custom.x"}}).to_string();
    call(node, "PUT", &path, &node.token("ann"), &good).assert_problem(403, "server_key_needed");
    call(node, "DELETE", &path, &node.token("ann"), "").assert_problem(403, "server_key_needed");
    call(node, "POST", &path, &node.key(), &good).assert_problem(405, "method");
}

#[test]
fn whoever_repeats_a_message_is_not_told_to_wait_for_it() {
    let (node, channel, ann) = (shared(), fresh("twice"), fresh("ann"));
    let path = format!("/v1/demo/channels/{channel}");
    let slow = call(node, "PUT", &format!("channels/{channel}/limits"), &node.key(), r#"{"slow_mode_s":600}"#);
    assert_eq!(slow.status, 200);
    let post = |key: &str| {
        let fields = format!("Authorization: Bearer {}\r\nIdempotency-Key: {key}\r\n", node.token(&ann));
        node.http().request("POST", &format!("{path}/messages"), &fields, r#"{"text":"x"}"#)
    };
    let first = post("a");
    assert_eq!(first.status, 201);
    let again = post("a");
    assert_eq!((again.status, again.body), (first.status, first.body));
    post("b").assert_problem(429, "slow_mode");
}

#[test]
fn slow_mode_and_messages_a_second_hold_until_they_are_lifted() {
    let (node, channel) = (shared(), fresh("limits"));
    let limits = |body: &Value, credential: &str| {
        call(node, "PUT", &format!("channels/{channel}/limits"), credential, &body.to_string())
    };
    let post = |user: &str| {
        let credential = if user.is_empty() { node.key() } else { node.token(user) };
        call(node, "POST", &format!("channels/{channel}/messages"), &credential, r#"{"text":"x"}"#)
    };
    let (ann, bob) = (fresh("ann"), fresh("bob"));
    let mut viewer = node.watch(&channel);
    viewer.ready();
    assert_eq!(limits(&json!({"slow_mode_s": 600}), &node.key()).status, 200);
    let told = viewer.next_of("channel.updated");
    assert_eq!((&told["slow_mode_s"], &told["messages_per_s"]), (&json!(600), &json!(0)));
    assert_eq!(post(&ann).status, 201);
    let refused = post(&ann);
    refused.assert_problem(429, "slow_mode");
    let seconds: u32 = refused.field("retry-after").unwrap().parse().unwrap();
    assert!((590..=600).contains(&seconds), "{seconds}");
    assert_eq!((post(&bob).status, post("").status, post("").status), (201, 201, 201));
    // By command it is the same, and another channel knows nothing of it.
    let mut speaker = node.watch_as(&channel, &ann);
    speaker.ready();
    speaker.say(&json!({"type": "message", "id": 1, "channel": channel, "text": "x"}));
    assert_eq!(speaker.next_of("error")["code"], "slow_mode");
    let elsewhere = fresh("limits");
    speaker.say(&json!({"type": "message", "id": 2, "channel": elsewhere, "text": "x"}));
    assert_eq!(speaker.next_of("ack")["id"], 2);
    assert_eq!(limits(&json!({"messages_per_s": 2}), &node.key()).status, 200);
    // Six at once within a second or two: each second lets two pass.
    let statuses: Vec<u16> = (0..6).map(|_| post("").status).collect();
    let refused = statuses.iter().filter(|status| **status == 429).count();
    assert!((1..=4).contains(&refused), "{statuses:?}");
    let deadline = std::time::Instant::now() + crate::client::PATIENCE;
    loop {
        let answer = post("");
        if answer.status == 429 {
            answer.assert_problem(429, "channel_over_rate");
            assert_eq!(answer.field("retry-after"), Some("1"));
            break;
        }
        assert!(std::time::Instant::now() < deadline, "a third of one second was never refused");
    }
    assert_eq!(limits(&json!({}), &node.key()).status, 200);
    assert!((0..6).all(|_| post(&ann).status == 201), "nothing is limited any more");
    for (body, code) in [
        (json!({"slow_mode_s": 3_601}), "bad_limit"),
        (json!({"messages_per_s": 1_001}), "bad_limit"),
        (json!({"slow_mode_s": -1}), "malformed_body"),
        (json!({"slow": 1}), "malformed_body"),
    ] {
        limits(&body, &node.key()).assert_problem(400, code);
    }
    limits(&json!({}), &node.token(&ann)).assert_problem(403, "server_key_needed");
    call(node, "GET", &format!("channels/{channel}/limits"), &node.key(), "").assert_problem(405, "method");
}

#[test]
fn who_is_connected_is_told_over_all_cores() {
    let (node, channel, user) = (shared(), fresh("who"), fresh("user"));
    let mut held: Vec<Client> = (0..5).map(|_| node.watch_as(&channel, &user)).collect();
    held.push(node.watch(&channel));
    let conns: Vec<Value> = held.iter_mut().map(|client| client.ready()["conn"].clone()).collect();
    let list = |query: &str| {
        let answer = call(node, "GET", &format!("connections?{query}"), &node.key(), "");
        assert_eq!(answer.status, 200, "{answer:?}");
        answer.json()
    };
    let all = list(&format!("channel={channel}"));
    assert_eq!((&all["more"], &all["complete"]), (&json!(false), &json!(true)));
    let found = all["connections"].as_array().unwrap();
    assert_eq!(found.len(), 6);
    for one in found {
        assert!(
            conns.contains(&one["id"]) && one["room"].as_str().unwrap().starts_with(&format!("{channel}/")),
            "{one}"
        );
        assert!(one["core"].as_u64().unwrap() < 2 && one["lag_ms"] == 0 && one["queued"] == 0, "{one}");
        assert!(one["age_s"].as_u64().is_some_and(|age_s| age_s < 60), "{one}");
    }
    assert_eq!(found.iter().filter(|one| one["user"] == json!(user)).count(), 5);
    assert_eq!(list(&format!("user={user}"))["connections"].as_array().unwrap().len(), 5);
    assert_eq!(list(&format!("user={user}&channel=elsewhere"))["connections"], json!([]));
    assert_eq!(list("user=nobody-of-this-name")["connections"], json!([]));
    let some = list(&format!("channel={channel}&limit=2"));
    assert_eq!((some["connections"].as_array().unwrap().len(), &some["more"]), (2, &json!(true)));
    for query in ["limit=0", "limit=1001", "limit=x"] {
        call(node, "GET", &format!("connections?{query}"), &node.key(), "").assert_problem(400, "bad_query");
    }
    call(node, "GET", "connections?user=a%20b", &node.key(), "").assert_problem(400, "bad_name");
    call(node, "GET", "connections", &node.token("ann"), "").assert_problem(403, "server_key_needed");
    call(node, "POST", "connections", &node.key(), "").assert_problem(405, "method");
}

#[test]
fn an_event_to_a_tag_reaches_all_who_carry_it() {
    let (node, tag) = (shared(), fresh("vip"));
    let join = |user: &str, tags: &Value| {
        let token = token_with(node, user, &json!({ "tags": tags }));
        let mut client = Client::open(node.listen, &format!("/v1/demo/ws?token={token}"));
        client.ready();
        client
    };
    let (mut ann, mut bob) = (join("ann", &json!([tag, "other"])), join("bob", &json!([tag])));
    let mut cid = join("cid", &json!([format!("{tag}x")]));
    let body = json!({"type": "custom.hello", "data": 1}).to_string();
    assert_eq!(call(node, "POST", &format!("tags/{tag}/events"), &node.key(), &body).status, 202);
    for client in [&mut ann, &mut bob] {
        assert_eq!(client.event()["type"], "custom.hello");
    }
    assert!(cid.settle().is_empty());
    let list = call(node, "GET", &format!("connections?tag={tag}"), &node.key(), "").json();
    assert_eq!(list["connections"].as_array().unwrap().len(), 2);
    call(node, "POST", &format!("tags/{tag}/events"), &node.token("ann"), &body).assert_problem(403, "no_right");
    call(node, "GET", &format!("tags/{tag}/events"), &node.key(), "").assert_problem(405, "method");
}

#[test]
fn a_connection_carries_the_tags_of_its_token_that_it_asks_for() {
    let (node, tag) = (shared(), fresh("some"));
    let (other, token) = (format!("{tag}-2"), token_with(node, "ann", &json!({ "tags": [tag, format!("{tag}-2")] })));
    let mut client = Client::open(node.listen, &format!("/v1/demo/ws?tags={tag}&token={token}"));
    client.ready();
    let carried = |tag: &str| {
        let list = call(node, "GET", &format!("connections?tag={tag}"), &node.key(), "").json();
        list["connections"].as_array().unwrap().len()
    };
    assert_eq!((carried(&tag), carried(&other)), (1, 0));
    let body = json!({"type": "custom.hello", "data": 1}).to_string();
    assert_eq!(call(node, "POST", &format!("tags/{tag}/events"), &node.key(), &body).status, 202);
    assert_eq!(client.event()["type"], "custom.hello");
    for (query, status, code) in [
        (format!("tags={tag},vip&token={token}"), 403, "no_such_tag"),
        (format!("tags={tag}"), 401, "token_needed"),
        (format!("tags=a%20b&token={token}"), 400, "bad_tag"),
    ] {
        let mut client = Client::raw(node.listen);
        client.send(handshake(&format!("/v1/demo/ws?{query}"), "").as_bytes());
        client.refusal().assert_problem(status, code);
    }
}

#[test]
fn each_type_of_a_backend_reaches_viewers_and_those_of_the_node_are_refused() {
    let (node, channel) = (shared(), fresh("types"));
    let mut viewer = node.watch(&channel);
    viewer.ready();
    let events = format!("channels/{channel}/events");
    for kind in ["custom.goal", "channel.updated", "user.updated"] {
        let body = json!({"type": kind, "data": {"a": 1}, "user": "ann"}).to_string();
        assert_eq!(call(node, "POST", &events, &node.key(), &body).status, 202, "{kind}");
        let event = viewer.event();
        assert_eq!(
            (&event["type"], &event["data"]["a"], &event["user"]["id"]),
            (&json!(kind), &json!(1), &json!("ann"))
        );
    }
    for kind in [
        "connection.ready",
        "subscribed",
        "ack",
        "error",
        "pong",
        "history",
        "health.check",
        "gap",
        "draining",
        "viewers.updated",
        "presence.changed",
        "member.joined",
        "member.left",
        "typing.start",
        "message.new",
        "message.deleted",
        "message.updated",
        "message.retracted",
        "reaction.new",
    ] {
        let body = json!({ "type": kind }).to_string();
        call(node, "POST", &events, &node.key(), &body).assert_problem(400, "type_not_allowed");
    }
    assert!(viewer.settle().is_empty());
}

#[test]
fn a_right_that_is_revoked_ends_the_user_s_connections() {
    let (node, channel, user) = (shared(), fresh("revoked"), fresh("user"));
    let (mut one, mut other) = (node.watch_as(&channel, &user), node.watch_as(&channel, &fresh("user")));
    one.ready();
    other.ready();
    let body = json!({"type": "access.revoked", "user": user}).to_string();
    assert_eq!(call(node, "POST", &format!("users/{user}/events"), &node.key(), &body).status, 202);
    assert_eq!(one.event()["type"], "access.revoked");
    one.expect_close(4403);
    assert!(other.settle().is_empty());
}

#[test]
fn a_token_s_rights_are_all_it_may() {
    let (node, channel) = (shared(), fresh("rights"));
    let messages = format!("channels/{channel}/messages");
    let events = format!("channels/{channel}/events");
    let id = call(node, "POST", &messages, &node.key(), r#"{"text":"x"}"#).json()["id"].as_str().unwrap().to_owned();
    let like = format!("{messages}/{id}/reactions/like");
    let custom = r#"{"type":"custom.x"}"#;
    let typing = r#"{"type":"typing.start"}"#;
    for (can, allowed) in [
        (json!(["read"]), [false; 4]),
        (json!(["read", "write"]), [true, false, false, false]),
        (json!(["read", "react"]), [false, true, false, false]),
        (json!(["read", "custom"]), [false, false, true, false]),
        (json!(["read", "type"]), [false, false, false, true]),
        (json!(["read", "write", "react", "type", "custom"]), [true; 4]),
    ] {
        let token = token_with(node, "ann", &json!({ "can": can }));
        let tries = [
            ("POST", &messages, r#"{"text":"x"}"#),
            ("PUT", &like, ""),
            ("POST", &events, custom),
            ("POST", &events, typing),
        ];
        for ((method, path, body), allowed) in tries.into_iter().zip(allowed) {
            let answer = call(node, method, path, &token, body);
            if allowed {
                assert!(answer.status < 300, "{can} {path}: {answer:?}");
            } else {
                answer.assert_problem(403, "no_right");
            }
        }
    }
    let mute = token_with(node, "ann", &json!({"can": ["write"]}));
    call(node, "GET", &messages, &mute, "").assert_problem(403, "no_right_to_read");
    assert_eq!(call(node, "POST", &messages, &mute, r#"{"text":"x"}"#).status, 201, "who writes need not read");
    let mut refused = Client::raw(node.listen);
    refused.send(crate::client::handshake(&format!("/v1/demo/channels/{channel}/ws?token={mute}"), "").as_bytes());
    refused.refusal().assert_problem(403, "no_right_to_read");
    // No channel is no channel, and a time may have a fraction.
    let nowhere = token_with(node, "ann", &json!({"channels": []}));
    call(node, "GET", &messages, &nowhere, "").assert_problem(403, "no_right");
    let fraction = token_with(node, "ann", &json!({"exp": unix_s() as f64 + 60.5, "nbf": 0.5}));
    assert_eq!(call(node, "GET", &messages, &fraction, "").status, 200);
    // Channels by pattern, over HTTP, at the upgrade, and for what is subscribed later.
    let token = token_with(node, "ann", &json!({"channels": [channel, "open-*"]}));
    assert_eq!(call(node, "GET", &messages, &token, "").status, 200);
    call(node, "GET", "channels/closed/messages", &token, "").assert_problem(403, "no_right");
    let mut refused = Client::raw(node.listen);
    refused.send(crate::client::handshake(&format!("/v1/demo/channels/closed/ws?token={token}"), "").as_bytes());
    refused.refusal().assert_problem(403, "no_right");
    let mut viewer = Client::open(node.listen, &format!("/v1/demo/ws?token={token}"));
    viewer.ready();
    viewer.say(&json!({"type": "subscribe", "id": 1, "channel": "open-door"}));
    assert_eq!(viewer.next_of("subscribed")["channel"], "open-door");
    viewer.say(&json!({"type": "subscribe", "id": 2, "channel": "closed"}));
    assert_eq!(viewer.next_of("error")["code"], "no_right");
    // A newer token counts in full: its channels, and its tags.
    let newer = token_with(node, "ann", &json!({"channels": ["other-*"], "tags": [channel]}));
    viewer.say(&json!({"type": "auth", "id": 3, "token": newer}));
    assert_eq!(viewer.next_of("unsubscribed")["channel"], "open-door");
    viewer.next_of("authenticated");
    call(node, "POST", &format!("tags/{channel}/events"), &node.key(), r#"{"type":"custom.tagged"}"#);
    viewer.next_of("custom.tagged");
    viewer.say(&json!({"type": "auth", "id": 4, "token": token}));
    viewer.next_of("authenticated");
    call(node, "POST", &format!("tags/{channel}/events"), &node.key(), r#"{"type":"custom.unseen"}"#);
    viewer.say(&json!({"type": "ping", "id": 5}));
    loop {
        let event = viewer.event();
        assert_ne!(event["type"], "custom.unseen");
        if event["type"] == "pong" {
            break;
        }
    }
    // What a token says must be well formed.
    for (more, code) in [
        (json!({"sub": "a b"}), "bad_subject"),
        (json!({"tags": ["a b"]}), "bad_tag"),
        (json!({"tags": vec!["t"; 17]}), "too_many_tags"),
        (json!({"nbf": unix_s() + 60}), "token_not_yet_valid"),
    ] {
        call(node, "GET", &messages, &token_with(node, "ann", &more), "").assert_problem(401, code);
    }
}

#[test]
fn a_heartbeat_and_a_filter_are_asked_for_in_the_query() {
    let (node, channel) = (shared(), fresh("query"));
    let mut viewer = node.watch_with(&channel, "?heartbeat=1&filter=custom.*");
    viewer.ready();
    node.post_text(&channel, "not asked for");
    let body = json!({"type": "custom.yes"}).to_string();
    assert_eq!(call(node, "POST", &format!("channels/{channel}/events"), &node.key(), &body).status, 202);
    assert_eq!(viewer.next_of("custom.yes")["channel"], json!(channel));
    let mut stream = Client::raw(node.listen);
    stream.send(format!("GET /v1/demo/channels/{channel}/sse?heartbeat=1 HTTP/1.1\r\nHost: h\r\n\r\n").as_bytes());
    stream.wait_for("event: health.check\ndata: {");
    let beats = [viewer.next_of("health.check"), viewer.next_of("health.check")];
    let ts: Vec<u64> = beats.iter().map(|beat| beat["ts"].as_u64().unwrap()).collect();
    assert!((500..5_000).contains(&(ts[1] - ts[0])), "{ts:?}");
    for (query, code) in [
        ("?heartbeat=0", "bad_heartbeat"),
        ("?heartbeat=3601", "bad_heartbeat"),
        ("?filter=nonsense", "bad_filter"),
        ("?epoch=xyz&since=1", "bad_epoch"),
        ("?epoch=1&since=-1", "bad_since"),
        ("?since=1", "bad_position"),
    ] {
        let mut refused = Client::raw(node.listen);
        refused.send(crate::client::handshake(&format!("/v1/demo/channels/{channel}/ws{query}"), "").as_bytes());
        refused.refusal().assert_problem(400, code);
    }
}
