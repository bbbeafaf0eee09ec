//! Requests that two readers could cut in two ways: what stands in front of the node and the node itself must never
//! disagree where a request ends. Whatever is ambiguous is 400 and the end of the connection, and nothing of it, nor of
//! what stands behind it, is run.

use serde_json::json;

use crate::client::{Client, Http, handshake};
use crate::node::{Node, fresh, shared};

/// A good post to a channel, whole.
fn post(node: &Node, channel: &str, text: &str) -> String {
    let body = json!({ "text": text }).to_string();
    let (key, length) = (node.key(), body.len());
    format!(
        "POST /v1/demo/channels/{channel}/messages HTTP/1.1\r\nHost: h\r\nAuthorization: Bearer {key}\r\n\
         Content-Length: {length}\r\n\r\n{body}"
    )
}

/// The same with other lines about its length, and with other bytes for a body.
fn post_with(node: &Node, channel: &str, fields: &str, body: &str) -> String {
    let key = node.key();
    format!(
        "POST /v1/demo/channels/{channel}/messages HTTP/1.1\r\nHost: h\r\nAuthorization: Bearer {key}\r\n\
         {fields}\r\n\r\n{body}"
    )
}

/// How many messages the channel holds.
fn head_of(node: &Node, channel: &str) -> u64 {
    let answer = node.http().get(&format!("/v1/demo/channels/{channel}/messages"));
    assert_eq!(answer.status, 200, "{answer:?}");
    answer.json()["head"].as_u64().expect("a head")
}

/// The request is refused with 400 and this code wherever it stands on its connection and however it is cut; neither it nor
/// the good post behind it is run.
fn refused(bytes: &str, code: &str) {
    let node = shared();
    let channel = fresh("behind");
    let behind = post(node, &channel, "smuggled");
    for by_byte in [false, true] {
        let mut client = Client::raw(node.listen);
        let all = format!("{bytes}{behind}");
        if by_byte {
            client.send_by_byte(all.as_bytes());
        } else {
            client.send(all.as_bytes());
        }
        let answer = client.refusal();
        if !by_byte || !answer.body.is_empty() {
            answer.assert_problem(400, code);
        }
    }
    // On a kept connection, in the segment of a good request: that one is answered, the bad one refused.
    let good = fresh("before");
    let mut client = Client::raw(node.listen);
    client.send(format!("{}{bytes}{behind}", post(node, &good, "good")).as_bytes());
    let first = client.head().expect("the answer to the good one");
    assert!(first.starts_with("HTTP/1.1 201 "), "{bytes:?}: {first}");
    let rest = String::from_utf8(client.rest_until_end()).expect("text");
    let (document, second) = rest.split_once("HTTP/1.1 ").unwrap_or_else(|| panic!("{bytes:?}: {first}{rest}"));
    assert!(document.contains("\"seq\":1"), "{document}");
    assert!(second.starts_with("400 ") && second.contains(&format!("\"code\":\"{code}\"")), "{bytes:?}: {second}");
    assert!(!second.contains("HTTP/1.1 2"), "nothing is answered behind it: {second}");
    // On a kept connection, after the answer to a good request.
    let mut http = Http::connect(node.listen);
    assert_eq!(http.get(&format!("/v1/demo/channels/{good}/messages")).status, 200);
    let mut client = Client::over(http.into_stream());
    client.send(format!("{bytes}{behind}").as_bytes());
    client.refusal().assert_problem(400, code);
    assert_eq!((head_of(node, &good), head_of(node, &channel)), (1, 0), "{bytes:?}");
    node.assert_alive();
}

#[test]
fn a_length_that_is_said_twice_is_refused() {
    let node = shared();
    let channel = fresh("twice");
    let body = r#"{"text":"x"}"#;
    let length = body.len();
    for (fields, code) in [
        (format!("Content-Length: {length}\r\nContent-Length: {length}"), "field_twice"),
        (format!("Content-Length: {length}\r\nContent-Length: {}", length + 1), "field_twice"),
        (format!("Content-Length: 0\r\ncontent-length: {length}"), "field_twice"),
        (format!("Content-Length: {length}, {length}"), "bad_content_length"),
        (format!("Content-Length: +{length}"), "bad_content_length"),
        ("Content-Length: 0xc".to_owned(), "bad_content_length"),
        ("Content-Length: -1".to_owned(), "bad_content_length"),
        ("Content-Length: 99999999999999999999".to_owned(), "bad_content_length"),
    ] {
        refused(&post_with(node, &channel, &fields, body), code);
    }
    assert_eq!(head_of(node, &channel), 0);
}

#[test]
fn a_length_beside_an_encoding_and_encodings_but_chunked_are_refused() {
    let node = shared();
    let channel = fresh("encoded");
    let chunked = "c\r\n{\"text\":\"x\"}\r\n0\r\n\r\n";
    for (fields, code) in [
        ("Content-Length: 12\r\nTransfer-Encoding: chunked", "length_and_encoding"),
        ("Transfer-Encoding: chunked\r\nContent-Length: 12", "length_and_encoding"),
        ("Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked", "field_twice"),
        ("Transfer-Encoding: chunked, chunked", "bad_transfer_encoding"),
        ("Transfer-Encoding: xchunked", "bad_transfer_encoding"),
        ("Transfer-Encoding: identity", "bad_transfer_encoding"),
        ("Transfer-Encoding: gzip, chunked", "bad_transfer_encoding"),
        ("Transfer-Encoding: \"chunked\"", "bad_transfer_encoding"),
    ] {
        refused(&post_with(node, &channel, fields, chunked), code);
    }
    let old = format!("POST /v1/demo/channels/{channel}/messages HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n");
    refused(&old, "bad_transfer_encoding");
    assert_eq!(head_of(node, &channel), 0);
}

#[test]
fn lines_that_end_or_begin_in_another_way_are_refused() {
    let path = "/v1/demo/channels/x/messages";
    for (head, code) in [
        (format!("GET {path} HTTP/1.1\nHost: h\n\n"), "bare_line_end"),
        (format!("GET {path} HTTP/1.1\r\nHost: h\nX: y\r\n\r\n"), "bare_line_end"),
        (format!("GET {path} HTTP/1.1\r\nHost: h\r\nX: y\rContent-Length: 5\r\n\r\n"), "bare_line_end"),
        (format!("GET {path} HTTP/1.1\r\nHost: h\r\nX: y\r\r\n\r\n"), "bare_line_end"),
        (format!("GET {path} HTTP/1.1\r\nHost: h\r\nX: y\r\n folded: z\r\n\r\n"), "head_malformed"),
        (format!("GET {path} HTTP/1.1\r\n Host: h\r\n\r\n"), "head_malformed"),
        (format!("GET {path} HTTP/1.1\r\nHost : h\r\n\r\n"), "head_malformed"),
        (format!("GET {path} HTTP/1.1\r\nHost: h\r\nContent-Length : 5\r\n\r\n"), "head_malformed"),
        (format!("GET {path} HTTP/1.1\r\nHost: h\r\n: nothing\r\n\r\n"), "head_malformed"),
        (format!("GET {path} HTTP/1.1\r\nHost: h\r\nX: a\0b\r\n\r\n"), "control_character"),
        (format!("GET {path} HTTP/1.1\r\nHost: h\r\nX\0: a\r\n\r\n"), "control_character"),
        (format!("GET {path}\x01 HTTP/1.1\r\nHost: h\r\n\r\n"), "control_character"),
        (format!("GE\x7fT {path} HTTP/1.1\r\nHost: h\r\n\r\n"), "control_character"),
        (format!("GET\t{path} HTTP/1.1\r\nHost: h\r\n\r\n"), "head_malformed"),
        (format!("GET {path} HTTP/1.1\r\n\r\n"), "no_host"),
        (format!("GET {path} HTTP/1.1\r\nHost: h\r\nHost: h\r\n\r\n"), "field_twice"),
        (format!("GET {path} HTTP/1.1\r\nHost: h\r\nHOST: g\r\n\r\n"), "field_twice"),
    ] {
        refused(&head, code);
    }
}

#[test]
fn an_upgrade_is_read_as_strictly() {
    let node = shared();
    let good = handshake("/test/echo", "");
    for (head, code) in [
        (good.replace("Host: h\r\n", "Host: h\r\nHost: h\r\n"), "field_twice"),
        (good.replace("Host: h\r\n", ""), "no_host"),
        (good.replace("Host: h\r\n", "Host: h\n"), "bare_line_end"),
        (good.replace("Upgrade: websocket", "Upgrade : websocket"), "head_malformed"),
        (good.replace("Host: h\r\n", "Host: h\r\nX: a\0\r\n"), "control_character"),
        (handshake("/test/echo", "Content-Length: 5\r\nContent-Length: 5\r\n"), "field_twice"),
        (handshake("/test/echo", "Content-Length: 5\r\n"), "upgrade_with_body"),
        (handshake("/test/echo", "Transfer-Encoding: chunked\r\n"), "upgrade_with_body"),
    ] {
        let mut client = Client::raw(node.listen);
        client.send(head.as_bytes());
        client.refusal().assert_problem(400, code);
    }
    // A client that takes the node for its proxy names it in the target.
    let mut client = Client::raw(node.listen);
    client.send(good.replace("GET /test", "GET http://h/test").as_bytes());
    client.expect_101();
    client.close();
}

#[test]
fn chunks_that_are_none_end_the_connection_and_nothing_behind_them_is_run() {
    let node = shared();
    let (channel, behind) = (fresh("torn"), fresh("torn"));
    for body in [
        "c\n{\"text\":\"x\"}\r\n0\r\n\r\n",
        "b\r\n{\"text\":\"x\"}\r\n0\r\n\r\n",
        "0xc\r\n{\"text\":\"x\"}\r\n0\r\n\r\n",
        "c \r\n{\"text\":\"x\"}\r\n0\r\n\r\n",
        "10000000c\r\n{\"text\":\"x\"}\r\n0\r\n\r\n",
        "c\r\n{\"text\":\"x\"}\r\n0\r\nA: b\n\r\n",
    ] {
        let torn = post_with(node, &channel, "Transfer-Encoding: chunked", body);
        let mut client = Client::raw(node.listen);
        client.send(format!("{torn}{}", post(node, &behind, "smuggled")).as_bytes());
        let answer = client.refusal();
        answer.assert_problem(400, "body_torn");
        assert!(!answer.body.contains("HTTP/1.1 2"), "{answer:?}");
    }
    assert_eq!((head_of(node, &channel), head_of(node, &behind)), (0, 0));
}

#[test]
fn good_requests_of_every_shape_are_answered_on_one_kept_connection() {
    let node = shared();
    let channel = fresh("shapes");
    let mut http = Http::connect(node.listen);
    let body = r#"{"text":"x"}"#;
    let chunked = "5;ext=\"1\"\r\n{\"tex\r\n07\r\nt\":\"x\"}\r\n0\r\nTrailer: yes\r\n\r\n";
    let get = format!("GET /v1/demo/channels/{channel}/messages HTTP/1.1\r\nHost: h\r\n\r\n");
    let requests = [
        (post(node, &channel, "plain"), 201),
        (post_with(node, &channel, "Transfer-Encoding: chunked", chunked), 201),
        (post_with(node, &channel, "tRANSFER-eNCODING:\tCHUNKED ", chunked), 201),
        (post_with(node, &channel, "Content-Length:   012  ", body), 201),
        // An empty line in front is no fault.
        (format!("\r\n{get}"), 200),
        (get.clone(), 200),
        (get.replace("GET /", "GET http://elsewhere/"), 200),
        (get.replace("GET /", "PROPFIND /"), 405),
        (get.replace("Host: h", "Host:"), 200),
    ];
    for (request, status) in &requests {
        use std::io::Write as _;
        http.stream().write_all(request.as_bytes()).unwrap();
        let answer = http.read_answer().unwrap_or_else(|| panic!("no answer to {request:?}"));
        assert_eq!(answer.status, *status, "{request:?}: {answer:?}");
    }
    // A client that asks before it sends its body.
    let mut client = Client::raw(node.listen);
    client.send(post_with(node, &channel, "Content-Length: 12\r\nExpect: 100-continue", "").as_bytes());
    let head = client.head().expect("leave to go on");
    assert!(head.starts_with("HTTP/1.1 100 "), "{head}");
    client.send(body.as_bytes());
    let head = client.head().expect("an answer");
    assert!(head.starts_with("HTTP/1.1 201 "), "{head}");
    assert_eq!(head_of(node, &channel), 5);
    // All of them in one segment: answered one by one, in their order.
    let pipelined = fresh("pipelined");
    let all: String = (0..20).map(|i| post(node, &pipelined, &format!("n{i}"))).collect();
    let mut client = Client::raw(node.listen);
    client.send(format!("{all}{}", get.replace("Host: h", "Host: h\r\nConnection: close")).as_bytes());
    let answers = String::from_utf8(client.rest_until_end()).unwrap();
    let order: Vec<usize> =
        (1..=20).map(|seq| answers.find(&format!("\"seq\":{seq},")).unwrap_or_else(|| panic!("{answers}"))).collect();
    assert!(order.is_sorted() && answers.matches("HTTP/1.1 201 ").count() == 20, "{answers}");
    assert_eq!(head_of(node, &pipelined), 20);
    // Behind a last request nothing is run.
    let last = post(node, &pipelined, "last").replace("Host: h", "Host: h\r\nConnection: close");
    let mut client = Client::raw(node.listen);
    client.send(format!("{last}{}", post(node, &pipelined, "behind")).as_bytes());
    let answers = String::from_utf8(client.rest_until_end()).unwrap();
    assert_eq!(answers.matches("HTTP/1.1 ").count(), 1, "{answers}");
    assert_eq!(head_of(node, &pipelined), 21);
    // An upgrade in the segment of a request is answered behind it.
    let mut client = Client::raw(node.listen);
    client.send(format!("{get}{}", handshake("/test/echo", "")).as_bytes());
    let head = client.head().expect("an answer");
    assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
    let length: usize = head.lines().find_map(|line| line.strip_prefix("content-length: ")).unwrap().parse().unwrap();
    client.skip(length);
    client.expect_101();
    client.close();
}
