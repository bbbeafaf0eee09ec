//! The load generator as a person uses it: it starts a node of its own, audits what it delivers, and says so by its exit
//! code and the last line of its output.

use serde_json::Value;
use std::fs;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use crate::client::PATIENCE;
use crate::node::{BINARY, LOOK, temp_dir, wait_for};

fn load(words: &[&str]) -> Output {
    let mut command = Command::new(BINARY);
    command.arg("load").args(words).output().unwrap()
}

/// The report of a load that found nothing wrong.
fn report(words: &[&str]) -> Value {
    let output = load(words);
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert_eq!(output.status.code(), Some(0), "{out}\n{err}");
    serde_json::from_str(out.lines().last().unwrap()).unwrap()
}

#[test]
fn a_fanout_is_audited_to_the_last_delivery() {
    let report = report(&[
        "fanout",
        "--viewers",
        "120",
        "--channels",
        "3",
        "--rate",
        "60",
        "--seconds",
        "1",
        "--warmup-s",
        "1",
        "--json",
    ]);
    // 120 posts, each to the 40 viewers of its channel.
    assert_eq!((report["delivered"].as_u64(), report["expected"].as_u64()), (Some(4_800), Some(4_800)), "{report}");
    for nothing in ["missing", "duplicate", "out_of_order", "told_gaps", "post_errors"] {
        assert_eq!(report[nothing], 0, "{nothing}: {report}");
    }
    assert!(report["p99_ms"].as_f64().unwrap() > 0.0 && report["server_cpu_ns_per_delivery"].as_f64().unwrap() > 0.0);
}

#[test]
fn a_sunday_delivers_messages_typing_and_custom_events_while_viewers_come_and_go() {
    let report = report(&["sunday", "--scale", "0.002", "--seconds", "2", "--json"]);
    assert_eq!(report["scenario"], "sunday");
    for (came, owed) in [("delivered", "expected"), ("custom", "custom_expected"), ("typing", "typing_expected")] {
        assert!(report[owed].as_u64().unwrap() > 100, "{owed}: {report}");
        assert_eq!(report[came], report[owed], "{came}: {report}");
    }
    assert!(report["churn_joined"].as_u64().unwrap() >= 4, "{report}");
    assert_eq!((report["churn_failed"].as_u64(), report["churn_cut"].as_u64()), (Some(0), Some(0)), "{report}");
}

#[test]
fn the_floor_takes_the_same_joins_and_posts_as_the_node() {
    let storm = report(&["storm", "--viewers", "150", "--channels", "3", "--floor", "1", "--json"]);
    let fanout = report(&[
        "fanout",
        "--viewers",
        "50",
        "--rate",
        "20",
        "--ephemeral",
        "--seconds",
        "1",
        "--floor",
        "1",
        "--json",
    ]);
    for (report, unit, names) in [
        (&storm, "µs/join", &["node", "bare accept"][..]),
        (&fanout, "ns/delivery", &["node", "plain send loop", "batched io_uring"][..]),
    ] {
        assert_eq!((&report["unit"], &report["faults"]), (&Value::from(unit), &Value::Array(Vec::new())), "{report}");
        let rows = report["floor"].as_array().unwrap();
        let found: Vec<&str> = rows.iter().map(|row| row["name"].as_str().unwrap()).collect();
        assert_eq!(found, names);
        assert!(rows.iter().all(|row| row["rounds"][0].as_f64().unwrap() > 0.0), "{report}");
    }
}

#[test]
fn a_load_that_makes_no_sense_says_why_and_loads_nobody() {
    for (words, why) in [
        (&["sunday", "--scenario", "nowhere.toml"][..], "nowhere.toml"),
        (&["fanout", "--viewers", "1", "--url", "http://127.0.0.1:9"][..], "--key"),
        (&["fanout", "--viewers", "1", "--url", "http://10.0.0.1:9", "--key", "rk_x"][..], "not this machine"),
        (&["max"][..], "--viewers"),
    ] {
        let output = load(words);
        let err = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{words:?}: {err}");
        assert!(err.contains(why), "{words:?}: {err}");
    }
}

/// The processes whose parent is this one.
fn children_of(pid: u32) -> Vec<u32> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let lists = tasks.filter_map(|task| fs::read_to_string(task.path().join("children")).ok());
    lists.flat_map(|list| list.split_whitespace().filter_map(|pid| pid.parse().ok()).collect::<Vec<_>>()).collect()
}

/// It runs, and is not merely waiting for somebody to ask how it ended.
fn runs(pid: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, state)| !state.starts_with(['Z', 'X']))
}

#[test]
fn a_load_that_is_interrupted_leaves_no_process_and_no_directory() {
    for (signal, number) in [("-TERM", 15), ("-INT", 2)] {
        let dir = temp_dir();
        let words =
            ["load", "fanout", "--viewers", "40", "--viewers-a-process", "20", "--rate", "5", "--seconds", "600"];
        let mut load = Command::new(BINARY)
            .args(words)
            .env("TMPDIR", dir.path())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        // A node with its directory, and two workers.
        let deadline = Instant::now() + 2 * PATIENCE;
        let children = loop {
            let children = children_of(load.id());
            let made = fs::read_dir(dir.path()).unwrap().flatten().any(|entry| entry.path().join("demo.key").exists());
            if made && children.len() == 3 {
                break children;
            }
            assert!(Instant::now() < deadline, "{children:?}, {:?}", load.try_wait());
            std::thread::sleep(LOOK);
        };
        assert!(children.iter().all(|&child| runs(child)));
        assert!(Command::new("kill").args([signal, &load.id().to_string()]).status().unwrap().success());
        let status = wait_for(&mut load, Duration::from_secs(5)).expect("it ends at once");
        assert_eq!(status.code(), Some(128 + number), "{signal}");
        let left: Vec<_> = fs::read_dir(dir.path()).unwrap().flatten().map(|entry| entry.path()).collect();
        assert!(left.is_empty(), "{signal}: {left:?}");
        let deadline = Instant::now() + PATIENCE;
        while let Some(child) = children.iter().find(|&&child| runs(child)) {
            assert!(Instant::now() < deadline, "{signal}: process {child} goes on");
            std::thread::sleep(LOOK);
        }
    }
}
