//! The load generator as a person uses it: it starts a node of its own, audits what it delivers, and says so by its exit
//! code and the last line of its output.

use serde_json::Value;
use std::process::{Command, Output};

use crate::node::BINARY;

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
