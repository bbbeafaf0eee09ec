//! `GET …/connections`: who is connected, here and on every other shard.
//!
//! A request flows in and becomes a question to the orchestrator; the orchestrator's question to this shard flows in
//! and becomes this shard's part. Always true: one question looks at a bounded number of connections, beginning with
//! the narrowest of what it names, so that it holds up nobody's events.

use super::join::show_conn;
use super::request::{Waiting, server_only, wrong_method};
use super::{Action, ApiAnswer, ApiRequest, Outcome, Pending, Shard};
use crate::admission::auth::Speaker;
use crate::base::{AppId, Name, Now, RoomId};
use crate::fanout::client::{Client, Phase};
use crate::fanout::index::TopicNo;
use crate::fanout::sub::Sub;
use crate::post::connections::{Connection, Connections, ConnectionsAsk};
use crate::post::letters::ToOrchestrator;
use crate::wire::json::{put_number, put_string};
use crate::wire::problem::Problem;
use crate::wire::topic::Scope;

const LIMIT_DEFAULT: u32 = 100;
const LIMIT_MAX: u32 = 1_000;
/// Connections that one question looks at on one shard: some milliseconds.
const LOOKS_MAX: usize = 65_536;

impl Shard {
    pub(super) fn get_connections(
        &mut self,
        request: &ApiRequest<'_>,
        app: AppId,
        app_name: &Name,
        speaker: &Speaker,
    ) -> Result<Outcome, Problem> {
        server_only(speaker, "connections are listed")?;
        if request.method != "GET" {
            return Err(wrong_method("GET, HEAD"));
        }
        let app_name = app_name.clone();
        let mut ask = ConnectionsAsk { app, app_name, channel: None, user: None, tag: None, limit: LIMIT_DEFAULT };
        for (key, value) in form_urlencoded::parse(request.query.as_bytes()) {
            let name = || {
                let bad = |error| Problem::new(400, "bad_name", format!("{key} {value:?}: {error}"));
                Name::new(&value).map_err(bad)
            };
            match &*key {
                "channel" => ask.channel = Some(name()?),
                "user" => ask.user = Some(name()?),
                "tag" => ask.tag = Some(name()?),
                "limit" => {
                    ask.limit =
                        value.parse().ok().filter(|limit| (1..=LIMIT_MAX).contains(limit)).ok_or_else(|| {
                            Problem::new(400, "bad_query", format!("limit is 1 to {LIMIT_MAX}, not {value:?}"))
                        })?;
                }
                _ => {}
            }
        }
        let ask = Box::new(ask);
        self.ask(Waiting::Connections, |ticket, asker| ToOrchestrator::AskConnections { ticket, asker, ask })
    }

    /// The orchestrator asks for this shard's part.
    pub(super) fn on_list_connections(&mut self, now: Now, number: u64, ask: &ConnectionsAsk) {
        let part = self.list_connections(now, ask);
        let shard = self.options.id;
        self.actions.push_back(Action::Ask(ToOrchestrator::ConnectionsPart { number, shard, part }));
    }

    fn list_connections(&self, now: Now, ask: &ConnectionsAsk) -> Connections {
        let mut found = Connections { list: Vec::new(), more: false, complete: true };
        // `None` is not asked for; `Some(None)` is asked for, and nobody here has it.
        let find = |scope, name: &Option<Name>| name.as_ref().map(|name| self.find_topic(scope, &ask.app_name, name));
        let user = find(Scope::User, &ask.user);
        let tag = find(Scope::Tag, &ask.tag);
        let channel = find(Scope::Channel, &ask.channel);
        match user.or(tag).or(channel) {
            Some(None) => {}
            Some(Some(narrowest)) => {
                let slots = self.index.members(narrowest).iter().map(|member| member.client);
                self.pick(now, ask, channel.flatten(), slots, &mut found);
            }
            None => self.pick(now, ask, None, 0..self.places.len() as u32, &mut found),
        }
        found
    }

    fn pick(
        &self,
        now: Now,
        ask: &ConnectionsAsk,
        channel: Option<TopicNo>,
        slots: impl Iterator<Item = u32>,
        found: &mut Connections,
    ) {
        for (looks, slot) in slots.enumerate() {
            // A place that is empty is looked at, too.
            if looks == LOOKS_MAX {
                found.more = true;
                return;
            }
            let Some(client) = self.places.get(slot as usize).and_then(|place| place.client.as_ref()) else { continue };
            let user = client.identity.as_ref().map(|identity| &identity.user);
            let fits = client.app == ask.app
                && client.phase == Phase::Open
                && (ask.user.is_none() || user == ask.user.as_ref())
                && ask
                    .tag
                    .as_ref()
                    .is_none_or(|tag| client.identity.as_ref().is_some_and(|own| own.tags.contains(tag)))
                && (ask.channel.is_none() || channel.is_some_and(|channel| client.sub(channel).is_some()));
            if !fits {
                continue;
            }
            if found.list.len() == ask.limit as usize {
                found.more = true;
                return;
            }
            let sub = channel.map_or(client.first.as_ref(), |channel| client.sub(channel));
            found.list.push(self.describe(now, client, sub));
        }
    }

    fn describe(&self, now: Now, client: &Client, sub: Option<&Sub>) -> Connection {
        let room = sub.and_then(|sub| {
            let channel = self.index.topic(sub.topic)?.name.clone();
            Some((channel, RoomId { n: sub.room, shard: self.options.id }))
        });
        let (mut lag_ms, mut queued) = (0, 0);
        if let Some(behind) = &client.behind {
            let mut unfinished = [0; 3];
            behind.rest.count(&mut unfinished);
            queued = behind.outbox.len() as u32 + unfinished.iter().sum::<u64>() as u32;
            // A write that is unfinished is as old as the moment at which the socket took less than it was given.
            let oldest = [behind.outbox.oldest_at_ms(), behind.blocked_since_ms].into_iter().flatten().min();
            lag_ms = oldest.map_or(0, |at_ms| now.mono_ms().saturating_sub(at_ms));
        }
        Connection {
            conn: client.conn,
            user: client.identity.as_ref().map(|identity| identity.user.clone()),
            room,
            shard: self.options.id,
            age_s: (now.mono_s() as u32).saturating_sub(client.since_s),
            lag_ms,
            queued,
        }
    }

    fn find_topic(&self, scope: Scope, app: &Name, name: &Name) -> Option<TopicNo> {
        let hash = self.hasher.hash(scope, app.as_str(), name.as_str());
        self.index.find(scope, hash, app.as_str(), name.as_str())
    }

    pub(super) fn on_connections_answer(&mut self, ticket: u64, answer: Result<Connections, Problem>) {
        if let Some(Pending::Request(Waiting::Connections)) = self.pending.remove(&ticket) {
            let answer = answer.map_or_else(Into::into, |found| ApiAnswer::json(200, show(&found)));
            self.actions.push_back(Action::Answer { ticket, answer });
        }
    }
}

/// `{"connections":[…],"more":…,"complete":…}`
fn show(found: &Connections) -> Vec<u8> {
    let mut body = Vec::with_capacity(160 * found.list.len() + 64);
    body.extend_from_slice(b"{\"connections\":[");
    for (i, one) in found.list.iter().enumerate() {
        body.extend_from_slice(if i > 0 { b",{\"id\":" } else { b"{\"id\":" });
        put_string(&mut body, &show_conn(one.conn));
        body.extend_from_slice(b",\"user\":");
        put_or_null(&mut body, one.user.as_ref().map(Name::as_str));
        body.extend_from_slice(b",\"room\":");
        put_or_null(&mut body, one.room.as_ref().map(|(channel, room)| room.name(channel)).as_deref());
        for (key, value) in [
            (&b",\"core\":"[..], u64::from(one.shard.0)),
            (b",\"age_s\":", u64::from(one.age_s)),
            (b",\"lag_ms\":", one.lag_ms),
            (b",\"queued\":", u64::from(one.queued)),
        ] {
            body.extend_from_slice(key);
            put_number(&mut body, value);
        }
        body.push(b'}');
    }
    body.extend_from_slice(b"],\"more\":");
    body.extend_from_slice(if found.more { b"true" } else { b"false" });
    body.extend_from_slice(b",\"complete\":");
    body.extend_from_slice(if found.complete { b"true}" } else { b"false}" });
    body
}

fn put_or_null(body: &mut Vec<u8>, text: Option<&str>) {
    match text {
        Some(text) => put_string(body, text),
        None => body.extend_from_slice(b"null"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::ShardId;

    #[test]
    fn an_answer_is_json() {
        let name = |text: &str| Name::new(text).unwrap();
        let known = Connection {
            conn: 255,
            user: Some(name("ann")),
            room: Some((name("race"), RoomId { n: 2, shard: ShardId(1) })),
            shard: ShardId(1),
            age_s: 3,
            lag_ms: 4,
            queued: 5,
        };
        let bare = Connection { user: None, room: None, ..known.clone() };
        let found = Connections { list: vec![known, bare], more: true, complete: false };
        assert_eq!(
            String::from_utf8(show(&found)).unwrap(),
            r#"{"connections":[{"id":"00000000000000ff","user":"ann","room":"race/1/2","core":1,"age_s":3,"lag_ms":4,"queued":5},{"id":"00000000000000ff","user":null,"room":null,"core":1,"age_s":3,"lag_ms":4,"queued":5}],"more":true,"complete":false}"#
        );
        assert_eq!(show(&Connections::default()), br#"{"connections":[],"more":false,"complete":false}"#);
    }
}
