//! A tiny node for the tests of the load generator, with faults on demand.
//!
//! Upgrades and posts flow in, greetings, events and answers flow out; what is always true is that without a fault every
//! viewer gets each message once and in order. Blocking threads and one lock, and its frames are made by hand.

#![allow(clippy::disallowed_methods, clippy::disallowed_types, reason = "a stand-in for tests, simple before fast")]

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex};

use super::args::tests::fanout as options;
use super::fanout::conduct;
use super::report::{Counts, Report};

/// What goes wrong, for the viewer that joined as the seventh, at the fifth message of its channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    None,
    /// The message is not sent.
    Drop,
    /// It is sent twice.
    Double,
    /// It is sent behind the sixth.
    Swap,
    /// Nothing is sent any more.
    Mute,
    /// It is not sent, and a gap says so.
    Tell,
    /// A gap says so, and it is sent.
    Lie,
    /// The connection is closed as too slow.
    Close,
    /// The upgrade is refused.
    Refuse,
    /// A post is answered with 500.
    Deny,
    /// A count that is not the real one is told with every message.
    Miscount,
    /// The real count is told with every message.
    Count,
}

struct Peer {
    stream: TcpStream,
    number: usize,
    held: Option<Vec<u8>>,
}

#[derive(Default)]
struct Channel {
    seq: u64,
    peers: Vec<Peer>,
}

#[derive(Default)]
struct State {
    joins: usize,
    posts: usize,
    channels: BTreeMap<String, Channel>,
}

struct Fake {
    addr: SocketAddr,
    stop: Arc<AtomicBool>,
}

impl Fake {
    fn start(fault: Fault) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let fake = Self { addr: listener.local_addr().unwrap(), stop: Arc::default() };
        let (stop, state) = (Arc::clone(&fake.stop), Arc::<Mutex<State>>::default());
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                if stop.load(Relaxed) {
                    return;
                }
                let state = Arc::clone(&state);
                std::thread::spawn(move || serve(stream, &state, fault));
            }
        });
        fake
    }
}

impl Drop for Fake {
    fn drop(&mut self) {
        self.stop.store(true, Relaxed);
        let _ = TcpStream::connect(self.addr);
    }
}

fn frame(opcode: u8, payload: &[u8]) -> Vec<u8> {
    let mut out = vec![0x80 | opcode];
    if payload.len() < 126 {
        out.push(payload.len() as u8);
    } else {
        out.push(126);
        out.extend_from_slice(&(payload.len() as u16).to_be_bytes());
    }
    out.extend_from_slice(payload);
    out
}

/// Reads one request: its head and its body. `rest` keeps what was read beyond.
fn request(stream: &mut TcpStream, rest: &mut Vec<u8>) -> Option<(String, String)> {
    let mut part = [0; 4_096];
    loop {
        if let Some(end) = memchr::memmem::find(rest, b"\r\n\r\n") {
            let head = String::from_utf8(rest[..end].to_vec()).unwrap();
            let length = header(&head, "content-length").map_or(0, |length| length.parse().unwrap());
            if rest.len() >= end + 4 + length {
                let body = String::from_utf8(rest[end + 4..end + 4 + length].to_vec()).unwrap();
                rest.drain(..end + 4 + length);
                return Some((head, body));
            }
        }
        match stream.read(&mut part) {
            Ok(read) if read > 0 => rest.extend_from_slice(&part[..read]),
            _ => return None,
        }
    }
}

fn header<'a>(head: &'a str, name: &str) -> Option<&'a str> {
    head.lines().filter_map(|line| line.split_once(": ")).find(|(n, _)| n.eq_ignore_ascii_case(name)).map(|(_, v)| v)
}

fn serve(mut stream: TcpStream, state: &Mutex<State>, fault: Fault) {
    let _ = stream.set_nodelay(true);
    let mut rest = Vec::new();
    while let Some((head, body)) = request(&mut stream, &mut rest) {
        let path: Vec<&str> = head.split(' ').nth(1).unwrap().split('/').collect();
        assert_eq!(path[..4], ["", "v1", "demo", "channels"]);
        let channel = path[4];
        let mut state = state.lock().unwrap();
        if path[5] == "ws" {
            state.joins += 1;
            let number = state.joins;
            if fault == Fault::Refuse && number == 7 {
                stream
                    .write_all(b"HTTP/1.1 503 Service Unavailable\r\nRetry-After: 1\r\nContent-Length: 0\r\n\r\n")
                    .unwrap();
                return;
            }
            let accept =
                tungstenite::handshake::derive_accept_key(header(&head, "sec-websocket-key").unwrap().as_bytes());
            let channel = state.channels.entry(channel.to_owned()).or_default();
            let ready = format!(
                r#"{{"type":"connection.ready","conn":"c{number}","room":"r","epoch":"e","seq":{},"recovered":null}}"#,
                channel.seq
            );
            let mut out = format!(
                "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
                 Sec-WebSocket-Accept: {accept}\r\n\r\n"
            )
            .into_bytes();
            out.extend(frame(1, ready.as_bytes()));
            out.extend(frame(9, b"alive?"));
            stream.write_all(&out).unwrap();
            channel.peers.push(Peer { stream, number, held: None });
            return;
        }
        assert_eq!(header(&head, "authorization"), Some("Bearer rk_test"));
        state.posts += 1;
        let answer = if fault == Fault::Deny && state.posts == 7 {
            r#"{"code":"fault"}"#.to_owned()
        } else {
            let channel_state = state.channels.entry(channel.to_owned()).or_default();
            channel_state.publish(channel, &body, path[5] == "events", fault)
        };
        let status = if answer.contains("fault") {
            "500 Internal Server Error"
        } else if path[5] == "events" {
            "202 Accepted"
        } else {
            "201 Created"
        };
        drop(state);
        let answer = format!("HTTP/1.1 {status}\r\ncontent-length: {}\r\n\r\n{answer}", answer.len());
        stream.write_all(answer.as_bytes()).unwrap();
    }
}

impl Channel {
    fn publish(&mut self, name: &str, body: &str, event: bool, fault: Fault) -> String {
        self.seq += 1;
        let seq = self.seq;
        let body: serde_json::Value = serde_json::from_str(body).unwrap();
        let text = if event {
            format!(r#"{{"type":"custom.load","channel":"{name}","data":{}}}"#, body["data"])
        } else {
            let text = &body["text"];
            format!(
                r#"{{"type":"message.new","channel":"{name}","seq":{seq},"id":"01J","user":{{"id":"load"}},"text":{text}}}"#
            )
        };
        let message = frame(1, text.as_bytes());
        let connections = self.peers.len() + usize::from(fault == Fault::Miscount);
        let count = format!(r#"{{"type":"viewers.updated","channel":"{name}","connections":{connections},"users":0}}"#);
        let gap = format!(
            r#"{{"type":"gap","channel":"{name}","from_seq":{seq},"to_seq":{seq},"dropped":{{"message.new":1}}}}"#
        );
        self.peers.retain_mut(|peer| {
            let mut out = message.clone();
            if matches!(fault, Fault::Miscount | Fault::Count) {
                out.extend(frame(1, count.as_bytes()));
            } else if peer.number == 7 && seq == 5 {
                match fault {
                    Fault::Drop => out.clear(),
                    Fault::Double => out.extend(message.clone()),
                    Fault::Swap => peer.held = Some(std::mem::take(&mut out)),
                    Fault::Tell => out = frame(1, gap.as_bytes()),
                    Fault::Lie => out.splice(..0, frame(1, gap.as_bytes())).for_each(drop),
                    Fault::Close => out = frame(8, &4_508_u16.to_be_bytes()),
                    _ => {}
                }
            } else if let Some(held) = peer.held.take() {
                out.extend(held);
            }
            if fault == Fault::Mute && peer.number == 7 && seq >= 5 {
                out.clear();
            }
            // Viewers leave at the end of a run.
            peer.stream.write_all(&out).is_ok()
        });
        format!(r#"{{"id":"01J","seq":{seq},"epoch":"e","created_at":1}}"#)
    }
}

fn run(fault: Fault, more: &str) -> Report {
    let fake = Fake::start(fault);
    let line =
        format!("--viewers 50 --channels 3 --rate 150 --payload 64 --url http://{} --key rk_test {more}", fake.addr);
    conduct(&options(&line).unwrap()).unwrap()
}

const SHORT: &str = "--seconds 1 --warmup-s 0";

#[test]
fn a_clean_run_passes_and_balances() {
    let report = run(Fault::None, SHORT);
    assert_eq!(report.faults(), Vec::<String>::new());
    let json = report.json();
    assert_eq!((json["delivered"].as_u64(), json["expected"].as_u64()), (Some(2_500), Some(2_500)));
    assert_eq!(
        (json["posts"].as_u64(), json["joined"].as_u64(), json["missing"].as_u64()),
        (Some(150), Some(50), Some(0))
    );
    assert_eq!(json["timed"].as_u64(), Some(2_500));
    assert_eq!(json["viewer_counts_right"], "not checked");
    assert!(json["p50_ms"].as_f64().unwrap() > 0.0 && json["joins_per_s"].as_f64().unwrap() > 0.0);
    assert!(json["server_cpu_ns_per_delivery"].as_f64().unwrap() > 0.0, "the fake runs in this process");
    assert!(report.text().contains("passed"));
}

#[test]
fn events_that_are_not_stored_and_bursts_and_threads_pass_too() {
    let report = run(Fault::None, "--seconds 1 --warmup-s 1 --ephemeral --burst 10 --threads 3");
    assert_eq!(report.faults(), Vec::<String>::new());
    assert_eq!(report.outcome.healthy.delivered, 5_000);
    assert_eq!(report.healthy.len(), 2_500, "the warm-up is audited and not timed");
}

#[test]
fn a_dropped_message_fails_the_audit() {
    let report = run(Fault::Drop, SHORT);
    assert_eq!((report.outcome.healthy.missing, report.outcome.healthy.viewers_short), (1, 1));
    assert_eq!(report.faults(), ["1 messages are missing"]);
}

#[test]
fn a_doubled_message_fails_the_audit() {
    let report = run(Fault::Double, SHORT);
    assert_eq!(report.outcome.healthy.duplicate, 1);
    assert_eq!(report.faults(), ["1 messages came twice"]);
}

#[test]
fn a_swapped_message_fails_the_audit() {
    let report = run(Fault::Swap, SHORT);
    assert_eq!((report.outcome.healthy.out_of_order, report.outcome.healthy.missing), (1, 1));
    assert!(report.outcome.healthy.balanced());
}

#[test]
fn a_stream_that_falls_silent_fails_the_audit_within_its_bound() {
    let report = run(Fault::Mute, SHORT);
    assert_eq!(report.outcome.healthy.missing, 46, "4 of the channel's 50 had come");
}

#[test]
fn a_told_loss_passes_and_a_lie_does_not() {
    let told = run(Fault::Tell, SHORT);
    assert_eq!(told.faults(), Vec::<String>::new());
    assert_eq!((told.outcome.healthy.told_gaps, told.outcome.healthy.delivered), (1, 2_499));
    let lie = run(Fault::Lie, SHORT);
    assert!(!lie.faults().is_empty());
}

#[test]
fn a_refused_join_a_closed_viewer_and_a_failed_post_fail_the_audit() {
    let refused = run(Fault::Refuse, SHORT);
    assert_eq!(refused.faults(), ["1 joins failed"]);
    assert_eq!(refused.outcome.join_failures.get(&503), Some(&1));
    assert_eq!(refused.outcome.healthy.expected, 49 * 50);
    let closed = run(Fault::Close, SHORT);
    assert_eq!(closed.outcome.healthy.closes.get(&4508), Some(&1));
    assert_eq!(closed.outcome.healthy.missing, 46);
    let denied = run(Fault::Deny, SHORT);
    assert_eq!(denied.faults(), ["1 posts failed"]);
    assert_eq!(denied.posted.errors.get(&500), Some(&1));
}

#[test]
fn slow_viewers_are_audited_apart() {
    let report = run(Fault::None, "--seconds 3 --warmup-s 0 --slow 10%");
    assert_eq!(report.faults(), Vec::<String>::new());
    let (healthy, slow) = (&report.outcome.healthy, &report.outcome.slow);
    assert_eq!((healthy.viewers, slow.viewers), (45, 5));
    assert_eq!((healthy.delivered, slow.delivered), (45 * 150, 5 * 150));
    assert!(slow.clean());
    assert!(report.slow.max_ms() > 700.0, "they read nothing for a second");
    assert!(report.healthy.ms(0.99) < report.slow.ms(0.99));
}

#[test]
fn counts_are_checked_in_long_runs_only() {
    let fake = Fake::start(Fault::Count);
    let miscounting = Fake::start(Fault::Miscount);
    let conduct = |fake: &Fake, seconds: u32| {
        let line = format!(
            "--viewers 9 --channels 2 --rate 10 --seconds {seconds} --warmup-s 0 --url http://{} --key rk_test",
            fake.addr
        );
        conduct(&options(&line).unwrap()).unwrap()
    };
    std::thread::scope(|scope| {
        let right = scope.spawn(|| conduct(&fake, 12));
        let wrong = scope.spawn(|| conduct(&miscounting, 12));
        assert_eq!(right.join().unwrap().counts(), Counts::Right);
        let wrong = wrong.join().unwrap();
        let Counts::Wrong(channels) = wrong.counts() else { panic!("{:?}", wrong.counts()) };
        assert_eq!(channels.len(), 2, "{channels:?}");
        assert_eq!(wrong.faults().len(), 1);
    });
}

#[test]
fn a_node_that_is_not_there_is_told_as_failed_joins() {
    let line = "--viewers 3 --seconds 1 --url http://127.0.0.1:1 --key rk_test";
    let report = conduct(&options(line).unwrap()).unwrap();
    assert_eq!(report.outcome.join_failures.get(&0), Some(&3));
    assert_eq!(report.posted.posts, 0, "nothing is posted to nobody");
    assert!(!report.faults().is_empty());
}
