//! Who is there: members of a channel while few watch, their number while many do, what they say of themselves, and that
//! nobody types for ever.

use std::fs;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::client::Client;
use crate::node::{LOOK, Node, fresh, shared, temp_dir, unix_s};
use ringcast::admission::auth::make_token;

/// A node with its own limits of presence; the directory goes with it.
fn node_with(presence: &str) -> (Node, TempDir) {
    let dir = temp_dir();
    let file = dir.path().join("node.toml");
    fs::write(&file, format!("[presence]\n{presence}\n")).unwrap();
    let node = Node::start_in(dir.path(), &["--config", file.to_str().unwrap(), "--shards", "2"]);
    (node, dir)
}

/// The next thing said of a member, in short.
fn next_member(client: &mut Client) -> String {
    let event = client.next_of("member.");
    format!("{} {}", event["type"].as_str().unwrap(), event["user"]["id"].as_str().unwrap())
}

fn watch_as(node: &Node, channel: &str, user: &str) -> Client {
    let mut client = node.watch_as(channel, user);
    client.ready();
    client
}

/// As a process that is killed leaves its connections behind when there is unread data.
fn reset(client: Client) {
    socket2::SockRef::from(&client.stream).set_linger(Some(Duration::ZERO)).unwrap();
}

fn audience(node: &Node, channel: &str) -> (u64, u64) {
    let answer = node.http().get(&format!("/v1/demo/channels/{channel}/viewers"));
    assert_eq!(answer.status, 200, "{answer:?}");
    let json = answer.json();
    (json["connections"].as_u64().unwrap(), json["users"].as_u64().unwrap())
}

fn await_audience(node: &Node, channel: &str, expected: (u64, u64)) {
    let deadline = Instant::now() + Duration::from_secs(10);
    while audience(node, channel) != expected {
        assert!(Instant::now() < deadline, "{:?} watch, not {expected:?}", audience(node, channel));
        std::thread::sleep(LOOK);
    }
}

fn presence(node: &Node, channel: &str) -> crate::client::Answer {
    node.http().get(&format!("/v1/demo/channels/{channel}/presence"))
}

/// A user comes and goes, and nothing else is said meanwhile.
fn visit(node: &Node, watcher: &mut Client, user: &str) {
    // Who is gone before its coming was told never came.
    let visitor = watch_as(node, "d1", user);
    assert_eq!(next_member(watcher), format!("member.joined {user}"));
    drop(visitor);
    assert_eq!(next_member(watcher), format!("member.left {user}"));
}

#[test]
fn case_d1_two_tabs_of_a_user_are_one_member_until_the_last_is_gone() {
    let (node, _dir) = node_with("grace_ms = 1000");
    let mut bob = node.watch("d1");
    bob.ready();
    let tabs = [watch_as(&node, "d1", "ann"), watch_as(&node, "d1", "ann")];
    assert_eq!(next_member(&mut bob), "member.joined ann");
    await_audience(&node, "d1", (3, 1));
    let [first, second] = tabs;
    first.close();
    // Who comes and goes meanwhile shows that a grace has passed.
    visit(&node, &mut bob, "cid");
    reset(second);
    assert_eq!(next_member(&mut bob), "member.left ann");
    await_audience(&node, "d1", (1, 0));

    // A page that is loaded again.
    let ann = watch_as(&node, "d1", "ann");
    assert_eq!(next_member(&mut bob), "member.joined ann");
    reset(ann);
    let ann = watch_as(&node, "d1", "ann");
    visit(&node, &mut bob, "dan");
    ann.close();
    assert_eq!(next_member(&mut bob), "member.left ann");
    node.assert_alive();
}

#[test]
fn a_roster_names_its_members_until_too_many_watch() {
    let (node, _dir) = node_with("roster_limit = 4\ngrace_ms = 0");
    let empty = presence(&node, "crowd");
    assert_eq!((empty.status, empty.json()), (200, json!({"connections": 0, "users": 0, "members": []})));
    let mut bob = node.watch("crowd");
    bob.ready();
    let ann = [watch_as(&node, "crowd", "ann"), watch_as(&node, "crowd", "ann")];
    let cid = watch_as(&node, "crowd", "cid");
    await_audience(&node, "crowd", (4, 2));
    let member =
        |user: &str, connections: u64| json!({"user": {"id": user}, "connections": connections, "state": "online"});
    let roster = presence(&node, "crowd");
    assert_eq!(
        (roster.status, roster.json()),
        (200, json!({"connections": 4, "users": 2, "members": [member("ann", 2), member("cid", 1)]}))
    );
    assert_eq!([next_member(&mut bob), next_member(&mut bob)], ["member.joined ann", "member.joined cid"]);

    let dan = watch_as(&node, "crowd", "dan");
    await_audience(&node, "crowd", (5, 3));
    let refused = presence(&node, "crowd");
    refused.assert_problem(409, "too_many_watch");
    assert_eq!((&refused.json()["connections"], &refused.json()["users"]), (&json!(5), &json!(3)));
    // Of the fifth nobody was told but by number.
    loop {
        let event = bob.next().json();
        assert_eq!(event["type"], "viewers.updated", "{event}");
        if event["presence"] == "count" {
            assert_eq!((&event["connections"], &event["users"]), (&json!(5), &json!(3)));
            break;
        }
    }
    dan.close();
    await_audience(&node, "crowd", (4, 2));
    presence(&node, "crowd").assert_problem(409, "too_many_watch");
    cid.close();
    await_audience(&node, "crowd", (3, 1));
    let roster = presence(&node, "crowd");
    assert_eq!(roster.json(), json!({"connections": 3, "users": 1, "members": [member("ann", 2)]}));
    drop(ann);
    assert_eq!(next_member(&mut bob), "member.left cid");
    assert_eq!(next_member(&mut bob), "member.left ann");
}

#[test]
fn rosters_are_asked_for_rightly() {
    let node = shared();
    let channel = fresh("asked");
    let path = format!("/v1/demo/channels/{channel}/presence");
    let answer = node.http().post(&path, &node.key(), "{}");
    answer.assert_problem(405, "method");
    assert_eq!(answer.field("allow"), Some("GET, HEAD"));
    node.http().get("/v1/demo/channels/a%20b/presence").assert_problem(400, "bad_name");
    node.http().get("/v1/nobody/channels/a/presence").assert_problem(404, "unknown_app");
    let mut http = node.http();
    for _ in 0..50 {
        assert_eq!(http.get(&path).status, 200);
    }
}

#[test]
fn case_d3_watching_and_leaving_at_once_leaves_no_member() {
    let (node, _dir) = node_with("grace_ms = 100");
    for round in 0..10_u64 {
        let token = node.token("ann");
        let mut clients: Vec<Client> =
            (0..6).map(|_| Client::open(node.listen, &format!("/v1/demo/ws?token={token}"))).collect();
        for client in &mut clients {
            for n in 0..20 {
                let channel = format!("d3-{}", n % 3);
                client.say(&json!({"type": "subscribe", "channel": channel}));
                if n % (round + 2) != 0 {
                    client.say(&json!({"type": "unsubscribe", "channel": channel}));
                }
            }
        }
        for client in clients.drain(..3) {
            reset(client);
        }
        for mut client in clients {
            client.settle();
        }
    }
    for n in 0..3 {
        let channel = format!("d3-{n}");
        await_audience(&node, &channel, (0, 0));
        assert_eq!(presence(&node, &channel).json()["members"], json!([]));
    }
    let metrics = node.await_metrics("nobody is left", |metrics| metrics.sum("ringcast_connections", "") == 0);
    assert_eq!(metrics.sum("ringcast_used", "what=\"presence_members\""), 0);
    assert_eq!(metrics.sum("ringcast_used", "what=\"presence_untold\""), 0);
    metrics.assert_balanced();
}

#[test]
fn a_status_is_told_where_its_user_watches_and_shown_in_the_roster() {
    let node = shared();
    let (channel, later) = (fresh("status"), fresh("later"));
    let mut bob = node.watch(&channel);
    bob.ready();
    let mut ann = watch_as(node, &channel, "ann");
    ann.say(&json!({"type": "status", "state": "away", "text": "tea ☕", "id": 1}));
    assert_eq!(ann.event(), json!({"type": "ack", "id": 1}));
    let changed = bob.next_of("presence.");
    assert_eq!(
        (&changed["type"], &changed["channel"], &changed["user"], &changed["state"], &changed["text"]),
        (&json!("presence.changed"), &json!(channel), &json!({"id": "ann"}), &json!("away"), &json!("tea ☕"))
    );
    let shown = json!([{"user": {"id": "ann"}, "connections": 1, "state": "away", "text": "tea ☕"}]);
    assert_eq!(presence(node, &channel).json()["members"], shown);
    // It also holds where the connection comes to later.
    let mut carl = node.watch(&later);
    carl.ready();
    ann.say(&json!({"type": "subscribe", "channel": later}));
    assert_eq!(next_member(&mut carl), "member.joined ann");
    assert_eq!(carl.next_of("presence.")["state"], "away");
    assert_eq!(presence(node, &later).json()["members"], shown);
}

#[test]
fn what_is_no_status_is_answered() {
    let node = shared();
    let mut ann = watch_as(node, &fresh("no-status"), "ann");
    let mut code = |command: Value| {
        ann.say(&command);
        let answer = ann.event();
        assert_eq!((&answer["type"], &answer["id"]), (&json!("error"), &command["id"]), "{answer}");
        answer["code"].as_str().unwrap().to_owned()
    };
    assert_eq!(code(json!({"type": "status", "id": 1})), "bad_field");
    assert_eq!(code(json!({"type": "status", "id": 2, "state": "asleep"})), "bad_field");
    assert_eq!(code(json!({"type": "status", "id": 3, "state": "away", "text": "x".repeat(257)})), "bad_field");
    // The second is the node's own, so two may pass, and not five.
    let mut refused = 0;
    for n in 0..5 {
        ann.say(&json!({"type": "status", "state": "online", "id": n}));
        refused += u32::from(ann.event()["code"] == "over_rate");
    }
    assert!(refused >= 3, "{refused} of 5 were refused");
    let mut nobody = node.watch(&fresh("no-status"));
    nobody.ready();
    nobody.say(&json!({"type": "status", "state": "away", "id": 9}));
    assert_eq!(nobody.event()["code"], "anonymous");
}

#[test]
fn a_reader_that_shows_its_token_becomes_a_member() {
    let node = shared();
    let channel = fresh("auth");
    let mut bob = node.watch(&channel);
    bob.ready();
    let mut ann = node.watch(&channel);
    ann.ready();
    await_audience(node, &channel, (2, 0));
    ann.say(&json!({"type": "auth", "token": node.token("ann")}));
    assert_eq!(next_member(&mut bob), "member.joined ann");
    await_audience(node, &channel, (2, 1));
    // A newer token may carry another name.
    let named = make_token(node.secret().as_bytes(), "ann", Some("Ann"), unix_s() + 3_600).unwrap();
    ann.say(&json!({"type": "auth", "token": named}));
    while ann.event()["type"] != "authenticated" {}
    let deadline = Instant::now() + Duration::from_secs(10);
    while presence(node, &channel).json()["members"][0]["user"] != json!({"id": "ann", "name": "Ann"}) {
        assert!(Instant::now() < deadline, "{:?}", presence(node, &channel));
        std::thread::sleep(LOOK);
    }
    await_audience(node, &channel, (2, 1));
}

fn type_in(channel: &str, author: &mut Client, watcher: &mut Client) {
    author.say(&json!({"type": "typing", "channel": channel, "state": "start"}));
    let began = watcher.next_of("typing.");
    assert_eq!((&began["type"], &began["user"]["id"]), (&json!("typing.start"), &json!("ann")));
}

fn expect_stop(watcher: &mut Client) {
    let ended = watcher.next_of("typing.");
    assert_eq!((&ended["type"], &ended["user"]["id"]), (&json!("typing.stop"), &json!("ann")));
}

#[test]
fn who_says_nothing_more_types_no_more() {
    let (node, _dir) = node_with("typing_ms = 1000");
    let mut bob = node.watch("typing");
    bob.ready();
    let mut ann = watch_as(&node, "typing", "ann");
    for _ in 0..2 {
        type_in("typing", &mut ann, &mut bob);
        expect_stop(&mut bob);
    }
    let metrics =
        node.await_metrics("the table is empty", |metrics| metrics.sum("ringcast_used", "what=\"typing\"") == 0);
    metrics.assert_balanced();
}

#[test]
fn who_leaves_or_vanishes_types_no_more() {
    // Within the patience of this test no time ends by itself.
    let (node, _dir) = node_with("typing_ms = 60000\ngrace_ms = 60000");
    let mut bob = node.watch("typing");
    bob.ready();
    let mut leaves = watch_as(&node, "typing", "ann");
    await_audience(&node, "typing", (2, 1));
    type_in("typing", &mut leaves, &mut bob);
    leaves.say(&json!({"type": "unsubscribe", "channel": "typing"}));
    expect_stop(&mut bob);
    for way in [reset, Client::close] {
        let mut vanishes = watch_as(&node, "typing", "ann");
        // One of two tabs is enough to go on typing.
        let stays = watch_as(&node, "typing", "ann");
        await_audience(&node, "typing", (3, 1));
        type_in("typing", &mut vanishes, &mut bob);
        stays.close();
        await_audience(&node, "typing", (2, 1));
        way(vanishes);
        expect_stop(&mut bob);
        await_audience(&node, "typing", (1, 1));
    }
    // Who stops by itself is not stopped once more.
    let mut ann = watch_as(&node, "typing", "ann");
    type_in("typing", &mut ann, &mut bob);
    let token = node.token("ann");
    let body = r#"{"type":"typing.stop"}"#;
    assert_eq!(node.http().post("/v1/demo/channels/typing/events", &token, body).status, 202);
    expect_stop(&mut bob);
    reset(ann);
    await_audience(&node, "typing", (1, 1));
    node.post_text("typing", "behind it");
    assert_eq!(bob.event()["text"], "behind it");
}

#[test]
fn a_storm_of_joins_costs_deliveries_that_grow_with_the_audience_and_not_with_its_square() {
    const ROSTER_LIMIT: u64 = 20;
    let mut told = Vec::new();
    for viewers in [250_u64, 1_000] {
        let (node, _dir) = node_with(&format!("roster_limit = {ROSTER_LIMIT}"));
        let began = Instant::now();
        let mut clients: Vec<Client> = (0..viewers).map(|n| node.watch_as("storm", &format!("u{n}"))).collect();
        for client in &mut clients {
            client.ready();
        }
        await_audience(&node, "storm", (viewers, viewers));
        // The last total is told to everybody.
        for client in &mut clients {
            while client.next_of("viewers.")["users"] != viewers {}
        }
        let took_s = began.elapsed().as_secs() + 1;
        let metrics =
            node.await_metrics("all are reported", |metrics| metrics.sum("ringcast_connections", "") == viewers as i64);
        metrics.assert_balanced();
        let deliveries = metrics.sum("ringcast_deliveries_total", "class=\"mergeable\",outcome=\"published\"") as u64;
        // While there is a roster, each of it is told of each; then there is one total a second for whoever is there.
        let most = 2 * ROSTER_LIMIT * ROSTER_LIMIT + (took_s + 1) * viewers;
        assert!((viewers..=most).contains(&deliveries), "{deliveries} deliveries for {viewers} joins in {took_s} s");
        assert!(
            deliveries < viewers * viewers / 10,
            "each told to each is {} times as many",
            viewers * viewers / deliveries
        );
        told.push((viewers, deliveries, took_s));
    }
    println!("viewers, deliveries caused by their joins, seconds: {told:?}");
}
