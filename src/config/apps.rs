//! The tenants of a configuration, each an `[[app]]`.
//!
//! Tables flow in, [`AppOptions`] with their keys flow out. Always true: an app has a name of its own, a server key that
//! only its hash is known of, and token keys of at least 32 bytes; and no error shows a secret.

use std::path::{Path, PathBuf};

use super::Config;
use super::keys::MESSAGE_BYTES_MAX;
use super::table::{Sheet, Table};
use crate::admission::auth::TokenKey;
use crate::admission::blocklist::Blocklist;
use crate::admission::quota::Quota;
use crate::admission::{AppOptions, HookOptions};
use crate::base::Name;
use crate::wire::hook::HookUrl;

/// A table of apps is walked for every request.
const APPS_MAX: usize = 256;
/// A hundred years, and as many messages of one channel as a hundred a second make in four months.
const RETENTION_DAYS_MAX: u64 = 36_500;
const RETENTION_MESSAGES_MAX: u64 = 1_000_000_000;

/// A day.
const TOKEN_GRACE_S_MAX: u64 = 86_400;
/// What a hook may take that says nothing else, in milliseconds: a round trip in a LAN and some thought.
const HOOK_BUDGET_MS: u32 = 50;
/// How long its verdict may take to come at all, in milliseconds.
const HOOK_LATE_MS: u32 = 5_000;

/// Reads every app.
pub(super) fn read(sheet: &mut Sheet<'_>, config: &mut Config) {
    let bytes_max = config.shard.socket.message_bytes_max.min(config.body_bytes_max);
    let patterns_max = config.shard.patterns_max;
    let (apps, files) = (&mut config.apps, &mut config.blocklist_files);
    sheet.tables("app", |t| {
        let blocklist = blocklist_of(t, patterns_max);
        let hook = hook(t);
        if let Some(mut app) = app(t, apps, bytes_max) {
            app.hook = hook;
            if let Some((file, list)) = blocklist {
                app.blocklist = Some(list);
                files.push((app.name.clone(), file));
            }
            apps.push(app);
        }
    });
}

/// `None` if something about it is wrong, which the table has noted then.
fn app(t: &mut Table<'_, '_>, before: &[AppOptions], bytes_max: u32) -> Option<AppOptions> {
    let (mut anonymous_read, mut loopback_only) = (false, false);
    let mut message_bytes_max = MESSAGE_BYTES_MAX.min(bytes_max);
    let (mut retention_days, mut retention_messages) = (0, 0);
    let name = t.text("name", false);
    let hash = t.text("server_key_sha256", false);
    let origins = t.texts("origins").unwrap_or_default();
    t.flag("anonymous_read", &mut anonymous_read);
    t.flag("loopback_only", &mut loopback_only);
    t.number("message_bytes_max", 1..=u64::from(bytes_max), &mut message_bytes_max);
    t.number("retention_days", 0..=RETENTION_DAYS_MAX, &mut retention_days);
    t.number("retention_messages", 0..=RETENTION_MESSAGES_MAX, &mut retention_messages);
    let mut quota = Quota::default();
    t.number("connections_max", 0..=u64::from(u32::MAX), &mut quota.connections_max);
    t.number("channels_max", 0..=u64::from(u32::MAX), &mut quota.channels_max);
    t.number("messages_per_s", 0..=1_000_000, &mut quota.messages_per_s);
    t.number("queued_bytes_max", 0..=u64::from(u32::MAX), &mut quota.queued_bytes_max);
    let mut token_grace_s = None;
    t.optional("token_grace_s", 0..=TOKEN_GRACE_S_MAX, &mut token_grace_s);
    let mut token_keys: Vec<TokenKey> = Vec::new();
    t.tables("token_key", |t| {
        if let Some(key) = token_key(t, &token_keys) {
            token_keys.push(key);
        }
    });

    if before.len() == APPS_MAX {
        t.fault("name", false, format!("a node has at most {APPS_MAX} apps"));
        return None;
    }
    let name = match Name::new(name.as_deref().unwrap_or_default()) {
        Ok(name) => name,
        Err(why) => {
            t.fault("name", false, why.to_string());
            return None;
        }
    };
    if before.iter().any(|other| other.name == name) {
        t.fault("name", false, "another app has this name");
        return None;
    }
    for origin in &origins {
        // What a browser sends is compared as text, so a path or a slash at the end would never fit.
        let host = origin.strip_prefix("https://").or_else(|| origin.strip_prefix("http://"));
        if origin != "*" && host.is_none_or(|host| host.is_empty() || host.contains('/')) {
            let why =
                format!("{origin:?} is no origin: write scheme and host, such as \"https://example.com\", or \"*\"");
            t.fault("origins", false, why);
            return None;
        }
    }
    let Some(server_key_hash) = hash.as_deref().and_then(from_hex) else {
        let why = "64 hex digits are allowed: printf %s \"$SERVER_KEY\" | sha256sum, of a key that begins with rk_";
        t.fault("server_key_sha256", false, why);
        return None;
    };
    Some(AppOptions {
        token_keys,
        anonymous_read,
        origins,
        loopback_only,
        message_bytes_max,
        retention_days,
        retention_messages,
        quota,
        token_grace_s,
        ..AppOptions::new(name, server_key_hash)
    })
}

/// Reads a file of texts that are not allowed.
pub(super) fn blocklist(file: &Path, patterns_max: u32) -> Result<Blocklist, String> {
    let text = std::fs::read_to_string(file).map_err(|error| format!("{} cannot be read: {error}", file.display()))?;
    Blocklist::new(&text, patterns_max).map_err(|bad| format!("{}, {bad}", file.display()))
}

fn blocklist_of(t: &mut Table<'_, '_>, patterns_max: u32) -> Option<(PathBuf, Blocklist)> {
    let file = t.directory().join(t.text("blocklist_file", false)?);
    match blocklist(&file, patterns_max) {
        Ok(list) => Some((file, list)),
        Err(why) => {
            t.fault("blocklist_file", false, why);
            None
        }
    }
}

fn hook(t: &mut Table<'_, '_>) -> Option<HookOptions> {
    let (mut budget_ms, mut late_ms) = (HOOK_BUDGET_MS, HOOK_LATE_MS);
    let url = t.text("hook_url", false);
    t.number("hook_budget_ms", 1..=10_000, &mut budget_ms);
    t.number("hook_late_ms", u64::from(budget_ms)..=60_000, &mut late_ms);
    let fails = t.text("hook_fails", false);
    let fails_open = match fails.as_deref() {
        None | Some("open") => true,
        Some("closed") => false,
        Some(_) => {
            t.fault("hook_fails", false, "\"open\" and \"closed\" are allowed");
            return None;
        }
    };
    match HookUrl::parse(&url?) {
        Ok(url) => Some(HookOptions { url, budget_ms, late_ms: late_ms.max(budget_ms), fails_open }),
        Err(why) => {
            t.fault("hook_url", false, why);
            None
        }
    }
}

fn public_key(
    t: &mut Table<'_, '_>,
    kid: Option<String>,
    algorithm: &str,
    file: Option<String>,
    has_secret: bool,
) -> Option<TokenKey> {
    let Some(file) = file.filter(|_| !has_secret) else {
        t.fault("public_key_file", false, format!("{algorithm} has a public_key_file and no secret"));
        return None;
    };
    let path = t.directory().join(&file);
    let key = std::fs::read(&path)
        .map_err(|error| format!("{file} cannot be read: {error}"))
        .and_then(|pem| TokenKey::public(kid, algorithm, &pem));
    match key {
        Ok(key) => Some(key),
        Err(why) => {
            t.fault("public_key_file", false, why);
            None
        }
    }
}

fn token_key(t: &mut Table<'_, '_>, before: &[TokenKey]) -> Option<TokenKey> {
    let kid = t.text("kid", false);
    let algorithm = t.text("algorithm", false);
    let secret = t.text("secret", true);
    let file = t.text("secret_file", false);
    let public = t.text("public_key_file", false);
    let Some(algorithm) = algorithm.filter(|name| matches!(&**name, "HS256" | "RS256" | "ES256" | "EdDSA")) else {
        t.fault("algorithm", false, "\"HS256\", \"RS256\", \"ES256\" and \"EdDSA\" are allowed");
        return None;
    };
    if kid.is_some() && before.iter().any(|other| other.kid == kid) {
        t.fault("kid", false, "another key of this app has this name");
        return None;
    }
    if algorithm != "HS256" {
        return public_key(t, kid, &algorithm, public, secret.is_some() || file.is_some());
    }
    if public.is_some() {
        t.fault("public_key_file", false, "HS256 has a secret, no public key");
        return None;
    }
    let (key, secret) = match (secret, file) {
        (Some(secret), None) => ("secret", secret),
        (None, Some(file)) => match secret_of(&t.directory().join(file)) {
            Ok(secret) => ("secret_file", secret),
            Err(why) => {
                t.fault("secret_file", false, why);
                return None;
            }
        },
        _ => {
            t.fault("secret", true, "a token key has either secret or secret_file");
            return None;
        }
    };
    match TokenKey::hs256(kid, secret.as_bytes()) {
        Ok(key) => Some(key),
        Err(why) => {
            t.fault(key, true, why);
            None
        }
    }
}

/// The secret in a file, without the newline that editors leave at its end.
fn secret_of(path: &Path) -> Result<String, String> {
    std::fs::read_to_string(path)
        .map(|text| text.trim_end_matches(['\r', '\n']).to_owned())
        .map_err(|error| format!("{} cannot be read: {error}", path.display()))
}

fn from_hex(text: &str) -> Option<[u8; 32]> {
    let mut bytes = [0; 32];
    if text.len() != 64 || !text.is_ascii() {
        return None;
    }
    for (byte, pair) in bytes.iter_mut().zip(text.as_bytes().chunks_exact(2)) {
        let digit = |c: u8| char::from(c).to_digit(16);
        *byte = (digit(pair[0])? * 16 + digit(pair[1])?) as u8;
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::super::tests::load;
    use crate::admission::auth::{Speaker, authenticate, hash_server_key, make_token};

    const SECRET: &str = "0123456789abcdef0123456789abcdef";

    fn hash() -> String {
        hash_server_key("rk_x").iter().fold(String::new(), |text, byte| format!("{text}{byte:02x}"))
    }

    #[test]
    fn an_app_knows_its_keys() {
        let text = format!(
            "[[app]]\nname = \"shop\"\nserver_key_sha256 = \"{}\"\norigins = [\"https://a.example\"]\n\
             anonymous_read = true\nmessage_bytes_max = 100\nretention_days = 30\nretention_messages = 1_000\n\
             [[app.token_key]]\nkid = \"a\"\nalgorithm = \"HS256\"\nsecret = \"{SECRET}\"\n\
             [[app]]\nname = \"game\"\nserver_key_sha256 = \"{}\"\n",
            hash(),
            hash()
        );
        let config = load(&text).unwrap();
        let [shop, game] = &config.apps[..] else { panic!() };
        assert_eq!((shop.name.as_str(), shop.anonymous_read, shop.message_bytes_max), ("shop", true, 100));
        assert_eq!((shop.retention_days, shop.retention_messages), (30, 1_000));
        assert_eq!((game.retention_days, game.retention_messages), (0, 0));
        assert_eq!(authenticate(shop, Some("rk_x"), 0), Ok(Speaker::Server));
        let token = make_token(SECRET.as_bytes(), "u", None, 10).unwrap();
        assert!(matches!(authenticate(shop, Some(&token), 0), Ok(Speaker::User(_))));
        assert!(authenticate(game, Some(&token), 0).is_err());
        assert!(!game.anonymous_read && game.message_bytes_max == 16 * 1024);
    }

    #[test]
    fn moderation_is_read_with_its_files() {
        let head = format!("[[app]]\nname = \"shop\"\nserver_key_sha256 = \"{}\"\n", hash());
        let dir = tempfile::tempdir().unwrap();
        let words = dir.path().join("words");
        std::fs::write(&words, "spam\neggs\n").unwrap();
        let list = format!("blocklist_file = {words:?}\n");
        let config =
            load(&format!("{head}{list}hook_url = \"http://127.0.0.1:9/x\"\nhook_budget_ms = 9_000\n")).unwrap();
        let app = &config.apps[0];
        let hook = app.hook.as_ref().unwrap();
        assert_eq!((hook.budget_ms, hook.late_ms, hook.fails_open), (9_000, 9_000, true));
        assert_eq!(app.check_words(Some("SPAM"), None).unwrap_err().code, "blocked");
        // Read again, it is what the file says now; a file that is no list is told and changes nothing.
        std::fs::write(&words, "ham\n").unwrap();
        let (lists, faults) = config.read_blocklists();
        assert!(faults.is_empty() && lists[0].1.finds("ham") && !lists[0].1.finds("spam"));
        std::fs::write(&words, "x\n".repeat(10_001)).unwrap();
        let (lists, faults) = config.read_blocklists();
        assert!(lists.is_empty() && faults[0].to_string().contains("line 10001: a list has at most 10000 patterns"));
        for (text, start) in [
            (list.as_str(), "x.toml:4: app.blocklist_file = "),
            (
                "blocklist_file = \"no-such-file\"\n",
                "x.toml:4: app.blocklist_file = \"no-such-file\"\n  no-such-file cannot",
            ),
            (
                "hook_url = \"http://localhost/\"\n",
                "x.toml:4: app.hook_url = \"http://localhost/\"\n  a hook is written",
            ),
            ("hook_fails = \"perhaps\"\n", "x.toml:4: app.hook_fails = \"perhaps\"\n"),
            ("hook_budget_ms = 0\n", "x.toml:4: app.hook_budget_ms = 0\n  1 to 10000 is allowed"),
            ("hook_budget_ms = 100\nhook_late_ms = 99\n", "x.toml:5: app.hook_late_ms = 99\n  100 to 60000 is allowed"),
        ] {
            let error = load(&format!("{head}{text}")).unwrap_err();
            assert!(error.starts_with(start), "{text}\n{error}");
        }
    }

    #[test]
    fn what_is_wrong_is_said_without_the_secret() {
        let head = format!("[[app]]\nname = \"shop\"\nserver_key_sha256 = \"{}\"\n", hash());
        let key = "[[app.token_key]]\n";
        for (text, start) in [
            ("[[app]]\nname = \"shop\"\n".into(), "x.toml:1: app.server_key_sha256 is missing\n"),
            ("[[app]]\nname = \"a b\"\n".into(), "x.toml:2: app.name = \"a b\"\n"),
            ("[app]\nname = \"shop\"\n".into(), "x.toml:1: app = "),
            (format!("{head}{head}"), "x.toml:5: app.name = \"shop\"\n  another app"),
            (format!("{head}origins = [\"https://a.example/\"]\n"), "x.toml:4: app.origins = "),
            (
                format!("{head}message_bytes_max = 65_537\n"),
                "x.toml:4: app.message_bytes_max = 65_537\n  1 to 65536 is",
            ),
            (
                format!("{head}retention_days = 36_501\n"),
                "x.toml:4: app.retention_days = 36_501\n  0 to 36500 is allowed",
            ),
            (
                format!("{head}retention_messages = -1\n"),
                "x.toml:4: app.retention_messages = -1\n  0 to 1000000000 is allowed",
            ),
            (format!("{head}{key}algorithm = \"none\"\n"), "x.toml:5: app.token_key.algorithm = \"none\"\n"),
            (format!("{head}{key}algorithm = \"HS256\"\n"), "x.toml:4: app.token_key.secret is missing\n"),
            (
                format!("{head}{key}algorithm = \"HS256\"\nsecret = \"hush\"\n"),
                "x.toml:6: app.token_key.secret = (not shown)\n  an HS256 secret has at least 32 bytes",
            ),
            (
                format!("{head}{key}algorithm = \"HS256\"\nsecret_file = \"no-such-file\"\n"),
                "x.toml:6: app.token_key.secret_file = \"no-such-file\"\n  no-such-file cannot be read",
            ),
            (
                format!("{head}{key}sicret = \"hush\"\nalgorithm = \"HS256\"\n"),
                "x.toml:4: app.token_key.secret is missing",
            ),
        ] {
            let error = load(&text).unwrap_err();
            assert!(error.starts_with(start), "{text}\n{error}");
            assert!(!error.contains("hush"), "{error}");
        }
    }
}
