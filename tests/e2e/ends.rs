//! The end of a node and the ends of its resources: draining, and descriptors.

use std::time::{Duration, Instant};

use serde_json::json;

use crate::client::{CLOSE, Client, Http, TEXT, handshake};
use crate::node::{Node, temp_dir};

#[test]
fn case_d8_sigterm_closes_everybody_in_time_also_those_who_do_not_read() {
    const READERS: usize = 300;
    let mut node = Node::start(&["--shards", "2"]);
    let mut readers: Vec<Client> = (0..READERS).map(|_| node.watch("d8")).collect();
    for client in &mut readers {
        client.ready();
    }
    let path = "/v1/demo/channels/full/ws";
    let mut stuck: Vec<Client> = (0..5).map(|_| Client::open_narrow(node.listen, path, 4_096)).collect();
    let mut silent: Vec<Client> = (0..5).map(|_| Client::raw(node.listen)).collect();
    for client in &mut silent {
        client.send(b"GET / HTTP/1.1\r\n");
    }
    let big = json!({"text": "x".repeat(16_000)});
    (0..150).for_each(|_| assert_eq!(node.post("full", &big).status, 201));
    let mut idle = node.http();
    assert_eq!(idle.get("/v1/demo/channels/d8/viewers").status, 200);

    let asked = Instant::now();
    node.terminate();
    let ready = loop {
        let answer = Http::try_get(node.admin, "/readyz").expect("the admin listener goes on");
        if answer.status != 200 {
            break answer;
        }
        assert!(asked.elapsed() < Duration::from_secs(2));
    };
    assert_eq!(ready.status, 503);
    assert_eq!(Http::try_get(node.admin, "/healthz").unwrap().status, 200, "it lives while it drains");
    let refused = idle.post("/v1/demo/channels/d8/messages", &node.key(), r#"{"text":"late"}"#);
    refused.assert_problem(503, "draining");
    // No new 101, however the connection is met.
    if let Ok(stream) = std::net::TcpStream::connect(node.listen) {
        let mut late = Client::over(stream);
        late.send(handshake("/v1/demo/channels/d8/ws", "").as_bytes());
        if let Some(head) = late.head() {
            assert!(head.starts_with("HTTP/1.1 503 "), "{head}");
        }
    }
    let mut closed = Vec::new();
    std::thread::scope(|scope| {
        let readers: Vec<_> = readers
            .iter_mut()
            .map(|client| {
                scope.spawn(|| {
                    client.patience(Duration::from_secs(15));
                    let mut told = None;
                    loop {
                        let frame = client.next();
                        if frame.opcode == CLOSE {
                            assert_eq!(frame.code(), 1012);
                            let reason: serde_json::Value = serde_json::from_str(frame.reason()).expect("JSON");
                            assert!(reason["retry_after_ms"].as_u64().is_some_and(|ms| ms > 0), "{reason}");
                            let at = asked.elapsed();
                            client.send(&crate::client::frame(0x88, &1012_u16.to_be_bytes()));
                            client.expect_end();
                            return (told.expect("draining comes first"), at);
                        }
                        assert_eq!(frame.opcode, TEXT);
                        let event = frame.json();
                        if event["type"] == "draining" {
                            assert!(event["retry_after_ms"].as_u64().is_some_and(|ms| ms > 0), "{event}");
                            told = Some(asked.elapsed());
                        }
                    }
                })
            })
            .collect();
        closed.extend(readers.into_iter().map(|reader| reader.join().unwrap()));
    });
    let status = node.wait(Duration::from_secs(15).saturating_sub(asked.elapsed()));
    assert_eq!(status.code(), Some(0), "{}", node.log());
    assert!(closed.iter().all(|(told, _)| *told < Duration::from_secs(2)), "everybody is told at once");
    // The last third of the drain period is kept for the last closes.
    let early = closed.iter().filter(|(_, at)| *at < Duration::from_millis(3_250)).count();
    assert!((READERS / 4..READERS * 3 / 4).contains(&early), "the closes are spread: {early} in the first half");
    // The stuck ones had their data in the kernel's buffers; what is left ends in the end of the connection.
    for client in &mut stuck {
        while client.try_skip() {}
    }
    assert!(!node.log().contains("panicked"), "{}", node.log());
}

#[test]
fn a_node_without_viewers_ends_at_once_and_keeps_what_it_acknowledged() {
    let dir = temp_dir();
    let mut node = Node::start_in(dir.path(), &["--shards", "2"]);
    node.post_text("kept", "one");
    let mut keep_alive = node.http();
    keep_alive.get("/v1/demo/channels/kept/messages");
    let asked = Instant::now();
    node.terminate();
    assert_eq!(node.wait(Duration::from_secs(5)).code(), Some(0));
    assert!(asked.elapsed() < Duration::from_secs(2), "{:?}", asked.elapsed());
    let node = Node::start_in(dir.path(), &["--shards", "2"]);
    assert_eq!(node.http().get("/v1/demo/channels/kept/messages").json()["head"], 1);
}

#[test]
fn case_d7_without_descriptors_the_surplus_is_refused_and_posts_go_on() {
    let dir = temp_dir();
    let node = Node::start_by(&["sh", "-c", "ulimit -n 256; exec \"$0\" \"$@\""], dir.path(), &["--shards", "1"]);
    let mut clients = Vec::new();
    let mut joined = 0;
    for _ in 0..300 {
        let Ok(stream) = std::net::TcpStream::connect(node.listen) else { continue };
        let mut client = Client::over(stream);
        client.send(handshake("/v1/demo/channels/d7/ws", "").as_bytes());
        clients.push(client);
    }
    clients.retain_mut(|client| {
        client.patience(Duration::from_millis(300));
        let head = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| client.head()));
        match head {
            Ok(Some(head)) if head.starts_with("HTTP/1.1 101 ") => {
                joined += 1;
                true
            }
            Ok(Some(head)) => {
                assert!(head.starts_with("HTTP/1.1 503 "), "{head}");
                false
            }
            // Nobody accepted it, or it was closed: both are a refusal.
            Ok(None) | Err(_) => false,
        }
    });
    assert!(joined > 50, "{joined} joined");
    let cpu = node.cpu_s();
    let began = Instant::now();
    let answer = Http::try_get(node.admin, "/healthz").expect("the admin listener has a reserve");
    assert_eq!(answer.status, 200);
    while began.elapsed() < Duration::from_secs(1) {
        std::thread::sleep(Duration::from_millis(50));
    }
    assert!(node.cpu_s() - cpu < 0.5, "accepting does not spin: {} s", node.cpu_s() - cpu);
    let answer = node.post("d7", &json!({"text": "through"}));
    assert_eq!(answer.status, 201, "{answer:?}");
    for client in &mut clients {
        client.patience(Duration::from_secs(10));
        client.ready();
        assert_eq!(client.event()["text"], "through");
    }
    // Whoever leaves makes room.
    drop(clients);
    let deadline = Instant::now() + Duration::from_secs(5);
    while std::panic::catch_unwind(|| node.watch("d7").ready()).is_err() {
        assert!(Instant::now() < deadline);
    }
}

#[test]
fn case_e4_connections_that_come_and_go_leave_nothing_behind() {
    let node = Node::start(&["--shards", "2", "--test-echo"]);
    let descriptors = || std::fs::read_dir(format!("/proc/{}/fd", node.pid())).unwrap().count();
    let round = |count: usize| {
        for i in 0..count {
            let mut client = node.watch(&format!("e4-{}", i % 7));
            match i % 4 {
                0 => client.close(),
                1 => drop(client.ready()),
                2 => client.shutdown_write(),
                _ => {
                    socket2::SockRef::from(&client.stream).set_linger(Some(Duration::ZERO)).unwrap();
                }
            }
        }
        node.await_metrics("all have left", |metrics| {
            metrics.sum("ringcast_connections", "") == 0
                && metrics.sum("ringcast_joined_total", "") == metrics.sum("ringcast_left_total", "")
        })
        .assert_balanced();
    };
    round(500);
    let (open, memory) = (descriptors(), node.rss_kib());
    round(3_000);
    assert!(descriptors() <= open + 4, "{} descriptors, {open} before", descriptors());
    let grown = node.rss_kib().saturating_sub(memory);
    assert!(grown < 16 * 1024, "{grown} KiB");
}
