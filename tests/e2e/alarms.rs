//! Many alarms of one moment, and an end in the middle of them.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use rusqlite::{Connection, OpenFlags};
use serde_json::{Value, json};

use crate::client::{CLOSE, Client, PATIENCE};
use crate::node::{LOOK, Node, temp_dir, unix_ms};

/// Alarms of the first moment, in whose middle the node ends, and of a later one.
const FIRST: usize = 8_000;
const SECOND: usize = 2_000;
/// Connections that set them; those that wait at the same moment share a sync of the disk.
const SETTERS: usize = 24;
/// Ringings after which the end comes.
const KILL_AFTER: usize = 2_000;
/// Alarms that may have been published and not yet have reached a socket when the process ended, for what is not stored
/// dies with it: some handfuls of those that are marked at a time.
const ON_THEIR_WAY: usize = 5 * 64;

fn name(n: usize) -> String {
    format!("alarm-{n}")
}

/// Sets all alarms over connections that are kept, each at `due(n)`; returns when each was due.
fn set_all(node: &Node, due_ms: impl Fn(usize) -> u64 + Sync) -> BTreeMap<String, u64> {
    let (next, set, key) = (AtomicU64::new(0), Mutex::new(BTreeMap::new()), node.key());
    std::thread::scope(|scope| {
        for _ in 0..SETTERS {
            scope.spawn(|| {
                let mut http = node.http();
                let fields = format!("Authorization: Bearer {key}\r\n");
                loop {
                    let n = next.fetch_add(1, Ordering::Relaxed) as usize;
                    if n >= FIRST + SECOND {
                        return;
                    }
                    let at = due_ms(n);
                    let body = json!({"at": at, "event": {"type": "custom.bell", "data": n}}).to_string();
                    let path = format!("/v1/demo/channels/{}/alarm", name(n));
                    let answer = http.request("PUT", &path, &fields, &body);
                    assert_eq!(answer.status, 200, "{answer:?}");
                    set.lock().unwrap().insert(name(n), at);
                }
            });
        }
    });
    set.into_inner().unwrap()
}

/// Watches the channels of all alarms, over so many connections that none gets more at a time than its queue holds; what
/// they hear comes until the node is gone.
fn watch_all(node: &Node) -> Receiver<Value> {
    const VIEWERS: usize = 20;
    let (hears, heard) = channel();
    let clients: Vec<Client> = (0..VIEWERS)
        .map(|viewer| {
            let mut client = Client::open(node.listen, "/v1/demo/ws");
            client.ready();
            let mine = (viewer..FIRST + SECOND).step_by(VIEWERS);
            let mut open = mine.len();
            for n in mine {
                client.say(&json!({"type": "subscribe", "channel": name(n)}));
            }
            while open > 0 {
                let event = client.event();
                assert_ne!(event["type"], "error", "{event}");
                open -= usize::from(event["type"] == "subscribed");
                let _ = hears.send(event);
            }
            client
        })
        .collect();
    for mut client in clients {
        let hears = hears.clone();
        client.patience(Duration::from_mins(1));
        std::thread::spawn(move || {
            while let Some(frame) = client.frame() {
                if frame.opcode == CLOSE || hears.send(frame.json()).is_err() {
                    return;
                }
            }
        });
    }
    heard
}

/// What rang: when it came, and the retry it names.
type Rung = BTreeMap<String, Vec<(u64, Option<u64>)>>;

fn note(rung: &mut Rung, event: &Value) {
    if event["type"] == "custom.bell" {
        let heard = (unix_ms(), event["retry"].as_u64());
        rung.entry(event["channel"].as_str().unwrap().to_owned()).or_default().push(heard);
    }
}

/// The slots that are still set: channel → tries.
fn slots(dir: &Path) -> BTreeMap<String, u64> {
    let database = Connection::open_with_flags(dir.join("ringcast.db"), OpenFlags::SQLITE_OPEN_READ_WRITE).unwrap();
    let mut rows = database.prepare("SELECT channel, tries FROM alarms").unwrap();
    let slots = rows.query_map([], |row| Ok((row.get(0)?, row.get::<_, i64>(1)? as u64))).unwrap();
    slots.collect::<Result<_, _>>().unwrap()
}

#[test]
fn alarms_outlive_a_kill_in_their_middle_and_none_is_early_or_twice_without_a_mark() {
    let dir = temp_dir();
    let file = dir.path().join("ringcast.toml");
    std::fs::write(&file, "[shard]\nchannels_per_client = 1_024\n").unwrap();
    let args = ["--shards", "2", "--config", file.to_str().unwrap()];
    let mut node = Node::start_in(dir.path(), &args);
    let heard = watch_all(&node);
    let began = Instant::now();
    let first_ms = unix_ms() + 7_000;
    let second_ms = first_ms + 10_000;
    // On a slow disk some are set behind the moment: these ring a moment later.
    let due = set_all(&node, |n| if n < FIRST { first_ms } else { second_ms }.max(unix_ms() + 500));
    println!("{} alarms were set in {:?}", due.len(), began.elapsed());

    let mut before = Rung::new();
    while before.len() < KILL_AFTER {
        note(&mut before, &heard.recv_timeout(PATIENCE).expect("alarms ring"));
    }
    node.kill();
    // What the kernel had taken by then still arrives.
    for event in &heard {
        note(&mut before, &event);
    }
    let left = slots(dir.path());
    assert!(left.len() > SECOND && left.len() < FIRST + SECOND, "the end came in the middle: {} are left", left.len());
    let unseen: Vec<&String> =
        due.keys().filter(|channel| !left.contains_key(*channel) && !before.contains_key(*channel)).collect();
    assert!(unseen.len() <= ON_THEIR_WAY, "a slot is cleared after it was told: {unseen:?}");

    let node = Node::start_in(dir.path(), &args);
    let heard = watch_all(&node);
    let mut after = Rung::new();
    let all_second: BTreeSet<String> = (FIRST..FIRST + SECOND).map(name).collect();
    while all_second.iter().any(|channel| !after.contains_key(channel)) {
        note(&mut after, &heard.recv_timeout(2 * PATIENCE).expect("the later ones ring"));
    }
    let deadline = Instant::now() + PATIENCE;
    while !slots(dir.path()).is_empty() {
        assert!(Instant::now() < deadline, "{} slots are not cleared", slots(dir.path()).len());
        std::thread::sleep(LOOK);
    }
    // What was overdue rang before anybody could watch again: the node counts what it tells.
    let metrics = node.metrics();
    assert_eq!(metrics.sum("ringcast_alarms_rung_total", ""), left.len() as i64, "each that was left rang once");
    assert_eq!(metrics.sum("ringcast_alarms_given_up_total", ""), 0);
    node.terminate();
    for event in &heard {
        note(&mut after, &event);
    }
    for (rung, retries_of) in [(&before, None), (&after, Some(&left))] {
        for (channel, heard) in rung {
            assert_eq!(heard.len(), 1, "{channel} rang twice in one process: {heard:?}");
            let (at, retry) = heard[0];
            assert!(at >= due[channel], "{channel} rang {} ms early", due[channel] - at);
            let tries = retries_of.map_or(0, |left| left[channel]);
            assert_eq!(retry, (tries > 0).then_some(tries), "{channel} was marked so often before");
        }
    }
    // What rang in both processes was marked in the first, and so the second ringing says that it is one.
    for channel in before.keys().filter(|channel| left.contains_key(*channel)) {
        assert!(left[channel] > 0, "{channel} was told before it was marked");
    }
    assert!(all_second.iter().all(|channel| after[channel][0].1.is_none()), "what was not begun is no retry");
    assert!(began.elapsed() < Duration::from_mins(1));
}
