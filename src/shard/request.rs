//! The HTTP API on the core that accepted the request: authorise, choose what is asked for, answer.
//!
//! A parsed request flows in; an answer, or a ticket under which the answer comes, flows out. Always true: every
//! refusal is a problem document, and who may do what is decided here in the order that protocol.md names.

use super::changing::Change;
use super::compose::{PAGE_DEFAULT, PAGE_MAX, page_members, range};
use super::join::{Origin, must_read, no_right};
use super::{Action, Pending, Shard};
use crate::admission::AppOptions;
use crate::admission::auth::{Speaker, authenticate};
use crate::admission::rate::Rate;
use crate::base::{Now, Ulid};
use crate::post::letters::{Page, Posted, ToOrchestrator};
use crate::wire::command::is_object;
use crate::wire::http::{bearer, path_name};
use crate::wire::json::{put_number, put_string};
use crate::wire::position::show_epoch;
use crate::wire::problem::Problem;
use crate::wire::sealed::Sealed;
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
    /// An event that is published if its user may say it.
    Word(Sealed),
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
        self.page_of(path.strip_prefix("/v1/")?.split('/').next()?, origin)
    }

    /// The same, for an app by its name.
    pub(super) fn page_of(&self, app: &str, origin: Option<&str>) -> Option<String> {
        let origin = origin?;
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
                    "POST" => self.post_event(now, request, app, &options, &speaker, topic),
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
                    ("events", "POST") => self.post_event(now, request, app, &options, &speaker, topic),
                    ("viewers" | "presence", _) => {
                        self.get_audience(now, request, &options, &speaker, topic, what == "presence")
                    }
                    ("alarm", _) => self.alarm(now, request, &options, &speaker, topic),
                    ("limits", _) => self.limits(request, &speaker, topic),
                    ("messages", _) => Err(wrong_method("GET, HEAD, POST")),
                    ("events", _) => Err(wrong_method("POST")),
                    _ => Err(wrong_method("GET, HEAD")),
                }
            }
            ["connections"] => self.get_connections(request, app, &name, &speaker),
            ["users", user, "events"] => {
                let user = path_name(user, "user")?;
                let topic = self.hasher.topic(Scope::User, &name, &user);
                match request.method {
                    "POST" => self.post_event(now, request, app, &options, &speaker, topic),
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
        let status = match self.pending.remove(&ticket) {
            Some(Pending::Request(Waiting::Done(status))) => status,
            Some(Pending::Request(Waiting::Word(sealed))) => {
                if answer.is_ok() {
                    self.actions.push_back(Action::Publish(sealed));
                }
                202
            }
            _ => return,
        };
        let answer = answer.map_or_else(Into::into, |()| ApiAnswer::json(status, b"{}".to_vec()));
        self.actions.push_back(Action::Answer { ticket, answer });
    }
}

pub(super) fn parse_body<'a, T: serde::Deserialize<'a>>(body: &'a [u8]) -> Result<T, Problem> {
    let malformed = |why: String| Problem::new(400, "malformed_body", format!("the body is no such JSON: {why}"));
    if !is_object(body) {
        return Err(malformed("it is no object".into()));
    }
    serde_json::from_slice(body).map_err(|error| malformed(error.to_string()))
}

/// What the query says of `name`, if it does.
pub(super) fn query_value<'a>(request: &ApiRequest<'a>, name: &str) -> Option<std::borrow::Cow<'a, str>> {
    form_urlencoded::parse(request.query.as_bytes()).find(|(key, _)| key == name).map(|(_, value)| value)
}

/// Refuses everybody but the app's backend; `what` begins a sentence, such as "bans are set".
pub(super) fn server_only(speaker: &Speaker, what: &str) -> Result<(), Problem> {
    if *speaker != Speaker::Server {
        return Err(Problem::new(403, "server_key_needed", format!("{what} with the server key")));
    }
    Ok(())
}

pub(super) fn may_read(options: &AppOptions, speaker: &Speaker) -> Result<(), Problem> {
    match speaker {
        Speaker::Anonymous if !options.anonymous_read => {
            Err(Problem::new(401, "token_needed", "this app asks readers for a token"))
        }
        Speaker::User(identity) => must_read(identity),
        Speaker::Anonymous | Speaker::Server => Ok(()),
    }
}

pub(super) fn not_found(path: &str) -> Problem {
    Problem::new(404, "not_found", format!("nothing is at {path:?}"))
}

pub(super) fn wrong_method(allowed: &'static str) -> Problem {
    Problem::new(405, "method", format!("use {allowed}")).with_header("allow", allowed)
}
