//! Coming back: what was missed comes once, in order and before what is live, or the client is told to fetch it.

use std::io::Read;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use serde_json::{Value, json};

use crate::client::{Client, PATIENCE, text};
use crate::node::{LOOK, Node, fresh, shared, temp_dir};

fn position(ready: &Value) -> (String, u64) {
    (ready["epoch"].as_str().unwrap().to_owned(), ready["seq"].as_u64().unwrap())
}

fn back(node: &Node, channel: &str, epoch: &str, since: u64) -> Client {
    node.watch_with(channel, &format!("?epoch={epoch}&since={since}"))
}

#[test]
fn case_d4_what_was_posted_meanwhile_arrives_once_and_in_order() {
    let node = shared();
    let channel = fresh("d4");
    let mut client = node.watch(&channel);
    let ready = client.ready();
    assert_eq!(ready["recovered"], Value::Null, "nothing was asked");
    let (epoch, seq) = position(&ready);
    assert_eq!(seq, 0);
    drop(client);
    for n in 1..=3 {
        node.post_text(&channel, &format!("missed {n}"));
    }
    let mut client = back(node, &channel, &epoch, seq);
    let ready = client.ready();
    assert_eq!((ready["recovered"].as_bool(), ready["seq"].as_u64()), (Some(true), Some(3)));
    for n in 1..=3 {
        let event = client.event();
        assert_eq!((event["seq"].as_u64(), event["text"].clone()), (Some(n), json!(format!("missed {n}"))));
    }
    node.post_text(&channel, "live");
    let event = client.event();
    assert_eq!((event["seq"].as_u64(), event["text"].as_str()), (Some(4), Some("live")));
    assert!(client.settle().is_empty(), "nothing comes twice");
    // Nothing was missed: that is recovered too.
    let mut client = back(node, &channel, &epoch, 4);
    assert_eq!(client.ready()["recovered"], true);
    assert!(client.settle().is_empty());
    // Within what was seen.
    let mut client = back(node, &channel, &epoch, 2);
    assert_eq!(client.ready()["recovered"], true);
    assert_eq!(client.settle().iter().map(|e| e["seq"].as_u64().unwrap()).collect::<Vec<_>>(), [3, 4]);
    // With a filter, what it lets through.
    let mut client = node.watch_with(&channel, &format!("?epoch={epoch}&since=0&filter=custom.x"));
    assert_eq!(client.ready()["recovered"], true);
    assert!(client.settle().is_empty());
}

#[test]
fn a_position_that_cannot_be_honoured_is_told() {
    let node = shared();
    let channel = fresh("foreign");
    node.post_text(&channel, "one");
    let mut client = node.watch(&channel);
    let (epoch, _) = position(&client.ready());
    let foreign = format!("{:016x}", u64::from_str_radix(&epoch, 16).unwrap() ^ 1);
    for (epoch, since) in [(foreign.as_str(), 0), (&foreign, 1), (&epoch, 2), (&epoch, u64::MAX)] {
        let mut client = back(node, &channel, epoch, since);
        let ready = client.ready();
        assert_eq!((ready["recovered"].as_bool(), ready["seq"].as_u64()), (Some(false), Some(1)), "{epoch} {since}");
        assert!(client.settle().is_empty());
    }
    for query in ["?since=1", &format!("?epoch={epoch}"), "?epoch=xyz&since=1", &format!("?epoch={epoch}&since=-1")] {
        let mut client = Client::raw(node.listen);
        let path = format!("/v1/demo/channels/{channel}/ws{query}");
        client.send(crate::client::handshake(&path, "").as_bytes());
        assert_eq!(client.refusal().status, 400, "{query}");
    }
}

#[test]
fn a_position_older_than_what_is_kept_is_told_and_the_page_begins_with_what_is_there() {
    let hash = ringcast::admission::auth::hash_server_key("rk_x").map(|byte| format!("{byte:02x}")).concat();
    let config = format!(
        "[store]\nupkeep_ms = 1_000\n[[app]]\nname = \"shop\"\nserver_key_sha256 = \"{hash}\"\nanonymous_read = true\n\
         retention_messages = 3\n"
    );
    let node = Node::configured(&config, &["--shards", "1"]);
    let path = "/v1/shop/channels/a/messages";
    let mut http = node.http();
    for n in 1..=10 {
        assert_eq!(http.post(path, "rk_x", &json!({ "text": n.to_string() }).to_string()).status, 201);
    }
    let seqs = |page: &Value| {
        let messages = page["messages"].as_array().expect("messages").iter();
        messages.map(|message| message["seq"].as_u64().expect("a seq")).collect::<Vec<_>>()
    };
    let deadline = Instant::now() + PATIENCE;
    let page = loop {
        let page = http.get(&format!("{path}?since=0&limit=100")).json();
        if seqs(&page).len() == 3 {
            break page;
        }
        assert!(Instant::now() < deadline, "nothing is let go: {page}\n{}", node.log());
        std::thread::sleep(LOOK);
    };
    assert_eq!((seqs(&page), page["head"].as_u64()), (vec![8, 9, 10], Some(10)), "the numbers go on");
    let epoch = page["epoch"].as_str().expect("an epoch");
    // Behind 7 is 8, which is kept; what is behind 6 is not.
    for (since, recovered) in [(0, false), (6, false), (7, true), (9, true), (10, true), (11, false)] {
        let query = format!("epoch={epoch}&since={since}");
        let mut client = Client::open(node.listen, &format!("/v1/shop/channels/a/ws?{query}"));
        let ready = client.ready();
        assert_eq!((ready["recovered"].as_bool(), ready["seq"].as_u64()), (Some(recovered), Some(10)), "{since}");
        let missed: Vec<u64> = client.settle().iter().map(|event| event["seq"].as_u64().unwrap()).collect();
        let owed: Vec<u64> = if recovered { (since + 1..=10).collect() } else { Vec::new() };
        assert_eq!(missed, owed, "{since}");
        let mut client = Client::open(node.listen, "/v1/shop/ws");
        client.ready();
        client.say(&json!({"type": "subscribe", "channel": "a", "epoch": epoch, "since": since}));
        assert_eq!(client.event()["recovered"], recovered, "{since}");
        assert_eq!(client.settle().len(), owed.len(), "{since}");
        // A page says what there is: whoever sees a hole in front of it knows that it will not be filled.
        client.say(&json!({"type": "history", "id": "h", "channel": "a", "since": since}));
        let history = client.event();
        let there: Vec<u64> = (8..=10).filter(|seq| *seq > since).collect();
        assert_eq!((history["type"].as_str(), seqs(&history)), (Some("history"), there.clone()), "{history}");
        let page = http.get(&format!("{path}?since={since}")).json();
        assert_eq!(seqs(&page), there);
    }
    assert_eq!(seqs(&http.get(&format!("{path}?before=8")).json()), [] as [u64; 0]);
}

#[test]
fn a_position_survives_a_restart() {
    let dir = temp_dir();
    let mut node = Node::start_in(dir.path(), &["--shards", "2"]);
    node.post_text("again", "one");
    let mut client = node.watch("again");
    let (epoch, seq) = position(&client.ready());
    node.post_text("again", "two");
    node.kill();
    let node = Node::start_in(dir.path(), &["--shards", "3"]);
    let mut client = back(&node, "again", &epoch, seq);
    assert_eq!(client.ready()["recovered"], true);
    assert_eq!(client.event()["text"], "two");
    node.post_text("again", "three");
    assert_eq!(client.event()["seq"], 3);
}

#[test]
fn more_than_memory_keeps_is_read_from_the_store_at_the_reader_s_pace() {
    let node = shared();
    let channel = fresh("long");
    let (mut http, key) = (node.http(), node.key());
    let path = format!("/v1/demo/channels/{channel}/messages");
    let body = json!({"text": "y".repeat(4_000)}).to_string();
    let mut post = || assert_eq!(http.post(&path, &key, &body).status, 201);
    (0..300).for_each(|_| post());
    let epoch = node.http().get(&path).json()["epoch"].as_str().unwrap().to_owned();
    let query = format!("/v1/demo/channels/{channel}/ws?epoch={epoch}&since=0");
    let mut narrow = Client::open_narrow(node.listen, &query, 4_096);
    let mut wide = back(node, &channel, &epoch, 0);
    // They fall behind further while they read.
    (0..100).for_each(|_| post());
    for client in [&mut narrow, &mut wide] {
        assert_eq!(client.ready()["recovered"], true);
        for seq in 1..=400 {
            let event = client.event();
            assert_eq!(event["seq"].as_u64(), Some(seq), "{}", event["type"]);
        }
    }
    post();
    for client in [&mut narrow, &mut wide] {
        assert_eq!(client.event()["seq"], 401);
    }
}

#[test]
fn coming_back_again_and_again_misses_nothing_while_others_post() {
    let node = Node::start(&["--shards", "2"]);
    let going = AtomicBool::new(true);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let (mut http, key) = (node.http(), node.key());
            while going.load(Ordering::Acquire) {
                http.post("/v1/demo/channels/busy/messages", &key, r#"{"text":"m"}"#);
            }
        });
        let mut client = node.watch("busy");
        let (epoch, mut last) = position(&client.ready());
        for round in 0..200_u64 {
            for _ in 0..round % 7 {
                let event = client.event();
                assert_eq!(event["seq"].as_u64(), Some(last + 1), "round {round}");
                last += 1;
            }
            client = back(&node, "busy", &epoch, last);
            let ready = client.ready();
            assert_eq!(ready["recovered"], true, "{ready}");
        }
        going.store(false, Ordering::Release);
    });
    let metrics = node.await_metrics("all have left", |metrics| metrics.sum("ringcast_connections", "") == 0);
    metrics.assert_balanced();
}

#[test]
fn coming_back_into_a_crowd_sees_nothing_twice() {
    // A tick takes several submits to reach a crowd, and who comes back while it is on its way has it already.
    let node = Node::start(&["--shards", "1"]);
    let crowd: Vec<Client> = (0..400).map(|_| node.watch("crowd")).collect();
    for client in &crowd {
        client.stream.set_nonblocking(true).unwrap();
    }
    let going = AtomicBool::new(true);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let (mut http, key) = (node.http(), node.key());
            while going.load(Ordering::Acquire) {
                http.post("/v1/demo/channels/crowd/messages", &key, r#"{"text":"m"}"#);
            }
        });
        scope.spawn(|| {
            let mut nothing = [0; 16 * 1024];
            while going.load(Ordering::Acquire) {
                for client in &crowd {
                    let _ = (&client.stream).read(&mut nothing);
                }
            }
        });
        let mut client = node.watch("crowd");
        let (epoch, mut last) = position(&client.ready());
        for round in 0..150_u64 {
            for _ in 0..2 + round % 5 {
                let event = client.event();
                assert_eq!(event["seq"].as_u64(), Some(last + 1), "round {round}");
                last += 1;
            }
            client = back(&node, "crowd", &epoch, last);
            assert_eq!(client.ready()["recovered"], true);
        }
        going.store(false, Ordering::Release);
    });
    drop(crowd);
    let metrics = node.await_metrics("all have left", |metrics| metrics.sum("ringcast_connections", "") == 0);
    metrics.assert_balanced();
}

#[test]
fn a_subscription_resumes_like_a_connection() {
    let node = shared();
    let channel = fresh("sub");
    node.post_text(&channel, "one");
    let mut client = Client::open(node.listen, "/v1/demo/ws");
    let ready = client.ready();
    assert_eq!((&ready["room"], &ready["epoch"], &ready["seq"]), (&Value::Null, &Value::Null, &Value::Null));
    client.say(&json!({"type": "subscribe", "channel": channel, "id": "s"}));
    let subscribed = client.event();
    assert_eq!((&subscribed["type"], &subscribed["id"]), (&json!("subscribed"), &json!("s")));
    let (epoch, seq) = position(&subscribed);
    client.say(&json!({"type": "unsubscribe", "channel": channel}));
    assert_eq!(client.event()["type"], "unsubscribed");
    node.post_text(&channel, "two");
    assert!(client.settle().is_empty(), "it watches nothing");
    client.say(&json!({"type": "subscribe", "channel": channel, "epoch": epoch, "since": seq}));
    assert_eq!(client.event()["recovered"], true);
    assert_eq!(client.event()["text"], "two");
    node.post_text(&channel, "three");
    assert_eq!(client.event()["text"], "three");
}

#[test]
fn two_channels_that_are_caught_up_with_at_once_are_both_live_then() {
    let node = shared();
    let channels = [fresh("both"), fresh("both")];
    let epochs = channels.each_ref().map(|channel| {
        let epoch = node.watch(channel).ready()["epoch"].as_str().unwrap().to_owned();
        for text in ["one", "two"] {
            node.post_text(channel, text);
        }
        epoch
    });
    let mut viewer = Client::open(node.listen, "/v1/demo/ws");
    viewer.ready();
    let words = channels.iter().zip(&epochs).map(|(channel, epoch)| {
        text(&json!({"type": "subscribe", "channel": channel, "epoch": epoch, "since": 1}).to_string())
    });
    viewer.send(&words.collect::<Vec<_>>().concat());
    let mut caught_up = [false; 2];
    while caught_up != [true; 2] {
        let event = viewer.event();
        if event["type"] == "message.new" {
            assert_eq!(event["text"], "two");
            caught_up[usize::from(event["channel"] == json!(channels[1]))] = true;
        }
    }
    for channel in &channels {
        let events = format!("/v1/demo/channels/{channel}/events");
        let answer = node.http().post(&events, &node.key(), r#"{"type":"custom.live"}"#);
        assert_eq!(answer.status, 202);
        assert_eq!(viewer.next_of("custom.live")["channel"], json!(channel));
    }
}
