//! Heads of requests, where requests end, headers of proxies, and positions to resume from.

use ringcast::wire::filter::parse_filter;
use ringcast::wire::framing::{Framing, Stop};
use ringcast::wire::head::HeadScan;
use ringcast::wire::http::{HEAD_BYTES_MAX, Head, parse_head};
use ringcast::wire::position::{parse_epoch, show_epoch};
use ringcast::wire::{forwarded, proxy};

use crate::{Target, run};

const HEAD_WORDS: &[&str] = &[
    "GET /v1/demo/channels/race/ws HTTP/1.1\r\n",
    "POST ",
    " HTTP/1.0\r\n",
    "Host: h\r\n",
    "Upgrade: websocket\r\n",
    "Connection: Upgrade\r\n",
    "Connection: close\r\n",
    "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n",
    "Sec-WebSocket-Version: 13\r\n",
    "Sec-WebSocket-Protocol: ringcast.rkyv, bearer.a.b.c\r\n",
    "Content-Length: 5\r\n",
    "Transfer-Encoding: chunked\r\n",
    "Last-Event-ID: 00ff:7\r\n",
    "Authorization: Bearer rk_x\r\n",
    "0\r\n\r\n",
    "\r\n\r\n",
    "?epoch=ff&since=1&filter=message.*&heartbeat=5",
    "%2e%2E%00",
    "http://h/",
    "/sse",
];

#[test]
fn head() {
    run(&Target { name: "head", words: HEAD_WORDS, cost: 1 }, |input, rng| {
        let mut scan = HeadScan::default();
        let found = scan.find(input);
        // However it is cut, it ends in the same place, or is refused for the same reason.
        let (mut cut, mut at) = (HeadScan::default(), 0);
        let pieces = loop {
            at = (at + 1 + rng.below(40) as usize).min(input.len());
            match cut.find(&input[..at]) {
                Ok(None) if at < input.len() => {}
                other => break other,
            }
        };
        assert_eq!(found, pieces);
        let end = match found {
            Ok(Some(end)) => end,
            Ok(None) => return assert!(parse_head(input).is_err() || input.len() <= HEAD_BYTES_MAX),
            Err(problem) => return assert!(matches!(problem.status, 400 | 431)),
        };
        match parse_head(&input[..end]) {
            Ok(Head::Upgrade(upgrade)) => {
                assert!(!upgrade.app.as_str().is_empty() && upgrade.accept.len() <= 28);
                assert!(upgrade.heartbeat_s.is_none_or(|seconds| (1..=3_600).contains(&seconds)));
            }
            Ok(Head::Echo { .. } | Head::Other) => {}
            Err(problem) => {
                assert!((400..=505).contains(&problem.status) && !problem.detail.is_empty(), "{problem:?}");
                let response = problem.response();
                let head = response.windows(4).position(|four| four == b"\r\n\r\n").expect("a whole head");
                serde_json::from_slice::<serde_json::Value>(&response[head + 4..]).expect("a document in JSON");
                assert!(HeadScan::default().find(&response).is_ok(), "a refusal holds nothing that would be refused");
            }
        }
    });
}

#[test]
fn framing() {
    run(&Target { name: "framing", words: HEAD_WORDS, cost: 1 }, |input, rng| {
        let mut whole = Framing::default();
        whole.feed(input);
        let (mut cut, mut at) = (Framing::default(), 0);
        while at < input.len() {
            let end = (at + 1 + rng.below(60) as usize).min(input.len());
            cut.feed(&input[at..end]);
            at = end;
        }
        assert_eq!((whole.checked(), whole.heads()), (cut.checked(), cut.heads()), "however the bytes are cut");
        assert_eq!(whole.stopped(), cut.stopped());
        assert!(input.starts_with(whole.checked()), "what passes is what came");
        if let Some(Stop::Upgrade(rest)) = whole.stopped() {
            assert_eq!([whole.checked(), rest].concat(), input, "an upgrade loses nothing");
        }
    });
}

#[test]
fn proxy_header() {
    let words = &["PROXY TCP4 ", "PROXY UNKNOWN\r\n", "\r\n\r\n\0\r\nQUIT\n", "127.0.0.1", "::1", "\r\n"];
    run(&Target { name: "proxy_header", words, cost: 1 }, |input, _| {
        let verdict = proxy::parse(input);
        if let Ok(Some(header)) = &verdict {
            assert!(header.length <= input.len() && header.length > 0);
            // What stands behind it changes nothing, and before its end nothing is decided but that it is no header.
            assert_eq!(proxy::parse(&input[..header.length]), verdict);
            for end in [header.length / 2, header.length - 1] {
                assert!(!matches!(proxy::parse(&input[..end]), Ok(Some(_))), "half a header is none");
            }
        }
        let field = String::from_utf8_lossy(input);
        let source = "10.0.0.1".parse().unwrap();
        let listed = |ip: std::net::IpAddr| ip == source;
        if let Ok(client) = forwarded::client(source, &field, listed) {
            assert!(
                client == source || field.contains(&client.to_string()) || !field.is_ascii() || field.contains(':')
            );
        }
    });
}

#[test]
fn position() {
    let words = &["00ff:7", "epoch=", "&since=", "message.*", "custom.", ",", "%", "+", "gap", "ffffffffffffffff"];
    run(&Target { name: "position", words, cost: 1 }, |input, _| {
        let text = String::from_utf8_lossy(input);
        if let Ok(epoch) = parse_epoch(&text) {
            assert_eq!(parse_epoch(&show_epoch(epoch)), Ok(epoch));
        }
        let _ = parse_filter(text.split(','));
        let field = text.replace(['\r', '\n'], "");
        let head = format!("GET /v1/demo/channels/race/sse HTTP/1.1\r\nHost: h\r\nLast-Event-ID: {field}\r\n\r\n");
        if let Ok(Head::Upgrade(upgrade)) = parse_head(head.as_bytes())
            && let Some(since) = upgrade.since
        {
            let said = field.trim().to_ascii_lowercase();
            assert!(said.ends_with(&since.seq.to_string()), "{since:?} of {said:?}");
        }
        let query: String = text.chars().filter(char::is_ascii_graphic).collect();
        let head = format!("GET /v1/demo/channels/race/sse?{query} HTTP/1.1\r\nHost: h\r\n\r\n");
        if let Ok(Head::Upgrade(upgrade)) = parse_head(head.as_bytes()) {
            assert!(upgrade.heartbeat_s != Some(0));
        }
    });
}
