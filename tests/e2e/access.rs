//! Who may come in and who may post.

use std::time::Duration;

use serde_json::json;

use crate::client::{Client, handshake};
use crate::node::{fresh, shared, unix_s};
use ringcast::admission::auth::make_token;

/// A user's name as the node knows it, found out by posting over the socket.
fn speaks_as(client: &mut Client, channel: &str) -> String {
    client.ready();
    client.say(&json!({"type": "message", "channel": channel, "text": "me"}));
    loop {
        let event = client.event();
        if event["type"] == "message.new" {
            return event["user"]["id"].as_str().unwrap().to_owned();
        }
        assert_ne!(event["type"], "error", "{event}");
    }
}

fn refused(path: &str, fields: &str, status: u16, code: &str) {
    let mut client = Client::raw(shared().listen);
    client.send(handshake(path, fields).as_bytes());
    client.refusal().assert_problem(status, code);
}

#[test]
fn a_token_may_come_in_three_ways() {
    let node = shared();
    let token = node.token("ann");
    let channel = fresh("ways");
    let path = format!("/v1/demo/channels/{channel}/ws");
    let mut client = Client::open(node.listen, &format!("{path}?token={token}"));
    assert_eq!(speaks_as(&mut client, &channel), "ann");
    let mut client = Client::open_with(node.listen, &path, &format!("Authorization: Bearer {token}\r\n"));
    assert_eq!(speaks_as(&mut client, &channel), "ann");
    let mut client = Client::open_with(node.listen, &path, &format!("authorization: bearer {token}\r\n"));
    assert_eq!(speaks_as(&mut client, &channel), "ann");
    for offered in [format!("ringcast.json, bearer.{token}"), format!("bearer.{token}, ringcast.json")] {
        let mut client = Client::raw(node.listen);
        client.send(handshake(&path, &format!("Sec-WebSocket-Protocol: {offered}\r\n")).as_bytes());
        let head = client.expect_101();
        assert!(head.to_lowercase().contains("sec-websocket-protocol: ringcast.json\r\n"), "{head}");
        assert!(!head.contains(&token), "a token is never echoed");
        assert_eq!(speaks_as(&mut client, &channel), "ann");
    }
    assert!(!node.log().contains(&token), "nor logged");
}

#[test]
fn bad_tokens_are_refused_everywhere() {
    let node = shared();
    let expired = make_token(node.secret().as_bytes(), "ann", None, unix_s() - 1).unwrap();
    let forged = make_token(&[b'x'; 43], "ann", None, unix_s() + 60).unwrap();
    let none = "eyJhbGciOiJub25lIn0.eyJzdWIiOiJhbm4iLCJleHAiOjk5OTk5OTk5OTl9.";
    let path = format!("/v1/demo/channels/{}/ws", fresh("bad"));
    for (token, code) in [
        (expired.as_str(), "token_expired"),
        (&forged, "bad_token"),
        (none, "bad_token"),
        ("nonsense", "bad_token"),
        ("rk_not-the-key", "wrong_server_key"),
    ] {
        refused(&format!("{path}?token={token}"), "", 401, code);
        refused(&path, &format!("Authorization: Bearer {token}\r\n"), 401, code);
        refused(&path, &format!("Sec-WebSocket-Protocol: ringcast.json, bearer.{token}\r\n"), 401, code);
        let fields = format!("Authorization: Bearer {token}\r\n");
        for (method, what) in [("GET", "messages"), ("POST", "messages"), ("POST", "events"), ("GET", "viewers")] {
            let answer =
                node.http().request(method, &format!("/v1/demo/channels/x/{what}"), &fields, r#"{"text":"x"}"#);
            answer.assert_problem(401, code);
        }
    }
    refused(&path, "Authorization: Basic YTpi\r\n", 401, "bad_authorization");
    refused(&path, &format!("Authorization: Bearer {}\r\n", node.key()), 403, "server_key_on_socket");
    refused("/v1/nobody/channels/x/ws", "", 404, "unknown_app");
    refused("/v1/nobody/ws", "", 404, "unknown_app");
    refused("/v1/demo/channels/a%20b/ws", "", 400, "bad_name");
    refused(&format!("/v1/demo/channels/{}/ws", "x".repeat(129)), "", 400, "bad_name");
    refused(&path, "Sec-WebSocket-Protocol: chat\r\n", 400, "no_common_subprotocol");
}

#[test]
fn a_token_that_ends_soon_is_good_until_then() {
    let node = shared();
    let end = unix_s() + 3;
    let token = make_token(node.secret().as_bytes(), "ann", Some("Ann"), end).unwrap();
    let channel = fresh("soon");
    let body = r#"{"text":"x"}"#;
    let path = format!("/v1/demo/channels/{channel}/messages");
    assert_eq!(node.http().post(&path, &token, body).status, 201);
    // Seconds are what tokens count in: the end is the event to wait for.
    while unix_s() < end {
        std::thread::sleep(Duration::from_millis(20));
    }
    node.http().post(&path, &token, body).assert_problem(401, "token_expired");
}

#[test]
fn nobody_posts_without_a_credential() {
    let node = shared();
    for what in ["messages", "events"] {
        let path = format!("/v1/demo/channels/{}/{what}", fresh("anon"));
        let body = r#"{"type":"custom.x","text":"x"}"#;
        node.http().request("POST", &path, "", body).assert_problem(401, "token_needed");
    }
    node.http()
        .request("POST", "/v1/demo/users/ann/events", "", r#"{"type":"custom.x"}"#)
        .assert_problem(401, "token_needed");
    let token = node.token("ann");
    node.http().post("/v1/demo/users/bob/events", &token, r#"{"type":"custom.x"}"#).assert_problem(403, "no_right");
    node.http().post("/v1/demo/channels/x/events", &token, r#"{"type":"user.banned"}"#).assert_problem(403, "no_right");
}

#[test]
fn an_origin_is_welcome_where_no_list_forbids_it() {
    let mut client = Client::open_with(shared().listen, "/v1/demo/ws", "Origin: https://elsewhere.example\r\n");
    client.ready();
}

#[test]
fn events_to_a_user_reach_all_connections_of_that_user_and_nobody_else() {
    let node = shared();
    let user = fresh("user");
    let mut ones: Vec<Client> = (0..4).map(|_| node.watch_as(&fresh("somewhere"), &user)).collect();
    ones.push(Client::open(node.listen, &format!("/v1/demo/ws?token={}", node.token(&user))));
    let mut other = node.watch_as(&fresh("elsewhere"), &fresh("user"));
    for client in ones.iter_mut().chain([&mut other]) {
        client.ready();
    }
    let body = json!({"type": "custom.hello", "data": {"n": 1}}).to_string();
    assert_eq!(node.http().post(&format!("/v1/demo/users/{user}/events"), &node.key(), &body).status, 202);
    for client in &mut ones {
        let event = client.event();
        assert_eq!((&event["type"], &event["data"]["n"]), (&json!("custom.hello"), &json!(1)));
    }
    assert!(other.settle().is_empty());
}
