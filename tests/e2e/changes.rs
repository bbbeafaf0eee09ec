//! What is done to messages after they were posted, and by whom it may be done.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use serde_json::{Value, json};

use crate::client::{Answer, Client};
use crate::node::{LOOK, Node, fresh, shared, unix_ms};

fn call(node: &Node, method: &str, path: &str, credential: &str, body: &str) -> Answer {
    node.http().request(method, path, &format!("Authorization: Bearer {credential}\r\n"), body)
}

/// Posts a message of `user` and returns its id.
fn post_as(node: &Node, channel: &str, user: &str, text: &str) -> String {
    let path = format!("/v1/demo/channels/{channel}/messages");
    let answer = call(node, "POST", &path, &node.token(user), &json!({ "text": text }).to_string());
    assert_eq!(answer.status, 201);
    answer.json()["id"].as_str().unwrap().to_owned()
}

#[test]
fn a_message_is_edited_and_deleted_by_its_author_or_the_backend_and_by_nobody_else() {
    let (node, channel) = (shared(), fresh("edit"));
    let mut viewer = node.watch(&channel);
    let id = post_as(node, &channel, "ann", "frist");
    let path = format!("/v1/demo/channels/{channel}/messages/{id}");
    call(node, "PATCH", &path, &node.token("eve"), r#"{"text":"mine"}"#).assert_problem(403, "not_the_author");
    assert_eq!(call(node, "PATCH", &path, &node.token("ann"), r#"{"text":"first"}"#).status, 200);
    let updated = viewer.next_of("message.updated");
    assert_eq!((&updated["message"], &updated["text"], &updated["seq"]), (&json!(id), &json!("first"), &json!(2)));
    assert_eq!(call(node, "DELETE", &path, &node.key(), "").status, 200);
    assert_eq!(viewer.next_of("message.deleted")["message"], json!(id));
    call(node, "PATCH", &path, &node.token("ann"), r#"{"text":"again"}"#).assert_problem(404, "no_such_message");
    call(node, "PUT", &path, &node.token("ann"), "").assert_problem(405, "method");
    call(node, "DELETE", &format!("/v1/demo/channels/{channel}/messages/xyz"), &node.key(), "")
        .assert_problem(400, "bad_message_id");
    let unknown = format!("/v1/demo/channels/{channel}/messages/01ARZ3NDEKTSV4RRFFQ69G5FAV");
    call(node, "DELETE", &unknown, &node.key(), "").assert_problem(404, "no_such_message");
}

#[test]
fn a_retracted_text_is_gone_from_history_and_only_the_backend_retracts() {
    let (node, channel) = (shared(), fresh("retract"));
    let mut viewer = node.watch(&channel);
    let id = post_as(node, &channel, "ann", "a secret");
    let path = format!("/v1/demo/channels/{channel}/messages/{id}/retract");
    call(node, "POST", &path, &node.token("ann"), "").assert_problem(403, "no_right");
    assert_eq!(call(node, "POST", &path, &node.key(), "").status, 200);
    assert_eq!(viewer.next_of("message.retracted")["message"], json!(id));
    let page = node.http().get(&format!("/v1/demo/channels/{channel}/messages"));
    assert!(!page.body.contains("a secret"));
    assert_eq!(page.json()["head"], 2);
}

#[test]
fn a_retracted_text_is_gone_from_its_edits_and_from_what_a_reader_catches_up_with() {
    let (node, channel) = (shared(), fresh("retract"));
    let mut viewer = node.watch(&channel);
    let epoch = viewer.ready()["epoch"].as_str().unwrap().to_owned();
    let id = post_as(node, &channel, "ann", "harmless");
    let path = format!("/v1/demo/channels/{channel}/messages/{id}");
    assert_eq!(call(node, "PATCH", &path, &node.token("ann"), r#"{"text":"a secret"}"#).status, 200);
    node.post_text(&channel, "behind it");
    assert_eq!(call(node, "POST", &format!("{path}/retract"), &node.key(), "").status, 200);
    viewer.next_of("message.retracted");
    let mut late = node.watch_with(&channel, &format!("?epoch={epoch}&since=1"));
    assert_eq!(late.ready()["recovered"], true);
    loop {
        let event = late.event();
        assert!(!event.to_string().contains("a secret"), "{event}");
        if event["type"] == "message.retracted" {
            break;
        }
    }
}

#[test]
fn a_repeat_with_the_same_key_gets_the_first_answer_though_the_message_is_gone() {
    let (node, channel, author) = (shared(), fresh("again"), fresh("ann"));
    let (ann, eve) = (node.token(&author), node.token(&fresh("eve")));
    let mut viewer = node.watch(&channel);
    viewer.ready();
    let by = |credential: &str, method: &str, path: &str, key: &str, body: &str| {
        let fields = format!("Authorization: Bearer {credential}\r\nIdempotency-Key: {key}\r\n");
        node.http().request(method, path, &fields, body)
    };
    let messages = format!("/v1/demo/channels/{channel}/messages");
    for (credential, method, end) in [(&node.key(), "POST", "/retract"), (&ann, "DELETE", "")] {
        let path = format!("{messages}/{}", post_as(node, &channel, &author, "a secret"));
        let edit = || by(&ann, "PATCH", &path, "k", r#"{"text":"another"}"#);
        let edited = edit();
        let gone = || by(credential, method, &format!("{path}{end}"), "k", "");
        let first = gone();
        assert_eq!((edited.status, first.status), (200, 200));
        for (repeat, first) in [(gone(), first), (edit(), edited)] {
            assert_eq!((repeat.status, repeat.json()), (200, first.json()));
        }
        // Another key is another call, and another's key is another key.
        by(credential, method, &format!("{path}{end}"), "l", "").assert_problem(404, "no_such_message");
        by(&eve, "DELETE", &path, "k", "").assert_problem(404, "no_such_message");
        by(&eve, "PATCH", &path, "k", r#"{"text":"x"}"#).assert_problem(404, "no_such_message");
    }
    assert_eq!(node.http().get(&messages).json()["head"], 6);
    for end in ["message.retracted", "message.deleted"] {
        assert_eq!([(); 3].map(|()| viewer.event()["type"].clone()), ["message.new", "message.updated", end]);
    }
    assert_eq!(viewer.settle(), [Value::Null; 0]);
}

#[test]
fn reactions_come_by_http_and_by_command() {
    let (node, channel) = (shared(), fresh("react"));
    let mut viewer = node.watch_as(&channel, "bob");
    let id = post_as(node, &channel, "ann", "hello");
    let path = format!("/v1/demo/channels/{channel}/messages/{id}/reactions/like");
    assert_eq!(call(node, "PUT", &path, &node.token("eve"), "").status, 200);
    let reaction = viewer.next_of("reaction.new");
    assert_eq!((&reaction["message"], &reaction["kind"]), (&json!(id), &json!("like")));
    assert_eq!(call(node, "DELETE", &path, &node.token("eve"), "").status, 200);
    assert_eq!(viewer.next_of("reaction.deleted")["user"]["id"], "eve");
    call(node, "PUT", &path, &node.key(), "").assert_problem(403, "user_needed");
    call(node, "POST", &path, &node.token("eve"), "").assert_problem(405, "method");
    let unknown = path.replace(&id, "01ARZ3NDEKTSV4RRFFQ69G5FAV");
    call(node, "PUT", &unknown, &node.token("eve"), "").assert_problem(404, "no_such_message");
    call(node, "PUT", &path.replace("like", "a%20b"), &node.token("eve"), "").assert_problem(400, "bad_name");
    viewer.say(&json!({"type": "reaction", "id": 7, "channel": channel, "message": id, "kind": "wow", "state": "add"}));
    assert_eq!(viewer.next_of("ack")["id"], 7);
    assert_eq!(viewer.next_of("reaction.new")["kind"], "wow");
    // Another kind is another call, also with the same key.
    let fields = format!("Authorization: Bearer {}\r\nIdempotency-Key: k\r\n", node.token("eve"));
    for kind in ["sad", "glad"] {
        assert_eq!(node.http().request("PUT", &path.replace("like", kind), &fields, "").status, 200);
        assert_eq!(viewer.next_of("reaction.new")["kind"], kind);
    }
    viewer
        .say(&json!({"type": "reaction", "id": 8, "channel": channel, "message": "x", "kind": "wow", "state": "add"}));
    assert_eq!(viewer.next_of("error")["code"], "bad_field");
}

#[test]
fn history_comes_over_the_socket_and_a_newer_token_is_taken() {
    let (node, channel) = (shared(), fresh("history"));
    let mut viewer = node.watch_as(&channel, "bob");
    for text in ["one", "two", "three"] {
        node.post_text(&channel, text);
    }
    viewer.say(&json!({"type": "history", "id": "h", "channel": channel, "since": 1, "limit": 1}));
    let page = viewer.next_of("history");
    assert_eq!((&page["id"], &page["messages"][0]["text"], &page["head"]), (&json!("h"), &json!("two"), &json!(3)));
    viewer.say(&json!({"type": "history", "id": 1, "channel": channel, "limit": 101}));
    assert_eq!(viewer.next_of("error")["code"], "bad_field");
    viewer.say(&json!({"type": "auth", "id": 2, "token": node.token("bob")}));
    assert_eq!(viewer.next_of("authenticated")["user"], "bob");
    viewer.say(&json!({"type": "auth", "id": 3, "token": node.token("eve")}));
    assert_eq!(viewer.next_of("error")["code"], "another_user");
}

#[test]
fn a_ban_ends_live_connections_and_stops_joins_and_posts_until_it_is_lifted() {
    let (node, channel, user) = (shared(), fresh("ban"), fresh("user"));
    let mut viewer = node.watch_as(&channel, &user);
    let path = format!("/v1/demo/bans/{user}");
    call(node, "PUT", &path, &node.token(&user), "{}").assert_problem(403, "server_key_needed");
    call(node, "PUT", &path, &node.key(), r#"{"expires_at":1}"#).assert_problem(400, "bad_expires_at");
    assert_eq!(call(node, "PUT", &path, &node.key(), "").status, 200);
    assert_eq!(viewer.next_of("user.banned")["user"]["id"], json!(user));
    viewer.expect_close(4403);
    let posts = format!("/v1/demo/channels/{channel}/messages");
    call(node, "POST", &posts, &node.token(&user), r#"{"text":"x"}"#).assert_problem(403, "banned");
    let events = posts.replace("/messages", "/events");
    let custom = r#"{"type":"custom.x"}"#;
    call(node, "POST", &events, &node.token(&user), custom).assert_problem(403, "banned");
    let mut refused = Client::raw(node.listen);
    let join = format!("/v1/demo/channels/{channel}/ws?token={}", node.token(&user));
    refused.send(crate::client::handshake(&join, "").as_bytes());
    refused.refusal().assert_problem(403, "banned");
    assert_eq!(call(node, "DELETE", &path, &node.key(), "").status, 200);
    assert_eq!(call(node, "POST", &posts, &node.token(&user), r#"{"text":"x"}"#).status, 201);
    let mut witness = node.watch(&channel);
    witness.ready();
    assert_eq!(call(node, "POST", &events, &node.token(&user), custom).status, 202);
    assert_eq!(witness.next_of("custom.x")["user"]["id"], json!(user));
}

#[test]
fn a_ban_with_an_end_is_over_then() {
    let (node, channel, user) = (shared(), fresh("ban"), fresh("user"));
    let posts = format!("/v1/demo/channels/{channel}/messages");
    let post = || call(node, "POST", &posts, &node.token(&user), r#"{"text":"x"}"#);
    let end_ms = unix_ms() + 1_500;
    let body = json!({ "expires_at": end_ms }).to_string();
    assert_eq!(call(node, "PUT", &format!("/v1/demo/bans/{user}"), &node.key(), &body).status, 200);
    loop {
        let (asked_ms, answer) = (unix_ms(), post());
        if answer.status == 201 {
            assert!(unix_ms() >= end_ms, "not before its end");
            return;
        }
        answer.assert_problem(403, "banned");
        assert!(asked_ms < end_ms + 1_000, "its end is its end");
        std::thread::sleep(LOOK);
    }
}

#[test]
fn a_ban_from_one_channel_leaves_the_others() {
    let (node, banned, kept, user) = (shared(), fresh("ban"), fresh("kept"), fresh("user"));
    let mut viewer = node.watch_as(&banned, &user);
    viewer.say(&json!({"type": "subscribe", "id": 1, "channel": kept}));
    viewer.next_of("subscribed");
    let body = json!({ "channel": banned }).to_string();
    assert_eq!(call(node, "PUT", &format!("/v1/demo/bans/{user}"), &node.key(), &body).status, 200);
    assert_eq!(viewer.next_of("user.banned")["channel"], json!(banned));
    node.post_text(&banned, "unseen");
    node.post_text(&kept, "seen");
    assert_eq!(viewer.next_of("message.new")["text"], "seen");
    viewer.say(&json!({"type": "subscribe", "id": 2, "channel": banned}));
    assert_eq!(viewer.next_of("error")["code"], "banned");
    let word = json!({"type": "event", "id": 3, "channel": banned, "name": "custom.x"});
    viewer.say(&word);
    assert_eq!(viewer.next_of("error")["code"], "banned");
    viewer.say(&json!({"type": "auth", "id": 4, "token": node.token(&user)}));
    viewer.next_of("authenticated");
    viewer.say(&word);
    assert_eq!(viewer.next_of("error")["code"], "banned", "a newer token lifts no ban");
    // A ban of the whole app is another one, and stays when that of the channel is lifted by either way to name it.
    let bans = format!("/v1/demo/bans/{user}");
    assert_eq!(call(node, "DELETE", &bans, &node.key(), &body).status, 200);
    viewer.say(&json!({"type": "subscribe", "id": 5, "channel": banned}));
    viewer.next_of("subscribed");
    viewer.say(&word);
    assert_eq!(viewer.next_of("ack")["id"], 3);
    assert_eq!(call(node, "PUT", &bans, &node.key(), "").status, 200);
    viewer.next_of("user.banned");
    viewer.expect_close(4403);
    assert_eq!(call(node, "DELETE", &bans, &node.key(), &body).status, 200);
    let posts = format!("/v1/demo/channels/{kept}/messages");
    call(node, "POST", &posts, &node.token(&user), r#"{"text":"x"}"#).assert_problem(403, "banned");
}

#[test]
fn who_says_late_that_it_is_a_banned_user_is_told_and_ended_all_the_same() {
    let (node, banned, kept, user) = (shared(), fresh("ban"), fresh("kept"), fresh("user"));
    let bans = format!("/v1/demo/bans/{user}");
    let body = json!({ "channel": banned }).to_string();
    assert_eq!(call(node, "PUT", &bans, &node.key(), &body).status, 200);
    let mut viewer = node.watch(&banned);
    viewer.ready();
    viewer.say(&json!({"type": "subscribe", "id": 1, "channel": kept}));
    viewer.next_of("subscribed");
    let auth = json!({"type": "auth", "id": 2, "token": node.token(&user)});
    viewer.say(&auth);
    viewer.next_of("authenticated");
    assert_eq!(viewer.next_of("user.banned")["channel"], json!(banned));
    node.post_text(&banned, "unseen");
    node.post_text(&kept, "seen");
    assert_eq!(viewer.next_of("message.new")["text"], "seen");
    viewer.say(&json!({"type": "event", "id": 3, "channel": banned, "name": "custom.x"}));
    assert_eq!(viewer.next_of("error")["code"], "banned");
    // Another one of the same user says so: the first knows it already.
    let mut second = node.watch(&kept);
    second.ready();
    second.say(&auth);
    assert_eq!(second.next_of("user.banned")["channel"], json!(banned));
    viewer.say(&json!({"type": "ping", "id": 4}));
    assert!(viewer.settle().iter().all(|event| event["type"] != "user.banned"));
    // So is told who comes with a token to another channel, and could write into this one without watching it.
    let mut writer = node.watch_as(&kept, &user);
    assert_eq!(writer.next_of("user.banned")["channel"], json!(banned));
    writer.say(&json!({"type": "event", "id": 5, "channel": banned, "name": "custom.x"}));
    assert_eq!(writer.next_of("error")["code"], "banned");
    // A ban of the whole app ends whoever turns out to be its user.
    assert_eq!(call(node, "PUT", &bans, &node.key(), "").status, 200);
    viewer.next_of("user.banned");
    viewer.expect_close(4403);
    let mut third = node.watch(&kept);
    third.ready();
    third.say(&auth);
    third.next_of("user.banned");
    third.expect_close(4403);
    writer.next_of("user.banned");
    writer.expect_close(4403);
}

/// Reads a stream until `until` stands in it.
fn read_stream(stream: &mut TcpStream, until: &str) -> String {
    let (mut text, mut buffer) = (String::new(), [0; 4_096]);
    while !text.contains(until) {
        let bytes = stream.read(&mut buffer).expect("the stream goes on");
        assert_ne!(bytes, 0, "the stream ended: {text}");
        text.push_str(&String::from_utf8_lossy(&buffer[..bytes]));
    }
    text
}

fn open_stream(node: &Node, path: &str, fields: &str) -> TcpStream {
    let mut stream = TcpStream::connect(node.listen).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    stream.write_all(format!("GET {path} HTTP/1.1\r\nHost: h\r\n{fields}\r\n").as_bytes()).unwrap();
    stream
}

#[test]
fn a_stream_of_server_sent_events_carries_the_same_and_resumes_by_last_event_id() {
    let (node, channel) = (shared(), fresh("sse"));
    let path = format!("/v1/demo/channels/{channel}/sse");
    let mut stream = open_stream(node, &path, "Origin: https://a.example\r\n");
    let head = read_stream(&mut stream, "\"connection.ready\"");
    assert!(head.starts_with("HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n"), "{head}");
    assert!(head.contains("access-control-allow-origin: https://a.example\r\n"));
    node.post_text(&channel, "one");
    let event = read_stream(&mut stream, "\"text\":\"one\"}\n\n");
    let id = event.lines().find_map(|line| line.strip_prefix("id: ")).unwrap().to_owned();
    assert!(id.ends_with(":1") && event.contains("event: message.new\ndata: {"), "{event}");
    drop(stream);
    node.post_text(&channel, "two");
    let mut again = open_stream(node, &path, &format!("Last-Event-ID: {id}\r\n"));
    let text = read_stream(&mut again, "\"text\":\"two\"}\n\n");
    assert!(text.contains("\"recovered\":true") && !text.contains("\"text\":\"one\""), "{text}");
    let mut bad = open_stream(node, &path, "Last-Event-ID: nonsense\r\n");
    assert!(read_stream(&mut bad, "bad_position").starts_with("HTTP/1.1 400"));
}

#[test]
fn a_browser_may_ask_whether_its_page_may_call() {
    let (node, channel) = (shared(), fresh("cors"));
    let path = format!("/v1/demo/channels/{channel}/messages");
    let answer = node.http().request("OPTIONS", &path, "Origin: https://a.example\r\n", "");
    assert_eq!((answer.status, answer.field("access-control-allow-origin")), (204, Some("https://a.example")));
    let stream = path.replace("/messages", "/sse");
    let answer = node.http().request("OPTIONS", &stream, "Origin: https://a.example\r\n", "");
    assert_eq!((answer.status, answer.field("access-control-allow-origin")), (204, Some("https://a.example")));
    let answer = node.http().request("GET", &path, "Origin: https://a.example\r\n", "");
    assert_eq!((answer.status, answer.field("access-control-allow-origin")), (200, Some("https://a.example")));
    // The page may read what is wrong with its call, too.
    let twice = "Origin: https://a.example\r\nAuthorization: Bearer a\r\nAuthorization: Bearer b\r\n";
    let answer = node.http().request("GET", &path, twice, "");
    answer.assert_problem(400, "field_twice");
    assert_eq!(answer.field("access-control-allow-origin"), Some("https://a.example"));
    let bad = "Origin: https://a.example\r\nAuthorization: Bearer nonsense\r\n";
    let refused = read_stream(&mut open_stream(node, &stream, bad), "\"status\":401");
    assert!(refused.contains("access-control-allow-origin: https://a.example\r\nvary: origin\r\n"), "{refused}");
}
