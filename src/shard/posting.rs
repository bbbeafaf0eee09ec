//! What is posted over HTTP: messages, which are stored, and events, which are not.
//!
//! A request whose speaker is known flows in; a draft for the orchestrator, or an event for the bus, flows out. Always
//! true: nobody posts in another's name but the app's backend, and what must not be lost is answered when it is kept.

use super::join::no_right;
use super::request::{ApiAnswer, ApiRequest, Outcome, Waiting, parse_body};
use super::{Action, Shard};
use crate::admission::auth::Speaker;
use crate::admission::{AppOptions, validate};
use crate::base::{AppId, Class, Now};
use crate::post::letters::{Draft, ToOrchestrator};
use crate::wire::any_json::AnyJson;
use crate::wire::command::PostBody;
use crate::wire::event::{EventKind, Sources};
use crate::wire::posted_event::{PostedEvent, checked_user};
use crate::wire::problem::Problem;
use crate::wire::sealed::{Event, Sealed};
use crate::wire::topic::{Scope, Topic};

impl Shard {
    pub(super) fn post_message(
        &mut self,
        request: &ApiRequest<'_>,
        app: AppId,
        options: &AppOptions,
        speaker: &Speaker,
        topic: Topic,
    ) -> Result<Outcome, Problem> {
        let body: PostBody<'_> = parse_body(request.body)?;
        let content = validate::content(&body, options.message_bytes_max)?;
        let idempotency_key = idempotency_key(request)?;
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

    pub(super) fn post_event(
        &mut self,
        now: Now,
        request: &ApiRequest<'_>,
        app: AppId,
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
        if let Speaker::User(identity) = speaker {
            // Bans and what a user may post in a minute are the orchestrator's.
            let (channel, user) = (sealed.topic().clone(), identity.user.clone());
            return self.ask(Waiting::Word(sealed), |ticket, asker| ToOrchestrator::AskWord {
                ticket,
                asker,
                app,
                channel,
                user,
            });
        }
        self.actions.push_back(Action::Publish(sealed));
        Ok(Outcome::Done(ApiAnswer::json(202, b"{}".to_vec())))
    }
}

/// The key under which a repeat gets the first answer, if there is one.
pub(super) fn idempotency_key(request: &ApiRequest<'_>) -> Result<Option<String>, Problem> {
    match request.idempotency_key {
        Some(key) if key.is_empty() || key.len() > validate::CLIENT_ID_BYTES_MAX => {
            let detail = format!("Idempotency-Key has 1 to {} bytes", validate::CLIENT_ID_BYTES_MAX);
            Err(Problem::new(400, "bad_idempotency_key", detail))
        }
        key => Ok(key.map(str::to_owned)),
    }
}
