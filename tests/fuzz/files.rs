//! Files of the operator: the configuration and lists of words.

use std::io::Write as _;

use ringcast::admission::blocklist::Blocklist;
use ringcast::config::{Config, Overrides};

use crate::{Target, run};

const WORDS: &[&str] = &[
    "[node]\n",
    "[limits]\n",
    "[[app]]\n",
    "name = \"shop\"\n",
    "shards = 4\n",
    "listen = \"127.0.0.1:80\"\n",
    "clients_max = 1\n",
    "tick_bytes_max = 4294967295\n",
    "server_key_sha256 = \"00\"\n",
    "anonymous_read = true\n",
    "= [",
    "\"\"\"",
    "{ a = 1 }",
    "nan",
    "1979-05-27",
];

#[test]
fn config() {
    let mut file = tempfile::NamedTempFile::new().expect("a file");
    run(&Target { name: "config", words: WORDS, cost: 10 }, |input, _| {
        file.as_file().set_len(0).expect("a file");
        std::io::Seek::rewind(file.as_file_mut()).expect("a file");
        file.as_file_mut().write_all(input).expect("a file");
        match Config::load(Some(file.path()), &Overrides::default()) {
            Ok(config) => {
                // What passed is what a node can be made of.
                assert!(config.shards.is_none_or(|shards| (1..=256).contains(&shards)));
                assert!(
                    config.shard.clients_max > 0 && config.shard.outbox.events_min <= config.shard.outbox.events_max
                );
                assert!(config.notsent_lowat_bytes >= 2 * config.shard.tick_bytes_max);
            }
            Err(error) => {
                let told = error.to_string();
                let hush = "0123456789abcdef0123456789abcdef";
                let text = String::from_utf8_lossy(input);
                let only_there = text.lines().all(|line| !line.contains(hush) || line.starts_with("secret = \""));
                assert!(!only_there || !told.contains(hush), "no error shows a secret: {told}");
                assert!(told.len() > 10 && told.contains(&file.path().display().to_string()), "{told}");
                let lines = input.split(|&byte| byte == b'\n').count() as u32;
                assert!(error.line().is_none_or(|line| (1..=lines + 1).contains(&line)), "{told}");
            }
        }
    });
}

#[test]
fn blocklist() {
    run(&Target { name: "blocklist", words: &["\n", "#", "é", "ß", "İ", "*", "  "], cost: 2 }, |input, _| {
        let text = String::from_utf8_lossy(input);
        let Ok(list) = Blocklist::new(&text, 1_000) else { return };
        assert!(list.patterns() <= 1_000);
        let found = list.finds(&text);
        assert!(list.patterns() > 0 || !found, "an empty list finds nothing");
        let _ = list.finds_in_json(&serde_json::to_string(&text).expect("JSON"));
    });
}
