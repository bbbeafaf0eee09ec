//! Refusals that a node comes to only when one of its parts is late, held up or refuses itself: each is provoked, told with
//! its code, and gone when its cause is.

use std::path::Path;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use ringcast::base::ShardId;
use ringcast::wire::topic::{Scope, partition};
use rusqlite::Connection;
use serde_json::json;

use crate::client::{Answer, Client, PATIENCE, handshake};
use crate::node::{LOOK, Node};
use crate::stopped::Stopped;

/// Connections of which each core of two is sure to accept some.
const MANY: usize = 24;

/// A channel of this app whose order the second of two cores gives.
fn channel_of_second_core(app: &str) -> String {
    let names = (0..).map(|n| format!("late-{n}"));
    let second = |name: &String| partition(Scope::Channel, app, name, 2) == ShardId(1);
    names.into_iter().find(second).expect("every second channel is one")
}

#[test]
fn who_watches_is_presence_late_while_the_core_that_knows_it_stands_still() {
    let node = Node::start(&["--shards", "2"]);
    let name = channel_of_second_core("demo");
    let path = format!("/v1/demo/channels/{name}/viewers");
    let connections: Vec<_> = (0..MANY).map(|_| node.http()).collect();
    let stopped = Stopped::new(node.pid(), "shard-1");
    let (told, answers) = channel();
    let all: Vec<Answer> = std::thread::scope(|scope| {
        for mut http in connections {
            let (told, path) = (told.clone(), &path);
            scope.spawn(move || {
                let answer = http.get(path);
                let _ = told.send((answer, http));
            });
        }
        drop(told);
        // Nobody else can answer yet: what comes first comes from the core that waits in vain.
        let (first, mut http) = answers.recv_timeout(PATIENCE).expect("an answer");
        first.assert_problem(503, "presence_late");
        drop(stopped);
        let again = http.get(&path);
        assert_eq!((again.status, again.json()["connections"].as_u64()), (200, Some(0)), "{again:?}");
        std::iter::once(first).chain(answers.iter().map(|(answer, _)| answer)).collect()
    });
    assert_eq!(all.len(), MANY);
    for answer in all.iter().filter(|answer| answer.status != 200) {
        answer.assert_problem(503, "presence_late");
        assert_eq!(answer.field("retry-after"), Some("1"));
    }
    node.assert_alive();
}

/// Sockets that asked for a channel and are not answered yet.
struct Queue<'n> {
    node: &'n Node,
    waiting: Vec<Client>,
}

impl Queue<'_> {
    /// Comes again and again until one is let in, which leaves again.
    fn come_until_one_was_in(&mut self) {
        for _ in 0..4 * MANY {
            let mut client = Client::raw(self.node.listen);
            client.send(handshake("/v1/shop/channels/full/ws", "").as_bytes());
            client.patience(Duration::from_millis(200));
            if client.stream.peek(&mut [0]).is_ok() {
                // Who came before it on the same core was answered before it, if perhaps a little late.
                let answered: Vec<Client> = self.waiting.extract_if(.., |other| is_answered(other)).collect();
                for mut client in answered.into_iter().chain([client]) {
                    client.patience(PATIENCE);
                    client.expect_101();
                    client.ready();
                    client.close();
                }
                return;
            }
            client.patience(PATIENCE);
            self.waiting.push(client);
        }
        panic!("nobody was let in:\n{}", self.node.log());
    }
}

fn is_answered(client: &Client) -> bool {
    client.stream.set_nonblocking(true).expect("a socket");
    let answered = client.stream.peek(&mut [0]).is_ok();
    client.stream.set_nonblocking(false).expect("a socket");
    answered
}

/// A core that stands still takes its sockets in when it goes on. By then the seats of the first may be thought lost and
/// given to others, so that more come into a room than it holds: then its own cap decides.
#[test]
fn a_room_that_is_full_when_its_seat_comes_is_room_full_and_nobody_stands() {
    let hash = "ab".repeat(32);
    let node = Node::configured(
        &format!(
            "[seating]\nroom_capacity = 1\nattempts_max = 1\noutstanding_expiry_ms = 1_000\n[shard]\nreport_ms = 100\n\
             [[app]]\nname = \"shop\"\nserver_key_sha256 = \"{hash}\"\nanonymous_read = true\nchannels_max = 9\n"
        ),
        &["--shards", "2"],
    );
    // The first comes where it was accepted, and the next room is made on the other core, which has nobody.
    let mut ballast = Client::open(node.listen, "/v1/shop/channels/ballast/ws");
    let room = ballast.ready()["room"].as_str().expect("a room").to_owned();
    let other = u16::from(room == "ballast/0/1");
    node.await_metrics("the first is told", |metrics| metrics.sum("ringcast_connections", "") == 1);
    let stopped = Stopped::new(node.pid(), &format!("shard-{other}"));
    let mut queue = Queue { node: &node, waiting: Vec::new() };
    let channels = |want| {
        node.await_metrics("the channel's end is written", |metrics| {
            metrics.sum("ringcast_used", "what=\"app_channels\"") == want
        })
    };
    // One seat is given on the core that stands still; whoever comes next finds both alike and stays where it is.
    queue.come_until_one_was_in();
    channels(1);
    let given_first = queue.waiting.len();
    queue.come_until_one_was_in();
    assert!(given_first > 0 && queue.waiting.len() > given_first, "a seat was given twice");
    drop(stopped);
    let (mut refused, mut held) = (0, Vec::new());
    for mut client in queue.waiting {
        let head = client.head().expect("everybody is answered");
        if head.starts_with("HTTP/1.1 101 ") {
            client.ready();
            // It stays until all are answered, so that the room stays full.
            held.push(client);
            continue;
        }
        let body = String::from_utf8(client.rest_until_end()).unwrap();
        let answer = Answer { status: head[9..12].parse().unwrap(), head, body };
        answer.assert_problem(429, "room_full");
        assert_eq!(answer.field("retry-after"), Some("1"));
        refused += 1;
    }
    assert!(refused >= 1, "two seats of one place were taken");
    // The reports put it right.
    let deadline = Instant::now() + PATIENCE;
    loop {
        let mut client = Client::raw(node.listen);
        client.send(handshake("/v1/shop/channels/full/ws", "").as_bytes());
        if client.head().expect("an answer").starts_with("HTTP/1.1 101 ") {
            break;
        }
        assert!(Instant::now() < deadline, "nobody is let in any more");
        std::thread::sleep(LOOK);
    }
    node.assert_alive();
}

#[test]
fn channels_with_limits_are_limited_themselves_and_one_more_is_limits_full() {
    let node = Node::configured("[limits]\nlimited_channels_max = 2\n", &["--shards", "1"]);
    let fields = format!("Authorization: Bearer {}\r\n", node.key());
    let mut http = node.http();
    let mut set = |channel: &str, slow_mode_s: u32| {
        let body = json!({ "slow_mode_s": slow_mode_s, "messages_per_s": 0 }).to_string();
        http.request("PUT", &format!("/v1/demo/channels/{channel}/limits"), &fields, &body)
    };
    assert_eq!((set("a", 5).status, set("b", 5).status), (200, 200));
    let refused = set("c", 5);
    refused.assert_problem(503, "limits_full");
    assert_eq!(refused.field("retry-after"), Some("60"));
    assert!(refused.body.contains("limits.limited_channels_max"), "{refused:?}");
    assert_eq!(set("b", 9).status, 200, "one that has limits may get others");
    let gauge = |name| node.metrics().sum(name, "what=\"limited_channels\"");
    assert_eq!((gauge("ringcast_used"), gauge("ringcast_limit")), (2, 2));
    assert_eq!((set("a", 0).status, set("c", 5).status), (200, 200), "its place is free");
    set("a", 5).assert_problem(503, "limits_full");
}

#[test]
fn bans_are_limited_and_one_more_is_bans_full_until_one_is_lifted() {
    let dir = crate::node::temp_dir();
    let file = dir.path().join("ringcast.toml");
    std::fs::write(&file, "[moderation]\nbans_max = 2\n").unwrap();
    let args = ["--shards", "1", "--config", file.to_str().unwrap()];
    let mut node = Node::start_in(dir.path(), &args);
    let fields = format!("Authorization: Bearer {}\r\n", node.key());
    let set = |node: &Node, method: &str, user: &str, body: &str| {
        node.http().request(method, &format!("/v1/demo/bans/{user}"), &fields, body)
    };
    let used = |node: &Node| node.metrics().sum("ringcast_used", "what=\"bans\"");
    assert_eq!((set(&node, "PUT", "eve", "{}").status, set(&node, "PUT", "mal", "{}").status), (200, 200));
    let refused = set(&node, "PUT", "zed", "{}");
    refused.assert_problem(503, "bans_full");
    assert!(refused.field("retry-after") == Some("60") && refused.body.contains("moderation.bans_max"), "{refused:?}");
    assert_eq!((used(&node), set(&node, "PUT", "eve", "{}").status), (2, 200), "one that holds may be set again");
    set(&node, "PUT", "eve", r#"{"channel":"a"}"#).assert_problem(503, "bans_full");
    // A start counts them too.
    node.kill();
    let node = Node::start_in(dir.path(), &args);
    assert_eq!(used(&node), 2);
    set(&node, "PUT", "zed", "{}").assert_problem(503, "bans_full");
    assert_eq!((set(&node, "DELETE", "mal", "").status, set(&node, "PUT", "zed", "{}").status), (200, 200));
    let path = "/v1/demo/channels/a/messages";
    node.http().post(path, &node.token("zed"), r#"{"text":"x"}"#).assert_problem(403, "banned");
    assert_eq!(node.http().post(path, &node.token("mal"), r#"{"text":"x"}"#).status, 201);
}

/// A second connection to the database of a node that runs, as a person with a tool has it.
fn tool(dir: &Path) -> Connection {
    let connection = Connection::open(dir.join("ringcast.db")).expect("the node's database");
    connection.busy_timeout(PATIENCE).expect("a timeout");
    connection
}

#[test]
fn a_database_that_somebody_else_holds_is_store_busy_until_it_is_let_go() {
    let node = Node::configured("[store]\nbusy_timeout_ms = 50\n", &["--shards", "1"]);
    let mut viewer = node.watch("held");
    viewer.ready();
    assert_eq!(node.post_text("held", "before"), 1);
    let tool = tool(&node.dir);
    tool.execute_batch("BEGIN IMMEDIATE").expect("it is free");
    let body = json!({"text": "meanwhile"});
    let refused = node.post("held", &body);
    refused.assert_problem(503, "store_busy");
    assert_eq!(refused.field("retry-after"), Some("1"));
    let fields = format!("Authorization: Bearer {}\r\n", node.key());
    node.http().request("PUT", "/v1/demo/bans/eve", &fields, "{}").assert_problem(503, "store_busy");
    // On a socket it is an `error` with the same code.
    let mut ann = node.watch_as("held", "ann");
    ann.ready();
    ann.say(&json!({"type": "message", "id": 1, "channel": "held", "text": "meanwhile"}));
    let error = ann.next_of("error");
    assert_eq!((error["code"].as_str(), error["id"].as_i64()), (Some("store_busy"), Some(1)), "{error}");
    assert_eq!(node.http().get("/v1/demo/channels/held/messages").json()["head"], 1, "pages are read");
    tool.execute_batch("ROLLBACK").expect("it is ours");
    assert_eq!(node.post_text("held", "after"), 2);
    for text in ["before", "after"] {
        assert_eq!(viewer.next_of("message.new")["text"], text);
    }
}

#[test]
fn a_database_that_will_not_take_a_row_is_store_refused_and_nothing_is_acknowledged() {
    let node = Node::start(&["--shards", "1"]);
    assert_eq!(node.post_text("rule", "before"), 1);
    let tool = tool(&node.dir);
    let rule = "CREATE TRIGGER rule BEFORE INSERT ON events BEGIN SELECT RAISE(ABORT, 'the auditor forbids it'); END";
    tool.execute_batch(rule).expect("a trigger");
    let refused = node.post("rule", &json!({"text": "meanwhile"}));
    refused.assert_problem(500, "store_refused");
    assert!(refused.body.contains("the auditor forbids it"), "{refused:?}");
    assert_eq!(refused.field("retry-after"), None, "asking again does not help");
    node.await_log("the store takes nothing", 0);
    tool.execute_batch("DROP TRIGGER rule").expect("no trigger");
    assert_eq!(node.post_text("rule", "after"), 2, "the number was not used");
    node.await_log("the store takes writes again", 0);
    // A table that is gone is no wish of anybody's, and is told the same way.
    tool.execute_batch("ALTER TABLE events RENAME TO elsewhere").expect("a new name");
    node.post("rule", &json!({"text": "meanwhile"})).assert_problem(500, "store_refused");
    node.http().get("/v1/demo/channels/rule/messages").assert_problem(500, "store_refused");
    tool.execute_batch("ALTER TABLE elsewhere RENAME TO events").expect("the old name");
    assert_eq!(node.post_text("rule", "and on"), 3);
    node.assert_alive();
}
