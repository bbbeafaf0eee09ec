//! Tokens: what nobody signed is nobody's, whatever it says.

use ringcast::admission::AppOptions;
use ringcast::admission::auth::{Speaker, TokenKey, authenticate, check_token, hash_server_key, make_token};
use ringcast::base::Name;

use crate::{Target, run};

const SECRET: &[u8] = b"a secret of at least 32 bytes, yes";
const NOW_MS: u64 = 1_796_000_000_000;

fn app() -> AppOptions {
    AppOptions {
        token_keys: vec![
            TokenKey::hs256(None, SECRET).expect("a key"),
            TokenKey::hs256(Some("old".into()), b"another secret of 32 bytes or more").expect("a key"),
        ],
        ..AppOptions::new(Name::new("demo").expect("a name"), hash_server_key("rk_right"))
    }
}

#[test]
fn token() {
    let app = app();
    let words =
        &["eyJhbGciOiJIUzI1NiJ9", "eyJhbGciOiJub25lIn0", ".", "..", "rk_", "rk_right", "Bearer ", "=", "-", "_"];
    run(&Target { name: "token", words, cost: 2 }, |input, _| {
        let text = String::from_utf8_lossy(input);
        match authenticate(&app, Some(&text), NOW_MS) {
            Ok(Speaker::Server) => assert_eq!(text, "rk_right"),
            // The corpus holds no token that is signed with a key of this app.
            Ok(other) => panic!("{other:?} of {text:?}"),
            Err(problem) => assert_eq!(problem.status, 401),
        }
        // A good one, spoiled.
        let good = make_token(SECRET, "ann", None, NOW_MS / 1_000 + 60).expect("a token");
        assert!(check_token(&app, &good, NOW_MS).is_ok());
        let mut parts: Vec<&str> = good.split('.').collect();
        for at in 0..3 {
            let before = std::mem::replace(&mut parts[at], &text);
            let spoiled = parts.join(".");
            if spoiled != good {
                assert!(check_token(&app, &spoiled, NOW_MS).is_err(), "part {at} is {text:?}");
            }
            parts[at] = before;
        }
        if !text.is_empty() {
            assert!(check_token(&app, &format!("{good}{text}"), NOW_MS).is_err(), "{text:?} behind a token");
        }
        let name = Name::new(&text);
        if let Ok(token) = make_token(SECRET, &text, Some(&text), NOW_MS / 1_000 + 60) {
            let identity = check_token(&app, &token, NOW_MS).expect("it was signed");
            assert_eq!(Ok(identity.user), name);
        }
    });
}

#[test]
fn claims() {
    use jsonwebtoken::{Algorithm, EncodingKey, Header, encode};
    let (app, key) = (app(), EncodingKey::from_secret(SECRET).expect("a key"));
    let words = &[
        "\"sub\":\"ann\"",
        "\"exp\":",
        "\"nbf\":",
        "\"can\":[\"read\"]",
        "\"tags\":[",
        "\"channels\":[\"*\"]",
        "null",
    ];
    run(&Target { name: "claims", words, cost: 2 }, |input, _| {
        // A backend that signs whatever it is given.
        let Ok(claims) = serde_json::from_slice::<serde_json::Value>(input) else { return };
        let token = encode(&Header::new(Algorithm::HS256), &claims, &key).expect("a token");
        match check_token(&app, &token, NOW_MS) {
            Ok(identity) => {
                assert!(identity.expires_ms > NOW_MS && claims["exp"].as_f64().is_some_and(|exp| exp > 0.0));
                assert_eq!(claims["sub"].as_str(), Some(identity.user.as_str()));
                assert!(identity.tags.len() <= 16);
                let can = claims.get("can").and_then(serde_json::Value::as_array);
                assert!(!identity.write || can.is_none_or(|can| can.iter().any(|right| right == "write")));
            }
            Err(problem) => assert!(matches!(problem.status, 401 | 403)),
        }
    });
}
