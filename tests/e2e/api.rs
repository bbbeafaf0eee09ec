//! The HTTP API from outside: every refusal is a problem document with a stable code, and a repeat is safe.

use std::io::Write;

use serde_json::{Value, json};

use crate::client::{Client, Http, handshake};
use crate::node::{fresh, shared};

#[test]
fn head_is_a_get_without_its_body() {
    let (node, channel) = (shared(), fresh("head"));
    node.post_text(&channel, "hello");
    let messages = format!("/v1/demo/channels/{channel}/messages");
    for (addr, path) in [(node.listen, messages.as_str()), (node.admin, "/healthz")] {
        let mut http = Http::connect(addr);
        let (whole, head) = (http.get(path), http.request("HEAD", path, "", ""));
        assert_eq!(
            (head.status, head.field("content-length")),
            (whole.status, whole.field("content-length")),
            "{path}"
        );
        // Behind the head comes the next answer.
        assert_eq!(http.get(path).body, whole.body, "{path}");
    }
}

#[test]
fn a_repeat_with_the_same_key_gets_the_first_answer_and_one_message() {
    let node = shared();
    let channel = fresh("idem");
    let mut viewer = node.watch(&channel);
    viewer.ready();
    let path = format!("/v1/demo/channels/{channel}/messages");
    let fields = format!("Authorization: Bearer {}\r\nIdempotency-Key: k-1\r\n", node.key());
    let mut http = node.http();
    let first = http.request("POST", &path, &fields, r#"{"text":"once"}"#);
    assert_eq!(first.status, 201);
    let again = http.request("POST", &path, &fields, r#"{"text":"once"}"#);
    assert_eq!((again.status, again.json()), (201, first.json()));
    // At once, on two connections.
    let fields = fields.replace("k-1", "k-2");
    let answers: Vec<Value> = std::thread::scope(|scope| {
        let posts: Vec<_> = (0..8)
            .map(|_| scope.spawn(|| node.http().request("POST", &path, &fields, r#"{"text":"race"}"#).json()))
            .collect();
        posts.into_iter().map(|post| post.join().unwrap()).collect()
    });
    assert!(answers.iter().all(|answer| *answer == answers[0]), "{answers:?}");
    // An answer says durable, not delivered; what comes behind the second text would be one too many.
    assert_eq!([viewer.event(), viewer.event()].map(|event| event["text"].clone()), ["once", "race"]);
    assert_eq!(viewer.settle(), [Value::Null; 0]);
    assert_eq!(http.get(&path).json()["head"], 2);
    // Another author's key is another key.
    let other = format!("Authorization: Bearer {}\r\nIdempotency-Key: k-1\r\n", node.token("ann"));
    assert_ne!(http.request("POST", &path, &other, r#"{"text":"mine"}"#).json()["id"], first.json()["id"]);
    // And a key belongs to one call in one channel: nothing is said to be done that was not.
    let elsewhere = format!("/v1/demo/channels/{}/messages", fresh("idem"));
    let fields = fields.replace("k-2", "k-1");
    let there = http.request("POST", &elsewhere, &fields, r#"{"text":"there"}"#);
    assert_eq!((there.status, &there.json()["seq"]), (201, &json!(1)));
    assert_ne!(there.json()["id"], first.json()["id"]);
    let message = format!("{path}/{}", first.json()["id"].as_str().unwrap());
    assert_eq!(http.request("PATCH", &message, &fields, r#"{"text":"changed"}"#).status, 200);
    assert!(http.get(&path).body.contains("changed"));
    http.request("DELETE", &message, &format!("{fields}Idempotency-Key: k-1\r\n"), "")
        .assert_problem(400, "field_twice");
    for bad in [String::new(), "x".repeat(129)] {
        let fields = format!("Authorization: Bearer {}\r\nIdempotency-Key: {bad}\r\n", node.key());
        http.request("POST", &path, &fields, r#"{"text":"x"}"#).assert_problem(400, "bad_idempotency_key");
    }
}

#[test]
fn every_refusal_is_a_problem_document() {
    let node = shared();
    let key = node.key();
    let mut http = node.http();
    let posts = format!("/v1/demo/channels/{}/messages", fresh("refuse"));
    let events = posts.replace("messages", "events");
    for (path, body, status, code) in [
        (&posts, "{", 400, "malformed_body"),
        (&posts, "", 400, "malformed_body"),
        (&posts, "[]", 400, "malformed_body"),
        (&posts, r#"["text"]"#, 400, "malformed_body"),
        (&posts, r#"{"data":null}"#, 400, "nothing_posted"),
        (&posts, "{}", 400, "nothing_posted"),
        (&posts, r#"{"text":7}"#, 400, "malformed_body"),
        (&posts, r#"{"text":"x","user":"a b"}"#, 400, "bad_name"),
        (&posts, &*json!({"text": "x", "user": "a", "name": "n".repeat(257)}).to_string(), 400, "name_too_long"),
        (&posts, &*json!({"text": "x", "client_id": "c".repeat(129)}).to_string(), 400, "client_id_too_long"),
        (&posts, "{\"text\":\"\u{0}\"}", 400, "malformed_body"),
        (&events, r#"{"type":"nonsense"}"#, 400, "unknown_type"),
        (&events, r#"{"type":"custom."}"#, 400, "unknown_type"),
        (&events, r#"{"type":"message.new"}"#, 400, "type_not_allowed"),
        (&events, r#"{"type":"connection.ready"}"#, 400, "type_not_allowed"),
        (&events, r#"{"type":"custom.x","exclude":"zz"}"#, 400, "bad_exclude"),
        (&"/v1/nobody/channels/x/messages".to_owned(), r#"{"text":"x"}"#, 404, "unknown_app"),
        (&"/v1/demo/channels/a%20b/messages".to_owned(), r#"{"text":"x"}"#, 400, "bad_name"),
        (&"/v1/demo/channels//messages".to_owned(), r#"{"text":"x"}"#, 400, "bad_name"),
        (&"/v1/demo/channels/x/nothing".to_owned(), "{}", 404, "not_found"),
        (&"/".to_owned(), "{}", 404, "not_found"),
    ] {
        http.post(path, &key, body).assert_problem(status, code);
    }
    http.post(&posts, &key, &json!({"text": "x".repeat(16_385)}).to_string()).assert_problem(413, "message_too_large");
    let big = json!({"type": "custom.x", "data": "x".repeat(16_385)}).to_string();
    http.post(&events, &key, &big).assert_problem(413, "message_too_large");
    for (method, path, allow) in
        [("PUT", &posts, "GET, HEAD, POST"), ("DELETE", &posts, "GET, HEAD, POST"), ("GET", &events, "POST")]
    {
        let answer = http.request(method, path, "", "");
        answer.assert_problem(405, "method");
        assert_eq!(answer.field("allow"), Some(allow));
    }
    for query in [
        "before=1&since=1",
        "before=x",
        "since=-1",
        "since=1.5",
        "limit=0",
        "limit=101",
        "limit=x",
        "limit=4294967297",
        "since=18446744073709551616",
    ] {
        http.get(&format!("{posts}?{query}")).assert_problem(400, "bad_query");
    }
    // A body beyond the limit, told or not; each on a connection of its own, which may end with it.
    let large = "x".repeat(64 * 1024 + 1);
    node.http().post(&posts, &key, &large).assert_problem(413, "body_too_large");
    let mut http = node.http();
    let head = format!(
        "POST {posts} HTTP/1.1\r\nHost: h\r\nAuthorization: Bearer {key}\r\nTransfer-Encoding: chunked\r\n\r\n"
    );
    http.stream().write_all(format!("{head}{:x}\r\n{large}\r\n0\r\n\r\n", large.len()).as_bytes()).unwrap();
    http.read_answer().expect("an answer").assert_problem(413, "body_too_large");
    node.assert_alive();
}

#[test]
fn a_plain_get_of_a_socket_s_address_is_told_to_upgrade() {
    let mut http = shared().http();
    let answer = http.get("/v1/demo/channels/x/ws");
    answer.assert_problem(426, "not_an_upgrade");
    assert_eq!(answer.field("upgrade"), Some("websocket"));
    let mut client = Client::raw(shared().listen);
    client.send(handshake("/v1/demo/channels/x/ws", "").replacen("GET", "POST", 1).as_bytes());
    client.refusal().assert_problem(405, "method");
}

#[test]
fn pages_of_the_history_join_without_a_seam() {
    let node = shared();
    let channel = fresh("pages");
    let path = format!("/v1/demo/channels/{channel}/messages");
    let mut http = node.http();
    let empty = http.get(&path).json();
    assert_eq!((&empty["messages"], &empty["head"]), (&json!([]), &json!(0)));
    for n in 1..=130 {
        assert_eq!(node.post_text(&channel, &n.to_string()), n);
    }
    let mut seqs = |query: &str| -> Vec<u64> {
        let page = http.get(&format!("{path}?{query}")).json();
        assert_eq!(page["head"], 130);
        page["messages"].as_array().unwrap().iter().map(|m| m["seq"].as_u64().unwrap()).collect()
    };
    assert_eq!(seqs(""), (81..=130).collect::<Vec<_>>());
    assert_eq!(seqs("limit=100"), (31..=130).collect::<Vec<_>>());
    assert_eq!(seqs("since=0&limit=3"), [1, 2, 3]);
    assert_eq!(seqs("since=129"), [130]);
    assert_eq!(seqs("since=130"), [0; 0]);
    assert_eq!(seqs("since=18446744073709551615"), [0; 0]);
    assert_eq!(seqs("before=1"), [0; 0]);
    assert_eq!(seqs("before=0"), [0; 0]);
    assert_eq!(seqs("before=3"), [1, 2]);
    assert_eq!(seqs("before=18446744073709551615&limit=2"), [129, 130]);
}

#[test]
fn an_event_is_not_delivered_to_the_connection_it_excludes() {
    let node = shared();
    let channel = fresh("exclude");
    let (mut one, mut two) = (node.watch(&channel), node.watch(&channel));
    let conn = one.ready()["conn"].clone();
    two.ready();
    let body = json!({"type": "custom.x", "exclude": conn}).to_string();
    let path = format!("/v1/demo/channels/{channel}/events");
    assert_eq!(node.http().post(&path, &node.key(), &body).status, 202);
    assert_eq!(two.event()["type"], "custom.x");
    node.post_text(&channel, "both");
    assert_eq!(one.event()["text"], "both", "the excluded one got nothing before");
    assert_eq!(two.event()["text"], "both");
}

#[test]
fn what_was_posted_is_what_is_delivered() {
    let node = shared();
    let channel = fresh("same");
    let mut viewer = node.watch(&channel);
    viewer.ready();
    for body in [
        json!({"text": ""}),
        json!({"text": "ünïcødé 𝄞 \u{7f} \u{0} \u{1f} \" \\ / \u{2028}"}),
        json!({"text": "a null is nothing", "data": null}),
        json!({"data": [1, -2.5, 1e300, true, null, {"a": {"b": []}}]}),
        json!({"data": "x", "text": "both"}),
        json!({"text": "named", "user": "ann", "name": "Ann \"A\"", "client_id": "c"}),
    ] {
        assert_eq!(node.post(&channel, &body).status, 201, "{body}");
        let event = viewer.event();
        assert_eq!((&event["text"], &event["data"]), (&body["text"], &body["data"]), "{event}");
        if body.get("user").is_some() {
            assert_eq!(event["user"], json!({"id": "ann", "name": "Ann \"A\""}));
            assert_eq!(event["client_id"], "c");
        }
        let kept = node.http().get(&format!("/v1/demo/channels/{channel}/messages?limit=1")).json();
        assert_eq!(kept["messages"][0], event);
    }
}

#[test]
fn the_admin_listener_answers_and_nothing_else_does_there() {
    let node = shared();
    let get = |path| crate::client::Http::try_get(node.admin, path).expect("an answer");
    assert_eq!((get("/healthz").status, get("/readyz").status, get("/metrics").status), (200, 200, 200));
    get("/v1/demo/channels/x/messages").assert_problem(404, "not_found");
    let metrics = get("/metrics").body;
    assert!(metrics.contains("# TYPE ringcast_account_open gauge"), "{metrics}");
    let answer = crate::client::Http::connect(node.admin).request("POST", "/healthz", "", "");
    answer.assert_problem(405, "method");
    // And nothing of it is public.
    node.http().get("/metrics").assert_problem(404, "not_found");
}

#[test]
fn the_first_frame_says_where_one_is() {
    let node = shared();
    let channel = fresh("ready");
    let seq = node.post_text(&channel, "before");
    let mut viewer = node.watch(&channel);
    let ready = viewer.ready();
    assert_eq!(
        (&ready["seq"], &ready["recovered"], &ready["ping_interval_s"]),
        (&json!(seq), &Value::Null, &json!(60))
    );
    assert!(ready["conn"].as_str().is_some_and(|conn| !conn.is_empty()));
    assert!(ready["epoch"].as_str().is_some_and(|epoch| !epoch.is_empty()));
    let room: Vec<&str> = ready["room"].as_str().unwrap().split('/').collect();
    assert!(
        room.len() == 3 && room[0] == channel && room[1..].iter().all(|part| part.parse::<u32>().is_ok()),
        "{room:?}"
    );
    assert!(ready["viewers"].as_u64().is_some(), "{ready}");
    // Without a channel there is no room and no position.
    let mut nowhere = Client::open(node.listen, "/v1/demo/ws");
    let ready = nowhere.ready();
    assert!(ready["conn"].is_string() && ready["room"].is_null() && ready["seq"].is_null(), "{ready}");
}
