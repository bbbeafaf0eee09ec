//! Section B of the cases: the handshake and what else arrives at the door.

use std::time::{Duration, Instant};

use crate::client::{Client, Http, handshake, text};
use crate::node::{Node, fresh, shared};

const KEY: &str = "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n";

fn with_fields(fields: &str) -> String {
    format!("GET /test/echo HTTP/1.1\r\nHost: h\r\n{KEY}{fields}\r\n")
}

/// A connection over which the echo endpoint answers.
fn assert_echoes(client: &mut Client) {
    client.send(&text("hello"));
    assert_eq!(client.next().text(), "hello");
}

#[test]
fn case_b1_the_connection_field_may_be_a_list_in_any_shape() {
    let version = "Sec-WebSocket-Version: 13\r\n";
    for connection in [
        "Connection: keep-alive, Upgrade\r\nUpgrade: websocket\r\n",
        "Connection: Upgrade , keep-alive\r\nUpgrade: websocket\r\n",
        "Connection: keep-alive\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n",
        "connection:\tkeep-alive,\tupgrade\r\nupgrade: WebSocket\r\n",
        "CONNECTION: UPGRADE\r\nUPGRADE: WEBSOCKET\r\n",
    ] {
        let head = with_fields(&format!("{connection}{version}"));
        let mut client = Client::raw(shared().listen);
        client.send(head.as_bytes());
        client.expect_101();
        assert_echoes(&mut client);
        let mut client = Client::raw(shared().listen);
        client.send_by_byte(head.as_bytes());
        client.expect_101();
        assert_echoes(&mut client);
        let mut client = Client::raw(shared().listen);
        client.send(&[head.as_bytes(), &text("coalesced")].concat());
        client.expect_101();
        assert_eq!(client.next().text(), "coalesced");
    }
    let mut client = Client::raw(shared().listen);
    client.send(with_fields(&format!("Connection: close\r\nUpgrade: websocket\r\n{version}")).as_bytes());
    client.refusal().assert_problem(400, "connection_field");
    let mut client = Client::raw(shared().listen);
    client.send(with_fields(&format!("Connection: Upgrade\r\nUpgrade: h2c\r\n{version}")).as_bytes());
    client.refusal().assert_problem(426, "not_an_upgrade");
}

#[test]
fn case_b2_a_head_of_20_megabytes_is_refused_at_the_cap() {
    let node = shared();
    let mut neighbour = Client::open(node.listen, "/test/echo");
    let cpu = node.cpu_s();
    let began = Instant::now();
    let mut huge = b"GET /test/echo HTTP/1.1\r\nHost: h\r\nX: ".to_vec();
    huge.resize(20_000_000, b'x');
    let mut client = Client::raw(node.listen);
    let mut slowest = Duration::ZERO;
    for piece in huge.chunks(200_000) {
        client.send(piece);
        let asked = Instant::now();
        assert_echoes(&mut neighbour);
        slowest = slowest.max(asked.elapsed());
    }
    // What was said before the node closed can have been overtaken by the reset that unread bytes cause.
    let rest = client.rest_until_end();
    assert!(rest.is_empty() || rest.starts_with(b"HTTP/1.1 431 "), "{}", String::from_utf8_lossy(&rest));
    assert!(began.elapsed() < Duration::from_secs(5) && node.cpu_s() - cpu < 4.0, "linear time");
    assert!(slowest < Duration::from_millis(500), "a neighbour waited {slowest:?}");
    // Just over the cap, in one go: the answer can be read.
    for by_byte in [false, true] {
        let mut head = b"GET /test/echo HTTP/1.1\r\nHost: h\r\nX: ".to_vec();
        head.resize(16 * 1024 + 1, b'x');
        let mut client = Client::raw(node.listen);
        if by_byte {
            client.send_by_byte(&head);
        } else {
            client.send(&head);
        }
        client.refusal().assert_problem(431, "head_too_large");
    }
}

#[test]
fn case_b3_two_thousand_fields_are_refused() {
    let many: String = (0..2_000).map(|i| format!("x{i}: 1\r\n")).collect();
    let good = handshake("/test/echo", "");
    for head in [
        good.replacen("Host:", &format!("{many}Host:"), 1),
        handshake("/test/echo", &many),
        handshake("/test/echo", &(0..65).map(|i| format!("x{i}: 1\r\n")).collect::<String>()),
    ] {
        let mut client = Client::raw(shared().listen);
        client.send(head.as_bytes());
        let refusal = client.refusal();
        assert_eq!(refusal.status, 431, "{refusal:?}");
    }
    shared().assert_alive();
}

#[test]
fn case_b5_a_wrong_version_is_told_the_right_one() {
    let node = shared();
    for version in ["", "Sec-WebSocket-Version: 8\r\n", "Sec-WebSocket-Version: 13, 8\r\n"] {
        for by_byte in [false, true] {
            let head = with_fields(&format!("Connection: Upgrade\r\nUpgrade: websocket\r\n{version}"));
            let mut client = Client::raw(node.listen);
            if by_byte {
                client.send_by_byte(head.as_bytes());
            } else {
                client.send(head.as_bytes());
            }
            let refusal = client.refusal();
            refusal.assert_problem(426, "websocket_version");
            assert_eq!(refusal.field("sec-websocket-version"), Some("13"));
            // A client that does not wait for its refusal.
            let mut client = Client::raw(node.listen);
            client.send(head.as_bytes());
            drop(client);
        }
    }
    // One that does not wait for its 101.
    for _ in 0..50 {
        let mut client = Client::raw(node.listen);
        client.send(handshake(&format!("/v1/demo/channels/{}/ws", fresh("b5")), "").as_bytes());
        socket2::SockRef::from(&client.stream).set_linger(Some(Duration::ZERO)).unwrap();
        drop(client);
    }
    node.assert_alive();
    assert_echoes(&mut Client::open(node.listen, "/test/echo"));
}

#[test]
fn case_b7_a_frame_in_the_handshake_s_segment_is_delivered() {
    let node = shared();
    let mut client = Client::raw(node.listen);
    client.send(&[handshake("/test/echo", "").as_bytes(), &text("early"), &text("birds")].concat());
    client.expect_101();
    assert_eq!(client.next().text(), "early");
    assert_eq!(client.next().text(), "birds");
    // Broken off within the frame.
    let frame = text("in two");
    let mut client = Client::raw(node.listen);
    client.send(&[handshake("/test/echo", "").as_bytes(), &frame[..4]].concat());
    client.expect_101();
    client.send(&frame[4..]);
    assert_eq!(client.next().text(), "in two");
    // On a channel, where the socket may have to change its core first.
    for _ in 0..8 {
        let mut client = Client::raw(node.listen);
        let head = handshake(&format!("/v1/demo/channels/{}/ws", fresh("b7")), "");
        client.send(&[head.as_bytes(), &text(r#"{"type":"ping","id":1}"#)].concat());
        client.expect_101();
        let first = client.event();
        let second = client.event();
        assert_eq!(first["type"], "connection.ready", "the first frame is always ready, not {first}");
        assert_eq!((&second["type"], &second["id"]), (&"pong".into(), &1.into()));
    }
}

#[test]
fn case_b9_nothing_comes_before_the_101_and_an_idle_handshake_ends() {
    // Ten seconds are the default for a head.
    let node = shared();
    let mut idle = Client::raw(node.listen);
    let mut patient = Client::raw(node.listen);
    patient.expect_silence(Duration::from_secs(5));
    patient.send(handshake("/test/echo", "").as_bytes());
    patient.expect_101();
    assert_echoes(&mut patient);
    idle.send(b"GET /test/echo HTTP/1.1\r\n");
    idle.patience(Duration::from_secs(12));
    idle.refusal().assert_problem(408, "head_too_slow");
}

#[test]
fn a_head_that_is_no_http_is_refused_and_leaves_no_trace() {
    let node = shared();
    for (bytes, status) in [
        (&b"\x16\x03\x01\x02\0\x01\0\x01\xfc\x03\x03\r\n\r\n"[..], 400),
        (b"GET /test/echo HTTP/1.1\r\nHost: h\r\nBad Header\r\n\r\n", 400),
        (b"GET /test/echo HTTP/2.0\r\nHost: h\r\n\r\n", 505),
        (b"\r\n\r\n\r\n\r\n", 400),
    ] {
        let mut client = Client::raw(node.listen);
        client.send(bytes);
        if bytes == b"\r\n\r\n\r\n\r\n" {
            client.shutdown_write();
            let _ = client.rest_until_end();
            continue;
        }
        let refusal = client.refusal();
        assert_eq!(refusal.status, status, "{refusal:?}");
        assert_eq!(refusal.field("content-type"), Some("application/problem+json"));
    }
    node.assert_alive();
}

#[test]
fn what_is_no_http_1_is_505_and_http_1_0_is_spoken_but_not_upgraded() {
    let node = shared();
    let preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
    let of = |path: &str, version: &str| handshake(path, "").replace("HTTP/1.1", version).into_bytes();
    let channel = "/v1/demo/channels/versions";
    for request in [
        preface,
        of(&format!("{channel}/ws"), "HTTP/2.0"),
        of(&format!("{channel}/messages"), "HTTP/1.2"),
        of(&format!("{channel}/ws"), "HTTP/1.0"),
        of("/test/echo", "HTTP/1.0"),
    ] {
        let mut client = Client::raw(node.listen);
        client.send(&request);
        client.refusal().assert_problem(505, "http_version");
    }
    // Behind a request that was answered it is the same, and the connection ends there too.
    let mut http = Http::connect(node.listen);
    assert_eq!(http.get(&format!("{channel}/messages")).status, 200);
    let mut client = Client::over(http.into_stream());
    client.send(&of(&format!("{channel}/ws"), "HTTP/1.0"));
    client.refusal().assert_problem(505, "http_version");
    let mut plain = Client::raw(node.listen);
    plain.send(format!("GET {channel}/messages HTTP/1.0\r\n\r\n").as_bytes());
    let answer = plain.refusal();
    assert_eq!((answer.status, answer.json()["head"].as_u64()), (200, Some(0)), "{answer:?}");
}

#[test]
fn an_upgrade_on_a_kept_alive_connection_is_not_lost() {
    // Proxies that keep connections to their upstream send an upgrade behind other requests.
    let node = shared();
    for round in 0..20 {
        let channel = fresh("kept");
        let mut http = Http::connect(node.listen);
        for _ in 0..=round % 3 {
            assert_eq!(http.get(&format!("/v1/demo/channels/{channel}/messages")).status, 200);
            let path = format!("/v1/demo/channels/{channel}/messages");
            assert_eq!(http.post(&path, &node.key(), r#"{"text":"kept"}"#).status, 201);
        }
        let mut client = Client::over(http.stream().try_clone().unwrap());
        drop(http);
        let head = handshake(&format!("/v1/demo/channels/{channel}/ws"), "");
        if round % 2 == 0 {
            client.send(&[head.as_bytes(), &text(r#"{"type":"ping"}"#)].concat());
        } else {
            // Its first line comes whole; the rest is late.
            let (first, rest) = head.split_at(head.len() - 10);
            client.send(first.as_bytes());
            client.send(rest.as_bytes());
            client.send(&text(r#"{"type":"ping"}"#));
        }
        client.expect_101();
        client.ready();
        assert_eq!(client.event()["type"], "pong");
        client.close();
    }
    // A refusal there is the same as anywhere.
    let mut http = Http::connect(node.listen);
    assert_eq!(http.get("/v1/demo/channels/kept/messages").status, 200);
    let mut client = Client::over(http.stream().try_clone().unwrap());
    client.send(handshake("/v1/nobody/ws", "").as_bytes());
    client.refusal().assert_problem(404, "unknown_app");
    // What only looks like one, within a body, is a body.
    let body = format!("{{\"text\":\"x\"}}\n{}", "GET /v1/demo/ws HTTP/1.1\r\n\r\n");
    let path = "/v1/demo/channels/kept/messages";
    let mut http = Http::connect(node.listen);
    for _ in 0..2 {
        http.post(path, &node.key(), &body).assert_problem(400, "malformed_body");
    }
}

#[test]
fn one_core_is_enough() {
    let dir = crate::node::temp_dir();
    let node = Node::start_by(&["taskset", "-c", "0"], dir.path(), &[]);
    let mut viewer = node.watch("one");
    viewer.ready();
    assert_eq!(node.post_text("one", "here"), 1);
    assert_eq!(viewer.event()["text"], "here");
}
