//! What a client may say, what it is answered, and what becomes of what it may not say.

use serde_json::{Value, json};

use crate::client::{BINARY, CLOSE, Client, TEXT, frame, is_presence, text};
use crate::node::{Node, fresh, shared};

fn ask(client: &mut Client, command: &Value) -> Value {
    client.say(command);
    client.event()
}

fn assert_error(answer: &Value, code: &str, id: &Value) {
    assert_eq!((&answer["type"], &answer["code"], &answer["id"]), (&json!("error"), &json!(code), id), "{answer}");
    assert!(answer["message"].as_str().is_some_and(|message| !message.is_empty()));
}

#[test]
fn right_commands_are_answered() {
    let node = shared();
    let channel = fresh("commands");
    let mut ann = node.watch_as(&channel, "ann");
    let mut bob = node.watch(&channel);
    ann.ready();
    bob.ready();
    assert_eq!(ask(&mut ann, &json!({"type": "ping"})), json!({"type": "pong"}));
    for id in [json!("a"), json!(7), json!("ä\"\n"), json!(1.5), json!(true)] {
        assert_eq!(ask(&mut ann, &json!({"type": "ping", "id": id})), json!({"type": "pong", "id": id}));
    }
    // An unknown field is for somebody else.
    assert_eq!(ask(&mut ann, &json!({"type": "ping", "future": {"x": 1}}))["type"], "pong");

    ann.say(&json!({"type": "message", "channel": channel, "text": "hi", "data": {"b": [1, null]}, "id": 1, "client_id": "c1"}));
    let (mut ack, mut event) = (ann.event(), ann.event());
    if ack["type"] != "ack" {
        std::mem::swap(&mut ack, &mut event);
    }
    assert_eq!(
        (&ack["type"], &ack["id"], &ack["client_id"], &ack["seq"]),
        (&json!("ack"), &json!(1), &json!("c1"), &json!(1))
    );
    let seen = bob.event();
    assert_eq!(seen, event, "author and reader see the same");
    assert_eq!((&seen["text"], &seen["data"]), (&json!("hi"), &json!({"b": [1, null]})));
    assert_eq!((&seen["user"]["id"], &seen["id"], &seen["ts"]), (&json!("ann"), &ack["message"], &ack["created_at"]));
    assert_eq!(seen["client_id"], "c1");
    let kept = node.http().get(&format!("/v1/demo/channels/{channel}/messages")).json();
    assert_eq!(kept["messages"], json!([seen]), "the history gives what was delivered");
    assert_eq!((&kept["head"], &kept["epoch"]), (&json!(1), &ack["epoch"]));

    ann.say(&json!({"type": "typing", "channel": channel, "state": "start"}));
    let typing = bob.event();
    assert_eq!((&typing["type"], &typing["user"]["id"]), (&json!("typing.start"), &json!("ann")));
    assert_eq!(typing["seq"], Value::Null, "it is not stored");
    ann.event();

    ann.say(&json!({"type": "event", "channel": channel, "name": "custom.goal", "data": {"by": 9}}));
    let custom = bob.event();
    assert_eq!((&custom["type"], &custom["data"]["by"]), (&json!("custom.goal"), &json!(9)));
    assert_eq!(ann.event(), custom, "without an id there is no ack");
    ann.say(&json!({"type": "event", "channel": channel, "name": "custom.goal", "id": "e"}));
    let mut both = [ann.event(), ann.event()];
    both.sort_by_key(|event| event["type"].as_str().unwrap().to_owned());
    assert_eq!(both[0], json!({"type": "ack", "id": "e"}));
    assert_eq!((&both[1]["type"], &both[1]["data"]), (&json!("custom.goal"), &Value::Null));

    let other = fresh("other");
    let subscribed = ask(&mut ann, &json!({"type": "subscribe", "channel": other, "id": 2, "filter": "message.*"}));
    assert_eq!(
        (&subscribed["type"], &subscribed["channel"], &subscribed["id"]),
        (&json!("subscribed"), &json!(other), &json!(2))
    );
    node.post_text(&other, "there");
    let there = ann.event();
    assert_eq!((&there["channel"], &there["text"]), (&json!(other), &json!("there")));
    assert_eq!(
        ask(&mut ann, &json!({"type": "unsubscribe", "channel": other, "id": 3})),
        json!({"type": "unsubscribed", "channel": other, "id": 3})
    );
    node.post_text(&other, "not there");
    assert!(ann.settle().is_empty());
}

#[test]
fn wrong_commands_are_told_what_is_wrong_and_the_connection_lives_on() {
    let node = shared();
    let channel = fresh("wrong");
    let mut client = node.watch_as(&channel, "ann");
    client.ready();
    let none = Value::Null;
    for (said, code, id) in [
        ("{".to_owned(), "malformed", &none),
        ("[1]".to_owned(), "malformed", &none),
        (r#"["ping"]"#.to_owned(), "malformed", &none),
        ("\"ping\"".to_owned(), "malformed", &none),
        (String::new(), "malformed", &none),
        (json!({"id": 1}).to_string(), "malformed", &none),
        (json!({"type": "fly", "id": 7}).to_string(), "unknown_type", &json!(7)),
        (json!({"type": "subscribe", "id": "q"}).to_string(), "missing_field", &json!("q")),
        (json!({"type": "subscribe", "channel": "a b", "id": 1}).to_string(), "bad_field", &json!(1)),
        (json!({"type": "subscribe", "channel": "a", "since": 1, "id": 2}).to_string(), "bad_field", &json!(2)),
        (
            json!({"type": "subscribe", "channel": "a", "filter": "nonsense", "id": 3}).to_string(),
            "bad_field",
            &json!(3),
        ),
        (json!({"type": "typing", "channel": "a", "state": "maybe", "id": 4}).to_string(), "bad_field", &json!(4)),
        (json!({"type": "event", "channel": "a", "name": "message.new", "id": 5}).to_string(), "bad_field", &json!(5)),
        (json!({"type": "event", "channel": "a", "id": 6}).to_string(), "missing_field", &json!(6)),
        (json!({"type": "ping", "id": {"a": 1}}).to_string(), "bad_field", &none),
        (json!({"type": "ping", "id": "x".repeat(200)}).to_string(), "bad_field", &none),
        (format!("{{\"type\":\"ping\",\"id\":{}1{}}}", "[".repeat(10_000), "]".repeat(10_000)), "bad_field", &none),
    ] {
        client.send(&text(&said));
        assert_error(&client.event(), code, id);
    }
    client.send(&frame(0x82, b"{\"type\":\"ping\"}"));
    assert_error(&client.event(), "malformed", &none);
    // What is well formed and may not be is no bad command: any number of them is borne.
    let long = "x".repeat(16_385);
    for _ in 0..10 {
        for (command, code) in [
            (json!({"type": "unsubscribe", "channel": "nowhere", "id": 1}), "not_subscribed"),
            (json!({"type": "subscribe", "channel": channel, "id": 1}), "already_subscribed"),
            (json!({"type": "message", "channel": channel, "id": 1}), "nothing_posted"),
            (json!({"type": "message", "channel": channel, "text": long, "id": 1}), "message_too_large"),
            (
                json!({"type": "event", "channel": channel, "name": "custom.x", "data": long, "id": 1}),
                "message_too_large",
            ),
        ] {
            assert_error(&ask(&mut client, &command), code, &json!(1));
        }
    }
    assert!(client.settle().is_empty());
}

#[test]
fn more_than_twenty_bad_commands_in_a_minute_are_4400() {
    // The minute is the node's own, so a row that begins at its end is counted in two: then the next one decides.
    let mut client = shared().watch(&fresh("4400"));
    client.ready();
    client.send(&[text("nonsense").repeat(21), text(r#"{"type":"ping"}"#)].concat());
    let mut errors = 0;
    let last = loop {
        let frame = client.next();
        if frame.opcode != TEXT {
            break frame;
        }
        if frame.json()["type"] == "pong" {
            client.send(&text("nonsense").repeat(21));
            continue;
        }
        assert_ne!(frame.opcode, BINARY);
        if !is_presence(frame.json()["type"].as_str().unwrap()) {
            assert_error(&frame.json(), "malformed", &Value::Null);
            errors += 1;
        }
    };
    assert_eq!(last.code(), 4400);
    assert!(errors >= 20, "each was answered before: {errors}");
    client.expect_end();
}

#[test]
fn rates_of_commands_are_kept() {
    let mut client = shared().watch_as(&fresh("rates"), "eve");
    client.ready();
    let channel = fresh("rates-to");
    // Within a second five custom events pass and one typing event; a second that ends in between lets more pass.
    for (name, most) in [("event", 10), ("typing", 2)] {
        for n in 0..20 {
            client.say(&json!({"type": name, "channel": channel, "name": "custom.x", "state": "start", "id": n}));
        }
        let answers = client.settle();
        let refused = answers.iter().filter(|answer| answer["code"] == "over_rate").count();
        assert!(refused >= 20 - most, "{name}: {refused} of 20 were refused");
    }
}

#[test]
fn who_has_no_token_reads_only() {
    let channel = fresh("anonymous");
    let mut client = shared().watch(&channel);
    client.ready();
    for command in [
        json!({"type": "message", "channel": channel, "text": "x", "id": 1}),
        json!({"type": "typing", "channel": channel, "state": "start", "id": 1}),
        json!({"type": "event", "channel": channel, "name": "custom.x", "id": 1}),
    ] {
        assert_error(&ask(&mut client, &command), "anonymous", &json!(1));
    }
}

#[test]
fn a_user_s_own_rate_is_kept_and_does_not_touch_others() {
    let node = Node::start(&["--shards", "1"]);
    let (mut loud, mut calm) = (node.watch_as("rate", "loud"), node.watch_as("rate", "calm"));
    loud.ready();
    calm.ready();
    for n in 0..130 {
        loud.say(&json!({"type": "message", "channel": "rate", "text": "x", "id": n}));
    }
    let (mut acks, mut refused) = (0, 0);
    while acks + refused < 130 {
        let event = loud.event();
        match event["type"].as_str().unwrap() {
            "ack" => acks += 1,
            "error" => {
                assert_eq!(event["code"], "user_over_rate");
                refused += 1;
            }
            "message.new" | "gap" => {}
            other => panic!("{other}"),
        }
    }
    assert_eq!((acks, refused), (120, 10));
    calm.say(&json!({"type": "message", "channel": "rate", "text": "calm", "id": 1}));
    while calm.event()["type"] != "ack" {}
}

#[test]
fn who_sends_faster_than_it_may_and_does_not_stop_is_4429() {
    let node = Node::configured("[limits]\nover_rate_max = 20\nuser_requests_max = 5\n", &["--shards", "1"]);
    let typing = json!({"type": "typing", "channel": "c", "state": "start"}).to_string();
    let message = json!({"type": "message", "channel": "c", "text": "x"}).to_string();
    for (user, command, code) in [("ann", typing, "over_rate"), ("bob", message, "user_over_rate")] {
        let mut client = node.watch_as("c", user);
        client.ready();
        // The minute is the node's own, so a row that begins at its end is counted in two: then the next one decides.
        let row = [text(&command).repeat(60), text(r#"{"type":"ping"}"#)].concat();
        client.send(&row);
        let mut refused = 0;
        let close = loop {
            let frame = client.next();
            if frame.opcode == CLOSE {
                break frame;
            }
            let event = frame.json();
            match event["type"].as_str().unwrap() {
                "pong" => client.send(&row),
                "error" => {
                    assert_eq!(event["code"], code);
                    refused += 1;
                }
                _ => {}
            }
        };
        assert_eq!(close.code(), 4429);
        assert!(refused > 20, "each was answered before: {refused}");
        client.expect_end();
        // It may come back, and so many refusals are borne.
        let mut client = node.watch_as("c", user);
        client.ready();
        client.send(&text(&command).repeat(15));
        while client.event()["code"] != code {}
        client.settle();
    }
    node.assert_alive();
}

#[test]
fn a_page_of_long_messages_is_cut_and_closes_nobody() {
    let (node, channel) = (shared(), fresh("long"));
    let mut viewer = node.watch(&channel);
    viewer.ready();
    let long = "x".repeat(16_000);
    for _ in 0..20 {
        node.post_text(&channel, &long);
        viewer.next_of("message.new");
    }
    let seqs = |page: &Value| -> Vec<u64> {
        page["messages"].as_array().unwrap().iter().map(|message| message["seq"].as_u64().unwrap()).collect()
    };
    viewer.say(&json!({"type": "history", "channel": channel, "since": 0, "limit": 100}));
    let first = seqs(&viewer.next_of("history"));
    assert!(first.len() > 1 && first.len() < 20 && first[0] == 1, "{first:?}");
    viewer.say(&json!({"type": "history", "channel": channel, "limit": 100}));
    let latest = seqs(&viewer.next_of("history"));
    assert!(latest.len() > 1 && latest.len() < 20 && latest.last() == Some(&20), "{latest:?}");
}
