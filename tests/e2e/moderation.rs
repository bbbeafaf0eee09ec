//! Texts that are not allowed, and the app's own judge: what they stop, what they let through, and what becomes of
//! messages when the judge is slow, silent or gone.

use std::fmt::Write as _;
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::client::{Answer, Client, PATIENCE};
use crate::hook_server::HookServer;
use crate::node::{LOOK, Node, fresh, temp_dir, unix_s};

const KEY: &str = "rk_of-the-shop";
const SECRET: &str = "a secret of at least 32 bytes, yes";

/// A node with the app `shop`; further lines go into its `[[app]]`.
fn shop(dir: TempDir, lines: &str) -> Node {
    let hash = ringcast::admission::auth::hash_server_key(KEY).iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    });
    let text = format!(
        "[moderation]\nhooks_max = 4\nhook_connections_kept = 1\n[[app]]\nname = \"shop\"\nserver_key_sha256 = \"{hash}\"\nanonymous_read = true\n\
         {lines}\n[[app.token_key]]\nalgorithm = \"HS256\"\nsecret = \"{SECRET}\"\n"
    );
    let file = dir.path().join("ringcast.toml");
    std::fs::write(&file, text).unwrap();
    Node::start_keeping(dir, &["--shards", "2", "--config", file.to_str().unwrap()])
}

fn with_hook(hook: &HookServer, lines: &str) -> Node {
    shop(temp_dir(), &format!("hook_url = \"{}\"\n{lines}", hook.url()))
}

fn token(user: &str) -> String {
    ringcast::admission::auth::make_token(SECRET.as_bytes(), user, Some("Ann"), unix_s() + 600).unwrap()
}

fn call(node: &Node, method: &str, path: &str, credential: &str, body: &Value) -> Answer {
    let fields = format!("Authorization: Bearer {credential}\r\n");
    node.http().request(method, &format!("/v1/shop/channels/{path}"), &fields, &body.to_string())
}

fn post(node: &Node, channel: &str, user: &str, text: &str) -> Answer {
    call(node, "POST", &format!("{channel}/messages"), &token(user), &json!({ "text": text }))
}

fn watch(node: &Node, channel: &str, user: &str) -> Client {
    let mut viewer = Client::open(node.listen, &format!("/v1/shop/channels/{channel}/ws?token={}", token(user)));
    viewer.ready();
    viewer
}

#[test]
fn a_blocklist_stops_what_it_names_wherever_it_is_written() {
    let dir = temp_dir();
    std::fs::write(dir.path().join("words"), "# ours\nspam\nbad word\n").unwrap();
    let node = shop(dir, "blocklist_file = \"words\"");
    let (channel, ann) = (fresh("words"), token("ann"));
    for text in ["spam", "Buy SPAM now", "ｓｐａｍ", "a Bad Word", "s\u{200B}pam"] {
        post(&node, &channel, "ann", text).assert_problem(422, "blocked");
    }
    let messages = format!("{channel}/messages");
    for body in [json!({"data": {"a": ["spam"]}}), json!({"text": "fine", "data": "SPAM"})] {
        call(&node, "POST", &messages, &ann, &body).assert_problem(422, "blocked");
        call(&node, "POST", &messages, KEY, &body).assert_problem(422, "blocked");
    }
    let escaped = node.http().request(
        "POST",
        &format!("/v1/shop/channels/{messages}"),
        &format!("Authorization: Bearer {ann}\r\n"),
        r#"{"data":"sp\u0061m"}"#,
    );
    escaped.assert_problem(422, "blocked");
    // An edit, a custom event, and both by command.
    let id = post(&node, &channel, "ann", "a good word").json()["id"].as_str().unwrap().to_owned();
    call(&node, "PATCH", &format!("{messages}/{id}"), &ann, &json!({"text": "spam"})).assert_problem(422, "blocked");
    let event = json!({"type": "custom.x", "data": "spam"});
    call(&node, "POST", &format!("{channel}/events"), &ann, &event).assert_problem(422, "blocked");
    let mut viewer = watch(&node, &channel, "bob");
    for command in [
        json!({"type": "message", "id": 1, "channel": channel, "text": "spam"}),
        json!({"type": "event", "id": 1, "channel": channel, "name": "custom.x", "data": "spam"}),
        json!({"type": "status", "id": 1, "state": "away", "text": "spam"}),
    ] {
        viewer.say(&command);
        let error = viewer.next_of("error");
        assert_eq!((&error["code"], &error["id"]), (&json!("blocked"), &json!(1)));
    }
    assert!(viewer.settle().is_empty(), "nobody saw anything");
    // Order: who may not write learns nothing of the list.
    call(&node, "POST", &messages, "nonsense", &json!({"text": "spam"})).assert_problem(401, "bad_token");
    call(&node, "POST", &messages, &ann, &json!({"text": "spam".repeat(5_000)}))
        .assert_problem(413, "message_too_large");
}

#[test]
fn a_blocklist_is_read_again_at_a_signal_and_a_bad_one_changes_nothing() {
    let dir = temp_dir();
    let words = dir.path().join("words");
    std::fs::write(&words, "spam\n").unwrap();
    let node = shop(dir, "blocklist_file = \"words\"");
    let reload = |until: &str| {
        let before = node.log().matches(until).count();
        assert!(Command::new("kill").args(["-HUP", &node.pid().to_string()]).status().unwrap().success());
        let deadline = Instant::now() + PATIENCE;
        while node.log().matches(until).count() == before {
            assert!(Instant::now() < deadline, "{}", node.log());
            std::thread::sleep(LOOK);
        }
    };
    let mut viewer = watch(&node, "words", "ann");
    // A shard takes the list with its next turn: the answer to a command comes from a later one.
    let mut say = |text: &str| {
        viewer.settle();
        viewer.say(&json!({"type": "message", "id": 1, "channel": "words", "text": text}));
        loop {
            let answer = viewer.event();
            match answer["type"].as_str().unwrap() {
                "ack" => return "ack".to_owned(),
                "error" => return answer["code"].as_str().unwrap().to_owned(),
                _ => {}
            }
        }
    };
    assert_eq!((say("spam"), say("eggs")), ("blocked".into(), "ack".into()));
    std::fs::write(&words, "eggs\n").unwrap();
    reload("1 blocklists were read again");
    assert_eq!((say("spam"), say("eggs")), ("ack".into(), "blocked".into()));
    std::fs::write(&words, "ham\n".to_owned() + &"x".repeat(300)).unwrap();
    reload("stays as it was");
    assert!(node.log().contains("line 2: a pattern has at most 256 bytes"), "{}", node.log());
    assert_eq!((say("ham"), say("eggs")), ("ack".into(), "blocked".into()));
    std::fs::remove_file(&words).unwrap();
    reload("stays as it was");
    assert_eq!(say("eggs"), "blocked");
    // The configuration may name another file by now, or none; what else it says counts at the next start.
    let file = node.dir.join("ringcast.toml");
    let config = std::fs::read_to_string(&file).unwrap();
    std::fs::write(node.dir.join("others"), "ham\n").unwrap();
    std::fs::write(&file, config.replace("\"words\"", "\"others\"")).unwrap();
    reload("1 blocklists were read again");
    assert_eq!((say("ham"), say("eggs")), ("blocked".into(), "ack".into()));
    std::fs::write(&file, "not a configuration").unwrap();
    reload("is not TOML here");
    assert_eq!(say("ham"), "blocked");
    std::fs::write(&file, config.replace("blocklist_file = \"words\"", "")).unwrap();
    reload("1 blocklists were read again");
    assert_eq!(say("ham"), "ack");
    node.assert_alive();
}

#[test]
fn a_hook_allows_and_refuses_and_is_told_what_it_judges() {
    let hook = HookServer::start();
    let node = with_hook(&hook, "hook_budget_ms = 5_000\nhook_fails = \"closed\"");
    let channel = fresh("hook");
    let mut viewer = watch(&node, &channel, "bob");
    let body = json!({"text": "hello", "data": {"a": [1, null]}, "client_id": "c1"});
    assert_eq!(call(&node, "POST", &format!("{channel}/messages"), &token("ann"), &body).status, 201);
    let question = hook.next();
    assert_eq!(
        (&question["app"], &question["channel"], &question["type"], &question["user"]),
        (&json!("shop"), &json!(channel), &json!("message.new"), &json!({"id": "ann", "name": "Ann"}))
    );
    assert_eq!(
        (&question["text"], &question["data"], &question["client_id"], &question["by_server"]),
        (&body["text"], &body["data"], &body["client_id"], &json!(false))
    );
    assert!(question["ts"].as_u64().is_some_and(|ts| ts / 1_000 >= unix_s() - 60));
    assert_eq!(viewer.next_of("message.new")["text"], "hello");
    for text in ["empty yes", "chunked", "bye", "after bye"] {
        assert_eq!(post(&node, &channel, "ann", text).status, 201, "{text}");
        assert_eq!(viewer.next_of("message.new")["text"], text);
    }
    let refused = post(&node, &channel, "ann", "no way");
    refused.assert_problem(422, "refused_by_hook");
    assert_eq!(refused.json()["detail"], "not here");
    viewer.say(&json!({"type": "message", "id": 7, "channel": channel, "text": "no way either"}));
    let error = viewer.next_of("error");
    assert_eq!((&error["code"], &error["id"]), (&json!("refused_by_hook"), &json!(7)));
    // The backend's own messages and edits are judged as well.
    call(&node, "POST", &format!("{channel}/messages"), KEY, &json!({"text": "no, really"}))
        .assert_problem(422, "refused_by_hook");
    let id = post(&node, &channel, "ann", "first").json()["id"].as_str().unwrap().to_owned();
    let path = format!("{channel}/messages/{id}");
    call(&node, "PATCH", &path, &token("ann"), &json!({"text": "no more"})).assert_problem(422, "refused_by_hook");
    call(&node, "PATCH", &path, &token("eve"), &json!({"text": "no more"})).assert_problem(403, "not_the_author");
    let edits: Vec<Value> = std::iter::from_fn(|| hook.asked.try_recv().ok()).collect();
    let edits: Vec<&Value> = edits.iter().filter(|question| question["type"] == "message.updated").collect();
    assert!(edits.len() == 1 && edits[0]["message"] == json!(id), "{edits:?}");
    assert_eq!(call(&node, "PATCH", &path, &token("ann"), &json!({"text": "second"})).status, 200);
    // What is no text is not judged.
    assert_eq!(call(&node, "DELETE", &path, &token("ann"), &json!({})).status, 200);
}

#[test]
fn a_hook_that_hangs_costs_its_budget_and_then_the_app_decides() {
    let hook = HookServer::start();
    for (fails, status) in [("open", 201), ("closed", 503)] {
        let node = with_hook(&hook, &format!("hook_budget_ms = 200\nhook_late_ms = 1_000\nhook_fails = \"{fails}\""));
        let began = Instant::now();
        let answer = post(&node, "hang", "ann", "hang");
        let took = began.elapsed();
        assert_eq!(answer.status, status, "{answer:?}");
        assert!(took >= Duration::from_millis(200), "it was waited for: {took:?}");
        assert!(took < Duration::from_millis(200) + PATIENCE / 5, "{took:?}");
        if status == 503 {
            answer.assert_problem(503, "hook_silent");
            assert_eq!(answer.field("retry-after"), Some("1"));
        }
        // Answers that cannot be understood are none, and are not waited for any longer than they take.
        for text in ["broken", "nonsense", "huge", "slam"] {
            assert_eq!(post(&node, "hang", "ann", text).status, status, "{text}");
        }
        // Four that hang are as many as may: the fifth is not even asked, and waits for nothing.
        let answers: Vec<u16> = std::thread::scope(|scope| {
            let posts: Vec<_> = (0..4).map(|_| scope.spawn(|| post(&node, "hang", "eve", "hang").status)).collect();
            posts.into_iter().map(|post| post.join().unwrap()).collect()
        });
        assert_eq!(answers, [status; 4]);
        let metrics = node.metrics();
        assert_eq!(metrics.sum("ringcast_limit", "what=\"app_hooks\""), 4);
        assert_eq!(metrics.sum("ringcast_limit", "what=\"app_hook_connections\",app=\"shop\""), 1);
        assert!(metrics.sum("ringcast_used", "what=\"app_hook_connections\"") <= 1, "one is kept at the most");
        let ready = crate::client::Http::try_get(node.admin, "/readyz").expect("an answer");
        assert_eq!(ready.status, 200, "the judge of one app says nothing about the node: {}", ready.body);
        node.await_metrics("questions end", |metrics| metrics.sum("ringcast_used", "what=\"app_hooks\"") == 0);
        assert_eq!(post(&node, "hang", "bob", "fine").status, 201);
        let metrics = node.metrics();
        assert_eq!(metrics.sum("ringcast_used", "what=\"app_hook_connections\""), 1, "it is kept for the next message");
        node.assert_alive();
    }
}

#[test]
fn posts_beside_a_hook_that_hangs_take_its_budget_longer_at_the_most() {
    const BUDGET: Duration = Duration::from_millis(300);
    /// What a busy machine may add to any figure.
    const NOISE: Duration = Duration::from_millis(700);
    let hook = HookServer::start();
    let lines = format!("hook_budget_ms = {}\nhook_late_ms = 2_000\nhook_fails = \"open\"", BUDGET.as_millis());
    let node = with_hook(&hook, &lines);
    // Each text by eight users at once, in turn; the slowest is above the 99th percentile.
    let slowest = |text: &str| -> Duration {
        let took = |user: usize| {
            let mut slowest = Duration::ZERO;
            let (mut http, token) = (node.http(), token(&format!("u{user}")));
            let body = json!({ "text": text }).to_string();
            for _ in 0..12 {
                let began = Instant::now();
                assert_eq!(http.post("/v1/shop/channels/p99/messages", &token, &body).status, 201);
                slowest = slowest.max(began.elapsed());
            }
            slowest
        };
        std::thread::scope(|scope| {
            let users: Vec<_> = (0..8).map(|user| scope.spawn(move || took(user))).collect();
            users.into_iter().map(|user| user.join().unwrap()).max().unwrap()
        })
    };
    let before = slowest("fine");
    let beside = slowest("hang");
    assert!(beside >= BUDGET, "it was waited for: {beside:?}");
    assert!(beside < before + BUDGET + NOISE, "{beside:?} beside a hook that hangs, {before:?} before");
    let metrics = node.metrics();
    assert_eq!(metrics.sum("ringcast_hook_retracted_total", ""), 0);
    assert!(metrics.sum("ringcast_hook_unjudged_total", "") >= 4);
}

#[test]
fn a_hook_that_is_not_there_is_silent() {
    let gone = {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        listener.local_addr().unwrap()
    };
    for (fails, status) in [("open", 201), ("closed", 503)] {
        let lines = format!("hook_url = \"http://{gone}/\"\nhook_budget_ms = 10_000\nhook_late_ms = 10_000");
        let node = shop(temp_dir(), &format!("{lines}\nhook_fails = \"{fails}\""));
        let began = Instant::now();
        assert_eq!(post(&node, "gone", "ann", "x").status, status);
        assert!(began.elapsed() < Duration::from_secs(5), "a refusal is not waited for");
    }
}

#[test]
fn a_no_behind_the_budget_retracts_the_message() {
    let hook = HookServer::start();
    let node = with_hook(&hook, "hook_budget_ms = 50");
    let channel = fresh("late");
    let mut viewer = watch(&node, &channel, "bob");
    let id = post(&node, &channel, "ann", "late no: a secret").json()["id"].clone();
    assert_eq!(viewer.next_of("message.new")["id"], id);
    assert_eq!(viewer.next_of("message.retracted")["message"], id);
    let history = node.http().get(&format!("/v1/shop/channels/{channel}/messages"));
    assert!(!history.body.contains("a secret"), "{}", history.body);
    // A yes leaves it; an edit that is judged too late takes the message with it.
    let id = post(&node, &channel, "ann", "late yes").json()["id"].as_str().unwrap().to_owned();
    let path = format!("{channel}/messages/{id}");
    assert_eq!(call(&node, "PATCH", &path, &token("ann"), &json!({"text": "late no"})).status, 200);
    assert_eq!(viewer.next_of("message.retracted")["message"], json!(id));
    node.await_metrics("nothing is judged any more", |metrics| metrics.sum("ringcast_used", "what=\"app_hooks\"") == 0);
    let kinds: Vec<Value> = viewer.settle().into_iter().map(|event| event["type"].clone()).collect();
    assert!(!kinds.contains(&json!("message.retracted")), "{kinds:?}");
}

#[test]
fn messages_of_one_author_keep_their_order_whatever_the_order_of_verdicts() {
    let hook = HookServer::start();
    let node = with_hook(&hook, "hook_budget_ms = 3_000");
    let channel = fresh("order");
    let mut ann = watch(&node, &channel, "ann");
    let mut bob = watch(&node, &channel, "bob");
    for text in ["late yes, first", "second", "third"] {
        ann.say(&json!({"type": "message", "channel": channel, "text": text}));
        hook.next();
    }
    bob.say(&json!({"type": "message", "channel": channel, "text": "not held up"}));
    let texts: Vec<Value> = (0..4).map(|_| bob.next_of("message.new")["text"].clone()).collect();
    assert_eq!(texts, ["not held up", "late yes, first", "second", "third"]);
}
