//! A connection that is there watches a channel, its first or a further one: seat, index, head, answer.
//!
//! A wish, the orchestrator's seat and the head of the channel flow in; `connection.ready`, `subscribed` or `error` flow
//! out. Always true: joining a channel is one synchronous step (filter and index first, then the head is looked at,
//! rule 4), and the answer stands before every event of the channel.

use super::channel::{Channel, Head};
use super::join::{all_full, show_conn};
use super::receive::too_many_channels;
use super::{Action, Pending, Shard};
use crate::base::{AppId, ClientId, Given, Name, Now, RoomId};
use crate::fanout::behind::Behind;
use crate::fanout::client::Phase;
use crate::fanout::index::TopicNo;
use crate::fanout::sub::{Owed, Sub, SubState};
use crate::fanout::tick_no::TickNo;
use crate::post::letters::{Range, ToOrchestrator};
use crate::wire::close::Closing;
use crate::wire::event::KindSet;
use crate::wire::position::Since;
use crate::wire::problem::Problem;
use crate::wire::reply;
use crate::wire::topic::{Scope, Topic};

/// What a connection that subscribes to a further channel asked for.
#[derive(Debug)]
pub(super) struct Want {
    pub(super) topic: Topic,
    pub(super) since: Option<Since>,
    pub(super) filter: KindSet,
    pub(super) id: Option<String>,
    pub(super) attempts: u8,
    /// It knew of a ban there when it asked, so that a seat says that the ban was lifted.
    pub(super) knew_ban: bool,
}

impl Shard {
    /// One synchronous step: filter and index, then the head; the answer goes out now, or when the head is known.
    pub(super) fn subscribe(&mut self, now: Now, id: ClientId, topic: &Topic, room: u32, filter: KindSet, owed: Owed) {
        let known = self.index.find(Scope::Channel, topic.hash, topic.app.as_str(), topic.name.as_str());
        let first_tick = known.and_then(|no| self.channel_mut(no)).map_or(TickNo::FIRST, |channel| channel.tick);
        let Ok(subscribed) = self.index.subscribe(topic, room, id.slot, first_tick) else {
            self.close(now, id, Closing::Overloaded("this core watches as many channels as it may"));
            return;
        };
        let no = subscribed.topic;
        if subscribed.new_topic {
            let at = no.0 as usize;
            if self.channels.len() <= at {
                self.channels.resize_with(at + 1, || None);
            }
            self.channels[at] = Some(Box::new(Channel::new(no, topic.name.as_str())));
            self.ask_head(no, topic);
        }
        let dialect = self.dialect_of(id);
        if let Some(client) = self.client_mut(id) {
            let state = SubState::Opening(Box::new(owed));
            if let Some(identity) = &mut client.identity {
                // It was given a seat, so no ban is in force.
                identity.banned.retain(|(channel, _)| channel != topic.name.as_str());
            }
            client.add_sub(Sub { topic: no, position: subscribed.position, room, filter, state, begins: None });
        }
        self.attend(id, topic);
        self.refresh(id.slot);
        let Some(channel) = self.channel_mut(no) else { return };
        channel.count_dialect(dialect, 1);
        if matches!(channel.head, Head::Open { .. }) {
            self.answer_member(now, id, no);
        } else {
            channel.waiting.push(id);
        }
    }

    pub(super) fn ask_head(&mut self, no: TopicNo, topic: &Topic) {
        let limit = self.options.tail_events;
        let ticket = self.ask_page(Pending::Head(no), topic.clone(), Range::Latest, limit);
        if let Some(channel) = self.channel_mut(no) {
            channel.asked = ticket;
        }
    }

    /// Asks for a page; returns the ticket.
    pub(super) fn ask_page(&mut self, pending: Pending, topic: Topic, range: Range, limit: u32) -> u64 {
        let ticket = self.ticket(pending);
        let asker = self.options.id;
        self.actions.push_back(Action::Ask(ToOrchestrator::AskPage { ticket, asker, topic, range, limit }));
        ticket
    }

    /// Answers a member whose channel's head is known, and lets it in; nobody before its `connection.ready`.
    pub(super) fn answer_member(&mut self, now: Now, id: ClientId, no: TopicNo) {
        let ping_interval_s = self.options.ping_after_s;
        let shard = self.options.id.0;
        let Some(client) = self.client(id) else { return };
        let (conn, dialect, awaits_ready) = (show_conn(client.conn), client.dialect, client.awaits_ready());
        let Some(Sub { state: SubState::Opening(owed), room, .. }) = client.sub(no).cloned() else { return };
        let Some(channel) = self.channel_mut(no) else { return };
        let Head::Open { epoch, last_seq } = channel.head else { return };
        if awaits_ready && !owed.first {
            channel.waiting.push(id);
            return;
        }
        let honoured = owed
            .since
            .map(|since| since.epoch == epoch && since.seq <= last_seq && since.seq + 1 >= channel.first_kept);
        let state = match owed.since {
            Some(since) if honoured == Some(true) && since.seq < last_seq => {
                SubState::Resuming { next_seq: since.seq + 1, asked: 0 }
            }
            _ => SubState::Live,
        };
        let begins = channel.begins();
        let name = channel.name.clone();
        let room = format!("{name}/{shard}/{room}");
        let ready = reply::Ready {
            conn: &conn,
            channel: &name,
            room: &room,
            epoch,
            seq: last_seq,
            recovered: honoured,
            ping_interval_s,
            viewers: owed.viewers,
        };
        let frame = if owed.first { reply::ready(&ready) } else { reply::subscribed(owed.id.as_deref(), &ready) };
        // Who resumes has its position still to reach: only its events may say how far it is.
        let position = (!matches!(state, SubState::Resuming { .. })).then_some((epoch, last_seq));
        let frame = dialect.reply(frame, position);
        let first = owed.first;
        let resumes = matches!(state, SubState::Resuming { .. });
        if let Some(sub) = self.client_mut(id).and_then(|client| client.sub_mut(no)) {
            (sub.state, sub.begins) = (state, begins);
        }
        // An `unsubscribed` of the same channel may wait; `ready` for its part stands before everything.
        let place = &mut self.places[id.slot as usize];
        let client = place.client.as_mut().filter(|_| !first && place.generation == id.generation);
        if let Some(behind) = client.and_then(|client| client.behind.as_mut()) {
            behind.fill_critical(dialect, &mut self.account);
        }
        self.say_first(id, &[frame]);
        if resumes {
            self.continue_resume(now, id, no);
        }
        if first {
            self.answer_further(now, id);
        }
    }

    /// `connection.ready` is said: channels that were subscribed to before, and are known, need not wait any more.
    pub(super) fn answer_further(&mut self, now: Now, id: ClientId) {
        let Some(client) = self.client(id) else { return };
        let opening = client.subs().filter(|sub| matches!(sub.state, SubState::Opening(_)));
        for no in opening.map(|sub| sub.topic).collect::<Vec<_>>() {
            let Some(channel) = self.channel_mut(no).filter(|it| matches!(it.head, Head::Open { .. })) else {
                continue;
            };
            channel.waiting.retain(|waiting| *waiting != id);
            self.answer_member(now, id, no);
        }
    }

    /// Puts whole frames behind what is already being written and before anything that is queued: the answer to a
    /// join, which the events of its channel must not pass.
    pub(super) fn say_first(&mut self, id: ClientId, frames: &[Vec<u8>]) {
        if frames.is_empty() {
            return;
        }
        let Some(client) = self.client_mut(id) else { return };
        let behind = client.behind.get_or_insert_with(Box::<Behind>::default);
        for frame in frames {
            behind.rest.put(frame, None);
        }
        self.list(id.slot);
        self.refresh(id.slot);
    }

    pub(super) fn on_subscribe_command(&mut self, now: Now, client: ClientId, want: Want) {
        self.ask_further_seat(now, client, want, None);
    }

    fn knows_banned(&self, now: Now, client: ClientId, topic: &Topic) -> bool {
        let identity = self.client(client).and_then(|client| client.identity.as_ref());
        identity.is_some_and(|identity| identity.is_banned(topic.name.as_str(), now.wall_ms))
    }

    /// A seat for a channel more, on this shard: the connection is counted already.
    fn ask_further_seat(&mut self, now: Now, client: ClientId, mut want: Want, refused: Option<RoomId>) {
        want.knew_ban = self.knows_banned(now, client, &want.topic);
        let (channel, attempt) = (Some(want.topic.clone()), want.attempts + 1);
        let app = self.client(client).map_or(AppId(0), |client| client.app);
        let user = self.user_of_client(client, &want.topic.app);
        let ticket = self.ticket(Pending::Subscribe { client, want: Box::new(want) });
        let (asker, first, address, here) = (self.options.id, false, None, true);
        let ask = ToOrchestrator::AskSeat { ticket, asker, app, first, channel, user, address, attempt, refused, here };
        self.actions.push_back(Action::Ask(ask));
    }

    pub(super) fn on_subscribe_answer(
        &mut self,
        now: Now,
        client: ClientId,
        mut want: Want,
        answer: Result<Option<Given>, Problem>,
    ) {
        let id = self.options.id;
        let given = match answer {
            Ok(Some(given)) => given,
            Ok(None) => return,
            Err(problem) => {
                self.reply(now, client, reply::error(want.id.as_deref(), problem.code, &problem.detail));
                return;
            }
        };
        self.processed[usize::from(id.0)] = self.processed[usize::from(id.0)].max(given.number);
        self.schedule_report(now);
        let already = self
            .index
            .find(Scope::Channel, want.topic.hash, want.topic.app.as_str(), want.topic.name.as_str())
            .is_some_and(|no| self.client(client).is_some_and(|c| c.sub(no).is_some()));
        if already {
            let detail = "this connection watches that channel already";
            self.reply(now, client, reply::error(want.id.as_deref(), "already_subscribed", detail));
            return;
        }
        if !self.client(client).is_some_and(|c| c.phase == Phase::Open) {
            return;
        }
        if !want.knew_ban && self.knows_banned(now, client, &want.topic) {
            self.reply(now, client, reply::error(want.id.as_deref(), "banned", "this user is banned"));
            return;
        }
        // Looked at again: many subscriptions may have been on their way at once.
        let max = usize::from(self.options.channels_per_client);
        if self.client(client).is_some_and(|c| c.channels() >= max) {
            let problem = too_many_channels(max);
            self.reply(now, client, reply::error(want.id.as_deref(), problem.code, &problem.detail));
            return;
        }
        if self.room_is_full(&want.topic, given.room.n) {
            want.attempts += 1;
            if want.attempts >= self.options.attempts_max {
                let problem = all_full();
                self.reply(now, client, reply::error(want.id.as_deref(), problem.code, &problem.detail));
                return;
            }
            self.ask_further_seat(now, client, want, Some(given.room));
            return;
        }
        let owed = Owed { id: want.id, first: false, since: want.since, viewers: given.viewers };
        self.subscribe(now, client, &want.topic, given.room.n, want.filter, owed);
    }

    fn user_of_client(&self, client: ClientId, app: &Name) -> Option<(Name, Name)> {
        let identity = self.client(client)?.identity.as_ref()?;
        Some((app.clone(), identity.user.clone()))
    }
}
