//! What was acknowledged is on disk, whatever happens to the process.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::client::Http;
use crate::node::{Node, temp_dir};

/// Every stored message of a channel, in the order in which pages give them.
fn all_messages(http: &mut Http, channel: &str) -> Vec<Value> {
    let mut all: Vec<Value> = Vec::new();
    loop {
        let since = all.last().map_or(0, |message| message["seq"].as_u64().unwrap());
        let page = http.get(&format!("/v1/demo/channels/{channel}/messages?since={since}&limit=100")).json();
        let messages = page["messages"].as_array().unwrap();
        if messages.is_empty() {
            assert_eq!(page["head"].as_u64(), Some(since), "the head is that of the last message");
            return all;
        }
        all.extend(messages.iter().cloned());
    }
}

/// Ends of an ordinary run; `RINGCAST_ENDS` asks for more.
const ENDS: u64 = 10;

#[test]
fn every_acknowledged_message_survives_ten_ends() {
    let ends = std::env::var("RINGCAST_ENDS").map_or(ENDS, |text| text.parse().expect("a whole number"));
    let dir = temp_dir();
    // seq → text, as acknowledged.
    let acked: Mutex<BTreeMap<u64, String>> = Mutex::new(BTreeMap::new());
    let mut epoch = None;
    for round in 0..ends {
        let mut node = Node::start_in(dir.path(), &["--shards", "2"]);
        let key = node.key();
        let listen = node.listen;
        std::thread::scope(|scope| {
            for poster in 0..4 {
                let (acked, key) = (&acked, &key);
                scope.spawn(move || {
                    let Some(mut http) = Http::try_connect(listen) else { return };
                    for n in 0.. {
                        let text = format!("{round}/{poster}/{n}");
                        let body = json!({"text": text}).to_string();
                        let fields = format!("Authorization: Bearer {key}\r\n");
                        // About 50 a second each, until the node is gone.
                        let next = Instant::now() + Duration::from_millis(20);
                        let path = "/v1/demo/channels/crash/messages";
                        let Some(answer) = http.try_request("POST", path, &fields, &body) else { return };
                        if answer.status == 503 {
                            return answer.assert_problem(503, "draining");
                        }
                        assert_eq!(answer.status, 201, "{answer:?}");
                        let before = acked.lock().unwrap().insert(answer.json()["seq"].as_u64().unwrap(), text);
                        assert_eq!(before, None, "a seq is given once");
                        std::thread::sleep(next.saturating_duration_since(Instant::now()));
                    }
                });
            }
            // Somewhere in the middle of it; a different moment each time.
            std::thread::sleep(Duration::from_millis(300 + 37 * (round % 20)));
            if round % 3 == 2 {
                node.terminate();
                assert_eq!(node.wait(Duration::from_secs(15)).code(), Some(0));
            } else {
                node.kill();
            }
        });
        let node = Node::start_in(dir.path(), &["--shards", "2"]);
        let mut http = node.http();
        let stored = all_messages(&mut http, "crash");
        let seqs: Vec<u64> = stored.iter().map(|message| message["seq"].as_u64().unwrap()).collect();
        let expected: Vec<u64> = (1..=seqs.len() as u64).collect();
        assert_eq!(seqs, expected, "no hole and no double");
        let acked = acked.lock().unwrap();
        assert!(acked.len() as u64 > 10 * (round + 1), "it was posted to: {}", acked.len());
        for (seq, text) in acked.iter() {
            assert_eq!(stored[*seq as usize - 1]["text"], text.as_str(), "{seq} was acknowledged");
        }
        let now = http.get("/v1/demo/channels/crash/messages?limit=1").json()["epoch"].clone();
        assert_eq!(epoch.get_or_insert(now.clone()), &now, "the numbering is the same");
    }
    let acked = acked.lock().unwrap().len();
    println!("{ends} ends of the process, {acked} acknowledged messages, none of them lost");
}
