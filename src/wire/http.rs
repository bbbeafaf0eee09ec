//! The head of a request, up to the decision: an upgrade, checked in full, or something for the HTTP API.
//!
//! The bytes of one head flow in; an [`Upgrade`] whose handshake is already right, or [`Head::Other`], flows out.
//! Always true: an upgrade never meets the HTTP library, and every refusal is a problem document that names what was
//! wrong. Checked against RFC 6455 §4.2.1; the library's own handshake check is not used, for it refuses two
//! `Connection` lines and tokens cut by tabs, which proxies send.

pub use super::dialect::Dialect;
use super::event::KindSet;
use super::filter::parse_filter;
use super::framing::{body_of, read_request};
use super::position::{Since, parse_epoch, parse_position};
use super::problem::Problem;
use crate::base::Name;
use tungstenite::handshake::derive_accept_key;

/// The largest head, in bytes; a larger one is 431.
pub const HEAD_BYTES_MAX: usize = 16 * 1024;
/// The most header fields; more are 431.
pub const HEAD_FIELDS_MAX: usize = 64;
/// The most tags of one connection, as many as a token carries.
pub const TAGS_MAX: usize = 16;

/// What an upgrade asks for; its handshake is right.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Upgrade {
    /// The tenant.
    pub app: Name,
    /// The channel in the path, if there is one.
    pub channel: Option<Name>,
    /// The token, wherever it came from.
    pub token: Option<String>,
    /// Which of its token's tags the connection carries; all of them if it does not say.
    pub tags: Option<Vec<Name>>,
    /// A position to resume from.
    pub since: Option<Since>,
    /// Which types to deliver; critical ones and gaps always come.
    pub filter: KindSet,
    /// The interval of `health.check` in seconds, if asked for.
    pub heartbeat_s: Option<u16>,
    /// The page it came from, if a browser says so.
    pub origin: Option<String>,
    /// `Host`, to compare an Origin with.
    pub host: String,
    /// All lines of `X-Forwarded-For`, joined by commas.
    pub forwarded_for: String,
    /// The frames it wants.
    pub dialect: Dialect,
    /// It offered subprotocols, so the answer names one.
    pub names_dialect: bool,
    /// `Sec-WebSocket-Accept` of the answer.
    pub accept: String,
}

/// What a head turned out to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Head {
    /// An upgrade to a channel or an app.
    Upgrade(Box<Upgrade>),
    /// The echo endpoint of conformance tests, with its `Sec-WebSocket-Accept`; only a node that was started with it
    /// answers it.
    Echo {
        /// `Sec-WebSocket-Accept` of the answer.
        accept: String,
    },
    /// Anything else: the HTTP API's.
    Other,
}

/// The path of the echo endpoint.
pub const ECHO_PATH: &str = "/test/echo";

/// Reads one whole head, its empty line included.
///
/// # Errors
/// A problem document: 400, 405, 426, 431 or 505, after which the connection is closed.
pub fn parse_head(head: &[u8]) -> Result<Head, Problem> {
    let mut fields = [httparse::EMPTY_HEADER; HEAD_FIELDS_MAX];
    let request = read_request(head, &mut fields)?;
    body_of(&request)?;
    let target = origin_form(request.path.unwrap_or_default());
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    let Some(route) = route(path)? else { return Ok(Head::Other) };
    let accept = match route {
        // A browser asks before it calls from a page of another origin: the API answers that.
        Route::Stream { .. } if request.method == Some("OPTIONS") => return Ok(Head::Other),
        Route::Stream { .. } => {
            check_stream(&request)?;
            String::new()
        }
        _ => check_handshake(&request)?,
    };
    let (app, channel, dialect) = match route {
        Route::Echo => return Ok(Head::Echo { accept }),
        Route::Socket { app, channel } => (app, channel, Dialect::Json),
        Route::Stream { app, channel } => (app, Some(channel), Dialect::Sse),
    };
    let mut upgrade = Upgrade {
        app,
        channel,
        token: None,
        tags: None,
        since: None,
        filter: KindSet::ALL,
        heartbeat_s: None,
        origin: one(request.headers, "origin")?.map(str::to_owned),
        host: one(request.headers, "host")?.unwrap_or_default().to_owned(),
        forwarded_for: forwarded_for(request.headers),
        dialect,
        names_dialect: false,
        accept,
    };
    if let Some(value) = one(request.headers, "authorization")? {
        upgrade.token = Some(bearer(value)?.to_owned());
    }
    read_query(query, &mut upgrade)?;
    if dialect == Dialect::Sse {
        // What an `EventSource` comes back with by itself is newer than what its page once wrote into the address.
        if let Some(position) = one(request.headers, "last-event-id")?.filter(|id| !id.is_empty()) {
            upgrade.since = Some(parse_position(position)?);
        }
    } else {
        read_dialects(request.headers, &mut upgrade)?;
    }
    Ok(Head::Upgrade(Box::new(upgrade)))
}

/// The token of an `Authorization` value.
///
/// # Errors
/// 401 if it is not `Bearer …`.
pub fn bearer(value: &str) -> Result<&str, Problem> {
    match value.split_once(' ') {
        Some((scheme, token)) if scheme.eq_ignore_ascii_case("bearer") && !token.trim().is_empty() => Ok(token.trim()),
        _ => Err(Problem::new(401, "bad_authorization", "Authorization must be `Bearer` and a token or server key")),
    }
}

/// These bytes begin with the request line of an upgrade: of whatever [`parse_head`] does not leave to the HTTP API.
#[must_use]
pub fn begins_upgrade(bytes: &[u8]) -> bool {
    let first = super::scan::lines(bytes).next().filter(|line| line.len() < bytes.len());
    let Some(Ok(line)) = first.map(std::str::from_utf8) else { return false };
    let target = line.strip_prefix("GET ").and_then(|rest| rest.split(' ').next()).unwrap_or_default();
    !matches!(route(origin_form(target).split('?').next().unwrap_or_default()), Ok(None))
}

/// The path and query of a target. A client that takes us for its proxy names us before them (RFC 9112 §3.2.2).
fn origin_form(target: &str) -> &str {
    let Some((scheme, rest)) = target.split_once("://") else { return target };
    if !scheme.eq_ignore_ascii_case("http") && !scheme.eq_ignore_ascii_case("https") {
        return target;
    }
    rest.find(['/', '?']).map_or("/", |at| &rest[at..])
}

enum Route {
    Socket { app: Name, channel: Option<Name> },
    Stream { app: Name, channel: Name },
    Echo,
}

fn route(path: &str) -> Result<Option<Route>, Problem> {
    if path == ECHO_PATH {
        return Ok(Some(Route::Echo));
    }
    let parts: Vec<&str> = path.split('/').collect();
    let (app, channel) = match parts[..] {
        ["", "v1", app, "ws"] => (app, None),
        ["", "v1", app, "channels", channel, "ws"] => (app, Some(channel)),
        ["", "v1", app, "channels", channel, "sse"] => {
            let (app, channel) = (path_name(app, "app")?, path_name(channel, "channel")?);
            return Ok(Some(Route::Stream { app, channel }));
        }
        _ => return Ok(None),
    };
    let channel = channel.map(|text| path_name(text, "channel")).transpose()?;
    Ok(Some(Route::Socket { app: path_name(app, "app")?, channel }))
}

/// A name in a path, percent-decoded.
///
/// # Errors
/// 400, naming the part and what a name is.
pub fn path_name(text: &str, what: &str) -> Result<Name, Problem> {
    // In a path `+` is a plus, in a form it is a space: a plus is no name character, so protecting it is enough.
    let protected = text.replace('+', "%2B");
    let decoded = form_urlencoded::parse(protected.as_bytes()).next().map(|(name, _)| name).unwrap_or_default();
    Name::new(&decoded).map_err(|error| Problem::bad("bad_name", format!("{what} {decoded:?}: {error}")))
}

fn check_handshake(request: &httparse::Request<'_, '_>) -> Result<String, Problem> {
    if request.method != Some("GET") {
        return Err(Problem::new(405, "method", "a WebSocket upgrade is a GET").with_header("allow", "GET"));
    }
    if request.version != Some(1) {
        return Err(Problem::new(505, "http_version", "a WebSocket upgrade is an HTTP/1.1 request"));
    }
    if one(request.headers, "transfer-encoding")?.is_some()
        || one(request.headers, "content-length")?.is_some_and(|n| n.trim() != "0")
    {
        return Err(Problem::bad("upgrade_with_body", "a WebSocket upgrade has no body"));
    }
    if !has_token(request.headers, "upgrade", "websocket") {
        let problem = Problem::new(426, "not_an_upgrade", "this address speaks WebSocket: send `Upgrade: websocket`");
        return Err(problem.with_header("upgrade", "websocket"));
    }
    if !has_token(request.headers, "connection", "upgrade") {
        return Err(Problem::bad("connection_field", "the Connection field does not name `Upgrade`"));
    }
    if one(request.headers, "sec-websocket-version")?.map(str::trim) != Some("13") {
        let problem = Problem::new(426, "websocket_version", "this node speaks WebSocket version 13");
        return Err(problem.with_header("sec-websocket-version", "13"));
    }
    match one(request.headers, "sec-websocket-key")?.map(str::trim) {
        Some(key) if is_nonce(key) => Ok(derive_accept_key(key.as_bytes())),
        _ => Err(Problem::bad("websocket_key", "Sec-WebSocket-Key must be 16 bytes in base64")),
    }
}

fn check_stream(request: &httparse::Request<'_, '_>) -> Result<(), Problem> {
    if request.method != Some("GET") {
        return Err(Problem::new(405, "method", "an event stream is a GET").with_header("allow", "GET"));
    }
    if one(request.headers, "transfer-encoding")?.is_some()
        || one(request.headers, "content-length")?.is_some_and(|n| n.trim() != "0")
    {
        return Err(Problem::bad("stream_with_body", "the request of an event stream has no body"));
    }
    Ok(())
}

/// 16 bytes in base64 are 22 characters and two equals signs (RFC 6455 §4.1).
fn is_nonce(key: &str) -> bool {
    key.strip_suffix("==").is_some_and(|digits| {
        digits.len() == 22 && digits.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'+' || b == b'/')
    })
}

/// The values of all fields of this name, in order.
fn values<'f>(fields: &'f [httparse::Header<'f>], name: &'f str) -> impl Iterator<Item = &'f [u8]> {
    fields.iter().filter(move |field| field.name.eq_ignore_ascii_case(name)).map(|field| field.value)
}

fn forwarded_for(fields: &[httparse::Header<'_>]) -> String {
    let lines = values(fields, "x-forwarded-for").map(String::from_utf8_lossy);
    lines.collect::<Vec<_>>().join(",")
}

/// The value of a field that may stand once.
fn one<'f>(fields: &'f [httparse::Header<'f>], name: &'f str) -> Result<Option<&'f str>, Problem> {
    let mut found = values(fields, name);
    let Some(value) = found.next() else { return Ok(None) };
    if found.next().is_some() {
        return Err(Problem::bad("field_twice", format!("the {name} field stands more than once")));
    }
    std::str::from_utf8(value)
        .map(Some)
        .map_err(|_| Problem::bad("field_not_text", format!("the {name} field is not text")))
}

/// The field is a list, over one line or several, that holds this token, in whatever case (RFC 9110 §5.3).
pub(super) fn has_token(fields: &[httparse::Header<'_>], name: &str, token: &str) -> bool {
    values(fields, name)
        .filter_map(|value| std::str::from_utf8(value).ok())
        .flat_map(|value| value.split(','))
        .any(|part| part.trim_matches([' ', '\t']).eq_ignore_ascii_case(token))
}

fn read_query(query: &str, upgrade: &mut Upgrade) -> Result<(), Problem> {
    let (mut epoch, mut since, mut filters) = (None, None, false);
    for (key, value) in form_urlencoded::parse(query.as_bytes()) {
        match &*key {
            "token" => upgrade.token = Some(value.into_owned()),
            "tags" => upgrade.tags = Some(parse_tags(&value)?),
            "epoch" => epoch = Some(parse_epoch(&value)?),
            "since" => {
                let seq = value
                    .parse()
                    .map_err(|_| Problem::bad("bad_since", format!("since {value:?} is not a whole number")))?;
                since = Some(seq);
            }
            "filter" => {
                upgrade.filter = parse_filter(value.split(','))?;
                filters = true;
            }
            "heartbeat" => match value.parse() {
                Ok(seconds @ 1..=3_600) => upgrade.heartbeat_s = Some(seconds),
                _ => {
                    return Err(Problem::bad("bad_heartbeat", format!("heartbeat {value:?} is not 1 to 3600 seconds")));
                }
            },
            // Unknown parameters are for someone in front of us.
            _ => {}
        }
    }
    upgrade.since = match (epoch, since) {
        (Some(epoch), Some(seq)) => Some(Since { epoch, seq }),
        (None, None) => None,
        _ => return Err(Problem::bad("bad_position", "a position is `epoch` and `since` together")),
    };
    if upgrade.channel.is_none() && (filters || upgrade.since.is_some()) {
        let detail = "a position and a filter are a channel's, and the path names none: `subscribe` takes them";
        return Err(Problem::bad("no_channel", detail));
    }
    Ok(())
}

/// Tags with commas between them, each once.
fn parse_tags(text: &str) -> Result<Vec<Name>, Problem> {
    let mut tags = Vec::new();
    for tag in text.split(',') {
        let tag = Name::new(tag).map_err(|error| Problem::bad("bad_tag", format!("tags {tag:?}: {error}")))?;
        if !tags.contains(&tag) {
            tags.push(tag);
        }
        if tags.len() > TAGS_MAX {
            return Err(Problem::bad("too_many_tags", format!("a connection carries at most {TAGS_MAX} tags")));
        }
    }
    Ok(tags)
}

fn read_dialects(fields: &[httparse::Header<'_>], upgrade: &mut Upgrade) -> Result<(), Problem> {
    let mut offered = 0;
    let mut chosen = None;
    for part in values(fields, "sec-websocket-protocol")
        .filter_map(|value| std::str::from_utf8(value).ok())
        .flat_map(|value| value.split(','))
        .map(str::trim)
        .filter(|part| !part.is_empty())
    {
        if let Some(token) = part.strip_prefix("bearer.") {
            upgrade.token.get_or_insert_with(|| token.to_owned());
            continue;
        }
        offered += 1;
        let dialect = [Dialect::Json, Dialect::Rkyv].into_iter().find(|dialect| dialect.name() == part);
        chosen = chosen.or(dialect);
    }
    if offered > 0 && chosen.is_none() {
        return Err(Problem::bad(
            "no_common_subprotocol",
            "this node speaks the subprotocols ringcast.json and ringcast.rkyv",
        ));
    }
    upgrade.names_dialect = chosen.is_some();
    upgrade.dialect = chosen.unwrap_or_default();
    Ok(())
}

/// The `101` answer.
#[must_use]
pub fn switching_protocols(accept: &str, dialect: Option<Dialect>) -> Vec<u8> {
    let mut out = Vec::with_capacity(192);
    out.extend_from_slice(
        b"HTTP/1.1 101 Switching Protocols\r\nupgrade: websocket\r\nconnection: Upgrade\r\nsec-websocket-accept: ",
    );
    out.extend_from_slice(accept.as_bytes());
    if let Some(dialect) = dialect {
        out.extend_from_slice(b"\r\nsec-websocket-protocol: ");
        out.extend_from_slice(dialect.name().as_bytes());
    }
    out.extend_from_slice(b"\r\n\r\n");
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::event::EventKind;

    fn head(fields: &str) -> Vec<u8> {
        format!(
            "GET /v1/demo/channels/race-42/ws?token=t%2Bt&epoch=00ff&since=7&filter=message.*,custom.x HTTP/1.1\r\nHost: h\r\n\
             Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n{fields}\r\n\r\n"
        )
        .into_bytes()
    }

    fn upgrade(fields: &str) -> Result<Box<Upgrade>, Problem> {
        match parse_head(&head(fields))? {
            Head::Upgrade(upgrade) => Ok(upgrade),
            other => panic!("{other:?}"),
        }
    }

    const GOOD: &str = "Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13";

    #[test]
    fn tags_are_names_each_once_and_not_too_many() {
        let ask = |query: &str| {
            let mut upgrade = upgrade(GOOD).unwrap();
            read_query(query, &mut upgrade).map(|()| upgrade.tags)
        };
        let names = |tags: Option<Vec<Name>>| tags.map(|tags| tags.iter().map(|tag| tag.as_str().to_owned()).collect());
        assert_eq!(names(ask("").unwrap()), None::<Vec<String>>);
        assert_eq!(names(ask("tags=vip,press,vip").unwrap()), Some(vec!["vip".to_owned(), "press".to_owned()]));
        let many = |count: usize| (0..count).map(|at| format!("t{at}")).collect::<Vec<_>>().join(",");
        assert_eq!(ask(&format!("tags={}", many(16))).unwrap().unwrap().len(), 16);
        for (query, code) in [
            ("tags=".to_owned(), "bad_tag"),
            ("tags=a%20b".to_owned(), "bad_tag"),
            (format!("tags={}", many(17)), "too_many_tags"),
        ] {
            let problem = ask(&query).unwrap_err();
            assert_eq!((problem.status, problem.code), (400, code), "{query}");
        }
    }

    #[test]
    fn a_good_upgrade_says_what_it_asks_for() {
        let u = upgrade(GOOD).unwrap();
        assert_eq!(u.accept, "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=");
        assert_eq!((u.app.as_str(), u.channel.as_ref().map(Name::as_str)), ("demo", Some("race-42")));
        assert_eq!(u.token.as_deref(), Some("t+t"));
        assert_eq!(u.since, Some(Since { epoch: 255, seq: 7 }));
        assert!(u.filter.contains(EventKind::MessageNew) && u.filter.contains(EventKind::Custom));
        assert!(!u.filter.contains(EventKind::TypingStart));
        assert!(!u.names_dialect && u.forwarded_for.is_empty());
        let u = upgrade(&format!("{GOOD}\r\nX-Forwarded-For: a, b\r\nx-forwarded-for: c")).unwrap();
        assert_eq!(u.forwarded_for, "a, b,c");
    }

    #[test]
    fn case_b1_connection_may_be_a_list_in_any_shape() {
        for connection in [
            "Connection: keep-alive, Upgrade",
            "Connection: Upgrade , keep-alive",
            "Connection: keep-alive\r\nConnection: Upgrade",
            "Connection:\tkeep-alive,\tupgrade",
        ] {
            assert!(upgrade(&format!("upgrade: WebSocket\r\n{connection}\r\nSec-WebSocket-Version: 13")).is_ok());
        }
        assert_eq!(
            upgrade("Upgrade: websocket\r\nConnection: close\r\nSec-WebSocket-Version: 13").unwrap_err().status,
            400
        );
    }

    #[test]
    fn case_b5_a_wrong_version_is_told_the_right_one() {
        for version in ["", "\r\nSec-WebSocket-Version: 8"] {
            let problem = upgrade(&format!("Upgrade: websocket\r\nConnection: Upgrade{version}")).unwrap_err();
            assert_eq!(problem.status, 426);
            assert_eq!(*problem.header.unwrap(), ("sec-websocket-version", "13".into()));
        }
    }

    #[test]
    fn case_b3_two_thousand_fields_are_431() {
        let many = "x: 1\r\n".repeat(2_000);
        assert_eq!(upgrade(&format!("{many}{GOOD}")).unwrap_err().status, 431);
    }

    #[test]
    fn subprotocols_and_bearer() {
        let u =
            upgrade(&format!("{GOOD}\r\nSec-WebSocket-Protocol: bearer.a.b.c, ringcast.rkyv, ringcast.json")).unwrap();
        assert_eq!((u.dialect, u.names_dialect), (Dialect::Rkyv, true));
        // The query came first.
        assert_eq!(u.token.as_deref(), Some("t+t"));
        assert_eq!(
            upgrade(&format!("{GOOD}\r\nSec-WebSocket-Protocol: chat")).unwrap_err().code,
            "no_common_subprotocol"
        );
    }

    #[test]
    fn a_position_or_a_filter_without_a_channel_is_refused() {
        let of = |target: &str| {
            let text = String::from_utf8(head(GOOD)).unwrap();
            let (_, rest) = text.split_once('\r').unwrap();
            parse_head(format!("GET {target} HTTP/1.1\r{rest}").as_bytes())
        };
        for query in ["filter=message.*", "filter=", "epoch=00000000000000aa&since=3"] {
            assert_eq!(of(&format!("/v1/demo/ws?{query}")).unwrap_err().code, "no_channel", "{query}");
            assert!(of(&format!("/v1/demo/channels/a/ws?{query}")).is_ok(), "{query}");
        }
        assert!(of("/v1/demo/ws?heartbeat=5").is_ok());
    }

    #[test]
    fn bad_names_keys_and_bodies_are_400() {
        assert_eq!(upgrade(&format!("{GOOD}\r\nContent-Length: 5")).unwrap_err().code, "upgrade_with_body");
        let bad_key = String::from_utf8(head(GOOD)).unwrap().replace("dGhl", "!!!!");
        assert_eq!(parse_head(bad_key.as_bytes()).unwrap_err().code, "websocket_key");
        let bad_name = String::from_utf8(head(GOOD)).unwrap().replace("race-42", "race%2042");
        assert_eq!(parse_head(bad_name.as_bytes()).unwrap_err().code, "bad_name");
        let escaped = String::from_utf8(head(GOOD)).unwrap().replace("race-42", "a%40b");
        assert!(parse_head(escaped.as_bytes()).is_ok());
    }

    #[test]
    fn the_beginning_of_an_upgrade_is_known_by_its_first_line() {
        assert!(begins_upgrade(b"GET /v1/demo/channels/race-42/ws?since=1 HTTP/1.1\r\nHost"));
        assert!(begins_upgrade(b"GET /v1/demo/ws HTTP/1.1\r\n"));
        for other in [
            &b"GET /v1/demo/channels/race-42/messages HTTP/1.1\r\n"[..],
            b"POST /v1/demo/ws HTTP/1.1\r\n",
            b"GET /v1/demo/ws HTTP/1.1",
            b"\xff\n",
        ] {
            assert!(!begins_upgrade(other));
        }
    }

    #[test]
    fn other_paths_are_for_the_api() {
        assert_eq!(parse_head(b"GET /v1/demo/channels/x/messages HTTP/1.1\r\nHost: h\r\n\r\n"), Ok(Head::Other));
        assert_eq!(parse_head(b"GET /healthz HTTP/1.0\r\n\r\n"), Ok(Head::Other));
    }
}
