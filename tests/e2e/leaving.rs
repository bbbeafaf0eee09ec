//! Who leaves, in whatever way, leaves nothing behind: cases C10 and D6.

use std::time::{Duration, Instant};

use serde_json::json;

use crate::client::{Client, frame, handshake};
use crate::node::{Node, temp_dir};

/// Cycles of an ordinary run; `RINGCAST_CYCLES` asks for more.
const CYCLES: u64 = 10_000;

/// Whom the proxy speaks for.
const ADDRESS: &str = "192.0.2.7";

/// A node with its own app behind a listed proxy, so that addresses count.
fn node(lines: &str) -> Node {
    let dir = temp_dir();
    let hash = ringcast::admission::auth::hash_server_key("rk_test").iter().fold(String::new(), |mut text, byte| {
        use std::fmt::Write as _;
        let _ = write!(text, "{byte:02x}");
        text
    });
    let text = format!(
        "{lines}\n[proxies]\nnetworks = [\"127.0.0.2\"]\nproxy_protocol = true\n\
         [[app]]\nname = \"shop\"\nserver_key_sha256 = \"{hash}\"\nanonymous_read = true\n"
    );
    let file = dir.path().join("ringcast.toml");
    std::fs::write(&file, text).unwrap();
    Node::start_keeping(dir, &["--shards", "2", "--config", file.to_str().unwrap()])
}

/// A connection that comes from the proxy, for a client of this address.
fn through_proxy(node: &Node, client: &str, request: &str) -> Client {
    let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
    socket.bind(&"127.0.0.2:0".parse::<std::net::SocketAddr>().unwrap().into()).unwrap();
    socket.connect(&node.listen.into()).expect("the node listens");
    let mut connection = Client::over(socket.into());
    connection.send(format!("PROXY TCP4 {client} 127.0.0.1 40000 80\r\n{request}").as_bytes());
    connection
}

#[test]
fn case_d6_cycles_of_coming_and_leaving_end_where_they_began() {
    let cycles = std::env::var("RINGCAST_CYCLES").map_or(CYCLES, |text| text.parse().expect("a whole number"));
    // All come from one address: a place of it that is not given back is missed in the end.
    let node = node(
        "[shard]\nreport_ms = 200\n[limits]\naddress_connections_max = 2_000\naddress_window_s = 1\n[presence]\ngrace_ms = 0",
    );
    let descriptors = || std::fs::read_dir(format!("/proc/{}/fd", node.pid())).unwrap().count();
    let round = |count: u64| {
        for i in 0..count {
            let request = handshake(&format!("/v1/shop/channels/d6-{}/ws", i % 7), "");
            let mut client = through_proxy(&node, ADDRESS, &request);
            if i % 5 == 4 {
                // Gone before it is answered.
                socket2::SockRef::from(&client.stream).set_linger(Some(Duration::ZERO)).unwrap();
                continue;
            }
            // Places come back with a report a second; who is faster than that has to ask again.
            let deadline = Instant::now() + crate::client::PATIENCE;
            while !client.head().expect("an answer").starts_with("HTTP/1.1 101 ") {
                assert!(Instant::now() < deadline, "places of the address come back");
                std::thread::sleep(crate::node::LOOK);
                client = through_proxy(&node, ADDRESS, &request);
            }
            client.ready();
            client.say(&json!({"type": "subscribe", "channel": format!("d6-more-{}", i % 3), "id": i}));
            assert_eq!(client.event()["type"], "subscribed");
            match i % 5 {
                0 => client.close(),
                1 => drop(client),
                2 => {
                    client.shutdown_write();
                    while client.frame().is_some() {}
                }
                _ => socket2::SockRef::from(&client.stream).set_linger(Some(Duration::ZERO)).unwrap(),
            }
        }
        node.await_metrics("all have left", |metrics| {
            let used = |what: &str| metrics.sum("ringcast_used", &format!("what=\"{what}\""));
            let left =
                ["connections", "ring_sockets", "door", "channels", "users", "contexts", "asks", "presence_members"];
            left.iter().all(|what| used(what) == 0)
                && metrics.sum("ringcast_joined_total", "") == metrics.sum("ringcast_left_total", "")
        })
        .assert_balanced();
    };
    // What grows once, such as pools and tables, has grown after these.
    round(1_000.min(cycles));
    let (open, memory) = (descriptors(), node.rss_kib());
    let began = Instant::now();
    round(cycles);
    let rate = cycles as f64 / began.elapsed().as_secs_f64();
    let (open_after, memory_after) = (descriptors(), node.rss_kib());
    println!(
        "{cycles} cycles, {rate:.0} a second: descriptors {open} then {open_after}, memory {memory} KiB then {memory_after} KiB"
    );
    assert!(open_after <= open + 4, "{open_after} descriptors, {open} before");
    let grown = memory_after.saturating_sub(memory);
    assert!(grown < 8 * 1_024, "{grown} KiB more than before");
    // The limiter has forgotten everybody: the address may have all its places at once, and not one more.
    let mut held: Vec<Client> = Vec::new();
    let deadline = Instant::now() + crate::client::PATIENCE;
    while held.len() < 2_000 {
        let mut client = through_proxy(&node, ADDRESS, &handshake("/v1/shop/channels/d6/ws", ""));
        if client.head().expect("an answer").starts_with("HTTP/1.1 101 ") {
            held.push(client);
        } else {
            assert!(Instant::now() < deadline, "{} places of 2,000 came back", held.len());
            std::thread::sleep(crate::node::LOOK);
        }
    }
    let refused = through_proxy(&node, ADDRESS, &handshake("/v1/shop/channels/d6/ws", "")).refusal();
    refused.assert_problem(429, "address_full");
    node.assert_alive();
}

#[test]
fn case_c10_a_stream_whose_client_vanishes_is_taken_down_once() {
    let dir = temp_dir();
    let file = dir.path().join("ringcast.toml");
    let lines = "[shard]\nreport_ms = 200\n[liveness]\nmax_stall_ms = 1_200\n[socket]\nuser_timeout_ms = 6_200\n[presence]\ngrace_ms = 0\n";
    std::fs::write(&file, lines).unwrap();
    let node = Node::start_keeping(dir, &["--shards", "1", "--config", file.to_str().unwrap()]);
    let mut witness = node.watch_as("c10", "witness");
    witness.ready();
    let mut vanishing: Vec<Client> = Vec::new();
    for user in ["gone1", "gone2", "gone3"] {
        let mut client = Client::raw(node.listen);
        let path = format!("/v1/demo/channels/c10/sse?heartbeat=1&token={}", node.token(user));
        client.send(format!("GET {path} HTTP/1.1\r\nHost: h\r\n\r\n").as_bytes());
        let head = client.head().expect("an answer");
        assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
        vanishing.push(client);
    }
    let mut came = 0;
    while came < 3 {
        let event = witness.next().json();
        came += u32::from(event["type"] == "member.joined" && event["user"]["id"] != "witness");
    }
    // From now on nothing reaches them and they acknowledge nothing, as if the cable were cut.
    let drop_all = [socket2::SockFilter::new(0x06, 0, 0, 0)];
    for client in &vanishing {
        socket2::SockRef::from(&client.stream).attach_filter(&drop_all).expect("a filter");
    }
    let vanished = Instant::now();
    witness.patience(Duration::from_secs(18));
    let cpu = node.cpu_s();
    // One of them meets events, the others only heartbeats: whichever write fails first, each is removed once.
    node.post("c10", &json!({"text": "into the void"}));
    let mut left = Vec::new();
    while left.len() < 3 {
        let event = witness.next().json();
        if event["type"] == "member.left" {
            left.push(event["user"]["id"].as_str().unwrap().to_owned());
        }
    }
    assert!(vanished.elapsed() < Duration::from_secs(18), "found after {:?}", vanished.elapsed());
    left.sort_unstable();
    assert_eq!(left, ["gone1", "gone2", "gone3"]);
    let metrics = node.await_metrics("they are counted out", |metrics| metrics.sum("ringcast_connections", "") == 1);
    assert_eq!(metrics.sum("ringcast_left_total", ""), 3, "each is removed once");
    metrics.assert_balanced();
    // Nobody leaves a second time, and the node rests.
    witness.send(&frame(0x8A, b""));
    assert!(witness.settle().iter().all(|event| event["type"] != "member.left"));
    assert!(node.cpu_s() - cpu < 2.0, "{} s of CPU", node.cpu_s() - cpu);
    node.assert_alive();
}
