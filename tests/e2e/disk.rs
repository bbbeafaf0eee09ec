//! A disk that is full, that fails, and that gives back something else than was written: what is refused, what is said,
//! and that nothing that was acknowledged is lost.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::client::{Answer, Http};
use crate::node::{BINARY, Node, free_ports, local, run_to_end, temp_dir};

/// The C library with a disk that fails on demand in front of it.
static FAULTY: LazyLock<(TempDir, PathBuf)> = LazyLock::new(|| {
    let dir = temp_dir();
    let library = crate::fault::build("disk", dir.path());
    (dir, library)
});

/// A node whose disk fails while [`Disk::fail`] says so.
struct Disk {
    dir: TempDir,
}

impl Disk {
    fn new() -> Self {
        Self { dir: temp_dir() }
    }

    fn start(&self) -> Node {
        let preload = format!("LD_PRELOAD={}", FAULTY.1.display());
        let control = format!("RINGCAST_DISK_FAULT={}", self.control().display());
        Node::start_by(&["env", &preload, &control], self.dir.path(), &["--shards", "1"])
    }

    fn control(&self) -> PathBuf {
        self.dir.path().join("fault")
    }

    fn fail(&self, how: &str) {
        fs::write(self.control(), how).unwrap();
    }

    fn heal(&self) {
        fs::remove_file(self.control()).unwrap();
    }
}

fn post(http: &mut Http, key: &str, text: &str) -> Answer {
    http.post("/v1/demo/channels/disk/messages", key, &json!({ "text": text }).to_string())
}

/// The texts that the node has, by their place; seq is checked to rise by one.
fn stored(node: &Node) -> Vec<String> {
    let mut texts: Vec<String> = Vec::new();
    loop {
        let path = format!("/v1/demo/channels/disk/messages?since={}&limit=100", texts.len());
        let page = node.http().get(&path).json();
        let messages = page["messages"].as_array().unwrap();
        if messages.is_empty() {
            assert_eq!(page["head"], json!(texts.len()));
            return texts;
        }
        for message in messages {
            assert_eq!(message["seq"], json!(texts.len() + 1), "no hole and no double");
            texts.push(message["text"].as_str().unwrap().to_owned());
        }
    }
}

/// Posts until the fault shows, then some more; none of these may be acknowledged.
fn refused_posts(http: &mut Http, key: &str, code: &str) {
    for n in 0..12 {
        let answer = post(http, key, &format!("refused {n} {}", "x".repeat(3_000)));
        answer.assert_problem(503, code);
        assert!(answer.field("retry-after").is_some(), "{answer:?}");
    }
}

#[test]
fn a_disk_that_takes_nothing_refuses_posts_and_goes_on_without_a_restart_when_it_does_again() {
    for (fault, code, said) in [
        ("full", "disk_full", "no room on disk for more events"),
        ("writes", "store_failed", "the disk failed"),
        ("syncs", "store_failed", "the disk failed"),
    ] {
        let disk = Disk::new();
        let mut node = disk.start();
        let (mut http, key) = (node.http(), node.key());
        let mut viewer = node.watch("disk");
        viewer.ready();
        let mut acked = Vec::new();
        let mut ack = |http: &mut Http, text: &str| {
            let answer = post(http, &key, text);
            assert_eq!(answer.status, 201, "{fault}: {answer:?}");
            acked.push(text.to_owned());
            assert_eq!(answer.json()["seq"], json!(acked.len()), "{fault}");
        };
        for n in 0..20 {
            ack(&mut http, &format!("before {n}"));
        }
        disk.fail(fault);
        refused_posts(&mut http, &key, code);
        // Everything that has to be durable is refused alike, and what has not goes on.
        let fields = format!("Authorization: Bearer {key}\r\n");
        for (method, path, body) in [
            ("PUT", "bans/eve", "{}"),
            ("PUT", "channels/disk/alarm", r#"{"at":4102444800000,"event":{"type":"custom.x"}}"#),
        ] {
            http.request(method, &format!("/v1/demo/{path}"), &fields, body).assert_problem(503, code);
        }
        assert_eq!(http.get("/v1/demo/channels/disk/messages").json()["head"], 20, "pages are read");
        let custom = r#"{"type":"custom.still"}"#;
        assert_eq!(http.post("/v1/demo/channels/disk/events", &key, custom).status, 202);
        node.await_log(said, 0);
        assert_eq!(node.log().matches("the store takes nothing").count(), 1, "it is said once:\n{}", node.log());
        assert!(node.metrics().sum("ringcast_commits_failed_total", "") >= 12);
        disk.heal();
        for n in 0..20 {
            ack(&mut http, &format!("after {n}"));
        }
        node.await_log("the store takes writes again", 0);
        // Viewers saw what was acknowledged, once, and nothing else but what need not be stored.
        let mut seen = Vec::new();
        while seen.len() < 40 {
            let event = viewer.event();
            if event["type"] == "message.new" {
                seen.push(event["text"].as_str().unwrap().to_owned());
            } else {
                assert_eq!(event["type"], "custom.still");
            }
        }
        assert_eq!(seen, acked);
        // And once more with an end in the middle of it: what was refused may be there or not, what was acknowledged is.
        disk.fail(fault);
        refused_posts(&mut http, &key, code);
        node.kill();
        disk.heal();
        let node = disk.start();
        let stored = stored(&node);
        assert_eq!(stored[..acked.len()], acked, "{fault}");
        assert!(stored[acked.len()..].iter().all(|text| text.starts_with("refused")), "{fault}: {stored:?}");
        assert_eq!(post(&mut node.http(), &node.key(), "and on").json()["seq"], json!(stored.len() + 1));
    }
}

#[test]
fn a_database_at_its_bound_refuses_posts_and_keeps_what_it_has() {
    let dir = temp_dir();
    let file = dir.path().join("ringcast.toml");
    fs::write(&file, "[store]\nbytes_max = 400_000\n").unwrap();
    let args = ["--shards", "1", "--config", file.to_str().unwrap()];
    let mut node = Node::start_in(dir.path(), &args);
    let (mut http, key) = (node.http(), node.key());
    let mut taken = 0;
    let refused = loop {
        let answer = post(&mut http, &key, &"x".repeat(10_000));
        if answer.status != 201 {
            break answer;
        }
        taken += 1;
        assert!(taken < 100, "400,000 bytes hold no million");
    };
    refused.assert_problem(503, "disk_full");
    assert_eq!(refused.field("retry-after"), Some("5"));
    assert!(taken > 10, "{taken} were taken");
    assert_eq!(stored(&node).len(), taken);
    node.kill();
    let node = Node::start_in(dir.path(), &args);
    assert_eq!(stored(&node).len(), taken);
}

/// A node that must not start; returns its one sentence.
fn refused_start(dir: &Path) -> String {
    let (port, admin) = free_ports();
    let (listen, admin) = (local(port).to_string(), local(admin).to_string());
    let dir = dir.to_str().unwrap();
    let (code, said) = run_to_end(&[BINARY, "serve", "--data-dir", dir, "--listen", &listen, "--admin", &admin]);
    assert_eq!(code, Some(3), "{said}");
    assert_eq!(said.trim_end().lines().count(), 1, "one sentence: {said}");
    said
}

/// Runs a subcommand; returns its exit code and what it said.
fn run(words: &[&str]) -> (Option<i32>, String) {
    run_to_end(&[&[BINARY], words].concat())
}

#[test]
fn a_damaged_database_starts_nothing_and_a_backup_brings_it_back_under_a_new_epoch() {
    let dir = temp_dir();
    let data = dir.path().to_str().unwrap();
    let copies = temp_dir();
    let copy = copies.path().join("copy.db");
    let copy_text = copy.to_str().unwrap();
    let (code, said) = run(&["backup", "--data-dir", data, copy_text]);
    assert!(code == Some(3) && said.contains("there is no database"), "{said}");

    let mut node = Node::start_in(dir.path(), &["--shards", "1"]);
    let (mut http, key) = (node.http(), node.key());
    for n in 0..60 {
        assert_eq!(post(&mut http, &key, &format!("{n} {}", "x".repeat(2_000))).status, 201);
    }
    let ban = http.request("PUT", "/v1/demo/bans/eve", &format!("Authorization: Bearer {key}\r\n"), "{}");
    assert_eq!(ban.status, 200);
    // While it runs and is posted to: the copy is of one moment, and posts do not wait for it.
    let acked_before = 60;
    std::thread::scope(|scope| {
        let poster = scope.spawn(|| {
            let (mut http, key) = (node.http(), node.key());
            (60..160).map(|n| assert_eq!(post(&mut http, &key, &n.to_string()).status, 201)).count()
        });
        let (code, said) = run(&["backup", "--data-dir", data, copy_text]);
        assert_eq!(code, Some(0), "{said}");
        assert_eq!(poster.join().unwrap(), 100);
    });
    let (code, said) = run(&["backup", "--data-dir", data, copy_text]);
    assert!(code == Some(3) && said.contains("is there already"), "{said}");
    let (code, said) = run(&["restore", "--data-dir", data, copy_text]);
    assert!(code == Some(3) && said.contains("in use"), "{said}");
    let whole = stored(&node);
    let epoch = |node: &Node| node.http().get("/v1/demo/channels/disk/messages?limit=1").json()["epoch"].clone();
    let old_epoch = epoch(&node);
    node.terminate();
    node.wait(std::time::Duration::from_secs(15));

    // In the middle of the file, and an end that is cut off.
    let database = dir.path().join("ringcast.db");
    assert!(!dir.path().join("ringcast.db-wal").exists(), "an end in good order leaves one file");
    let sound = fs::read(&database).unwrap();
    let mut torn = sound.clone();
    let middle = sound.len() / 8_192 * 4_096;
    torn[middle..middle + 4_096].fill(0xA5);
    for damaged in [&torn[..], &sound[..sound.len() / 8_192 * 4_096]] {
        fs::write(&database, damaged).unwrap();
        let said = refused_start(dir.path());
        assert!(said.contains("ringcast.db is damaged") && said.contains("ringcast restore"), "{said}");
        assert!(fs::read(&database).unwrap() == damaged, "it is left as it was");
    }
    let (code, said) = run(&["restore", "--data-dir", data, copy_text]);
    assert!(code == Some(3) && said.contains("is there already"), "{said}");
    fs::rename(&database, dir.path().join("damaged.db")).unwrap();
    let nothing = copies.path().join("nothing.db");
    fs::write(&nothing, "a letter to mother").unwrap();
    let (code, said) = run(&["restore", "--data-dir", data, nothing.to_str().unwrap()]);
    assert!(code == Some(3) && said.contains("is not a ringcast database"), "{said}");
    let (code, said) = run(&["restore", "--data-dir", data, copy_text]);
    assert_eq!(code, Some(0), "{said}");
    let left: Vec<_> = fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert!(!left.iter().any(|name| name.to_string_lossy().contains(".part")), "{left:?}");

    let node = Node::start_in(dir.path(), &["--shards", "1"]);
    let texts = stored(&node);
    assert!(texts.len() >= acked_before, "{} messages", texts.len());
    assert_eq!(texts, whole[..texts.len()], "a moment of the original");
    assert_ne!(epoch(&node), old_epoch, "what is posted now is not what the lost numbers meant");
    let mut back = node.watch_with("disk", &format!("?epoch={}&since=5", old_epoch.as_str().unwrap()));
    assert_eq!(back.ready()["recovered"], Value::Bool(false));
    let banned = node.http().post("/v1/demo/channels/disk/messages", &node.token("eve"), r#"{"text":"x"}"#);
    banned.assert_problem(403, "banned");
    assert_eq!(post(&mut node.http(), &node.key(), "and on").json()["seq"], json!(texts.len() + 1));
}

#[test]
fn a_damaged_database_may_be_moved_aside_and_nothing_of_it_is_lost() {
    let dir = temp_dir();
    let config = dir.path().join("ringcast.toml");
    fs::write(&config, "[store]\ndamaged = \"move_aside\"\n").unwrap();
    let args = ["--shards", "1", "--config", config.to_str().unwrap()];
    let database = dir.path().join("ringcast.db");
    let mut node = Node::start_in(dir.path(), &args);
    let key = node.key();
    for n in 0..60 {
        assert_eq!(post(&mut node.http(), &key, &format!("{n} {}", "x".repeat(2_000))).status, 201);
    }
    let epoch = |node: &Node| node.http().get("/v1/demo/channels/disk/messages?limit=1").json()["epoch"].clone();
    let aside = || {
        let names = fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let mut names: Vec<String> = names.filter(|name| name.starts_with("ringcast.db.damaged-")).collect();
        names.sort();
        names
    };
    let mut epochs = vec![epoch(&node)];
    for round in 1..=2_usize {
        // What was acknowledged last lies in the log only, for this end is none in good order.
        assert_eq!(post(&mut node.http(), &key, "the last").status, 201);
        node.kill();
        let mut damaged = fs::read(&database).unwrap();
        let log = fs::read(dir.path().join("ringcast.db-wal")).unwrap();
        assert!(!log.is_empty(), "the log is there");
        let end = damaged.len();
        damaged[4_096..].fill(0xA5);
        damaged.resize(end.max(40_960), 0xA5);
        fs::write(&database, &damaged).unwrap();
        // The pages in the log would hide the damage of those in the file.
        fs::write(dir.path().join("ringcast.db-wal"), &log[..32]).unwrap();
        let before = aside();
        node = Node::start_in(dir.path(), &args);
        let moved: Vec<String> = aside().into_iter().filter(|name| !before.contains(name)).collect();
        let [file, rest @ ..] = &moved[..] else { panic!("{moved:?}") };
        assert!(rest.contains(&format!("{file}-wal")), "its log goes with it: {moved:?}");
        assert!(fs::read(dir.path().join(file)).unwrap() == damaged, "to the last byte");
        assert_eq!(fs::read(dir.path().join(format!("{file}-wal"))).unwrap(), log[..32]);
        assert!(before.iter().all(|name| aside().contains(name)), "the older ones are there still");
        let said = node.log();
        let place = dir.path().join(file).display().to_string();
        assert!(said.contains("ERROR: ringcast.db was damaged") && said.contains(&place), "{said}");
        assert!(said.contains("ringcast restore --data-dir"), "and how to go back: {said}");
        assert!(stored(&node).is_empty(), "it begins anew");
        let old = epochs.last().unwrap().as_str().unwrap().to_owned();
        for since in [0, 5, 61] {
            let mut back = node.watch_with("disk", &format!("?epoch={old}&since={since}"));
            let ready = back.ready();
            assert_eq!((&ready["recovered"], ready["seq"].as_u64()), (&Value::Bool(false), Some(0)), "{since}");
        }
        assert!(!epochs.contains(&epoch(&node)), "in each round");
        epochs.push(epoch(&node));
        for n in 1..=40 {
            let answer = post(&mut node.http(), &key, &format!("round {round} {}", "y".repeat(2_000)));
            assert_eq!(answer.json()["seq"], json!(n));
        }
    }
    // A sound one is left where it is.
    node.kill();
    let before = aside();
    node = Node::start_in(dir.path(), &args);
    assert_eq!((stored(&node).len(), aside()), (40, before));
    assert!(!node.log().contains("ERROR"), "{}", node.log());
    node.terminate();
    node.wait(std::time::Duration::from_secs(15));
    // What is newer or not ours is no damage, whatever may be done with one.
    let mut newer = fs::read(&database).unwrap();
    newer[60..64].copy_from_slice(&9_999_u32.to_be_bytes());
    let (port, admin) = free_ports();
    let (listen, admin) = (local(port).to_string(), local(admin).to_string());
    let (data, config) = (dir.path().to_str().unwrap(), config.to_str().unwrap());
    let places = ["--data-dir", data, "--listen", &listen, "--admin", &admin, "--config", config];
    let names = aside();
    for (content, why) in [(&newer[..], "schema version 9999"), (b"a letter to mother", "not a ringcast database")] {
        fs::write(&database, content).unwrap();
        let (code, said) = run(&[&["serve"], &places[..]].concat());
        assert!(code == Some(3) && said.contains(why), "{said}");
        assert!(fs::read(&database).unwrap() == content, "untouched");
        assert_eq!(aside(), names, "nothing is moved");
    }
}
