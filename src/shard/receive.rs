//! Flow 3, commands: bytes of a client become answers, asks and events.
//!
//! Always true: all answers to one read leave together, in the order of what they answer; what a client may not do is
//! answered and counted, and more than 20 bad commands a minute end the connection, as do more that came too soon than
//! are borne.

use super::deliver::entry;
use super::join::{no_right, show_conn};
use super::subscribe::Want;
use super::write::NO_CHANNEL;
use super::{Action, Pending, Shard};
use crate::base::{Class, ClientId, Name, Now};
use crate::fanout::behind::Payload;
use crate::fanout::client::{Client, Phase, Ping};
use crate::fanout::index::TopicNo;
use crate::fanout::sub::SubState;
use crate::post::letters::Posted;
use crate::post::letters::ToShard;
use crate::wire::close::Closing;
use crate::wire::command::{self, Command};
use crate::wire::dialect::{Dialect, SSE_HEARTBEAT};
use crate::wire::event::EventKind;
use crate::wire::frame::{Opcode, put_frame};
use crate::wire::problem::Problem;
use crate::wire::reply;
use crate::wire::sealed::{Event, Sealed};
use crate::wire::socket::{Fed, Inbound};
use crate::wire::topic::{Scope, Topic};

/// Bad commands a minute that are borne.
const BAD_COMMANDS_MAX: u8 = 20;
/// Typing events of one client a second.
const TYPING_PER_S: u8 = 1;
/// Custom events of one client a second.
const CUSTOM_PER_S: u8 = 5;

/// The answer to one subscription more than a connection may have.
pub(super) fn too_many_channels(max: usize) -> Problem {
    Problem::new(429, "too_many_channels", format!("a connection watches at most {max} channels"))
}

/// A message as it was received, kept only until the read it came in is dealt with.
enum Received {
    Text(String),
    Binary(Vec<u8>),
}

impl Shard {
    /// Bytes came from a client.
    pub fn on_bytes(&mut self, now: Now, id: ClientId, bytes: &[u8]) {
        let Some(place) = self.places.get_mut(id.slot as usize) else { return };
        let Some(client) = place.client.as_mut().filter(|_| place.generation == id.generation) else { return };
        if client.phase != Phase::Open {
            return;
        }
        client.seen_s = now.mono_s() as u32;
        if client.ping == Ping::Waits {
            client.ping = Ping::Answered;
        }
        if client.dialect == Dialect::Sse {
            // The request was all that a stream's client has to say.
            return;
        }
        let echo = client.echo;
        let mut control = Vec::new();
        let mut received = Vec::new();
        let mut fed = client.codec.feed(&mut self.pool, bytes, &mut control, |inbound, at| match inbound {
            Inbound::Text(text) => received.push((at, Received::Text(text.to_owned()))),
            Inbound::Binary(bytes) => received.push((at, Received::Binary(bytes.to_owned()))),
            Inbound::Alive => {}
        });
        // A peer's Close is answered last, behind everything else that it is owed.
        let close_at = if fed == Fed::PeerClosed { last_frame(&control) } else { control.len() };
        let close_reply = control.split_off(close_at);
        // Pongs stand among the other answers as pings stood among the messages.
        let mut answers = Vec::new();
        let mut taken = 0;
        for (at, message) in received {
            answers.extend_from_slice(&control[taken..at.min(control.len())]);
            taken = at.min(control.len());
            match message {
                Received::Text(text) if echo => put_frame(&mut answers, Opcode::Text, text.as_bytes()),
                Received::Binary(bytes) if echo => put_frame(&mut answers, Opcode::Binary, &bytes),
                Received::Text(text) => self.on_command(now, id, &text, &mut answers),
                Received::Binary(_) => {
                    let message = "commands are JSON text, not binary";
                    answers.extend(self.bad_command(now, id, None, "malformed", message));
                }
            }
            if let Some(closing) = self.is_unbearable(id) {
                // What it said behind this counts no more, and its Close is not answered but forestalled.
                fed = Fed::Failed(closing);
                taken = control.len();
                break;
            }
        }
        answers.extend_from_slice(&control[taken..]);
        if !answers.is_empty() {
            self.reply(now, id, answers);
        }
        match fed {
            Fed::Open => self.pause_if_flooded(id),
            Fed::PeerClosed => self.on_peer_close(now, id, close_reply),
            Fed::Failed(closing) => self.close(now, id, closing),
        }
    }

    /// A client whose answers pile up is not read any further until they are written.
    fn pause_if_flooded(&mut self, id: ClientId) {
        let half = self.options.outbox.capacity(Class::Critical) / 2;
        let bytes_max = self.options.outbox.bytes_max as usize / 2;
        let Some(client) = self.client_mut(id) else { return };
        let Some(behind) = &client.behind else { return };
        let bytes = behind.outbox.bytes() + behind.rest.unwritten().len();
        let flooded = behind.outbox.waiting(Class::Critical) > half || bytes > bytes_max;
        if flooded && !client.paused {
            client.paused = true;
            self.actions.push_back(Action::PauseReads(id));
        }
    }

    fn on_command(&mut self, now: Now, id: ClientId, text: &str, answers: &mut Vec<u8>) {
        let parsed = match command::parse(text) {
            Ok(parsed) => parsed,
            Err(error) => {
                answers.extend(self.bad_command(now, id, error.id.as_deref(), error.code, &error.message));
                return;
            }
        };
        let command_id = parsed.id;
        let outcome = match parsed.command {
            Command::Ping => Ok(Some(reply::pong(command_id))),
            Command::Subscribe { channel, since, filter } => self.command_subscribe(id, &channel).map(|topic| {
                let command_id = command_id.map(str::to_owned);
                let want = Want { topic, since, filter, id: command_id, attempts: 0, knew_ban: false };
                self.on_subscribe_command(now, id, want);
                None
            }),
            Command::Unsubscribe { channel } => self.command_unsubscribe(now, id, command_id, &channel).map(Some),
            Command::Message { channel, body } => {
                self.command_message(now, id, command_id, &channel, &body).map(|()| None)
            }
            Command::Typing { channel, start } => {
                let kind = if start { EventKind::TypingStart } else { EventKind::TypingStop };
                self.command_event(now, id, &channel, kind, String::new(), None).map(|()| None)
            }
            Command::Reaction { channel, message, kind, add } => {
                self.command_reaction(id, command_id, &channel, message, &kind, add).map(|()| None)
            }
            Command::History { channel, before, since, limit } => {
                self.command_history(id, command_id, &channel, before, since, limit).map(|()| None)
            }
            Command::Auth { token } => self.command_auth(now, id, command_id, &token).map(Some),
            Command::Status { status } => {
                self.command_status(now, id, status).map(|()| command_id.map(|id| reply::ack_taken(Some(id))))
            }
            Command::Event { channel, name, data } => {
                let data = data.map(|data| data.get().to_owned());
                self.command_event(now, id, &channel, EventKind::Custom, name, data)
                    .map(|()| command_id.map(|id| reply::ack_taken(Some(id))))
            }
        };
        match outcome {
            Ok(Some(frame)) => answers.extend(frame),
            Ok(None) => {}
            Err(problem) => {
                self.count_over_rate(now, id, &problem);
                answers.extend(reply::error(command_id, problem.code, &problem.detail));
            }
        }
    }

    /// What its commands of this minute have come to, if that is more than is borne.
    fn is_unbearable(&self, id: ClientId) -> Option<Closing> {
        let rates = self.client(id)?.rates.as_ref()?;
        if rates.bad > BAD_COMMANDS_MAX {
            Some(Closing::BadInput)
        } else {
            (rates.over_rate > self.options.over_rate_max).then_some(Closing::OverRate)
        }
    }

    /// Counts a command that came sooner than its author may send it. What others of the channel or the app have used
    /// up is not held against it.
    fn count_over_rate(&mut self, now: Now, id: ClientId, problem: &Problem) {
        if matches!(problem.code, "over_rate" | "user_over_rate" | "slow_mode")
            && let Some(client) = self.client_mut(id)
        {
            let rates = client.rates.get_or_insert_default();
            rates.begin_minute(now.mono_s() / 60);
            rates.over_rate = rates.over_rate.saturating_add(1);
        }
    }

    pub(super) fn topic_of(&self, id: ClientId, channel: &Name) -> Result<(Topic, &Client), Problem> {
        let gone = || Problem::new(404, "gone", "the connection is gone");
        let client = self.client(id).ok_or_else(gone)?;
        let app = self.apps.get(client.app).ok_or_else(gone)?;
        if client.identity.as_ref().is_some_and(|identity| !identity.may_touch(channel.as_str())) {
            return Err(no_right(channel.as_str()));
        }
        Ok((self.hasher.topic(Scope::Channel, &app.name, channel), client))
    }

    fn command_subscribe(&self, id: ClientId, channel: &Name) -> Result<Topic, Problem> {
        let (topic, client) = self.topic_of(id, channel)?;
        let max = usize::from(self.options.channels_per_client);
        if client.channels() >= max {
            return Err(too_many_channels(max));
        }
        if self.draining.is_some() || self.asks_are_full() {
            return Err(Problem::new(503, "busy", "too many requests wait on this core").retry_after(1));
        }
        Ok(topic)
    }

    fn command_unsubscribe(
        &mut self,
        now: Now,
        id: ClientId,
        command_id: Option<&str>,
        channel: &Name,
    ) -> Result<Vec<u8>, Problem> {
        let (topic, _) = self.topic_of(id, channel)?;
        let no = self.index.find(Scope::Channel, topic.hash, topic.app.as_str(), topic.name.as_str());
        let Some(no) = no.filter(|&no| self.client(id).is_some_and(|client| client.sub(no).is_some())) else {
            return Err(Problem::new(404, "not_subscribed", "this connection does not watch that channel"));
        };
        self.leave_answered(now, id, no);
        Ok(reply::unsubscribed(command_id, channel.as_str()))
    }

    /// Leaves a channel that is watched, by the reader's own wish or by its newer token.
    pub(super) fn leave_answered(&mut self, now: Now, id: ClientId, no: TopicNo) {
        let opening = self.client(id).and_then(|client| client.sub(no)).map(|sub| sub.state.clone());
        self.leave_channel(now, id, no);
        // Who leaves before it was let in is still owed an answer to its coming.
        match opening {
            Some(SubState::Opening(owed)) if owed.first => {
                let conn = show_conn(self.client(id).map_or(0, |client| client.conn));
                self.say_first(id, &[reply::ready_without_channel(&conn, self.options.ping_after_s)]);
                self.answer_further(now, id);
            }
            Some(SubState::Opening(owed)) => {
                let detail = "the connection left the channel before it was let in";
                self.reply(now, id, reply::error(owed.id.as_deref(), "unsubscribed", detail));
            }
            _ => {}
        }
    }

    fn command_event(
        &mut self,
        now: Now,
        id: ClientId,
        channel: &Name,
        kind: EventKind,
        custom_name: String,
        data: Option<String>,
    ) -> Result<(), Problem> {
        let (topic, client, identity) = self.writer(now, id, channel)?;
        if identity.is_banned(channel.as_str(), now.wall_ms) {
            return Err(Problem::new(403, "banned", "this user is banned"));
        }
        let custom = kind == EventKind::Custom;
        if !(if custom { identity.custom } else { identity.typing }) {
            return Err(no_right(channel.as_str()));
        }
        let bytes_max = self.apps.get(client.app).map_or(0, |app| app.message_bytes_max) as usize;
        if data.as_ref().is_some_and(|data| data.len() > bytes_max) {
            return Err(Problem::new(413, "message_too_large", format!("data has at most {bytes_max} bytes")));
        }
        self.apps.get(client.app).map_or(Ok(()), |app| app.check_words(None, data.as_deref()))?;
        let event = Event {
            custom_name,
            user_id: identity.user.as_str().into(),
            user_name: identity.name.clone(),
            data,
            ..Event::new(kind, topic, now.wall_ms)
        };
        let Some(client) = self.client_mut(id) else { return Ok(()) };
        let rates = client.rates.get_or_insert_default();
        rates.begin_second(now.mono_s());
        let (count, max) = if custom { (&mut rates.custom, CUSTOM_PER_S) } else { (&mut rates.typing, TYPING_PER_S) };
        if *count >= max {
            let detail = format!("at most {max} {} a second", if custom { "custom events" } else { "typing events" });
            return Err(Problem::new(429, "over_rate", detail));
        }
        *count += 1;
        let sealed = Sealed::seal(&event).map_err(|bad| Problem::new(413, "message_too_large", bad.to_string()))?;
        self.actions.push_back(Action::Publish(sealed));
        Ok(())
    }

    /// Counts a bad command and answers it.
    fn bad_command(&mut self, now: Now, id: ClientId, command_id: Option<&str>, code: &str, message: &str) -> Vec<u8> {
        self.stages.bad_commands += 1;
        let Some(client) = self.client_mut(id) else { return Vec::new() };
        let rates = client.rates.get_or_insert_default();
        rates.begin_minute(now.mono_s() / 60);
        rates.bad = rates.bad.saturating_add(1);
        reply::error(command_id, code, message)
    }

    /// An answer of the orchestrator came.
    pub fn on_letter(&mut self, now: Now, letter: ToShard) {
        match letter {
            ToShard::SeatAnswer { ticket, answer } => self.on_seat_answer(now, ticket, answer),
            ToShard::PostAnswer { ticket, answer } => self.on_post_answer(now, ticket, answer),
            ToShard::PageAnswer { ticket, answer } => self.on_page_answer(now, ticket, answer),
            ToShard::Bans { client, told } => self.on_bans(now, client, &told),
            ToShard::AudienceAnswer { ticket, audience } => self.on_audience_answer(ticket, &audience),
            ToShard::ConnectionsAnswer { ticket, answer } => self.on_connections_answer(ticket, answer),
            ToShard::ListConnections { number, ask } => self.on_list_connections(now, number, &ask),
            ToShard::Drain { spread_ms } => self.on_drain(now, spread_ms),
            ToShard::Done { ticket, answer } => self.on_done(ticket, answer),
        }
    }

    fn on_post_answer(&mut self, now: Now, ticket: u64, answer: Result<Posted, Problem>) {
        match self.pending.remove(&ticket) {
            Some(Pending::Message { client, id, client_id }) => {
                let frame = match answer {
                    Ok(posted) => reply::ack(
                        id.as_deref(),
                        posted.id,
                        posted.seq,
                        posted.epoch,
                        posted.created_at_ms,
                        client_id.as_deref(),
                    ),
                    Err(problem) => {
                        self.count_over_rate(now, client, &problem);
                        reply::error(id.as_deref(), problem.code, &problem.detail)
                    }
                };
                self.reply(now, client, frame);
                if let Some(closing) = self.is_unbearable(client) {
                    self.close(now, client, closing);
                }
            }
            Some(Pending::Request(waiting)) => self.on_request_posted(ticket, &waiting, answer),
            _ => {}
        }
    }

    /// Queues `health.check`, or a comment for a stream that did not ask for it.
    pub(super) fn say_health_check(&mut self, now: Now, id: ClientId) {
        self.account.of_mut(Class::Critical).published += 1;
        let asked = self.client(id).is_some_and(|client| client.heartbeat_s != 0);
        let frame = match self.dialect_of(id) {
            Dialect::Sse if !asked => SSE_HEARTBEAT.to_vec(),
            dialect => dialect.reply(reply::health_check(now.wall_ms), None),
        };
        let payload = Payload::Own(frame.into());
        self.enqueue(now, id, entry(now, EventKind::HealthCheck, NO_CHANNEL, 0, 0, payload));
    }
}

/// Where the last frame in `frames` begins; they are our own, whole and short.
fn last_frame(frames: &[u8]) -> usize {
    let (mut at, mut last) = (0, frames.len());
    while let Some(&length) = frames.get(at + 1) {
        last = at;
        at += match length {
            126 => 4 + u16::from_be_bytes([frames[at + 2], frames[at + 3]]) as usize,
            length => 2 + usize::from(length),
        };
    }
    last
}

#[cfg(test)]
mod tests {
    use super::last_frame;

    #[test]
    fn the_last_of_our_own_frames() {
        assert_eq!(last_frame(&[]), 0);
        assert_eq!(last_frame(&[0x8A, 1, b'x', 0x88, 2, 3, 0xE8]), 3);
        assert_eq!(last_frame(&[0x88, 2, 3, 0xE8]), 0);
    }
}
