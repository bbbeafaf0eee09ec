//! What is done over HTTP to what is there: messages that are edited, deleted, retracted and reacted to, and users who are
//! banned.
//!
//! A request whose speaker is known flows in; a question to the orchestrator flows out. Always true: a user touches its own
//! messages only, which the orchestrator checks, and a ban is the backend's.

use super::Shard;
use super::join::no_right;
use super::posting::idempotency_key;
use super::request::{ApiRequest, Outcome, Waiting, not_found, parse_body, query_value, server_only, wrong_method};
use crate::admission::auth::Speaker;
use crate::admission::{AppOptions, validate};
use crate::base::{AppId, Name, Now, Ulid};
use crate::post::letters::{Ban, Draft, ToOrchestrator};
use crate::wire::event::EventKind;
use crate::wire::http::path_name;
use crate::wire::problem::Problem;
use crate::wire::topic::Topic;

/// What is done to a message.
pub(super) enum Change {
    Edit,
    Delete,
    Retract,
    /// A kind of reaction; added, or taken back.
    React(Name, bool),
}

impl Change {
    /// By method and by what stands behind the message's id in the path.
    pub(super) fn of(request: &ApiRequest<'_>, what: &[&str]) -> Result<Self, Problem> {
        match (what, request.method) {
            ([], "PATCH") => Ok(Self::Edit),
            ([], "DELETE") => Ok(Self::Delete),
            ([], _) => Err(wrong_method("PATCH, DELETE")),
            (["retract"], "POST") => Ok(Self::Retract),
            (["retract"], _) => Err(wrong_method("POST")),
            (["reactions", kind], "PUT") => Ok(Self::React(path_name(kind, "kind")?, true)),
            (["reactions", kind], "DELETE") => Ok(Self::React(path_name(kind, "kind")?, false)),
            (["reactions", _], _) => Err(wrong_method("PUT, DELETE")),
            _ => Err(not_found(request.path)),
        }
    }
}

#[derive(Default, serde::Deserialize)]
struct BanBody<'a> {
    #[serde(borrow, default)]
    channel: Option<std::borrow::Cow<'a, str>>,
    #[serde(default)]
    expires_at: Option<u64>,
}

impl Shard {
    /// Edits, deletes, retracts, reacts: the message is looked for by the orchestrator.
    #[allow(clippy::too_many_arguments, reason = "each is a different part of one request, checked before")]
    pub(super) fn change_message(
        &mut self,
        request: &ApiRequest<'_>,
        app: AppId,
        options: &AppOptions,
        speaker: &Speaker,
        topic: Topic,
        message: Ulid,
        change: Change,
    ) -> Result<Outcome, Problem> {
        let (user_id, user_name, by_server) = match speaker {
            Speaker::Anonymous => {
                return Err(Problem::new(401, "token_needed", "changing a message asks for a token or a server key"));
            }
            Speaker::User(identity) => {
                let right = match change {
                    Change::Edit | Change::Delete => identity.write,
                    Change::React(..) => identity.react,
                    Change::Retract => false,
                };
                if !right {
                    return Err(no_right(topic.name.as_str()));
                }
                (identity.user.as_str().to_owned(), identity.name.clone(), false)
            }
            Speaker::Server if matches!(change, Change::React(..)) => {
                return Err(Problem::new(403, "user_needed", "a reaction is a user's: use a token"));
            }
            Speaker::Server => (String::new(), String::new(), true),
        };
        let (kind, detail) = match change {
            Change::Edit => (EventKind::MessageUpdated, None),
            Change::Delete => (EventKind::MessageDeleted, None),
            Change::Retract => (EventKind::MessageRetracted, None),
            Change::React(kind, true) => (EventKind::ReactionNew, Some(kind)),
            Change::React(kind, false) => (EventKind::ReactionDeleted, Some(kind)),
        };
        let content = if kind == EventKind::MessageUpdated {
            validate::content(&parse_body(request.body)?, options.message_bytes_max)?
        } else {
            validate::Content { text: None, data: None, client_id: None }
        };
        options.check_words(content.text.as_deref(), content.data.as_deref())?;
        let idempotency_key = idempotency_key(request)?;
        let draft = Box::new(Draft {
            kind,
            target: Some(message),
            detail: detail.map(|kind| kind.as_str().to_owned()),
            app,
            topic,
            user_id,
            user_name,
            text: content.text,
            data: content.data,
            client_id: content.client_id,
            idempotency_key,
            by_server,
        });
        self.ask(Waiting::Post(200), |ticket, asker| ToOrchestrator::Post { ticket, asker, draft })
    }

    pub(super) fn ban(
        &mut self,
        now: Now,
        request: &ApiRequest<'_>,
        speaker: &Speaker,
        app: &Name,
        user: Name,
    ) -> Result<Outcome, Problem> {
        server_only(speaker, "bans are set")?;
        let body: BanBody<'_> = match request.method {
            "PUT" if request.body.is_empty() => BanBody::default(),
            "PUT" => parse_body(request.body)?,
            "DELETE" if request.body.is_empty() => {
                BanBody { channel: query_value(request, "channel"), expires_at: None }
            }
            "DELETE" => BanBody { expires_at: None, ..parse_body(request.body)? },
            _ => return Err(wrong_method("PUT, DELETE")),
        };
        if body.expires_at.is_some_and(|at| at <= now.wall_ms) {
            return Err(Problem::new(400, "bad_expires_at", "expires_at is Unix milliseconds and lies in the future"));
        }
        let channel = body.channel.as_deref().map(|channel| {
            Name::new(channel).map_err(|bad| Problem::new(400, "bad_name", format!("channel {channel:?}: {bad}")))
        });
        let ban = Ban { app: app.clone(), user, channel: channel.transpose()?, expires_ms: body.expires_at };
        let lift = request.method == "DELETE";
        self.ask(Waiting::Done(200), |ticket, asker| ToOrchestrator::Ban { ticket, asker, ban, lift })
    }
}
