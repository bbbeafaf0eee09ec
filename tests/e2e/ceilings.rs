//! Limits of the node at their edges: what is refused, with which status or close, and that what is free again is given.

use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use serde_json::json;

use crate::client::{Answer, CLOSE, Client, Http, PATIENCE, PING, PONG, frame, handshake, text};
use crate::node::{LOOK, Metrics, Node, temp_dir};

fn node(config: &str) -> Node {
    Node::configured(config, &["--shards", "1"])
}

fn refusal(node: &Node, channel: &str) -> Answer {
    let mut client = Client::raw(node.listen);
    client.send(handshake(&format!("/v1/demo/channels/{channel}/ws"), "").as_bytes());
    client.refusal()
}

fn watch(node: &Node, channel: &str) -> Client {
    let mut client = node.watch(channel);
    client.ready();
    client
}

/// Comes in as soon as there is a place, within the patience of all tests.
fn watch_soon(node: &Node, channel: &str, code: &str) -> Client {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let mut client = Client::raw(node.listen);
        client.send(handshake(&format!("/v1/demo/channels/{channel}/ws"), "").as_bytes());
        let head = client.head().expect("an answer");
        if head.starts_with("HTTP/1.1 101 ") {
            client.ready();
            return client;
        }
        let body = String::from_utf8(client.rest_until_end()).unwrap();
        assert!(body.contains(code) && Instant::now() < deadline, "{head}{body}");
        std::thread::sleep(LOOK);
    }
}

#[test]
fn a_core_takes_so_many_connections_and_one_more_when_one_has_left() {
    let node = node("[shard]\nclients_max = 2\nreport_ms = 200\n");
    let (first, _second) = (watch(&node, "a"), watch(&node, "a"));
    let answer = refusal(&node, "a");
    answer.assert_problem(503, "connections_full");
    assert_eq!(answer.field("retry-after"), Some("5"));
    first.close();
    let _third = watch_soon(&node, "a", "connections_full");
    refusal(&node, "a").assert_problem(503, "connections_full");
}

#[test]
fn rooms_are_limited_and_a_channel_without_one_has_no_seat() {
    let node = node("[seating]\nrooms_max = 2\nroom_capacity = 2\n[shard]\nreport_ms = 200\n");
    let mut held = [watch(&node, "a"), watch(&node, "a"), watch(&node, "b"), watch(&node, "b")].map(Some);
    for channel in ["a", "b", "c"] {
        let answer = refusal(&node, channel);
        answer.assert_problem(503, "rooms_full");
        assert!(answer.field("retry-after").is_some());
    }
    let mut client = Client::open(node.listen, "/v1/demo/ws");
    client.ready();
    client.say(&json!({"type": "subscribe", "id": 1, "channel": "c"}));
    assert_eq!(client.event()["code"], "rooms_full");
    held[0].take().expect("a client").close();
    let _again = watch_soon(&node, "a", "rooms_full");
}

#[test]
fn who_is_silent_is_asked_and_then_closed_with_4408_and_who_answers_is_not() {
    let node = node("[liveness]\nping_after_s = 1\nclose_after_s = 3\n");
    let (mut silent, mut alive) = (watch(&node, "a"), watch(&node, "a"));
    let began = Instant::now();
    let mut pings = 0;
    while pings < 3 {
        let heard = alive.next();
        if heard.opcode == PING {
            alive.send(&frame(0x80 | PONG, &heard.payload));
            pings += 1;
        }
    }
    let mut asked = false;
    let close = loop {
        let heard = silent.next();
        asked |= heard.opcode == PING;
        if heard.opcode == CLOSE {
            break heard;
        }
    };
    assert!(asked && began.elapsed() >= Duration::from_secs(2), "it was asked first");
    assert_eq!(close.code(), 4408);
    silent.expect_end();
    assert!(alive.settle().iter().all(|event| event["type"] != "error"));
    let metrics = node.await_metrics("one was silent", |metrics| metrics.sum("ringcast_closed_silent_total", "") == 1);
    metrics.assert_balanced();
}

#[test]
fn a_head_that_does_not_come_in_time_is_408_and_a_body_too() {
    let node = node("[limits]\nhead_timeout_ms = 500\n");
    let mut client = Client::raw(node.listen);
    client.send(b"GET /v1/demo/ws HTTP/1.1\r\nHost: h\r\n");
    client.refusal().assert_problem(408, "head_too_slow");
    let mut client = Client::raw(node.listen);
    client.send(b"POST /v1/demo/channels/a/messages HTTP/1.1\r\nHost: h\r\nContent-Length: 10\r\n\r\n{");
    let head = client.head().expect("an answer");
    assert!(head.starts_with("HTTP/1.1 408 "), "{head}");
}

#[test]
fn unfinished_messages_are_limited_and_one_more_is_1013() {
    let node = node("[limits]\ncontexts_max = 1\n[shard]\nreport_ms = 200\n");
    let (mut first, mut second) = (watch(&node, "a"), watch(&node, "a"));
    let ping = text(r#"{"type":"ping"}"#);
    // Half a message holds the only place until the other half comes.
    first.send(&ping[..8]);
    let held = |metrics: &Metrics| metrics.sum("ringcast_used", "what=\"contexts\"");
    node.await_metrics("the place is taken", |metrics| held(metrics) == 1);
    second.send(&ping);
    assert_eq!(second.event(), json!({"type": "pong"}), "who says something whole needs no place");
    second.send(&ping[..8]);
    let close = loop {
        let heard = second.next();
        if heard.opcode == CLOSE {
            break heard;
        }
    };
    assert_eq!((close.code(), close.reason()), (1013, "too many unfinished messages"));
    second.expect_end();
    first.send(&ping[8..]);
    assert_eq!(first.event(), json!({"type": "pong"}));
    assert!(watch(&node, "a").settle().is_empty(), "the place is free again");
    node.await_metrics("nothing is unfinished", |metrics| held(metrics) == 0).assert_balanced();
}

#[test]
fn channels_of_a_core_are_limited_and_who_brings_one_more_is_1013() {
    let node = node("[index]\nchannels_max = 1\n[shard]\nreport_ms = 200\n");
    let (mut first, _second) = (watch(&node, "a"), watch(&node, "a"));
    let mut third = node.watch("b");
    let close = third.next();
    assert_eq!((close.code(), close.reason()), (1013, "this core watches as many channels as it may"));
    third.expect_end();
    node.post_text("a", "still");
    assert_eq!(first.event()["text"], "still");
    let metrics = node.await_metrics("the third has left", |metrics| metrics.sum("ringcast_left_total", "") == 1);
    metrics.assert_balanced();
    assert_eq!(metrics.sum("ringcast_used", "what=\"channels\""), metrics.sum("ringcast_limit", "what=\"channels\""));
}

#[test]
fn requests_of_an_address_are_counted_and_loopback_is_not() {
    // The edge itself stands in the tests of proxies; here is the right side of it.
    let node = node("[limits]\naddress_requests_max = 1\naddress_connections_max = 1\n");
    let _held: Vec<Client> = (0..3).map(|_| watch(&node, "a")).collect();
    assert!((0..5).all(|_| node.http().get("/v1/demo/channels/a/viewers").status == 200));
}

#[test]
fn queued_posts_are_bounded_and_what_does_not_fit_comes_back_later() {
    let node = node("[store]\nqueued_events_max = 1\nbatch_events_max = 1\ncredits_max = 2\n");
    let statuses: Vec<u16> = std::thread::scope(|scope| {
        let posts: Vec<_> = (0..24)
            .map(|_| {
                scope.spawn(|| {
                    let answer = node.post("a", &json!({"text": "x"}));
                    if answer.status != 201 {
                        answer.assert_problem(503, "busy");
                        assert_eq!(answer.field("retry-after"), Some("1"));
                    }
                    answer.status
                })
            })
            .collect();
        posts.into_iter().map(|post| post.join().unwrap()).collect()
    });
    let taken = statuses.iter().filter(|status| **status == 201).count() as u64;
    assert!(taken >= 1, "{statuses:?}");
    let head = node.http().get("/v1/demo/channels/a/messages").json()["head"].clone();
    assert_eq!(head, json!(taken), "what was acknowledged is there, and nothing else");
    assert_eq!(node.post_text("a", "later"), taken + 1);
}

#[test]
fn pages_of_other_origins_come_in_by_the_app_s_list_only() {
    let hash = ringcast::admission::auth::hash_server_key("rk_x").map(|byte| format!("{byte:02x}")).concat();
    let node = node(&format!(
        "[[app]]\nname = \"shop\"\nserver_key_sha256 = \"{hash}\"\nanonymous_read = true\norigins = [\"https://shop.example\"]\n\
         [[app]]\nname = \"closed\"\nserver_key_sha256 = \"{hash}\"\n"
    ));
    let good = "Origin: https://shop.example\r\n";
    let path = "/v1/shop/channels/a";
    Client::open_with(node.listen, &format!("{path}/ws"), good).ready();
    Client::open(node.listen, &format!("{path}/ws")).ready();
    let answer = node.http().request("GET", &format!("{path}/messages"), good, "");
    assert_eq!((answer.status, answer.field("access-control-allow-origin")), (200, Some("https://shop.example")));
    for origin in ["https://evil.example", "https://shop.example.evil.example", "http://shop.example", "null"] {
        let field = format!("Origin: {origin}\r\n");
        let mut refused = Client::raw(node.listen);
        refused.send(handshake(&format!("{path}/ws"), &field).as_bytes());
        refused.refusal().assert_problem(403, "origin_not_allowed");
        let mut stream = Client::raw(node.listen);
        stream.send(format!("GET {path}/sse HTTP/1.1\r\nHost: h\r\n{field}\r\n").as_bytes());
        stream.refusal().assert_problem(403, "origin_not_allowed");
        let answer = node.http().request("GET", &format!("{path}/messages"), &field, "");
        answer.assert_problem(403, "origin_not_allowed");
        assert_eq!(answer.field("access-control-allow-origin"), None);
    }
    // An app whose readers need a token.
    let mut refused = Client::raw(node.listen);
    refused.send(handshake("/v1/closed/channels/a/ws", "").as_bytes());
    refused.refusal().assert_problem(401, "token_needed");
    for what in ["messages", "viewers"] {
        node.http().get(&format!("/v1/closed/channels/a/{what}")).assert_problem(401, "token_needed");
    }
}

/// Sockets that have said half a request and nothing more, beside a viewer and who posts to it.
struct HalfOpen<'n> {
    node: &'n Node,
    viewer: Client,
    http: Http,
    key: String,
    held: Vec<TcpStream>,
}

impl<'n> HalfOpen<'n> {
    fn new(node: &'n Node) -> Self {
        let (viewer, http, key) = (watch(node, "a"), node.http(), node.key());
        Self { node, viewer, http, key, held: Vec::new() }
    }

    /// A message passes by all of them.
    fn post(&mut self, text: &str) {
        let body = json!({ "text": text }).to_string();
        let answer = self.http.post("/v1/demo/channels/a/messages", &self.key, &body);
        assert_eq!(answer.status, 201, "{answer:?}");
        assert_eq!(self.viewer.event()["text"], text);
    }

    /// One more, from one of several addresses, so that no address runs out of ports. Those the node has no place for are
    /// refused or wait to be accepted: both hold up nobody.
    fn open(&mut self) {
        let n = self.held.len();
        let half = if n.is_multiple_of(2) {
            "GET /v1/demo/ws HT"
        } else {
            "POST /v1/demo/channels/a/messages HTTP/1.1\r\nHost: h\r\nContent-Length: 9\r\n\r\n{"
        };
        let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).expect("a descriptor");
        let from = SocketAddr::from(([127, 0, 0, 1 + (n % 4) as u8], 0));
        socket.bind(&from.into()).expect("a port of the loopback");
        if socket.connect_timeout(&self.node.listen.into(), Duration::from_millis(500)).is_ok() {
            let mut stream = socket.into();
            crate::node::write_all(&mut stream, half.as_bytes());
            self.held.push(stream);
        }
    }

    /// So many, with a message beside them now and then.
    fn open_all(&mut self, count: usize) {
        for n in 1..=count {
            self.open();
            if n.is_multiple_of(500) {
                self.post(&format!("beside {n}"));
            }
        }
    }
}

#[test]
fn who_says_half_a_head_and_nothing_more_holds_up_nobody_and_is_sent_away() {
    let dir = temp_dir();
    let file = dir.path().join("ringcast.toml");
    std::fs::write(&file, "[limits]\nhead_timeout_ms = 2_000\n[shard]\nreport_ms = 200\n").unwrap();
    let shell = ["sh", "-c", "ulimit -n 1024; exec \"$0\" \"$@\""];
    let node = Node::start_by(&shell, dir.path(), &["--shards", "1", "--config", file.to_str().unwrap()]);
    let mut crowd = HalfOpen::new(&node);
    // Three times as many as it has descriptors.
    crowd.open_all(3_000);
    assert!(crowd.held.len() > 200, "{} were held open", crowd.held.len());
    node.assert_alive();
    // Each is sent away in its time, and then there is room, though nobody closed anything.
    let deadline = Instant::now() + PATIENCE;
    let mut another = loop {
        let mut client = Client::raw(node.listen);
        client.send(handshake("/v1/demo/channels/a/ws", "").as_bytes());
        // Without a descriptor nobody can be told why.
        match client.head() {
            Some(head) if head.starts_with("HTTP/1.1 101 ") => break client,
            Some(head) => assert!(head.starts_with("HTTP/1.1 503 "), "{head}"),
            None => {}
        }
        assert!(Instant::now() < deadline, "there is no room for anybody");
        std::thread::sleep(LOOK);
    };
    another.ready();
    crowd.post("and on");
    drop(crowd);
    node.await_metrics("nobody is at the door", |metrics| metrics.sum("ringcast_used", "what=\"door\"") == 0);
    node.assert_alive();
}

#[test]
fn ten_thousand_half_open_sockets_hold_up_nobody() {
    /// Descriptors of this process that other tests may need meanwhile.
    const SPARE: u64 = 3_000;
    let open = std::fs::read_dir("/proc/self/fd").expect("/proc").count() as u64;
    let room = ringcast::io::machine::raise_nofile().saturating_sub(open + SPARE);
    let count = room.min(10_000) as usize;
    if count < 10_000 {
        eprintln!("{count} sockets, not 10,000: more needs a higher hard limit of descriptors (ulimit -Hn)");
    }
    assert!(count >= 500, "{count} sockets show nothing: raise the hard limit of descriptors (ulimit -Hn)");
    // Nobody is sent away before all are there, however slow the machine is.
    let config = "[limits]\nhead_timeout_ms = 300_000\n[shard]\nreport_ms = 200\n";
    let node = Node::configured(config, &["--shards", "2"]);
    let mut crowd = HalfOpen::new(&node);
    crowd.open_all(count);
    // The kernel deals them out to the two cores, and one may get a few more than it has places for: those are closed.
    let standing = |metrics: &Metrics| {
        metrics.sum("ringcast_used", "what=\"door\"") + metrics.sum("ringcast_used", "what=\"http_connections\"")
    };
    let enough = count as i64 * 9 / 10;
    node.await_metrics("nearly all stand there", |metrics| standing(metrics) >= enough);
    crowd.post("beside all of them");
    let mut another = watch(&node, "a");
    crowd.post("to both");
    assert_eq!(another.event()["text"], "to both");
    node.assert_alive();
    crowd.held.clear();
    node.await_metrics("only who posts stands there", |metrics| standing(metrics) <= 1);
    crowd.post("and on");
    assert_eq!(another.event()["text"], "and on");
}

#[test]
fn at_the_bound_of_memory_nobody_more_comes_in_and_who_is_there_stays() {
    let plain = Node::start(&["--shards", "1"]);
    plain.watch("a").ready();
    let bound_mib = plain.rss_kib() / 1_024 + 12;
    drop(plain);
    let node = node(&format!("[limits]\nmemory_mib_max = {bound_mib}\n"));
    let mut viewer = watch(&node, "a");
    // Viewers that do not read fill their queues: a quarter of a MiB each, and what the kernel holds is not ours.
    let path = "/v1/demo/channels/full/ws";
    let stuck: Vec<Client> = (0..200).map(|_| Client::open_narrow(node.listen, path, 4_096)).collect();
    let big = json!({"text": "x".repeat(16_000)});
    let deadline = Instant::now() + 3 * PATIENCE;
    let refused = loop {
        assert_eq!(node.post("full", &big).status, 201, "posts go on");
        let mut client = Client::raw(node.listen);
        client.send(handshake("/v1/demo/channels/a/ws", "").as_bytes());
        let head = client.head().expect("an answer");
        if !head.starts_with("HTTP/1.1 101 ") {
            let body = String::from_utf8(client.rest_until_end()).unwrap();
            break Answer { status: head[9..12].parse().unwrap(), head, body };
        }
        assert!(Instant::now() < deadline, "{} MiB of {bound_mib}", node.rss_kib() / 1_024);
    };
    refused.assert_problem(503, "memory_full");
    assert_eq!(refused.field("retry-after"), Some("5"));
    let ready = Http::try_get(node.admin, "/readyz").unwrap();
    assert!(ready.status == 503 && ready.body.contains("memory_mib"), "{ready:?}");
    let metrics = node.metrics();
    assert_eq!(metrics.sum("ringcast_limit", "what=\"memory_mib\""), bound_mib as i64);
    node.post_text("a", "still here");
    assert_eq!(viewer.next_of("message.new")["text"], "still here");
    drop(stuck);
    node.assert_alive();
}

#[test]
fn who_was_refused_for_want_of_memory_comes_in_when_there_is_some_again() {
    let dir = temp_dir();
    let file = dir.path().join("ringcast.toml");
    std::fs::write(&file, "[limits]\nmemory_mib_max = 1_000\n").unwrap();
    let library = crate::fault::build("memory", dir.path());
    let told = dir.path().join("statm");
    // In pages, as the kernel tells it; and never half a file.
    let page = std::process::Command::new("getconf").arg("PAGESIZE").output().expect("getconf").stdout;
    let page_bytes: u64 = String::from_utf8(page).unwrap().trim().parse().expect("a number");
    let use_mib = |mib: u64| {
        let part = dir.path().join("statm.part");
        std::fs::write(&part, format!("99999999 {} 0 0 0 0 0\n", mib * (1 << 20) / page_bytes)).unwrap();
        std::fs::rename(part, &told).unwrap();
    };
    use_mib(100);
    let (preload, memory) =
        (format!("LD_PRELOAD={}", library.display()), format!("RINGCAST_MEMORY={}", told.display()));
    let args = ["--shards", "2", "--config", file.to_str().unwrap()];
    let node = Node::start_by(&["env", &preload, &memory], dir.path(), &args);
    let mut viewer = watch(&node, "a");
    let used = |mib| {
        node.await_metrics("the memory is looked at", |m| m.sum("ringcast_used", "what=\"memory_mib\"") == mib);
    };
    let ready = || Http::try_get(node.admin, "/readyz").expect("an answer");
    for round in 0..2 {
        // Up to the bound everybody comes in.
        use_mib(999);
        used(999);
        let _near = watch_soon(&node, "a", "memory_full");
        assert_eq!(ready().status, 503, "it says so before");
        use_mib(1_000);
        used(1_000);
        let refused = refusal_soon(&node, "a");
        refused.assert_problem(503, "memory_full");
        assert_eq!(refused.field("retry-after"), Some("5"));
        let mut stream = Client::raw(node.listen);
        stream.send(b"GET /v1/demo/channels/a/sse HTTP/1.1\r\nHost: h\r\n\r\n");
        stream.refusal().assert_problem(503, "memory_full");
        // Who is there has nothing of it.
        let text = format!("in round {round}");
        node.post_text("a", &text);
        assert_eq!(viewer.next_of("message.new")["text"], text);
        use_mib(700);
        used(700);
        let mut back = watch_soon(&node, "a", "memory_full");
        assert_eq!(ready().status, 200);
        node.post_text("a", "again");
        assert_eq!(back.next_of("message.new")["text"], "again");
        assert_eq!(viewer.next_of("message.new")["text"], "again");
    }
}

/// Comes until it is refused: each core looks at the bound once a turn.
fn refusal_soon(node: &Node, channel: &str) -> Answer {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let mut client = Client::raw(node.listen);
        client.send(handshake(&format!("/v1/demo/channels/{channel}/ws"), "").as_bytes());
        let head = client.head().expect("an answer");
        if !head.starts_with("HTTP/1.1 101 ") {
            let body = String::from_utf8(client.rest_until_end()).unwrap();
            return Answer { status: head[9..12].parse().unwrap(), head, body };
        }
        assert!(Instant::now() < deadline, "nobody is refused");
    }
}
