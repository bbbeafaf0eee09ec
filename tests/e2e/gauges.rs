//! Whatever is bounded is exported with its limit, under the names that the README lists, and a node that comes near one
//! says so before it is reached.

use std::collections::BTreeMap;

use crate::client::Http;
use crate::node::{Metrics, Node, temp_dir};

/// The value of each line of this name, by its labels.
fn lines<'m>(metrics: &'m Metrics, name: &str) -> BTreeMap<&'m str, u64> {
    let lines = metrics.0.lines().filter_map(|line| line.strip_prefix(name)?.strip_prefix('{')?.split_once("} "));
    lines.map(|(labels, value)| (labels, value.parse().expect("a number"))).collect()
}

/// The names in a table of the README whose head begins so.
fn documented(head: &str) -> Vec<String> {
    let readme = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/README.md")).expect("README.md");
    let table = readme.lines().skip_while(|line| !line.starts_with(head)).skip(2);
    let rows = table.take_while(|line| line.starts_with('|'));
    let names = rows.flat_map(|row| row.split('|').nth(1).unwrap_or_default().split('`').skip(1).step_by(2));
    names.map(str::to_owned).collect()
}

#[test]
fn everything_that_is_used_has_its_limit_and_its_line_in_the_readme() {
    let dir = temp_dir();
    let file = dir.path().join("ringcast.toml");
    let text = format!(
        "[shard]\nreport_ms = 100\n[store]\nbytes_max = 1_000_000_000\n[limits]\nmemory_mib_max = 100_000\n[[app]]\nname = \"shop\"\n\
         server_key_sha256 = \"{}\"\nanonymous_read = true\nconnections_max = 9\nchannels_max = 9\nmessages_per_s = 9\n\
         queued_bytes_max = 9_000\nhook_url = \"http://127.0.0.1:9/\"\n",
        "ab".repeat(32)
    );
    std::fs::write(&file, text).unwrap();
    let node = Node::start_keeping(dir, &["--shards", "2", "--config", file.to_str().unwrap()]);
    // Both shards say what there is room for without having seen anybody.
    let metrics = node.await_metrics("the first reports", |metrics| {
        ["0", "1"]
            .iter()
            .all(|shard| metrics.0.contains(&format!("ringcast_limit{{what=\"connections\",shard=\"{shard}\"}}")))
    });
    let (used, limits) = (lines(&metrics, "ringcast_used"), lines(&metrics, "ringcast_limit"));
    assert_eq!(used.keys().collect::<Vec<_>>(), limits.keys().collect::<Vec<_>>(), "each used has its limit");
    for (labels, used) in &used {
        assert!(limits[labels] > 0 && *used <= limits[labels], "{labels}: {used} of {}", limits[labels]);
    }
    let what = |labels: &&str| labels.strip_prefix("what=\"").unwrap().split('"').next().unwrap().to_owned();
    let mut exported: Vec<String> = used.keys().map(what).collect();
    exported.sort_unstable();
    exported.dedup();
    let mut told = documented("| `what` |");
    told.sort_unstable();
    assert_eq!(exported, told, "what is exported and what the README lists");
    // The rule of the alerts fits these names.
    let alerts = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/tuning/alerts.yml")).unwrap();
    assert!(alerts.contains("expr: ringcast_used{") && alerts.contains("} / ringcast_limit > 0.7"));
}

#[test]
fn a_node_that_is_nearly_full_is_not_ready_and_says_what_is() {
    let dir = temp_dir();
    let file = dir.path().join("ringcast.toml");
    std::fs::write(&file, "[shard]\nclients_max = 20\nreport_ms = 100\n").unwrap();
    let node = Node::start_keeping(dir, &["--shards", "1", "--config", file.to_str().unwrap()]);
    let ready = || Http::try_get(node.admin, "/readyz").expect("an answer");
    let mut held: Vec<_> = (0..18).map(|_| node.watch("near")).collect();
    node.await_metrics("eighteen are told", |metrics| metrics.sum("ringcast_connections", "") == 18);
    assert_eq!(ready().status, 200, "nine of ten places are taken");
    held.push(node.watch("near"));
    node.await_metrics("nineteen are told", |metrics| metrics.sum("ringcast_connections", "") == 19);
    let answer = ready();
    assert_eq!((answer.status, answer.body.trim()), (503, "not ready: connections is at 19 of 20"));
    // It is not full yet: who knows it still comes in.
    let mut last = node.watch("near");
    last.ready();
    held.clear();
    node.await_metrics("one stays", |metrics| metrics.sum("ringcast_connections", "") == 1);
    assert_eq!(ready().status, 200);
}
