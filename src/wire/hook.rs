//! The hook of an app, as it is written and as it answers: where it is, and what its answer means.
//!
//! A URL of a configuration, and later a status and a body, flow in; an address to connect to and a [`Verdict`] flow
//! out. Always true: the address is a number, so that nothing is looked up while messages wait; and what is no clear yes
//! or no is no verdict.

use std::net::{IpAddr, SocketAddr};

use serde::Deserialize;

/// The longest reason that is passed on to a poster, in bytes.
const REASON_BYTES_MAX: usize = 256;
/// The longest answer of a hook, in bytes.
pub const ANSWER_BYTES_MAX: usize = 16 * 1024;

/// Where a hook is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HookUrl {
    /// To connect to.
    pub address: SocketAddr,
    /// `Host`.
    pub host: String,
    /// Path and query.
    pub target: String,
}

impl HookUrl {
    /// Reads `http://ADDRESS[:PORT][/PATH]`.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn parse(url: &str) -> Result<Self, &'static str> {
        const FORM: &str = "a hook is written like http://10.0.0.5:9000/moderate, with an IP address: a name would have to \
                            be looked up while messages wait";
        let rest = url.strip_prefix("http://").ok_or(FORM)?;
        let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
        let (host, target) = rest.split_at(end);
        if !target.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'#') {
            return Err("the path of a hook is ASCII, without spaces and without #");
        }
        let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
        let address = host.parse::<SocketAddr>().or_else(|_| bare.parse::<IpAddr>().map(|ip| SocketAddr::new(ip, 80)));
        let address = address.map_err(|_| FORM)?;
        if address.port() == 0 {
            return Err("a hook listens on a port from 1 to 65535");
        }
        let target = if target.starts_with('/') { target.to_owned() } else { format!("/{target}") };
        Ok(Self { address, host: host.to_owned(), target })
    }
}

/// What a hook says of a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It may be stored.
    Yes,
    /// It may not, because of this; the text may be empty.
    No(String),
    /// Nothing that could be understood, or nothing at all.
    None,
}

/// What the answer of a hook means: 204, or 200 with `{"allow": true}`, is yes; 200 with `{"allow": false}`, and perhaps a
/// `reason`, is no.
#[must_use]
pub fn verdict(status: u16, body: &[u8]) -> Verdict {
    #[derive(Deserialize)]
    struct Answer {
        allow: bool,
        #[serde(default)]
        reason: String,
    }
    match (status, serde_json::from_slice::<Answer>(body)) {
        (204, _) | (200, Ok(Answer { allow: true, .. })) => Verdict::Yes,
        (200, Ok(Answer { allow: false, mut reason })) => {
            reason.truncate(reason.floor_char_boundary(REASON_BYTES_MAX));
            Verdict::No(reason)
        }
        _ => Verdict::None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hook_is_an_address_and_a_path() {
        let parts = |url: &str| {
            let url = HookUrl::parse(url)?;
            Ok((url.address.to_string(), url.host, url.target))
        };
        let owned = |a: &str, b: &str, c: &str| Ok::<_, &str>((a.to_owned(), b.to_owned(), c.to_owned()));
        assert_eq!(parts("http://127.0.0.1:9000/m?x=1"), owned("127.0.0.1:9000", "127.0.0.1:9000", "/m?x=1"));
        assert_eq!(parts("http://10.0.0.5"), owned("10.0.0.5:80", "10.0.0.5", "/"));
        assert_eq!(parts("http://10.0.0.5?x"), owned("10.0.0.5:80", "10.0.0.5", "/?x"));
        assert_eq!(parts("http://[::1]:9000"), owned("[::1]:9000", "[::1]:9000", "/"));
        assert_eq!(parts("http://[fd00::1]/a"), owned("[fd00::1]:80", "[fd00::1]", "/a"));
        for bad in [
            "",
            "https://10.0.0.5/",
            "http://localhost/",
            "http:///x",
            "http://10.0.0.5:0/",
            "http://10.0.0.5:65536/",
            "http://10.0.0.5/a b",
            "http://10.0.0.5/#a",
            "http://u@10.0.0.5/",
            "10.0.0.5:9000",
        ] {
            assert!(parts(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn what_is_no_clear_yes_or_no_is_no_verdict() {
        let say = |status, body: &str| verdict(status, body.as_bytes());
        assert_eq!(say(204, ""), Verdict::Yes);
        assert_eq!(say(200, r#"{"allow":true,"reason":"fine"}"#), Verdict::Yes);
        assert_eq!(say(200, r#"{"allow":false}"#), Verdict::No(String::new()));
        assert_eq!(say(200, r#"{"reason":"rude","allow":false,"more":1}"#), Verdict::No("rude".into()));
        let long = format!(r#"{{"allow":false,"reason":"{}"}}"#, "ä".repeat(200));
        assert_eq!(say(200, &long), Verdict::No("ä".repeat(128)));
        for (status, body) in
            [(200, ""), (200, "{}"), (200, r#"{"allow":"no"}"#), (200, "[]"), (500, r#"{"allow":true}"#), (302, "")]
        {
            assert_eq!(say(status, body), Verdict::None, "{status} {body}");
        }
    }
}
