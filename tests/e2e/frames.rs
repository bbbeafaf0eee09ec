//! Section A of the cases: frames, on the real socket path of the echo endpoint.

use serde_json::json;

use crate::client::{Client, PING, PONG, TEXT, frame, handshake, text};
use crate::node::{fresh, shared};

/// How the same bytes may reach a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// In one segment of their own.
    Whole,
    /// One byte a segment.
    ByByte,
    /// In one segment with the frame before them.
    BehindAnother,
    /// In one segment with the handshake.
    BehindHandshake,
}

const WAYS: [Way; 4] = [Way::Whole, Way::ByByte, Way::BehindAnother, Way::BehindHandshake];

const ECHO: &str = "/test/echo";

/// Says `bytes` to the echo endpoint; what is answered to what stood before them is read already.
fn said(way: Way, bytes: &[u8]) -> Client {
    let node = shared();
    match way {
        Way::Whole | Way::ByByte => {
            let mut client = Client::open(node.listen, ECHO);
            if way == Way::Whole {
                client.send(bytes);
            } else {
                client.send_by_byte(bytes);
            }
            client
        }
        Way::BehindAnother => {
            let mut client = Client::open(node.listen, ECHO);
            client.send(&[&text("before")[..], bytes].concat());
            assert_eq!(client.next().text(), "before", "what stood before the input is answered");
            client
        }
        Way::BehindHandshake => {
            let mut client = Client::raw(node.listen);
            client.send(&[handshake(ECHO, "").as_bytes(), bytes].concat());
            client.expect_101();
            client
        }
    }
}

/// The connection ends with this code in whatever way the bytes come, and nothing is answered but the Close.
fn fails(bytes: &[u8], code: u16) {
    for way in WAYS {
        eprintln!("{way:?}: {:x?}", &bytes[..bytes.len().min(16)]);
        said(way, bytes).expect_close(code);
    }
    shared().assert_alive();
}

/// Each way of sending the bytes gives these frames, and the connection lives on.
fn answers(bytes: &[u8], expected: &[(u8, &[u8])]) {
    for way in WAYS {
        let mut client = said(way, bytes);
        for (opcode, payload) in expected {
            let frame = client.next();
            assert_eq!((frame.opcode, frame.payload.len()), (*opcode, payload.len()), "{way:?}");
            assert!(frame.payload == *payload, "{way:?}");
        }
        client.send(&text("alive"));
        assert_eq!(client.next().text(), "alive", "{way:?}");
        client.close();
    }
}

#[test]
fn case_a1_a_close_with_one_byte_is_1002() {
    fails(&frame(0x88, &[3]), 1002);
}

#[test]
fn case_a2_close_codes_that_nobody_may_send_are_1002() {
    for code in [0_u16, 999, 1004, 1005, 1006, 1015, 1016, 1100, 2000, 2999, 5000, 65_535] {
        fails(&frame(0x88, &code.to_be_bytes()), 1002);
    }
    for code in [1000_u16, 1001, 1003, 1007, 1011, 3000, 3999, 4000, 4999] {
        for way in WAYS {
            said(way, &frame(0x88, &code.to_be_bytes())).expect_close(code);
        }
    }
    for way in WAYS {
        let close = said(way, &frame(0x88, b"")).next();
        assert!(matches!(close.code(), 1000 | 1005), "an empty Close is a good one: {close:?}");
    }
    // A reason that is not UTF-8.
    for way in WAYS {
        let close = said(way, &frame(0x88, &[0x03, 0xE8, 0xC3, 0x28])).next();
        assert!(matches!(close.code(), 1007 | 1002), "{close:?}");
    }
}

#[test]
fn case_a5_an_unmasked_frame_is_1002_and_is_not_delivered() {
    fails(b"\x81\x05Hello", 1002);
}

#[test]
fn case_a6_a_length_of_2_to_the_63_is_1002_at_the_header() {
    fails(b"\x82\xff\x80\0\0\0\0\0\0\0\0\0\0\0", 1002);
}

#[test]
fn case_a7_a_length_over_the_limit_is_1009_at_the_header() {
    let before = shared().rss_kib();
    fails(b"\x82\xff\x40\0\0\0\0\0\0\0\0\0\0\0", 1009);
    fails(b"\x82\xff\0\0\0\0\0\x01\0\x01\0\0\0\0", 1009);
    // The sum over fragments counts too.
    let limit = vec![b'x'; 64 * 1024];
    for way in WAYS {
        said(way, &[frame(0x01, &limit), frame(0x80, b"y")].concat()).expect_close(1009);
    }
    let grown = shared().rss_kib().saturating_sub(before);
    assert!(grown < 64 * 1024, "{grown} KiB");
}

#[test]
fn case_a9_a_ping_of_126_bytes_is_1002() {
    fails(&frame(0x89, &[b'a'; 126]), 1002);
}

#[test]
fn case_a10_pings_come_back_with_their_payloads() {
    answers(&frame(0x89, &[b'a'; 125]), &[(PONG, &[b'a'; 125])]);
    answers(&frame(0x89, b""), &[(PONG, b"")]);
    let payloads: Vec<Vec<u8>> = (0..10).map(|i| vec![b'0' + i; usize::from(i) + 1]).collect();
    let pings: Vec<u8> = payloads.iter().flat_map(|payload| frame(0x89, payload)).collect();
    let pongs: Vec<(u8, &[u8])> = payloads.iter().map(|payload| (PONG, &payload[..])).collect();
    answers(&pings, &pongs);
    // A pong that nobody asked for is no fault, and is not answered.
    answers(&frame(0x8A, b"unasked"), &[]);
}

#[test]
fn case_a11_a_fragmented_ping_is_1002() {
    fails(b"\x09\x80\0\0\0\0", 1002);
    fails(b"\x08\x82\0\0\0\0\x03\xe8", 1002);
}

#[test]
fn case_a12_an_orphan_continuation_is_1002() {
    fails(&frame(0x80, b"Hello"), 1002);
    fails(&frame(0x80, b""), 1002);
    fails(&frame(0x00, b"Hello"), 1002);
}

#[test]
fn case_a13_a_new_message_inside_a_fragmented_one_is_1002() {
    fails(&[frame(0x01, b"He"), frame(0x81, b"llo")].concat(), 1002);
    fails(&[frame(0x01, b"He"), frame(0x82, b"llo")].concat(), 1002);
}

#[test]
fn case_a14_a_ping_between_fragments_is_answered_at_once() {
    let (first, last) = ([frame(0x01, b"Hel"), frame(0x89, b"x")].concat(), frame(0x80, b"lo"));
    answers(&[&first[..], &last].concat(), &[(PONG, b"x"), (TEXT, b"Hello")]);
    for way in WAYS {
        let mut client = said(way, &first);
        let pong = client.next();
        assert_eq!((pong.opcode, &pong.payload[..]), (PONG, &b"x"[..]), "before the message is whole");
        client.send(&last);
        assert_eq!(client.next().text(), "Hello");
    }
}

#[test]
fn case_a15_reserved_bits_and_opcodes_are_1002() {
    for first in [0xC1, 0xA1, 0x91, 0xC9, 0xC0, 0x83, 0x87, 0x8B, 0x8F] {
        fails(&frame(first, b"Hello"), 1002);
    }
    // RSV1 on a continuation.
    fails(&[frame(0x01, b"He"), frame(0xC0, b"llo")].concat(), 1002);
}

#[test]
fn case_a17_text_that_is_not_utf8_is_1007() {
    let bad: [&[u8]; 5] = [b"\xc3\x28", b"\xed\xa0\x80", b"\xc0\x80", b"\xf4\x90\x80\x80", b"\xc3"];
    for payload in bad {
        fails(&frame(0x81, payload), 1007);
    }
    fails(&[frame(0x01, b"\xc3"), frame(0x80, b"\x28")].concat(), 1007);
    let split = [frame(0x01, b"\xc3"), frame(0x80, b"\xa9")].concat();
    answers(&split, &[(TEXT, "é".as_bytes())]);
    let four = "𝄞".as_bytes();
    let split: Vec<u8> =
        [frame(0x01, &four[..1]), frame(0x00, b""), frame(0x00, &four[1..3]), frame(0x80, &four[3..])].concat();
    answers(&split, &[(TEXT, four)]);
}

#[test]
fn case_a18_too_many_fragments_are_1008_and_memory_stays_flat() {
    let before = shared().rss_kib();
    for payload in [&b""[..], b"x"] {
        let mut bytes = frame(0x01, b"");
        for _ in 0..200_000 {
            bytes.extend_from_slice(&frame(0x00, payload));
        }
        for way in WAYS {
            // One byte a segment would only show how long a peer may go on talking to nobody.
            let bytes = if way == Way::ByByte { &bytes[..10_000] } else { &bytes[..] };
            said(way, bytes).expect_close(1008);
        }
    }
    let grown = shared().rss_kib().saturating_sub(before);
    assert!(grown < 64 * 1024, "{grown} KiB");
}

#[test]
fn case_a20_nothing_counts_after_a_close() {
    let bytes = [frame(0x88, &1000_u16.to_be_bytes()), frame(0x89, b"p"), text("late")].concat();
    for way in WAYS {
        said(way, &bytes).expect_close(1000);
    }
    let bytes = [&bytes[..], b"\xff\xff\xff"].concat();
    for way in WAYS {
        said(way, &bytes).expect_close(1000);
    }
}

#[test]
fn case_a21_payloads_of_every_awkward_size_come_whole() {
    let sizes = [0, 1, 35, 36, 125, 126, 127, 527, 528, 4_095, 4_096, 4_097, 16_383, 65_535, 65_536];
    for size in sizes {
        let payload: Vec<u8> = (0..size).map(|i| b'a' + (i % 23) as u8).collect();
        answers(&frame(0x81, &payload), &[(TEXT, &payload)]);
        answers(&frame(0x82, &payload), &[(crate::client::BINARY, &payload)]);
    }
    // All of them at once, in both directions.
    let all: Vec<Vec<u8>> = sizes.iter().map(|&size| vec![b'z'; size]).collect();
    let bytes: Vec<u8> = all.iter().flat_map(|payload| frame(0x81, payload)).collect();
    let expected: Vec<(u8, &[u8])> = all.iter().map(|payload| (TEXT, &payload[..])).collect();
    answers(&bytes, &expected);
}

#[test]
fn case_a21_posts_of_every_awkward_size_come_whole() {
    let node = shared();
    let channel = fresh("a21");
    let mut viewer = node.watch(&channel);
    viewer.ready();
    for size in [0, 1, 35, 36, 125, 126, 127, 527, 528, 4_095, 4_096, 4_097, 16_383, 16_384] {
        let posted: String = (0..size).map(|i| char::from(b'a' + (i % 23) as u8)).collect();
        let seq = node.post_text(&channel, &posted);
        let event = viewer.event();
        assert_eq!((event["seq"].as_u64(), event["text"].as_str()), (Some(seq), Some(&posted[..])), "{size}");
    }
    node.post(&channel, &json!({"text": "x".repeat(16_385)})).assert_problem(413, "message_too_large");
}

#[test]
fn pings_on_a_channel_socket_are_answered_too() {
    let node = shared();
    let mut viewer = node.watch(&fresh("ping"));
    viewer.ready();
    viewer.send(&frame(0x89, b"there?"));
    loop {
        let frame = viewer.next();
        if frame.opcode != TEXT {
            assert_eq!((frame.opcode, &frame.payload[..]), (PONG, &b"there?"[..]));
            assert_ne!(frame.opcode, PING);
            break;
        }
    }
}
