//! What a client asks of us: one JSON text flows in, a checked [`Command`] or a [`CommandError`] flows out.
//!
//! Always true: fields that a command needs are there and are names where they must be, so nobody downstream looks
//! again. Strings are borrowed where the text has no escapes.

use std::borrow::Cow;

use serde::Deserialize;
use serde_json::value::RawValue;

use super::any_json::AnyJson;
use super::event::{EventKind, KindSet};
use super::filter::parse_filter;
use super::position::{Since, parse_epoch};
use super::presence::{PresenceState, STATUS_TEXT_BYTES_MAX, Status};
use crate::base::{Name, Ulid};

/// The longest `id` of a command that is echoed, in bytes of JSON.
pub const ID_BYTES_MAX: usize = 128;

/// A command.
#[derive(Debug)]
pub enum Command<'a> {
    /// Are you there?
    Ping,
    /// Watch a channel.
    Subscribe {
        /// Which.
        channel: Name,
        /// A position to resume from.
        since: Option<Since>,
        /// Which types to deliver.
        filter: KindSet,
    },
    /// Watch it no more.
    Unsubscribe {
        /// Which.
        channel: Name,
    },
    /// Post a message.
    Message {
        /// Where.
        channel: Name,
        /// What.
        body: PostBody<'a>,
    },
    /// I began or stopped typing.
    Typing {
        /// Where.
        channel: Name,
        /// Began.
        start: bool,
    },
    /// React to a message, or take a reaction back.
    Reaction {
        /// Where.
        channel: Name,
        /// Which message.
        message: Ulid,
        /// Which reaction: a name.
        kind: Name,
        /// It is added.
        add: bool,
    },
    /// Stored events of a channel.
    History {
        /// Which channel.
        channel: Name,
        /// Those before this seq.
        before: Option<u64>,
        /// Those after this seq.
        since: Option<u64>,
        /// At most so many.
        limit: Option<u32>,
    },
    /// A newer token.
    Auth {
        /// The token.
        token: Cow<'a, str>,
    },
    /// What the user says of itself.
    Status {
        /// What.
        status: Status,
    },
    /// A custom event.
    Event {
        /// Where.
        channel: Name,
        /// `custom.…`
        name: String,
        /// Any JSON.
        data: Option<AnyJson<'a>>,
    },
}

/// What was posted, not yet measured.
#[derive(Debug, Deserialize)]
pub struct PostBody<'a> {
    /// A string.
    #[serde(borrow, default)]
    pub text: Option<Cow<'a, str>>,
    /// Any JSON.
    #[serde(borrow, default)]
    pub data: Option<AnyJson<'a>>,
    /// The author, if a server key posts for one.
    #[serde(borrow, default)]
    pub user: Option<Cow<'a, str>>,
    /// The name to show for that author.
    #[serde(borrow, default)]
    pub name: Option<Cow<'a, str>>,
    /// Echoed in the ack.
    #[serde(borrow, default)]
    pub client_id: Option<Cow<'a, str>>,
}

/// A command with the id that its answer echoes, as JSON.
#[derive(Debug)]
pub struct Parsed<'a> {
    /// The id.
    pub id: Option<&'a str>,
    /// The command.
    pub command: Command<'a>,
}

/// Why a text is no command.
#[derive(Debug, PartialEq, Eq)]
pub struct CommandError {
    /// Stable, for programs.
    pub code: &'static str,
    /// For people.
    pub message: String,
    /// The id to echo, as JSON.
    pub id: Option<String>,
}

#[derive(Deserialize)]
struct Raw<'a> {
    #[serde(borrow)]
    r#type: Cow<'a, str>,
    #[serde(borrow, default)]
    id: Option<&'a RawValue>,
    #[serde(borrow, default)]
    channel: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    epoch: Option<Cow<'a, str>>,
    #[serde(default)]
    since: Option<u64>,
    #[serde(default)]
    before: Option<u64>,
    #[serde(default)]
    limit: Option<u32>,
    #[serde(borrow, default)]
    message: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    kind: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    token: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    filter: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    text: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    data: Option<AnyJson<'a>>,
    #[serde(borrow, default)]
    client_id: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    state: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    name: Option<Cow<'a, str>>,
}

/// The text begins as a JSON object does. The library would read a list as the fields of a structure in their order,
/// which nobody has promised.
#[must_use]
pub fn is_object(text: &[u8]) -> bool {
    text.trim_ascii_start().first() == Some(&b'{')
}

/// Reads one command.
///
/// # Errors
/// `malformed`, `unknown_type`, `missing_field`, `bad_field`; the connection lives on.
pub fn parse(text: &str) -> Result<Parsed<'_>, CommandError> {
    let malformed =
        |why: String| CommandError { code: "malformed", message: format!("not a command: {why}"), id: None };
    if !is_object(text.as_bytes()) {
        return Err(malformed("it is no JSON object".into()));
    }
    let raw: Raw<'_> = serde_json::from_str(text).map_err(|error| malformed(error.to_string()))?;
    let id = match raw.id.map(RawValue::get) {
        Some(id) if id.len() > ID_BYTES_MAX || id.starts_with(['{', '[']) => {
            return Err(CommandError {
                code: "bad_field",
                message: format!("id is a string or a number of at most {ID_BYTES_MAX} bytes"),
                id: None,
            });
        }
        id => id.filter(|id| *id != "null"),
    };
    let error = |code, message: String| CommandError { code, message, id: id.map(str::to_owned) };
    let channel = || match raw.channel.as_deref() {
        None => Err(error("missing_field", format!("{} needs a channel", raw.r#type))),
        Some(text) => Name::new(text).map_err(|bad| error("bad_field", format!("channel {text:?}: {bad}"))),
    };
    let command = match &*raw.r#type {
        "ping" => Command::Ping,
        "subscribe" => Command::Subscribe {
            channel: channel()?,
            since: match (raw.epoch.as_deref(), raw.since) {
                (Some(epoch), Some(seq)) => {
                    let epoch = parse_epoch(epoch).map_err(|problem| error("bad_field", problem.detail))?;
                    Some(Since { epoch, seq })
                }
                (None, None) => None,
                _ => return Err(error("bad_field", "a position is epoch and since together".into())),
            },
            filter: match raw.filter.as_deref() {
                Some(filter) => {
                    parse_filter(filter.split(',')).map_err(|problem| error("bad_field", problem.detail))?
                }
                None => KindSet::ALL,
            },
        },
        "unsubscribe" => Command::Unsubscribe { channel: channel()? },
        "message" => Command::Message {
            channel: channel()?,
            body: PostBody { text: raw.text, data: raw.data, user: None, name: None, client_id: raw.client_id },
        },
        "typing" => Command::Typing {
            channel: channel()?,
            start: match raw.state.as_deref() {
                Some("start") => true,
                Some("stop") => false,
                _ => return Err(error("bad_field", "state is \"start\" or \"stop\"".into())),
            },
        },
        "reaction" => Command::Reaction {
            channel: channel()?,
            message: match raw.message.as_deref() {
                Some(text) => {
                    Ulid::parse(text).ok_or_else(|| error("bad_field", format!("message {text:?} is no message id")))?
                }
                None => return Err(error("missing_field", "reaction needs a message".into())),
            },
            kind: match raw.kind.as_deref() {
                Some(text) => Name::new(text).map_err(|bad| error("bad_field", format!("kind {text:?}: {bad}")))?,
                None => return Err(error("missing_field", "reaction needs a kind".into())),
            },
            add: match raw.state.as_deref() {
                Some("add") => true,
                Some("remove") => false,
                _ => return Err(error("bad_field", "state is \"add\" or \"remove\"".into())),
            },
        },
        "history" => {
            if raw.before.is_some() && raw.since.is_some() {
                return Err(error("bad_field", "give before or since, not both".into()));
            }
            Command::History { channel: channel()?, before: raw.before, since: raw.since, limit: raw.limit }
        }
        "auth" => match raw.token {
            Some(token) => Command::Auth { token },
            None => return Err(error("missing_field", "auth needs a token".into())),
        },
        "status" => {
            let state = raw.state.as_deref().and_then(PresenceState::parse);
            let state =
                state.ok_or_else(|| error("bad_field", "state is \"online\", \"away\" or \"offline\"".into()))?;
            let text = raw.text.unwrap_or_default();
            if text.len() > STATUS_TEXT_BYTES_MAX {
                let detail = format!("text has {} bytes, at most {STATUS_TEXT_BYTES_MAX} are taken", text.len());
                return Err(error("bad_field", detail));
            }
            Command::Status { status: Status { state, text: text.into_owned() } }
        }
        "event" => Command::Event {
            channel: channel()?,
            name: match raw.name {
                Some(name) if EventKind::parse(&name) == Ok(EventKind::Custom) => name.into_owned(),
                Some(name) => {
                    return Err(error("bad_field", format!("name {name:?}: a client's events are named custom.…")));
                }
                None => return Err(error("missing_field", "event needs a name".into())),
            },
            data: raw.data,
        },
        other => return Err(error("unknown_type", format!("{other:?} is no command"))),
    };
    Ok(Parsed { id, command })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn good_commands() {
        let parsed =
            parse(r#"{"type":"subscribe","id":"a","channel":"race","epoch":"0f","since":3,"filter":"message.*"}"#);
        let Ok(Parsed { id: Some("\"a\""), command: Command::Subscribe { channel, since, filter } }) = parsed else {
            panic!()
        };
        assert_eq!(channel.as_str(), "race");
        assert_eq!(since, Some(Since { epoch: 15, seq: 3 }));
        assert!(!filter.contains(EventKind::TypingStart));
        let parsed = parse(r#"{"type":"message","channel":"race","text":"a\nb","data":{"x":[1]}}"#).unwrap();
        let Command::Message { body, .. } = parsed.command else { panic!() };
        assert_eq!((body.text.as_deref(), body.data.map(AnyJson::get)), (Some("a\nb"), Some(r#"{"x":[1]}"#)));
        let longest = "é".repeat(STATUS_TEXT_BYTES_MAX / 2);
        let text = format!(r#"{{"type":"status","state":"away","text":"{longest}"}}"#);
        let Command::Status { status } = parse(&text).unwrap().command else { panic!() };
        assert_eq!((status.state, status.text.as_str()), (PresenceState::Away, longest.as_str()));
        let Command::Status { status } = parse(r#"{"type":"status","state":"online"}"#).unwrap().command else {
            panic!()
        };
        assert_eq!(status, Status::default());
    }

    #[test]
    fn bad_commands_say_what_is_wrong_and_echo_the_id() {
        for (text, code, id) in [
            ("{", "malformed", None),
            ("[]", "malformed", None),
            (r#"["ping"]"#, "malformed", None),
            (r#"{"type":"fly","id":7}"#, "unknown_type", Some("7")),
            (r#"{"type":"subscribe","id":"q"}"#, "missing_field", Some("\"q\"")),
            (r#"{"type":"subscribe","channel":"a b"}"#, "bad_field", None),
            (r#"{"type":"subscribe","channel":"a","since":1}"#, "bad_field", None),
            (r#"{"type":"event","channel":"a","name":"message.new"}"#, "bad_field", None),
            (r#"{"type":"typing","channel":"a"}"#, "bad_field", None),
            (r#"{"type":"ping","id":{"a":1}}"#, "bad_field", None),
            (r#"{"type":"status","id":1}"#, "bad_field", Some("1")),
            (r#"{"type":"status","state":"asleep"}"#, "bad_field", None),
            (&format!(r#"{{"type":"status","state":"away","text":"{}"}}"#, "x".repeat(257)), "bad_field", None),
        ] {
            let error = parse(text).unwrap_err();
            assert_eq!((error.code, error.id.as_deref()), (code, id), "{text}");
        }
    }

    #[test]
    fn deep_nesting_is_an_error_not_a_crash() {
        let deep = format!(r#"{{"type":"ping","id":{}1{}}}"#, "[".repeat(100_000), "]".repeat(100_000));
        assert!(parse(&deep).is_err());
    }
}
