//! What a client writes by command: messages, reactions, pages it asks for, newer tokens.
//!
//! A parsed command flows in; a question to the orchestrator, or an answer at once, flows out. Always true: who has no
//! token, or one that has run out, writes nothing.

use super::join::{must_read, no_right};
use super::{Action, Pending, Shard};
use crate::admission::validate;
use crate::base::{ClientId, Name, Now, Ulid};
use crate::fanout::client::Client;
use crate::post::letters::{Draft, Identity, Page, Range, ToOrchestrator};
use crate::wire::command::PostBody;
use crate::wire::event::EventKind;
use crate::wire::json::{put_json, put_number, put_string};
use crate::wire::position::show_epoch;
use crate::wire::problem::Problem;
use crate::wire::reply;
use crate::wire::sealed::Sealed;
use crate::wire::topic::Topic;

/// Events of one page at the most.
pub(super) const PAGE_MAX: u32 = 100;
/// Events of one page if nothing is asked.
pub(super) const PAGE_DEFAULT: u32 = 50;

impl Shard {
    /// The client as a writer to this channel.
    pub(super) fn writer(
        &self,
        now: Now,
        id: ClientId,
        channel: &Name,
    ) -> Result<(Topic, &Client, &Identity), Problem> {
        let (topic, client) = self.topic_of(id, channel)?;
        match client.identity.as_deref() {
            None => Err(Problem::new(403, "anonymous", "who has no token reads only")),
            Some(identity) if identity.expires_ms <= now.wall_ms => {
                Err(Problem::new(401, "token_expired", "the token has expired: send a newer one with `auth`"))
            }
            Some(identity) => Ok((topic, client, identity)),
        }
    }

    pub(super) fn command_message(
        &mut self,
        now: Now,
        id: ClientId,
        command_id: Option<&str>,
        channel: &Name,
        body: &PostBody<'_>,
    ) -> Result<(), Problem> {
        let (topic, client, identity) = self.writer(now, id, channel)?;
        if !identity.write {
            return Err(no_right(channel.as_str()));
        }
        let Some(app) = self.apps.get(client.app) else { return Err(Problem::new(404, "gone", "the app is gone")) };
        let content = validate::content(body, app.message_bytes_max)?;
        app.check_words(content.text.as_deref(), content.data.as_deref())?;
        let draft = Draft {
            kind: EventKind::MessageNew,
            target: None,
            detail: None,
            app: client.app,
            topic,
            user_id: identity.user.as_str().into(),
            user_name: identity.name.clone(),
            text: content.text,
            data: content.data,
            client_id: content.client_id,
            idempotency_key: None,
            by_server: false,
        };
        self.post_for(id, command_id, draft)
    }

    pub(super) fn command_reaction(
        &mut self,
        id: ClientId,
        command_id: Option<&str>,
        channel: &Name,
        message: Ulid,
        kind: &Name,
        add: bool,
    ) -> Result<(), Problem> {
        let (topic, client) = self.topic_of(id, channel)?;
        let Some(identity) = client.identity.as_deref().filter(|identity| identity.react) else {
            return Err(no_right(channel.as_str()));
        };
        let draft = Draft {
            kind: if add { EventKind::ReactionNew } else { EventKind::ReactionDeleted },
            target: Some(message),
            detail: Some(kind.as_str().to_owned()),
            app: client.app,
            topic,
            user_id: identity.user.as_str().into(),
            user_name: identity.name.clone(),
            text: None,
            data: None,
            client_id: None,
            idempotency_key: None,
            by_server: false,
        };
        self.post_for(id, command_id, draft)
    }

    fn post_for(&mut self, id: ClientId, command_id: Option<&str>, draft: Draft) -> Result<(), Problem> {
        if self.asks_are_full() {
            return Err(Problem::new(503, "busy", "too many requests wait on this core").retry_after(1));
        }
        let client_id = draft.client_id.clone();
        let ticket = self.ticket(Pending::Message { client: id, id: command_id.map(str::to_owned), client_id });
        let asker = self.options.id;
        self.actions.push_back(Action::Ask(ToOrchestrator::Post { ticket, asker, draft: Box::new(draft) }));
        Ok(())
    }

    pub(super) fn command_history(
        &mut self,
        id: ClientId,
        command_id: Option<&str>,
        channel: &Name,
        before: Option<u64>,
        since: Option<u64>,
        limit: Option<u32>,
    ) -> Result<(), Problem> {
        let (topic, _) = self.topic_of(id, channel)?;
        let limit = limit.unwrap_or(PAGE_DEFAULT);
        if !(1..=PAGE_MAX).contains(&limit) {
            return Err(Problem::new(400, "bad_field", format!("limit is 1 to {PAGE_MAX}")));
        }
        if self.asks_are_full() {
            return Err(Problem::new(503, "busy", "too many requests wait on this core").retry_after(1));
        }
        let (id_text, latest) = (command_id.map(str::to_owned), since.is_none());
        let pending = Pending::History { client: id, id: id_text, channel: channel.clone(), latest };
        self.ask_page(pending, topic, range(before, since), limit);
        Ok(())
    }

    pub(super) fn on_history_page(
        &mut self,
        now: Now,
        client: ClientId,
        id: Option<&str>,
        channel: &Name,
        latest: bool,
        answer: Result<Page, Problem>,
    ) {
        let frame = match answer {
            Ok(mut page) => {
                // Twice as much would not find room in its queue, and it would be taken for too slow.
                fit(&mut page, self.options.outbox.bytes_max as usize / 2, latest);
                let members = String::from_utf8(page_members(&page)).unwrap_or_default();
                reply::history(id, channel.as_str(), &members)
            }
            Err(problem) => reply::error(id, problem.code, &problem.detail),
        };
        self.reply(now, client, frame);
    }

    /// A newer token of the same user, or a first one: it carries its own tags, and no channel is watched that it does not
    /// name.
    fn follow_token(&mut self, now: Now, id: ClientId, app: &Name) {
        let Some(client) = self.client_mut(id) else { return };
        for (topic, position) in client.places.take() {
            self.index.unsubscribe(topic, position);
        }
        self.watch_identity(now, id, app);
        let Some(client) = self.client(id) else { return };
        let lost = client.subs().filter_map(|sub| {
            let channel = &self.index.topic(sub.topic)?.name;
            let may_touch = client.identity.as_ref().is_none_or(|identity| identity.may_touch(channel.as_str()));
            (!may_touch).then(|| (sub.topic, channel.clone()))
        });
        // The first last: the others may wait for the answer to it, and are not let in any more.
        for (no, channel) in lost.collect::<Vec<_>>().into_iter().rev() {
            self.leave_answered(now, id, no);
            self.reply(now, id, reply::unsubscribed(None, channel.as_str()));
        }
    }

    /// A newer token of the same user; a reader without one becomes that user.
    pub(super) fn command_auth(
        &mut self,
        now: Now,
        id: ClientId,
        command_id: Option<&str>,
        token: &str,
    ) -> Result<Vec<u8>, Problem> {
        let gone = || Problem::new(404, "gone", "the connection is gone");
        let client = self.client(id).ok_or_else(gone)?;
        let app = self.apps.get(client.app).ok_or_else(gone)?.clone();
        let identity = crate::admission::auth::check_token(&app, token, now.wall_ms)?;
        must_read(&identity)?;
        let known = client.identity.as_ref().map(|known| known.user.clone());
        if known.as_ref().is_some_and(|known| *known != identity.user) {
            return Err(Problem::new(403, "another_user", "the token is another user's: open a connection for it"));
        }
        let (user, expires_ms) = (identity.user.clone(), identity.expires_ms);
        let Some(client) = self.client_mut(id) else { return Err(gone()) };
        // A newer token lifts no ban.
        let banned = client.identity.take().map(|known| known.banned).unwrap_or_default();
        client.identity = Some(Box::new(Identity { banned, ..identity }));
        client.expiry_told = false;
        self.attend_as(id, known.as_ref());
        self.follow_token(now, id, &app.name);
        if known.is_none() {
            self.ask_bans(id, &app.name);
        }
        self.schedule_expiry(now, id);
        Ok(reply::authenticated(command_id, user.as_str(), expires_ms))
    }
}

/// The range that a page is asked for by.
pub(super) fn range(before: Option<u64>, since: Option<u64>) -> Range {
    match (before, since) {
        (Some(seq), _) => Range::Before(seq),
        (None, Some(seq)) => Range::Since(seq),
        (None, None) => Range::Latest,
    }
}

/// Leaves out what makes a page longer than so many bytes, but never its last event: the oldest of the latest, else the
/// newest. Who wants them asks on from where this one ends.
fn fit(page: &mut Page, bytes_max: usize, latest: bool) {
    let mut bytes = 0;
    let mut fits = |sealed: &Sealed| {
        bytes += sealed.json_frame().len();
        bytes <= bytes_max
    };
    if latest {
        let kept = page.events.iter().rev().take_while(|sealed| fits(sealed)).count().max(1);
        page.events.drain(..page.events.len().saturating_sub(kept));
    } else {
        let kept = page.events.iter().take_while(|sealed| fits(sealed)).count().max(1);
        page.events.truncate(kept);
    }
}

/// A page as the members of a JSON object: `"messages":[…],"epoch":…,"head":…`.
pub(super) fn page_members(page: &Page) -> Vec<u8> {
    let mut body = Vec::with_capacity(256 * page.events.len() + 64);
    body.extend_from_slice(b"\"messages\":[");
    for (i, sealed) in page.events.iter().enumerate() {
        if i > 0 {
            body.push(b',');
        }
        put_json(&mut body, &sealed.to_event());
    }
    body.extend_from_slice(b"],\"epoch\":");
    put_string(&mut body, &show_epoch(page.epoch));
    body.extend_from_slice(b",\"head\":");
    put_number(&mut body, page.head);
    body
}
