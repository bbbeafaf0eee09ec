//! Keys and tokens from their making to their end.

use std::process::Command;

use serde_json::json;

use crate::client::Client;
use crate::node::{BINARY, Node, run_to_end, temp_dir, unix_s};
use ringcast::admission::auth::make_token;

/// Runs `app new` and returns the block and the server key.
fn app_new(name: &str) -> (String, String) {
    let made = Command::new(BINARY).args(["app", "new", name]).output().expect("it runs");
    assert!(made.status.success());
    let said = String::from_utf8(made.stderr).unwrap();
    let key = said.split_whitespace().find(|word| word.starts_with("rk_")).expect("a key").to_owned();
    (String::from_utf8(made.stdout).unwrap(), key)
}

fn secret_of(block: &str) -> &str {
    block.lines().find_map(|line| line.strip_prefix("secret = ")).expect("a secret").trim_matches('"')
}

#[test]
fn a_new_app_is_a_block_that_works() {
    let dir = temp_dir();
    let file = dir.path().join("ringcast.toml");
    let path = file.to_str().unwrap().to_owned();
    let (block, key) = app_new("shop");
    assert!(!block.contains(&key), "the block holds the hash only");
    std::fs::write(&file, &block).unwrap();
    assert_eq!(run_to_end(&[BINARY, "check-config", &path]).0, Some(0));
    // The same name twice is a fault of the file.
    std::fs::write(&file, format!("{block}{}", app_new("shop").0)).unwrap();
    let (code, said) = run_to_end(&[BINARY, "check-config", &path]);
    assert!(code == Some(1) && said.contains("another app has this name"), "{said}");
    let (code, said) = run_to_end(&[BINARY, "app", "new", "no shop"]);
    assert!(code == Some(2) && said.contains("a name is made of"), "{said}");

    std::fs::write(&file, &block).unwrap();
    let token = make_token(secret_of(&block).as_bytes(), "ann", None, unix_s() + 60).unwrap();
    let node = Node::start_keeping(dir, &["--shards", "1", "--config", &path]);
    let mut viewer = Client::open(node.listen, &format!("/v1/shop/channels/x/ws?token={token}"));
    viewer.ready();
    assert_eq!(node.http().post("/v1/shop/channels/x/messages", &key, r#"{"text":"hello"}"#).status, 201);
    assert_eq!(viewer.event()["text"], "hello");
    node.http().post("/v1/shop/channels/x/messages", &app_new("shop").1, "{}").assert_problem(401, "wrong_server_key");
}

#[test]
fn a_token_that_ends_is_told_then_reads_on_and_after_the_grace_is_closed() {
    let dir = temp_dir();
    let file = dir.path().join("ringcast.toml");
    let (closing, _) = app_new("closing");
    let (reading, key) = app_new("reading");
    let closing = closing.replacen("[[app]]", "[[app]]\ntoken_grace_s = 1\nanonymous_read = true", 1);
    let closing = closing.replace("anonymous_read = false\n", "");
    std::fs::write(&file, format!("{closing}{reading}")).unwrap();
    let node = Node::start_keeping(dir, &["--shards", "1", "--config", file.to_str().unwrap()]);
    let end_s = unix_s() + 3;
    let join = |app: &str, block: &str, user: &str| {
        let token = make_token(secret_of(block).as_bytes(), user, None, end_s).unwrap();
        let mut client = Client::open(node.listen, &format!("/v1/{app}/channels/x/ws?token={token}"));
        client.ready();
        client
    };
    let (mut ann, mut bob) = (join("closing", &closing, "ann"), join("closing", &closing, "bob"));
    let mut cid = join("reading", &reading, "cid");
    for client in [&mut ann, &mut bob, &mut cid] {
        assert_eq!(client.next_of("token.expiring")["expires_at"], json!(end_s * 1_000));
    }
    // A newer one in time.
    let newer = make_token(secret_of(&closing).as_bytes(), "bob", None, end_s + 600).unwrap();
    bob.say(&json!({"type": "auth", "id": 1, "token": newer}));
    assert_eq!(bob.next_of("authenticated")["user"], "bob");
    let close = loop {
        let frame = ann.next();
        if frame.opcode == crate::client::CLOSE {
            break frame;
        }
    };
    assert_eq!(close.code(), 4401);
    assert!(unix_s() > end_s, "not before the grace is over");
    // Who may read on does, and writes nothing.
    cid.say(&json!({"type": "message", "id": 2, "channel": "x", "text": "late"}));
    assert_eq!(cid.next_of("error")["code"], "token_expired");
    assert_eq!(node.http().post("/v1/reading/channels/x/messages", &key, r#"{"text":"still"}"#).status, 201);
    assert_eq!(cid.next_of("message.new")["text"], "still");
    bob.say(&json!({"type": "message", "id": 3, "channel": "x", "text": "here"}));
    assert_eq!(bob.next_of("ack")["id"], 3);
}
