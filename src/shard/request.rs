//! The HTTP API on the core that accepted the request: validate, authorise, then ask the orchestrator or publish.
//!
//! A parsed request flows in; an answer, or a ticket under which the answer comes, flows out. Always true: every
//! refusal is a problem document, and who may do what is decided here in the order that protocol.md names.

use super::compose::{PAGE_DEFAULT, PAGE_MAX, page_members, range};
use super::join::{Origin, no_right};
use super::{Action, Pending, Shard};
use crate::admission::auth::{Speaker, authenticate};
use crate::admission::rate::Rate;
use crate::admission::{AppOptions, validate};
use crate::base::{AppId, Class, Name, Now, Ulid};
use crate::post::letters::{Ban, Draft, Page, Posted, ToOrchestrator};
use crate::wire::any_json::AnyJson;
use crate::wire::command::{PostBody, is_object};
use crate::wire::event::{EventKind, Sources};
use crate::wire::http::{bearer, path_name, show_epoch};
use crate::wire::posted_event::{PostedEvent, checked_user};
use crate::wire::problem::Problem;
use crate::wire::sealed::{Event, Sealed, put_number, put_string};
use crate::wire::topic::{Scope, Topic};

/// A request of the API.
#[derive(Debug)]
pub struct ApiRequest<'a> {
    /// `GET`, `POST` …
    pub method: &'a str,
    /// Without the query.
    pub path: &'a str,
    /// Without its question mark.
    pub query: &'a str,
    /// `Authorization`.
    pub authorization: Option<&'a str>,
    /// `Idempotency-Key`.
    pub idempotency_key: Option<&'a str>,
    /// `Origin`.
    pub origin: Option<&'a str>,
    /// The whole body.
    pub body: &'a [u8],
    /// Where it comes from.
    pub from: Origin,
}

/// An answer of the API.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ApiAnswer {
    /// The HTTP status.
    pub status: u16,
    /// `Content-Type`.
    pub content_type: &'static str,
    /// The body.
    pub body: Vec<u8>,
    /// Further fields.
    pub fields: Vec<(&'static str, String)>,
}

impl ApiAnswer {
    /// JSON.
    #[must_use]
    pub fn json(status: u16, body: Vec<u8>) -> Self {
        Self { status, content_type: "application/json", body, fields: Vec::new() }
    }
}

impl From<Problem> for ApiAnswer {
    fn from(problem: Problem) -> Self {
        let mut fields = Vec::new();
        if let Some(seconds) = problem.retry_after_s {
            fields.push(("retry-after", seconds.to_string()));
        }
        fields.extend(problem.header.as_deref().cloned());
        Self { status: problem.status, content_type: "application/problem+json", body: problem.body(), fields }
    }
}

/// What became of a request.
#[derive(Debug)]
pub enum Outcome {
    /// It is answered.
    Done(ApiAnswer),
    /// The answer comes as an action with this ticket.
    Wait(u64),
}

/// A request that waits for the orchestrator, or for a partition shard.
#[derive(Debug)]
pub(super) enum Waiting {
    /// Something stored, answered with this status.
    Post(u16),
    Page,
    /// How many watch a channel, or who; answered until then, in monotonic milliseconds.
    Audience {
        roster: bool,
        until_ms: u64,
    },
    Connections,
    /// Something that is done or not, answered with this status.
    Done(u16),
}

/// What is done to a message.
enum Change {
    Edit,
    Delete,
    Retract,
    /// A kind of reaction; added, or taken back.
    React(Name, bool),
}

impl Change {
    /// By method and by what stands behind the message's id in the path.
    fn of(request: &ApiRequest<'_>, what: &[&str]) -> Result<Self, Problem> {
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
    /// A request came in whole.
    pub fn on_request(&mut self, now: Now, request: &ApiRequest<'_>) -> Outcome {
        match self.handle(now, request) {
            Ok(outcome) => outcome,
            Err(problem) => Outcome::Done(problem.into()),
        }
    }

    /// The page that may read the answer, if it is one of another origin that this app allows.
    #[must_use]
    pub fn cors_origin(&self, path: &str, origin: Option<&str>) -> Option<String> {
        let origin = origin?;
        let app = path.strip_prefix("/v1/")?.split('/').next()?;
        let (_, options) = self.apps.find(app).ok()?;
        options.check_origin(Some(origin)).ok().map(|()| origin.to_owned())
    }

    /// The waiting request of this ticket is gone; the answer to come finds nobody.
    pub fn on_request_gone(&mut self, ticket: u64) {
        if let Some(Pending::Request(Waiting::Audience { until_ms, .. })) = self.pending.remove(&ticket) {
            self.attendance.forget_ask(ticket, until_ms);
        }
    }

    fn handle(&mut self, now: Now, request: &ApiRequest<'_>) -> Result<Outcome, Problem> {
        if let Some(address) = request.from.address
            && let Rate::Limited { retry_after_s } = self.address_rate.check(now, address)
        {
            let problem = Problem::new(429, "address_over_rate", "too many requests from this address");
            return Err(problem.retry_after(retry_after_s));
        }
        let parts: Vec<&str> = request.path.split('/').collect();
        let ["", "v1", app_part, ref rest @ ..] = parts[..] else { return Err(not_found(request.path)) };
        let name = path_name(app_part, "app")?;
        let (app, options) = self.apps.find(name.as_str())?;
        let options = options.clone();
        options.check_source(request.from.loopback)?;
        options.check_origin(request.origin)?;
        let credential = request.authorization.map(bearer).transpose()?;
        let speaker = authenticate(&options, credential, now.wall_ms)?;
        match *rest {
            ["channels", channel, "messages", message, ref what @ ..] => {
                let channel = path_name(channel, "channel")?;
                let topic = self.hasher.topic(Scope::Channel, &name, &channel);
                if let Speaker::User(identity) = &speaker
                    && !identity.may_touch(channel.as_str())
                {
                    return Err(no_right(channel.as_str()));
                }
                let change = Change::of(request, what)?;
                let message = Ulid::parse(message)
                    .ok_or_else(|| Problem::new(400, "bad_message_id", format!("{message:?} is no message id")))?;
                self.change_message(request, app, &options, &speaker, topic, message, change)
            }
            ["bans", user] => {
                let user = path_name(user, "user")?;
                self.ban(now, request, &speaker, &name, user)
            }
            ["tags", tag, "events"] => {
                let tag = path_name(tag, "tag")?;
                let topic = self.hasher.topic(Scope::Tag, &name, &tag);
                match request.method {
                    "POST" => self.post_event(now, request, &options, &speaker, topic),
                    _ => Err(wrong_method("POST")),
                }
            }
            ["channels", channel, what @ ("messages" | "events" | "viewers" | "presence" | "alarm" | "limits")] => {
                let channel = path_name(channel, "channel")?;
                let topic = self.hasher.topic(Scope::Channel, &name, &channel);
                if let Speaker::User(identity) = &speaker
                    && !identity.may_touch(channel.as_str())
                {
                    return Err(no_right(channel.as_str()));
                }
                match (what, request.method) {
                    ("messages", "POST") => self.post_message(request, app, &options, &speaker, topic),
                    ("messages", "GET") => self.get_messages(request, &options, &speaker, topic),
                    ("events", "POST") => self.post_event(now, request, &options, &speaker, topic),
                    ("viewers" | "presence", _) => {
                        self.get_audience(now, request, &options, &speaker, topic, what == "presence")
                    }
                    ("alarm", _) => self.alarm(now, request, &options, &speaker, topic),
                    ("limits", _) => self.limits(request, &speaker, topic),
                    ("messages", _) => Err(wrong_method("GET, POST")),
                    ("events", _) => Err(wrong_method("POST")),
                    _ => Err(wrong_method("GET")),
                }
            }
            ["connections"] => self.get_connections(request, app, &name, &speaker),
            ["users", user, "events"] => {
                let user = path_name(user, "user")?;
                let topic = self.hasher.topic(Scope::User, &name, &user);
                match request.method {
                    "POST" => self.post_event(now, request, &options, &speaker, topic),
                    _ => Err(wrong_method("POST")),
                }
            }
            _ => Err(not_found(request.path)),
        }
    }

    pub(super) fn ask(
        &mut self,
        waiting: Waiting,
        letter: impl FnOnce(u64, crate::base::ShardId) -> ToOrchestrator,
    ) -> Result<Outcome, Problem> {
        if self.draining.is_some() && matches!(waiting, Waiting::Post(_)) {
            return Err(Problem::new(503, "draining", "this node is going away").retry_after(5));
        }
        if self.asks_are_full() {
            return Err(Problem::new(503, "busy", "too many requests wait on this core").retry_after(1));
        }
        let ticket = self.ticket(Pending::Request(waiting));
        self.actions.push_back(Action::Ask(letter(ticket, self.options.id)));
        Ok(Outcome::Wait(ticket))
    }

    fn post_message(
        &mut self,
        request: &ApiRequest<'_>,
        app: AppId,
        options: &AppOptions,
        speaker: &Speaker,
        topic: Topic,
    ) -> Result<Outcome, Problem> {
        let body: PostBody<'_> = parse_body(request.body)?;
        let content = validate::content(&body, options.message_bytes_max)?;
        let idempotency_key = match request.idempotency_key {
            Some(key) if key.is_empty() || key.len() > validate::CLIENT_ID_BYTES_MAX => {
                let detail = format!("Idempotency-Key has 1 to {} bytes", validate::CLIENT_ID_BYTES_MAX);
                return Err(Problem::new(400, "bad_idempotency_key", detail));
            }
            key => key.map(str::to_owned),
        };
        let (user_id, user_name, by_server) = match speaker {
            Speaker::Anonymous => {
                return Err(Problem::new(401, "token_needed", "posting asks for a token or a server key"));
            }
            Speaker::User(identity) if !identity.write => return Err(no_right(topic.name.as_str())),
            Speaker::User(identity) => (identity.user.as_str().to_owned(), identity.name.clone(), false),
            Speaker::Server => {
                let user = body.user.as_deref().map(checked_user).transpose()?.unwrap_or_default();
                let name = body.name.as_deref().unwrap_or_default();
                if name.len() > validate::USER_NAME_BYTES_MAX {
                    let detail = format!("name has at most {} bytes", validate::USER_NAME_BYTES_MAX);
                    return Err(Problem::new(400, "name_too_long", detail));
                }
                (user, name.to_owned(), true)
            }
        };
        options.check_words(content.text.as_deref(), content.data.as_deref())?;
        let draft = Box::new(Draft {
            kind: EventKind::MessageNew,
            target: None,
            detail: None,
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
        self.ask(Waiting::Post(201), |ticket, asker| ToOrchestrator::Post { ticket, asker, draft })
    }

    /// Edits, deletes, retracts, reacts: the message is looked for by the orchestrator.
    #[allow(clippy::too_many_arguments, reason = "each is a different part of one request, checked before")]
    fn change_message(
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
            idempotency_key: request.idempotency_key.map(str::to_owned),
            by_server,
        });
        self.ask(Waiting::Post(200), |ticket, asker| ToOrchestrator::Post { ticket, asker, draft })
    }

    fn ban(
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
            "DELETE" => {
                let channel = form_urlencoded::parse(request.query.as_bytes()).find(|(key, _)| key == "channel");
                BanBody { channel: channel.map(|(_, value)| value.into_owned().into()), expires_at: None }
            }
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

    fn get_messages(
        &mut self,
        request: &ApiRequest<'_>,
        options: &AppOptions,
        speaker: &Speaker,
        topic: Topic,
    ) -> Result<Outcome, Problem> {
        may_read(options, speaker)?;
        let (mut before, mut since, mut limit) = (None, None, PAGE_DEFAULT);
        for (key, value) in form_urlencoded::parse(request.query.as_bytes()) {
            let number = || {
                let detail = format!("{key} {value:?} is not a whole number");
                value.parse::<u64>().map_err(|_| Problem::new(400, "bad_query", detail))
            };
            match &*key {
                "before" => before = Some(number()?),
                "since" => since = Some(number()?),
                "limit" => {
                    let asked = u32::try_from(number()?).ok().filter(|asked| (1..=PAGE_MAX).contains(asked));
                    limit = asked.ok_or_else(|| Problem::new(400, "bad_query", format!("limit is 1 to {PAGE_MAX}")))?;
                }
                _ => {}
            }
        }
        if before.is_some() && since.is_some() {
            return Err(Problem::new(400, "bad_query", "give `before` or `since`, not both"));
        }
        let range = range(before, since);
        self.ask(Waiting::Page, |ticket, asker| ToOrchestrator::AskPage { ticket, asker, topic, range, limit })
    }

    fn post_event(
        &mut self,
        now: Now,
        request: &ApiRequest<'_>,
        options: &AppOptions,
        speaker: &Speaker,
        topic: Topic,
    ) -> Result<Outcome, Problem> {
        let body: PostedEvent<'_> = parse_body(request.body)?;
        let kind = body.kind()?;
        let event = match speaker {
            Speaker::Anonymous => {
                return Err(Problem::new(401, "token_needed", "posting asks for a token or a server key"));
            }
            Speaker::User(identity) => {
                let right = match kind {
                    EventKind::Custom => identity.custom,
                    EventKind::TypingStart | EventKind::TypingStop => identity.typing,
                    _ => false,
                };
                if !right || topic.scope != Scope::Channel {
                    return Err(no_right(topic.name.as_str()));
                }
                options.check_words(None, body.data.map(AnyJson::get))?;
                Event {
                    user_id: identity.user.as_str().to_owned(),
                    user_name: identity.name.clone(),
                    ..body.into_event(kind, Sources::USER, topic, now.wall_ms, options.message_bytes_max)?
                }
            }
            Speaker::Server => body.into_event(kind, Sources::SERVER, topic, now.wall_ms, options.message_bytes_max)?,
        };
        let sealed = Sealed::seal(&event).map_err(|bad| Problem::new(413, "message_too_large", bad.to_string()))?;
        if kind.row().class == Class::Critical {
            // It may not be lost, so it takes a credit, and those are the orchestrator's.
            return self.ask(Waiting::Done(202), |ticket, asker| ToOrchestrator::Publish { ticket, asker, sealed });
        }
        self.actions.push_back(Action::Publish(sealed));
        Ok(Outcome::Done(ApiAnswer::json(202, b"{}".to_vec())))
    }

    pub(super) fn on_request_posted(&mut self, ticket: u64, waiting: &Waiting, answer: Result<Posted, Problem>) {
        let &Waiting::Post(status) = waiting else { return };
        let answer = match answer {
            Ok(posted) => {
                let mut body = Vec::with_capacity(128);
                body.extend_from_slice(b"{\"id\":");
                put_string(&mut body, &posted.id.to_string());
                body.extend_from_slice(b",\"seq\":");
                put_number(&mut body, posted.seq);
                body.extend_from_slice(b",\"epoch\":");
                put_string(&mut body, &show_epoch(posted.epoch));
                body.extend_from_slice(b",\"created_at\":");
                put_number(&mut body, posted.created_at_ms);
                body.push(b'}');
                ApiAnswer::json(status, body)
            }
            Err(problem) => problem.into(),
        };
        self.actions.push_back(Action::Answer { ticket, answer });
    }

    pub(super) fn on_request_page(&mut self, ticket: u64, waiting: &Waiting, answer: Result<Page, Problem>) {
        debug_assert!(matches!(waiting, Waiting::Page));
        let answer = match answer {
            Ok(page) => {
                let body = [&b"{"[..], &page_members(&page), b"}"].concat();
                ApiAnswer::json(200, body)
            }
            Err(problem) => problem.into(),
        };
        self.actions.push_back(Action::Answer { ticket, answer });
    }

    pub(super) fn on_done(&mut self, ticket: u64, answer: Result<(), Problem>) {
        if let Some(Pending::Request(Waiting::Done(status))) = self.pending.remove(&ticket) {
            let answer = answer.map_or_else(Into::into, |()| ApiAnswer::json(status, b"{}".to_vec()));
            self.actions.push_back(Action::Answer { ticket, answer });
        }
    }
}

pub(super) fn parse_body<'a, T: serde::Deserialize<'a>>(body: &'a [u8]) -> Result<T, Problem> {
    let malformed = |why: String| Problem::new(400, "malformed_body", format!("the body is no such JSON: {why}"));
    if !is_object(body) {
        return Err(malformed("it is no object".into()));
    }
    serde_json::from_slice(body).map_err(|error| malformed(error.to_string()))
}

/// Refuses everybody but the app's backend; `what` begins a sentence, such as "bans are set".
pub(super) fn server_only(speaker: &Speaker, what: &str) -> Result<(), Problem> {
    if *speaker != Speaker::Server {
        return Err(Problem::new(403, "server_key_needed", format!("{what} with the server key")));
    }
    Ok(())
}

pub(super) fn may_read(options: &AppOptions, speaker: &Speaker) -> Result<(), Problem> {
    if *speaker == Speaker::Anonymous && !options.anonymous_read {
        return Err(Problem::new(401, "token_needed", "this app asks readers for a token"));
    }
    Ok(())
}

fn not_found(path: &str) -> Problem {
    Problem::new(404, "not_found", format!("nothing is at {path:?}"))
}

pub(super) fn wrong_method(allowed: &'static str) -> Problem {
    Problem::new(405, "method", format!("use {allowed}")).with_header("allow", allowed)
}
