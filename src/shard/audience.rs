//! `GET …/viewers` and `GET …/presence`: how many watch a channel, and who.
//!
//! A request flows in and becomes a question to the channel's partition shard; its answer becomes the answer. Always
//! true: a question is answered once, at the latest when its time is over; and a roster is given only while members are
//! told one by one, so its length is bounded.

use super::request::{Waiting, may_read, wrong_method};
use super::{Action, ApiAnswer, ApiRequest, Outcome, Pending, Shard};
use crate::admission::AppOptions;
use crate::admission::auth::Speaker;
use crate::base::Now;
use crate::post::presence::{Audience, Present, ToPresence};
use crate::wire::json::{put_number, put_string};
use crate::wire::problem::Problem;
use crate::wire::topic::Topic;

/// How long the partition shard has, in milliseconds.
const PATIENCE_MS: u64 = 2_000;

impl Shard {
    /// How many watch the channel, or, if `roster` says so, who.
    pub(super) fn get_audience(
        &mut self,
        now: Now,
        request: &ApiRequest<'_>,
        options: &AppOptions,
        speaker: &Speaker,
        topic: Topic,
        roster: bool,
    ) -> Result<Outcome, Problem> {
        if request.method != "GET" {
            return Err(wrong_method("GET, HEAD"));
        }
        may_read(options, speaker)?;
        if self.pending.len() >= self.options.asks_max as usize {
            return Err(Problem::new(503, "busy", "too many requests wait on this core").retry_after(1));
        }
        let (asker, until_ms) = (self.options.id, now.mono_ms() + PATIENCE_MS);
        let ticket = self.ticket(Pending::Request(Waiting::Audience { roster, until_ms }));
        self.attendance.ask(ticket, until_ms, ToPresence::Ask { ticket, asker, topic, roster });
        Ok(Outcome::Wait(ticket))
    }

    pub(super) fn on_audience_answer(&mut self, ticket: u64, audience: &Audience) {
        // Too late, it finds nobody.
        let Some(Pending::Request(Waiting::Audience { roster, until_ms })) = self.pending.remove(&ticket) else {
            return;
        };
        self.attendance.forget_ask(ticket, until_ms);
        let answer = match &audience.roster {
            None if roster => too_many(audience, self.options.presence.roster_limit),
            members => ApiAnswer::json(200, show(audience, members.as_deref())),
        };
        self.actions.push_back(Action::Answer { ticket, answer });
    }

    /// Answers those whose time is over.
    pub(super) fn expire_audience_asks(&mut self, now: Now) {
        while let Some(ticket) = self.attendance.pop_late(now) {
            if let Some(Pending::Request(Waiting::Audience { until_ms, .. })) = self.pending.remove(&ticket) {
                self.attendance.forget_ask(ticket, until_ms);
                let detail = format!("the core that knows who watches this channel did not answer in {PATIENCE_MS} ms");
                let answer = Problem::new(503, "presence_late", detail).retry_after(1).into();
                self.actions.push_back(Action::Answer { ticket, answer });
            }
        }
    }
}

fn too_many(audience: &Audience, roster_limit: u32) -> ApiAnswer {
    let detail = format!(
        "{} connections watch, and members are told one by one only while at most {roster_limit} do: ask for viewers",
        audience.connections
    );
    let problem = Problem::new(409, "too_many_watch", detail);
    let body = problem.body_with(&[("connections", audience.connections), ("users", audience.users)]);
    ApiAnswer { body, ..problem.into() }
}

/// `{"connections":…,"users":…}`, and `"members":[…]` if they were asked for.
fn show(audience: &Audience, members: Option<&[Present]>) -> Vec<u8> {
    let mut body = Vec::with_capacity(64 + 128 * members.map_or(0, <[Present]>::len));
    body.extend_from_slice(b"{\"connections\":");
    put_number(&mut body, audience.connections);
    body.extend_from_slice(b",\"users\":");
    put_number(&mut body, audience.users);
    if let Some(members) = members {
        body.extend_from_slice(b",\"members\":[");
        for (i, present) in members.iter().enumerate() {
            if i > 0 {
                body.push(b',');
            }
            put_present(&mut body, present);
        }
        body.push(b']');
    }
    body.push(b'}');
    body
}

/// The user stands where events have it, and so do state and text.
fn put_present(body: &mut Vec<u8>, present: &Present) {
    body.extend_from_slice(b"{\"user\":{\"id\":");
    put_string(body, present.user.as_str());
    if !present.name.is_empty() {
        body.extend_from_slice(b",\"name\":");
        put_string(body, &present.name);
    }
    body.extend_from_slice(b"},\"connections\":");
    put_number(body, present.connections.into());
    body.extend_from_slice(b",\"state\":");
    put_string(body, present.status.state.name());
    if !present.status.text.is_empty() {
        body.extend_from_slice(b",\"text\":");
        put_string(body, &present.status.text);
    }
    body.push(b'}');
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::Name;
    use crate::wire::presence::{PresenceState, Status};

    #[test]
    fn answers_are_json() {
        let present = |user: &str, name: &str, text: &str| Present {
            user: Name::new(user).unwrap(),
            name: name.into(),
            connections: 2,
            status: Status { state: PresenceState::Away, text: text.into() },
        };
        let members = vec![present("ann", "Ann \"A\"", "tea"), present("bob", "", "")];
        let audience = Audience { connections: 4, users: 2, roster: Some(members) };
        assert_eq!(show(&audience, None), br#"{"connections":4,"users":2}"#);
        assert_eq!(
            String::from_utf8(show(&audience, audience.roster.as_deref())).unwrap(),
            r#"{"connections":4,"users":2,"members":[{"user":{"id":"ann","name":"Ann \"A\""},"connections":2,"state":"away","text":"tea"},{"user":{"id":"bob"},"connections":2,"state":"away"}]}"#
        );
        let problem = String::from_utf8(too_many(&audience, 3).body).unwrap();
        assert!(problem.contains(r#""code":"too_many_watch""#) && problem.ends_with(r#","connections":4,"users":2}"#));
    }
}
