//! What is secret is in no log, no metric, no refusal and no answer, wherever a client or an operator puts it.

use serde_json::json;

use crate::client::{Client, Http, handshake};
use crate::node::{Node, run_to_end, temp_dir};

#[test]
fn keys_and_tokens_are_shown_nowhere_whatever_they_are_used_for() {
    let node = Node::start(&["--shards", "2"]);
    let (key, secret, token) = (node.key(), node.secret(), node.token("ann"));
    let wrong_key = "rk_wrong-0123456789abcdef";
    let expired = ringcast::admission::auth::make_token(secret.as_bytes(), "ann", None, 1).expect("a token");
    let wrong_token = format!("{token}x");
    let secrets = [&key[..], &secret, &token, wrong_key, &expired, &wrong_token];
    let shows = |what: &str, text: &str| {
        for secret in secrets {
            // A piece of it is as bad.
            assert!(!text.contains(&secret[..secret.len().min(24)]), "{what} shows {secret}: {text}");
        }
    };
    let channel = "/v1/demo/channels/secrecy";
    let credentials = [&key[..], wrong_key, &token, &wrong_token, &expired];
    for credential in credentials {
        for (method, path, body) in [
            ("POST", format!("{channel}/messages"), json!({"text": "x", "user": "ann"}).to_string()),
            ("POST", format!("{channel}/messages"), "{".to_owned()),
            ("PUT", "/v1/demo/bans/bob".to_owned(), "{}".to_owned()),
            ("GET", format!("{channel}/presence"), String::new()),
            ("GET", "/v1/demo/connections".to_owned(), String::new()),
            ("GET", format!("/v1/nobody?token={credential}"), String::new()),
            ("BREW", format!("{channel}/messages?token={credential}"), String::new()),
        ] {
            for field in [format!("Bearer {credential}"), format!("Basic {credential}"), credential.to_owned()] {
                let answer = node.http().request(method, &path, &format!("Authorization: {field}\r\n"), &body);
                // Whoever sends a path that nobody knows is told which; what is in a query is not part of it.
                shows(&format!("{method} {path} as {field}"), &format!("{}{}", answer.head, answer.body));
            }
        }
        for (path, fields) in [
            (format!("{channel}/ws?token={credential}"), String::new()),
            (format!("{channel}/ws"), format!("Authorization: Bearer {credential}\r\n")),
            (format!("{channel}/ws"), format!("Sec-WebSocket-Protocol: ringcast.json, bearer.{credential}\r\n")),
        ] {
            let mut client = Client::raw(node.listen);
            client.send(handshake(&path, &fields).as_bytes());
            let head = client.head().expect("an answer");
            shows("an upgrade", &head);
            if head.starts_with("HTTP/1.1 101 ") {
                shows("ready", &client.ready().to_string());
                client.say(&json!({"type": "auth", "id": 1, "token": credential}));
                shows("auth", &client.event().to_string());
                client.say(&json!({"type": "fly", "id": 2, "token": credential}));
                shows("a bad command", &client.event().to_string());
                client.close();
            } else {
                shows("a refusal", &String::from_utf8_lossy(&client.rest_until_end()));
            }
        }
    }
    shows("/metrics", &Http::try_get(node.admin, "/metrics").expect("metrics").body);
    node.terminate();
    let mut node = node;
    node.wait(std::time::Duration::from_secs(15));
    shows("the log", &node.log());
}

#[test]
fn a_configuration_that_is_refused_shows_no_secret() {
    let secret = "0123456789abcdef-0123456789abcdef";
    let good = format!(
        "[[app]]\nname = \"shop\"\nserver_key_sha256 = \"{}\"\n[[app.token_key]]\nalgorithm = \"HS256\"\n",
        "ab".repeat(32)
    );
    for line in [
        format!("secret = \"{secret}\n"),
        format!("secret = \"{secret}\" trailing\n"),
        format!("secret = {secret}\n"),
        format!("secret = '{secret}\n"),
        format!("secret = \"{secret}\"\nsecret = \"{secret}\"\n"),
        format!("secret = [\"{secret}\"]\n"),
        format!("secret = \"{secret}\"\nsecret_file = \"x\"\n"),
        format!("secret = \"{secret}\"\nno_such_key = 1\n"),
    ] {
        let dir = temp_dir();
        let file = dir.path().join("ringcast.toml");
        std::fs::write(&file, format!("{good}{line}")).unwrap();
        let (code, told) = run_to_end(&[crate::node::BINARY, "check-config", file.to_str().unwrap()]);
        assert!(code.is_some_and(|code| code != 0), "{line}: {told}");
        assert!(!told.contains("0123456789"), "{line}: {told}");
        assert!(told.contains("ringcast.toml"), "it says where: {told}");
    }
}
