//! Section C of the cases: who reads slowly, who floods, who is gone without a word; and that every delivery is
//! accounted for.

use std::collections::BTreeSet;
use std::io::Write;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::client::{Client, Http, frame, text};
use crate::node::Node;

/// Small enough that a reader who stops is felt soon.
const NARROW: usize = 4_096;

fn open_narrow(node: &Node, channel: &str) -> Client {
    Client::open_narrow(node.listen, &format!("/v1/demo/channels/{channel}/ws"), NARROW)
}

/// Posts numbered custom events, `batch` requests in one write; none of them may take long.
fn post_numbered(node: &Node, channel: &str, numbers: std::ops::Range<u64>, bytes: usize, batch: usize) {
    let mut http = node.http();
    let padding = "x".repeat(bytes);
    let key = node.key();
    let numbers: Vec<u64> = numbers.collect();
    for chunk in numbers.chunks(batch) {
        let began = Instant::now();
        let requests: String = chunk
            .iter()
            .map(|n| {
                let body = json!({"type": "custom.n", "data": {"n": n, "p": padding}}).to_string();
                format!(
                    "POST /v1/demo/channels/{channel}/events HTTP/1.1\r\nHost: h\r\nAuthorization: Bearer {key}\r\n\
                     Content-Length: {}\r\n\r\n{body}",
                    body.len()
                )
            })
            .collect();
        http.stream().write_all(requests.as_bytes()).unwrap();
        for _ in chunk {
            assert_eq!(http.read_answer().expect("an answer").status, 202);
        }
        assert!(began.elapsed() < Duration::from_secs(2), "a publisher waited {:?}", began.elapsed());
    }
}

/// Reads numbered events until `last`; returns them and how many custom events gaps said were lost.
fn read_numbered(client: &mut Client, last: u64) -> (Vec<u64>, u64) {
    let (mut seen, mut lost) = (Vec::new(), 0);
    while seen.last() != Some(&last) {
        let event = client.event();
        match event["type"].as_str().unwrap() {
            "custom.n" => seen.push(event["data"]["n"].as_u64().unwrap()),
            "gap" => lost += event["dropped"]["custom.*"].as_u64().unwrap_or(0),
            "pong" => {}
            other => panic!("{other} was not due: {event}"),
        }
    }
    (seen, lost)
}

#[test]
fn case_c1_a_half_closed_client_is_gone() {
    let node = Node::start(&["--shards", "1", "--test-echo"]);
    let mut stays = node.watch("c1");
    stays.ready();
    let mut clients: Vec<Client> = (0..20).map(|_| node.watch("c1")).collect();
    for client in &mut clients {
        client.ready();
    }
    let mut half_frame = Client::open(node.listen, "/test/echo");
    half_frame.send(&text("unfinished")[..8]);
    clients.push(half_frame);
    let mut door = Client::raw(node.listen);
    door.send(b"GET /v1/demo/channels/c1/ws HTTP/1.1\r\n");
    clients.push(door);
    for client in &mut clients {
        client.shutdown_write();
        client.patience(Duration::from_secs(3));
        while client.frame().is_some() {}
    }
    let cpu = node.cpu_s();
    // The report that says so is the event to wait for; meanwhile nobody may burn anything.
    let began = Instant::now();
    let metrics = node.await_metrics("one connection stays", |metrics| {
        metrics.sum("ringcast_connections", "") == 1 && metrics.sum("ringcast_left_total", "") == 21
    });
    metrics.assert_balanced();
    let used = node.cpu_s() - cpu;
    assert!(used < 0.5 + began.elapsed().as_secs_f64() * 0.1, "{used} s of CPU in {:?}", began.elapsed());
    stays.settle();
}

#[test]
fn case_c2_a_reader_that_stops_holds_up_nobody() {
    let node = Node::start(&["--shards", "2"]);
    let (mut healthy, mut slow) = (node.watch("c2"), open_narrow(&node, "c2"));
    healthy.ready();
    slow.ready();
    let before = node.rss_kib();
    let posting = AtomicBool::new(true);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            post_numbered(&node, "c2", 1..10_001, 1_000, 50);
            posting.store(false, Ordering::Release);
        });
        let (seen, lost) = read_numbered(&mut healthy, 10_000);
        assert_eq!((seen.len(), lost), (10_000, 0), "the healthy one gets all");
        assert!(seen.is_sorted());
    });
    let grown = node.rss_kib().saturating_sub(before);
    assert!(grown < 64 * 1024, "{grown} KiB");
    // The slow one wakes up: what it has in the kernel's buffers, then what was kept, then what happens now.
    post_numbered(&node, "c2", 10_001..10_002, 10, 1);
    let (seen, lost) = read_numbered(&mut slow, 10_001);
    assert!(seen.windows(2).all(|two| two[0] < two[1]), "in order");
    assert!(lost > 0 && seen.len() < 5_000, "{} came", seen.len());
    slow.settle();
    let metrics = node.await_metrics("nothing is queued", |metrics| {
        metrics.sum("ringcast_deliveries_queued", "") == 0
            && metrics.sum("ringcast_deliveries_total", "class=\"ordered\",outcome=\"published\"") == 20_002
    });
    metrics.assert_balanced();
    // Whatever is missing was either told as lost or was too old when its turn came.
    let stale = metrics.sum("ringcast_deliveries_total", "class=\"ordered\",outcome=\"stale\"") as u64;
    let evicted = metrics.sum("ringcast_deliveries_total", "class=\"ordered\",outcome=\"evicted\"") as u64;
    assert_eq!((seen.len() as u64 + lost + stale, lost), (10_001, evicted));
}

#[test]
fn case_c3_a_reader_that_never_reads_is_closed_and_memory_stays_flat() {
    let node = Node::start(&["--shards", "1"]);
    let (mut healthy, mut stuck) = (node.watch("c3"), open_narrow(&node, "c3"));
    healthy.ready();
    stuck.ready();
    let began = Instant::now();
    std::thread::scope(|scope| {
        scope.spawn(|| post_numbered(&node, "c3", 1..10_001, 1_000, 50));
        assert_eq!(read_numbered(&mut healthy, 10_000).0.len(), 10_000);
    });
    let before = node.rss_kib();
    // max_stall is 30 seconds.
    let mut http = node.http();
    while began.elapsed() < Duration::from_secs(28) {
        let answer = http.post(
            "/v1/demo/channels/c3/events",
            &node.key(),
            &json!({"type": "custom.n", "data": {"n": 0, "p": "x".repeat(1_000)}}).to_string(),
        );
        assert_eq!(answer.status, 202);
        assert_eq!(healthy.event()["type"], "custom.n");
        std::thread::sleep(Duration::from_millis(20));
    }
    // Its kernel may free some room late, so that the last try puts a few bytes there: then it has a third of the time more.
    let metrics = loop {
        let metrics = node.metrics();
        if metrics.sum("ringcast_closed_slow_total", "") == 1 {
            break metrics;
        }
        assert_eq!(metrics.sum("ringcast_connections", ""), 2, "TCP's own limit came first: {}", metrics.0);
        assert!(began.elapsed() < Duration::from_secs(45), "{}", metrics.0);
        std::thread::sleep(Duration::from_millis(100));
    };
    assert_eq!(metrics.sum("ringcast_connections", ""), 1);
    metrics.assert_balanced();
    let grown = node.rss_kib().saturating_sub(before);
    assert!(grown < 32 * 1024, "{grown} KiB");
    // What the kernel had is still there to read, and then it ends.
    while stuck.try_skip() {}
}

#[test]
fn case_c5_fan_out_and_replies_are_each_in_order_whatever_the_socket_does() {
    let node = Node::start(&["--shards", "2"]);
    let mut client = open_narrow(&node, "c5");
    client.ready();
    std::thread::scope(|scope| {
        scope.spawn(|| post_numbered(&node, "c5", 1..10_001, 100, 50));
        let mut writer = Client::over(client.stream.try_clone().unwrap());
        scope.spawn(move || {
            for n in 1..=2_000_u64 {
                writer.say(&json!({"type": "ping", "id": n}));
                if n % 100 == 0 {
                    std::thread::sleep(Duration::from_millis(5));
                }
            }
        });
        let (mut pong, mut number, mut frames) = (0, 0, 0_u64);
        while pong < 2_000 {
            let event = client.event();
            match event["type"].as_str().unwrap() {
                "pong" => {
                    assert_eq!(event["id"].as_u64(), Some(pong + 1), "no reply is lost or overtaken");
                    pong += 1;
                }
                "custom.n" => {
                    let n = event["data"]["n"].as_u64().unwrap();
                    assert!(n > number, "{n} after {number}");
                    number = n;
                }
                "gap" => {}
                other => panic!("{other}"),
            }
            frames += 1;
            // Sometimes it looks away, so that its socket is now writable, now not.
            if frames.is_multiple_of(97) {
                std::thread::sleep(Duration::from_millis(2));
            }
        }
    });
    node.assert_alive();
}

#[test]
fn case_c7_a_flood_that_is_not_read_back_is_paused() {
    let node = Node::start(&["--shards", "1", "--test-echo"]);
    let mut neighbour = Client::open(node.listen, "/test/echo");
    let before = node.rss_kib();
    for channel in [false, true] {
        let (mut flood, unit) = if channel {
            let mut client = open_narrow(&node, "c7");
            client.ready();
            (client, text(&json!({"type": "ping", "id": "x".repeat(100)}).to_string()).repeat(500))
        } else {
            (Client::open_narrow(node.listen, "/test/echo", NARROW), frame(0x82, &vec![b'f'; 60_000]))
        };
        flood.stream.set_write_timeout(Some(Duration::from_millis(300))).unwrap();
        let mut taken = 0_usize;
        while taken < 512_000_000 {
            match flood.stream.write(&unit[taken % unit.len()..]) {
                Ok(bytes) => taken += bytes,
                Err(_) => break,
            }
            neighbour.send(&text("still there?"));
            assert_eq!(neighbour.next().text(), "still there?");
        }
        assert!(taken < 32_000_000, "the node read {taken} bytes from somebody who reads no answer");
        let grown = node.rss_kib().saturating_sub(before);
        assert!(grown < 64 * 1024, "{grown} KiB");
        // It reads again, and everything that was taken whole is answered.
        flood.stream.set_write_timeout(Some(Duration::from_secs(10))).unwrap();
        let rest = &unit[taken % unit.len()..];
        let units = taken / unit.len() + 1;
        let mut writer = flood.stream.try_clone().unwrap();
        std::thread::scope(|scope| {
            scope.spawn(move || writer.write_all(rest).unwrap());
            let answers = if channel { units * 500 } else { units };
            for i in 0..answers {
                let frame = if channel { None } else { Some(flood.next()) };
                match frame {
                    Some(frame) => assert_eq!(frame.payload.len(), 60_000, "{i} of {answers}"),
                    None => assert_eq!(flood.event()["type"], "pong", "{i} of {answers}"),
                }
            }
        });
    }
}

#[test]
fn case_c8_every_delivery_is_written_or_told() {
    let node = Node::start(&["--shards", "2"]);
    let mut fast: Vec<Client> = (0..97).map(|_| node.watch("c8")).collect();
    let mut slow: Vec<Client> = (0..3).map(|_| open_narrow(&node, "c8")).collect();
    fast.iter_mut().chain(&mut slow).for_each(|client| drop(client.ready()));
    // The fast ones are fast on a busy machine too: what follows is posted when each of them has read what was posted before,
    // which is less than its queue holds.
    let (read, has_read) = std::sync::mpsc::channel();
    std::thread::scope(|scope| {
        for client in &mut fast {
            let read = read.clone();
            scope.spawn(move || {
                for last in (50..=1_000).step_by(50) {
                    let (seen, lost) = read_numbered(client, last);
                    assert_eq!((seen.len(), lost), (50, 0));
                    read.send(last).unwrap();
                }
            });
        }
        drop(read);
        for last in (50..=1_000).step_by(50) {
            post_numbered(&node, "c8", last - 49..last + 1, 4_000, 5);
            assert!(has_read.iter().take(97).all(|it| it == last));
        }
    });
    post_numbered(&node, "c8", 1_001..1_002, 10, 1);
    let (mut got, mut told) = (0, 0);
    for client in &mut slow {
        let (seen, lost) = read_numbered(client, 1_001);
        assert!(seen.windows(2).all(|two| two[0] < two[1]));
        got += seen.len() as i64;
        told += lost as i64;
    }
    for client in &mut fast {
        read_numbered(client, 1_001);
    }
    let metrics = node.await_metrics("all is delivered", |metrics| {
        metrics.sum("ringcast_deliveries_queued", "") == 0
            && metrics.sum("ringcast_deliveries_total", "class=\"ordered\",outcome=\"published\"") == 100 * 1_001
    });
    metrics.assert_balanced();
    let of = |outcome| metrics.sum("ringcast_deliveries_total", &format!("class=\"ordered\",outcome=\"{outcome}\""));
    assert_eq!(of("written"), 97 * 1_001 + got);
    assert_eq!(of("evicted"), told);
    assert_eq!(of("published"), of("written") + of("evicted") + of("stale"));
    assert!(told > 0, "the slow ones were slow");
}

#[test]
fn a_slow_viewer_is_told_exactly_what_it_missed_and_can_fetch_it() {
    const POSTS: u64 = 200;
    let node = Node::start(&["--shards", "2"]);
    let (mut healthy, mut slow) = (node.watch("slow"), open_narrow(&node, "slow"));
    healthy.ready();
    slow.ready();
    let big = "b".repeat(15_000);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let (mut http, key) = (node.http(), node.key());
            for n in 1..=POSTS {
                let body = json!({"text": format!("{n} {big}")}).to_string();
                assert_eq!(http.post("/v1/demo/channels/slow/messages", &key, &body).status, 201);
            }
        });
        for n in 1..=POSTS {
            assert_eq!(healthy.event()["seq"].as_u64(), Some(n), "the healthy one misses nothing");
        }
    });
    let (mut expected, mut missing, mut told) = (1, BTreeSet::new(), 0);
    while expected <= POSTS {
        let event = slow.event();
        if event["type"] == "gap" {
            // One that tells of nothing stored, such as numbers of viewers, names no place.
            let Some(from) = event["from_seq"].as_u64() else { continue };
            let to = event["to_seq"].as_u64().unwrap();
            assert_eq!(from, expected, "a gap stands in the place of what it tells: {event}");
            assert_eq!(event["channel"], "slow");
            assert_eq!(event["dropped"]["message.new"].as_u64(), Some(to - from + 1), "{event}");
            missing.extend(from..=to);
            told += to - from + 1;
            expected = to + 1;
        } else {
            assert_eq!(event["seq"].as_u64(), Some(expected), "neither twice nor left out");
            expected += 1;
        }
    }
    assert!(told > 0, "the slow one was slow");
    let mut http = node.http();
    let mut fetched = BTreeSet::new();
    while let Some(&first) = missing.difference(&fetched).next() {
        let page = http.get(&format!("/v1/demo/channels/slow/messages?since={}&limit=20", first - 1)).json();
        for message in page["messages"].as_array().unwrap() {
            let seq = message["seq"].as_u64().unwrap();
            assert_eq!(message["text"], format!("{seq} {big}"));
            fetched.insert(seq);
        }
    }
    assert!(missing.is_subset(&fetched));
    // And it is in step again.
    let seq = node.post_text("slow", "live");
    assert_eq!(slow.event()["seq"].as_u64(), Some(seq));
    let metrics = node.await_metrics("a report after the last", |metrics| {
        metrics.sum("ringcast_deliveries_total", "class=\"ordered\",outcome=\"published\"") == 2 * (POSTS + 1) as i64
    });
    metrics.assert_balanced();
    assert_eq!(metrics.sum("ringcast_deliveries_total", "class=\"ordered\",outcome=\"evicted\""), told as i64);
}

#[test]
fn the_account_balances_when_viewers_join_a_channel_that_is_being_posted_to() {
    let node = Node::start(&["--shards", "2"]);
    let going = AtomicBool::new(true);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            // Custom events too, for they have no number by which a shard could tell what it has seen.
            let (mut http, key) = (node.http(), node.key());
            while going.load(Ordering::Acquire) {
                let body = json!({"type": "custom.n", "data": {"n": 1}}).to_string();
                http.post("/v1/demo/channels/busy/events", &key, &body);
                http.post("/v1/demo/channels/busy/messages", &key, r#"{"text":"m"}"#);
            }
        });
        for _ in 0..150 {
            // Each time the channel is new on its shard: its head is asked for while events arrive.
            let mut clients: Vec<Client> = (0..3).map(|_| node.watch("busy")).collect();
            for client in &mut clients {
                let head = client.ready()["seq"].as_u64().unwrap();
                let mut next = head + 1;
                for _ in 0..3 {
                    let event = client.event();
                    if let Some(seq) = event["seq"].as_u64() {
                        assert_eq!(seq, next, "the first stored event follows the head");
                        next += 1;
                    }
                }
            }
        }
        going.store(false, Ordering::Release);
    });
    let metrics = node.await_metrics("everybody has left", |metrics| {
        metrics.sum("ringcast_connections", "") == 0 && metrics.sum("ringcast_left_total", "") == 450
    });
    metrics.assert_balanced();
}

/// What an answer says of a message.
pub(crate) fn seq_of(answer: &Value) -> u64 {
    answer["seq"].as_u64().expect("a seq")
}

#[test]
fn the_api_serves_pipelined_requests_in_order() {
    let node = crate::node::shared();
    let channel = crate::node::fresh("pipe");
    let mut http: Http = node.http();
    let key = node.key();
    let requests: String = (0..50)
        .map(|n| {
            let body = json!({"text": n.to_string()}).to_string();
            format!(
                "POST /v1/demo/channels/{channel}/messages HTTP/1.1\r\nHost: h\r\nAuthorization: Bearer {key}\r\n\
                 Content-Length: {}\r\n\r\n{body}",
                body.len()
            )
        })
        .collect();
    http.stream().write_all(requests.as_bytes()).unwrap();
    for n in 1..=50 {
        assert_eq!(seq_of(&http.read_answer().expect("an answer").json()), n);
    }
}
