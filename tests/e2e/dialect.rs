//! `ringcast.rkyv`: the archived event itself, for clients that read without parsing.

use rkyv::rancor::Error;
use serde_json::json;

use crate::client::{BINARY, Client, TEXT, is_presence};
use crate::node::{fresh, shared};
use ringcast::wire::sealed::ArchivedEventV1;

#[test]
fn an_rkyv_client_gets_archives_and_json_replies() {
    let node = shared();
    let channel = fresh("rkyv");
    let path = format!("/v1/demo/channels/{channel}/ws");
    let fields = "Sec-WebSocket-Protocol: ringcast.rkyv, ringcast.json\r\n";
    let mut client = Client::raw(node.listen);
    client.send(crate::client::handshake(&path, fields).as_bytes());
    let head = client.expect_101();
    assert!(head.to_lowercase().contains("sec-websocket-protocol: ringcast.rkyv\r\n"), "{head}");
    let mut plain = node.watch(&channel);
    plain.ready();
    let ready = client.ready();
    for n in 1..=3 {
        node.post(&channel, &json!({"text": format!("text {n}"), "data": {"n": n}, "user": "ann"}));
        let json = plain.event();
        let frame = loop {
            let frame = client.next();
            assert_eq!(frame.opcode, BINARY, "events are archives: {frame:?}");
            let archive = rkyv::access::<ArchivedEventV1, Error>(&frame.payload).unwrap();
            if !is_presence(&archive.type_name) {
                break frame;
            }
        };
        let event = rkyv::access::<ArchivedEventV1, Error>(&frame.payload).expect("a valid archive");
        assert_eq!((event.type_name.as_str(), event.target.as_str()), ("message.new", channel.as_str()));
        assert_eq!((event.seq.to_native(), event.ts_ms.to_native()), (n, json["ts"].as_u64().unwrap()));
        assert_eq!(format!("{:016x}", event.epoch.to_native()), ready["epoch"].as_str().unwrap());
        assert_eq!(event.text.as_deref(), json["text"].as_str());
        assert_eq!(event.user_id.as_str(), "ann");
        assert_eq!(event.data.as_deref(), Some(json["data"].to_string().as_str()));
        assert!(event.json_frame.is_empty(), "the text is not sent twice");
    }
    client.say(&json!({"type": "ping", "id": 1}));
    let pong = loop {
        let frame = client.next();
        if frame.opcode == TEXT {
            break frame;
        }
    };
    assert_eq!(pong.json(), json!({"type": "pong", "id": 1}));
    // And what was missed comes in the same dialect.
    let path = format!("{path}?epoch={}&since=1", ready["epoch"].as_str().unwrap());
    let mut back = Client::open_with(node.listen, &path, fields);
    assert_eq!(back.ready()["recovered"], true);
    for seq in 2..=3 {
        let frame = back.next();
        assert_eq!(rkyv::access::<ArchivedEventV1, Error>(&frame.payload).unwrap().seq.to_native(), seq);
    }
}
