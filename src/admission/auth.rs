//! Tokens and server keys: text flows in, an [`Identity`] or a refusal flows out.
//!
//! Always true: a token is checked against the app's own keys and the algorithms they were made for, nothing else;
//! its times are compared with the `now` that is handed in, with no leeway; a server key is compared in constant time
//! with a hash, so the configuration holds no key.

use jsonwebtoken::{Algorithm, DecodingKey, EncodingKey, Header, Validation, decode, decode_header, encode};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

use super::AppOptions;
use crate::base::Name;
use crate::post::letters::Identity;
use crate::wire::http::TAGS_MAX;
use crate::wire::problem::Problem;

/// What a server key begins with.
pub const SERVER_KEY_PREFIX: &str = "rk_";
/// The longest token that is looked at, in bytes.
const TOKEN_BYTES_MAX: usize = 8 * 1024;

/// One key that tokens may be signed with.
#[derive(Clone)]
pub struct TokenKey {
    /// Its name in a token's header; a token without one is tried against every key of its algorithm.
    pub kid: Option<String>,
    algorithm: Algorithm,
    key: DecodingKey,
}

impl TokenKey {
    /// A shared secret for HS256.
    ///
    /// # Errors
    /// Says so if the secret is shorter than the 32 bytes of the hash (RFC 7518 §3.2).
    pub fn hs256(kid: Option<String>, secret: &[u8]) -> Result<Self, String> {
        if secret.len() < 32 {
            return Err(format!("an HS256 secret has at least 32 bytes, this one has {}", secret.len()));
        }
        let key = DecodingKey::from_secret(secret).map_err(|error| error.to_string())?;
        Ok(Self { kid, algorithm: Algorithm::HS256, key })
    }
}

/// The algorithms of public keys, by the names that tokens use (RFC 7518 §3.1, RFC 8037).
const PUBLIC: [(&str, Algorithm); 3] =
    [("RS256", Algorithm::RS256), ("ES256", Algorithm::ES256), ("EdDSA", Algorithm::EdDSA)];

impl TokenKey {
    /// A public key in PEM for `RS256`, `ES256` or `EdDSA`.
    ///
    /// # Errors
    /// Says so if the algorithm is none of these, or if the key is not one of it.
    pub fn public(kid: Option<String>, algorithm: &str, pem: &[u8]) -> Result<Self, String> {
        let Some((_, algorithm)) = PUBLIC.into_iter().find(|(name, _)| *name == algorithm) else {
            return Err(format!("{algorithm:?} is no algorithm of a public key: RS256, ES256 and EdDSA are"));
        };
        let key = match algorithm {
            Algorithm::RS256 => DecodingKey::from_rsa_pem(pem),
            Algorithm::ES256 => DecodingKey::from_ec_pem(pem),
            _ => DecodingKey::from_ed_pem(pem),
        };
        let key = key.map_err(|error| format!("not a public key in PEM: {error}"))?;
        Ok(Self { kid, algorithm, key })
    }
}

/// A NumericDate (RFC 7519 §2): seconds, perhaps with a fraction, which does not count.
#[derive(Clone, Copy, Serialize)]
struct Seconds(u64);

impl<'de> Deserialize<'de> for Seconds {
    fn deserialize<D: serde::Deserializer<'de>>(source: D) -> Result<Self, D::Error> {
        let number = serde_json::Number::deserialize(source)?;
        let whole = number.as_u64().or_else(|| number.as_f64().filter(|seconds| *seconds >= 0.0).map(|it| it as u64));
        whole.map(Self).ok_or_else(|| serde::de::Error::custom("a time lies behind 1970"))
    }
}

#[derive(Serialize, Deserialize)]
struct Claims {
    sub: String,
    exp: Seconds,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    nbf: Option<Seconds>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    name: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    channels: Option<Vec<String>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    can: Option<Vec<String>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    tags: Option<Vec<String>>,
}

/// Who speaks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Speaker {
    /// Nobody in particular.
    Anonymous,
    /// A user with a token.
    User(Box<Identity>),
    /// The app's own backend.
    Server,
}

/// Hashes a server key as the configuration keeps it.
#[must_use]
pub fn hash_server_key(key: &str) -> [u8; 32] {
    Sha256::digest(key.as_bytes()).into()
}

/// Finds out who speaks.
///
/// # Errors
/// 401 for a bad or expired token or a wrong server key.
pub fn authenticate(app: &AppOptions, credential: Option<&str>, now_wall_ms: u64) -> Result<Speaker, Problem> {
    let Some(credential) = credential else { return Ok(Speaker::Anonymous) };
    if credential.starts_with(SERVER_KEY_PREFIX) {
        let same: bool = hash_server_key(credential).ct_eq(&app.server_key_hash).into();
        return if same {
            Ok(Speaker::Server)
        } else {
            Err(unauthorised("wrong_server_key", "the server key is wrong"))
        };
    }
    check_token(app, credential, now_wall_ms).map(|identity| Speaker::User(Box::new(identity)))
}

/// Checks a token.
///
/// # Errors
/// 401, naming what is wrong with it.
pub fn check_token(app: &AppOptions, token: &str, now_wall_ms: u64) -> Result<Identity, Problem> {
    let bad = || unauthorised("bad_token", "the token is malformed or its signature does not fit");
    if token.len() > TOKEN_BYTES_MAX {
        return Err(bad());
    }
    let header = decode_header(token).map_err(|_| bad())?;
    let claims = app
        .token_keys
        .iter()
        .filter(|key| key.algorithm == header.alg && (header.kid.is_none() || key.kid == header.kid))
        .find_map(|key| {
            let mut validation = Validation::new(key.algorithm);
            // Times are compared below, with the time that was handed in.
            validation.validate_exp = false;
            validation.validate_aud = false;
            validation.required_spec_claims.clear();
            decode::<Claims>(token, &key.key, &validation).ok().map(|data| data.claims)
        })
        .ok_or_else(bad)?;
    let expires_ms = claims.exp.0.saturating_mul(1_000);
    if expires_ms <= now_wall_ms {
        return Err(unauthorised("token_expired", "the token has expired"));
    }
    if claims.nbf.is_some_and(|nbf| nbf.0.saturating_mul(1_000) > now_wall_ms) {
        return Err(unauthorised("token_not_yet_valid", "the token is not valid yet"));
    }
    let user = Name::new(&claims.sub).map_err(|error| unauthorised("bad_subject", format!("sub: {error}")))?;
    let tags = claims.tags.iter().flatten().map(|tag| Name::new(tag)).collect::<Result<Vec<_>, _>>();
    let tags = tags.map_err(|error| unauthorised("bad_tag", format!("tags: {error}")))?;
    if tags.len() > TAGS_MAX {
        return Err(unauthorised("too_many_tags", format!("a token carries at most {TAGS_MAX} tags")));
    }
    let can = |right: &str| claims.can.as_ref().is_none_or(|rights| rights.iter().any(|r| r == right));
    Ok(Identity {
        user,
        name: claims.name.clone().unwrap_or_default(),
        read: can("read"),
        write: can("write"),
        react: can("react"),
        typing: can("type"),
        custom: can("custom"),
        channels: claims.channels.clone(),
        tags,
        expires_ms,
        banned: Vec::new(),
    })
}

/// Makes an HS256 token, for development and tests.
///
/// # Errors
/// Says why it could not be signed.
pub fn make_token(secret: &[u8], sub: &str, name: Option<&str>, expires_s: u64) -> Result<String, String> {
    Name::new(sub).map_err(|error| format!("sub {sub:?}: {error}"))?;
    let claims = Claims {
        sub: sub.into(),
        exp: Seconds(expires_s),
        nbf: None,
        name: name.map(Into::into),
        channels: None,
        can: None,
        tags: None,
    };
    let key = EncodingKey::from_secret(secret).map_err(|error| error.to_string())?;
    encode(&Header::new(Algorithm::HS256), &claims, &key).map_err(|error| error.to_string())
}

fn unauthorised(code: &'static str, detail: impl Into<String>) -> Problem {
    Problem::new(401, code, detail)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECRET: &[u8] = b"0123456789abcdef0123456789abcdef";

    fn app() -> AppOptions {
        AppOptions {
            token_keys: vec![TokenKey::hs256(None, SECRET).unwrap()],
            origins: vec!["https://a.example".into()],
            ..AppOptions::new(Name::new("demo").unwrap(), hash_server_key("rk_right"))
        }
    }

    #[test]
    fn tokens() {
        let app = app();
        let token = make_token(SECRET, "u1", Some("Ann"), 2_000).unwrap();
        let Ok(Speaker::User(identity)) = authenticate(&app, Some(&token), 1_999_999) else { panic!() };
        assert_eq!((identity.user.as_str(), identity.name.as_str(), identity.write), ("u1", "Ann", true));
        assert_eq!(authenticate(&app, Some(&token), 2_000_000).unwrap_err().code, "token_expired");
        let forged = make_token(b"another secret of at least 32 by", "u1", None, 2_000).unwrap();
        assert_eq!(authenticate(&app, Some(&forged), 0).unwrap_err().code, "bad_token");
        assert_eq!(authenticate(&app, Some("nonsense"), 0).unwrap_err().status, 401);
        // A token that names no algorithm of ours, such as "none", finds no key.
        let none = "eyJhbGciOiJub25lIn0.eyJzdWIiOiJ1MSIsImV4cCI6OTk5OX0.";
        assert_eq!(authenticate(&app, Some(none), 0).unwrap_err().code, "bad_token");
        assert!(TokenKey::hs256(None, b"short").is_err());
    }

    /// Made for this test by `openssl genpkey -algorithm ed25519` and its public half.
    const ED_PRIVATE: &[u8] = b"-----BEGIN PRIVATE KEY-----
MC4CAQAwBQYDK2VwBCIEIJfwVexV21V0R+43m0C0MwQiRWl33Pv3efo5DiWRQaqd
-----END PRIVATE KEY-----
";
    const ED_PUBLIC: &[u8] = b"-----BEGIN PUBLIC KEY-----
MCowBQYDK2VwAyEAtOWwYj7S1P9b2cmLpyTQ5+c11FHBjADetnvdnGDMV3E=
-----END PUBLIC KEY-----
";

    #[test]
    fn public_keys_rotate_by_kid_and_never_stand_for_a_secret() {
        let mut app = app();
        app.token_keys = vec![
            TokenKey::hs256(Some("old".into()), SECRET).unwrap(),
            TokenKey::public(Some("new".into()), "EdDSA", ED_PUBLIC).unwrap(),
        ];
        let claims = |sub: &str| Claims {
            sub: sub.into(),
            exp: Seconds(9_999),
            nbf: None,
            name: None,
            channels: None,
            can: None,
            tags: Some(vec!["vip".into()]),
        };
        let mut header = Header::new(Algorithm::EdDSA);
        header.kid = Some("new".into());
        let key = EncodingKey::from_ed_pem(ED_PRIVATE).unwrap();
        let token = encode(&header, &claims("u1"), &key).unwrap();
        let identity = check_token(&app, &token, 0).unwrap();
        assert_eq!((identity.user.as_str(), identity.tags[0].as_str()), ("u1", "vip"));
        header.kid = Some("old".into());
        let token = encode(&header, &claims("u1"), &key).unwrap();
        assert_eq!(
            check_token(&app, &token, 0).unwrap_err().code,
            "bad_token",
            "that kid is a key of another algorithm"
        );
        // The public key's own text as an HS256 secret: the classic confusion of algorithms.
        let mut header = Header::new(Algorithm::HS256);
        header.kid = Some("new".into());
        let forged = encode(&header, &claims("u1"), &EncodingKey::from_secret(ED_PUBLIC).unwrap()).unwrap();
        assert_eq!(check_token(&app, &forged, 0).unwrap_err().code, "bad_token");
        assert!(TokenKey::public(None, "RS256", ED_PUBLIC).is_err());
        assert!(TokenKey::public(None, "none", ED_PUBLIC).is_err_and(|why| why.contains("RS256")));
    }

    #[test]
    fn server_keys_and_nobody() {
        let app = app();
        assert_eq!(authenticate(&app, Some("rk_right"), 0), Ok(Speaker::Server));
        assert_eq!(authenticate(&app, Some("rk_wrong"), 0).unwrap_err().code, "wrong_server_key");
        assert_eq!(authenticate(&app, None, 0), Ok(Speaker::Anonymous));
    }

    #[test]
    fn origins_and_patterns() {
        let app = app();
        assert!(app.check_origin(None).is_ok() && app.check_origin(Some("https://a.example")).is_ok());
        assert_eq!(app.check_origin(Some("https://b.example")).unwrap_err().status, 403);
        let identity = Identity {
            user: Name::new("u").unwrap(),
            name: String::new(),
            read: true,
            write: true,
            react: true,
            typing: true,
            custom: true,
            channels: Some(vec!["race-*".into(), "lobby".into()]),
            tags: Vec::new(),
            expires_ms: 0,
            banned: vec![("a".into(), Some(2)), ("b".into(), None)],
        };
        assert!(identity.may_touch("race-42") && identity.may_touch("lobby") && !identity.may_touch("lobby2"));
        assert!(!Identity { channels: Some(Vec::new()), ..identity.clone() }.may_touch("lobby"), "none is not all");
        assert!(Identity { channels: None, ..identity.clone() }.may_touch("lobby2"));
        let banned = |now| ["a", "b", "c"].map(|channel| identity.is_banned(channel, now));
        assert_eq!((banned(1), banned(2)), ([true, true, false], [false, true, false]));
    }
}
