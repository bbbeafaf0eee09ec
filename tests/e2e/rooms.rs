//! Who sits where: rooms are filled in the order of their creation, totals converge, and nobody stays behind as a ghost.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use serde_json::json;

use crate::client::Client;
use crate::node::Node;

/// Two report intervals, and a moment for the letters.
const TWO_REPORTS: Duration = Duration::from_millis(10_500);

fn viewers(node: &Node, channel: &str) -> u64 {
    node.http().get(&format!("/v1/demo/channels/{channel}/viewers")).json()["connections"].as_u64().unwrap()
}

fn await_viewers(node: &Node, channel: &str, expected: u64) {
    let deadline = Instant::now() + TWO_REPORTS;
    loop {
        let now = viewers(node, channel);
        if now == expected {
            return;
        }
        assert!(Instant::now() < deadline, "{now} viewers, not {expected}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

fn join(node: &Node, channel: &str, count: usize, rooms: &mut BTreeMap<String, Vec<Client>>) {
    let clients: Vec<Client> = (0..count).map(|_| node.watch(channel)).collect();
    for mut client in clients {
        let room = client.ready()["room"].as_str().unwrap().to_owned();
        rooms.entry(room).or_default().push(client);
    }
}

#[test]
fn rooms_are_filled_one_after_the_other_and_again_when_seats_become_free() {
    let node = Node::start(&["--shards", "4"]);
    let mut rooms = BTreeMap::new();
    join(&node, "r", 600, &mut rooms);
    let mut sizes: Vec<usize> = rooms.values().map(Vec::len).collect();
    sizes.sort_unstable();
    assert_eq!(sizes, [100, 500]);
    await_viewers(&node, "r", 600);
    // Half of them take leave, half of them are just gone.
    let first = rooms.iter().find(|(_, clients)| clients.len() == 500).map(|(name, _)| name.clone()).unwrap();
    for (i, client) in rooms.get_mut(&first).unwrap().drain(..50).enumerate() {
        if i % 2 == 0 { client.close() } else { drop(client) }
    }
    await_viewers(&node, "r", 550);
    // Seats become free when their shards have reported it.
    node.await_metrics("the reports", |metrics| metrics.sum("ringcast_connections", "") == 550);
    join(&node, "r", 60, &mut rooms);
    assert_eq!(rooms.len(), 2, "no third room: {:?}", rooms.keys());
    assert_eq!(rooms[&first].len(), 500, "the first is full before the second gets anybody");
    await_viewers(&node, "r", 610);
    // One post reaches each of them once, whichever room they sit in.
    node.post_text("r", "all");
    for client in rooms.values_mut().flatten() {
        assert_eq!(client.event()["text"], "all");
    }
    drop(rooms);
    await_viewers(&node, "r", 0);
    let metrics = node.await_metrics("nobody is left", |metrics| metrics.sum("ringcast_connections", "") == 0);
    metrics.assert_balanced();
}

#[test]
fn case_d3_subscribing_and_leaving_at_once_leaves_no_ghost() {
    let node = Node::start(&["--shards", "2"]);
    for round in 0..20 {
        let mut clients: Vec<Client> = (0..5).map(|_| Client::open(node.listen, "/v1/demo/ws")).collect();
        for client in &mut clients {
            for n in 0..20 {
                let channel = format!("d3-{}", n % 3);
                client.say(&json!({"type": "subscribe", "channel": channel}));
                if n % (round + 2) != 0 {
                    client.say(&json!({"type": "unsubscribe", "channel": channel}));
                }
            }
        }
        // Some are gone while their questions are on their way.
        drop(clients.drain(..3));
        for mut client in clients {
            client.settle();
        }
    }
    for n in 0..3 {
        await_viewers(&node, &format!("d3-{n}"), 0);
    }
    let metrics = node.await_metrics("nobody is left", |metrics| metrics.sum("ringcast_connections", "") == 0);
    metrics.assert_balanced();
    assert_eq!(metrics.sum("ringcast_used", "what=\"channels\""), 0, "no channel is watched by nobody");
}

#[test]
fn a_connection_watches_as_many_channels_as_it_may_and_no_more() {
    let node = Node::start(&["--shards", "1"]);
    let mut client = Client::open(node.listen, "/v1/demo/ws");
    client.ready();
    // All at once, so that the limit is met by questions that are still on their way.
    for n in 0..200 {
        client.say(&json!({"type": "subscribe", "channel": format!("many-{n}"), "id": n}));
    }
    let (mut subscribed, mut refused) = (0, 0);
    for _ in 0..200 {
        let event = client.event();
        match event["type"].as_str().unwrap() {
            "subscribed" => subscribed += 1,
            "error" => {
                assert_eq!(event["code"], "too_many_channels");
                refused += 1;
            }
            other => panic!("{other}"),
        }
    }
    assert_eq!((subscribed, refused), (128, 72));
}

/// The next `events` events, by their channel, in the order in which they came.
fn read_order(client: &mut Client, events: usize) -> BTreeMap<&'static str, Vec<String>> {
    let mut seen: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for _ in 0..events {
        let event = client.event();
        let channel = if event["channel"] == "left" { "left" } else { "right" };
        let what = if event["type"] == "message.new" { &event["seq"] } else { &event["data"] };
        seen.entry(channel).or_default().push(format!("{} {what}", event["type"]));
    }
    seen
}

#[test]
fn all_viewers_of_all_shards_see_one_order() {
    const POSTS: usize = 200;
    let node = Node::start(&["--shards", "4"]);
    // A connection without a channel stays on the shard that accepted it, so its subscriptions are seated there.
    let mut by_shard: BTreeMap<String, Vec<Client>> = BTreeMap::new();
    for _ in 0..400 {
        if by_shard.len() == 4 && by_shard.values().all(|clients| clients.len() >= 3) {
            break;
        }
        let mut client = Client::open(node.listen, "/v1/demo/ws");
        client.ready();
        let mut shard = String::new();
        for channel in ["left", "right"] {
            client.say(&json!({"type": "subscribe", "channel": channel}));
            let subscribed = client.event();
            assert_eq!(subscribed["type"], "subscribed", "{subscribed}");
            let room = subscribed["room"].as_str().unwrap();
            shard = room.split('/').nth(1).unwrap().to_owned();
        }
        let clients = by_shard.entry(shard).or_default();
        if clients.len() < 3 {
            clients.push(client);
        }
    }
    assert_eq!(by_shard.values().map(Vec::len).collect::<Vec<_>>(), [3, 3, 3, 3]);
    let seen: Vec<BTreeMap<&str, Vec<String>>> = std::thread::scope(|scope| {
        // They read while it is posted: what a viewer who does not keep up loses is no matter of order.
        let viewers: Vec<_> =
            by_shard.values_mut().flatten().map(|client| scope.spawn(|| read_order(client, 4 * POSTS))).collect();
        for channel in ["left", "right"] {
            for stored in [false, true] {
                let node = &node;
                scope.spawn(move || {
                    let (mut http, key) = (node.http(), node.key());
                    for n in 0..POSTS {
                        let (what, status, body) = if stored {
                            ("messages", 201, json!({"text": n.to_string()}))
                        } else {
                            ("events", 202, json!({"type": "custom.n", "data": n}))
                        };
                        let path = format!("/v1/demo/channels/{channel}/{what}");
                        assert_eq!(http.post(&path, &key, &body.to_string()).status, status);
                    }
                });
            }
        }
        viewers.into_iter().map(|viewer| viewer.join().unwrap()).collect()
    });
    let mut orders: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for (channel, order) in seen.into_iter().flatten() {
        assert_eq!(orders.entry(channel).or_insert_with(|| order.clone()), &order, "one order of {channel}");
    }
    // And that order keeps each poster's own.
    for order in orders.values() {
        for kind in ["\"message.new\"", "\"custom.n\""] {
            let numbers: Vec<u64> = order
                .iter()
                .filter_map(|what| what.strip_prefix(kind))
                .map(|number| number.trim().parse().unwrap())
                .collect();
            assert_eq!(numbers.len(), POSTS);
            assert!(numbers.is_sorted(), "{kind}");
        }
    }
}
