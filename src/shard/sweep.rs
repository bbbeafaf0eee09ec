//! Flow 4 on the shard, what time brings, and flow "the end" of a connection: liveness, stalls, leaving, last words.
//!
//! Always true: a client leaves filter, index and rooms in one step, its unwritten deliveries are in the account as
//! lost, and its place is given to nobody before the socket is taken down.

use super::deliver::entry;
use super::write::NO_CHANNEL;
use super::{Action, Place, Shard};
use crate::base::alarm::WHEEL_SECONDS;
use crate::base::{ChannelKey, Class, ClientId, Now};
use crate::fanout::behind::{Behind, Payload};
use crate::fanout::client::{Client, Phase, Ping};
use crate::fanout::index::{Member, TopicNo};
use crate::fanout::sub::SubState;
use crate::post::letters::ToOrchestrator;
use crate::wire::close::Closing;
use crate::wire::dialect::Dialect;
use crate::wire::event::EventKind;

/// So long before its token runs out a client is told, in milliseconds.
const EXPIRY_TOLD_MS: u64 = 60_000;

/// Clients that one call looks at; the others that are due have their turn in the next. As many as there are sends in a
/// submit: so a second in which 10,000 are pinged holds up nobody, and the pings do not all wait at once.
const CHECKS_A_CALL: usize = 64;

/// An entry of the wheel may be of a second that was put off, or of somebody who left.
fn is_due(places: &[Place], slot: u32, now: Now) -> bool {
    let client = places.get(slot as usize).and_then(|place| place.client.as_ref());
    client.is_some_and(|client| u64::from(client.check_s) <= now.mono_s())
}

impl Shard {
    /// When [`Shard::on_alarm`] has something to do, in monotonic milliseconds.
    #[must_use]
    pub fn next_alarm_ms(&self) -> Option<u64> {
        let wheel = (self.clients > 0 || self.places.len() > self.free.len()).then(|| self.wheel.next_s() * 1_000);
        let retry =
            (!self.retry_heads.is_empty() || !self.released_apps.is_empty()).then(|| self.wheel.next_s() * 1_000);
        let drain = self.draining.as_ref().and_then(super::drain::Plan::next_ms);
        let due = (!self.due.is_empty()).then_some(0);
        [due, wheel, retry, drain, self.report_at_ms, self.attendance.next_alarm_ms()].into_iter().flatten().min()
    }

    /// Time has passed.
    pub fn on_alarm(&mut self, now: Now) {
        self.drain_on(now);
        self.presence_on_alarm(now);
        let begins = now.mono_s() >= self.wheel.next_s();
        if begins {
            self.wheel.take_due(now.mono_s(), &mut self.due);
        }
        // Pings that could not be written yet count: while a core has so much to send, it asks nobody else.
        let most = CHECKS_A_CALL.saturating_sub(self.pings.len()).min(self.due.len());
        // First all are read, so that the memory of one is not waited for behind that of the other.
        let mut looks = std::mem::take(&mut self.looks);
        let places = &self.places;
        looks.extend(self.due.drain(..most).filter(|slot| is_due(places, *slot, now)));
        for slot in looks.drain(..) {
            self.check(now, slot);
        }
        self.looks = looks;
        if !begins {
            return;
        }
        self.retry_heads();
        for (id, no) in std::mem::take(&mut self.retry_resumes) {
            self.continue_resume(now, id, no);
        }
        if !self.released_apps.is_empty() && !self.busy_outside {
            let addresses = std::mem::take(&mut self.released).into_iter().collect();
            let apps = std::mem::take(&mut self.released_apps).into_iter().collect();
            self.actions.push_back(Action::Ask(ToOrchestrator::Released { addresses, apps }));
        }
    }

    /// Asks the wheel to look at the client not later than `at_s`.
    pub(super) fn schedule_check(&mut self, id: ClientId, at_s: u32) {
        // The wheel is only so wide; what lies further ahead is looked at early and put off again.
        let at_s = at_s.min((self.wheel.next_s() + WHEEL_SECONDS as u64 - 1) as u32);
        let Some(client) = self.client_mut(id) else { return };
        if at_s == 0 || (client.check_s != 0 && client.check_s <= at_s) {
            return;
        }
        client.check_s = at_s;
        self.wheel.add(id.slot, u64::from(at_s));
    }

    fn check(&mut self, now: Now, slot: u32) {
        // It may stand there twice, and have been looked at just now.
        if !is_due(&self.places, slot, now) {
            return;
        }
        let Some(client) = &mut self.places[slot as usize].client else { return };
        client.check_s = 0;
        let id = self.id_of(slot);
        match self.places[slot as usize].client.as_ref().map(|client| client.phase) {
            Some(Phase::Open) => self.check_open(now, id),
            Some(Phase::Closing | Phase::Lingering) => self.vanish(now, id),
            _ => {}
        }
    }

    fn check_open(&mut self, now: Now, id: ClientId) {
        let (ping_after, close_after) = (self.options.ping_after_s, self.options.close_after_s);
        let max_stall_ms = u64::from(self.options.max_stall_ms);
        let now_s = now.mono_s() as u32;
        let Some(client) = self.client_mut(id) else { return };
        let blocked = client.behind.as_ref().and_then(|behind| behind.blocked_since_ms);
        if blocked.is_some_and(|since| now.mono_ms() >= since + max_stall_ms) {
            // The kernel tells of room only when much of it is free; who reads a little has some long before.
            self.try_once_more(id);
        }
        let Some(client) = self.client_mut(id) else { return };
        // A stream's client never says anything, and who is not read is not heard: writing to them shows whether they are
        // there.
        let unheard = client.dialect == Dialect::Sse || client.paused;
        let silent_s = if unheard { 0 } else { now_s.saturating_sub(client.seen_s) };
        if silent_s >= close_after {
            self.close(now, id, Closing::Silent);
            return;
        }
        if self.client(id).and_then(|client| self.expiry_closes_ms(client)).is_some_and(|at_ms| at_ms <= now.wall_ms) {
            self.close(now, id, Closing::TokenExpired);
            return;
        }
        let Some(client) = self.client_mut(id) else { return };
        let expires_ms = client.identity.as_ref().map_or(u64::MAX, |identity| identity.expires_ms);
        let tells_expiry = !client.expiry_told && expires_ms.saturating_sub(now.wall_ms) <= EXPIRY_TOLD_MS;
        client.expiry_told |= tells_expiry;
        let beats = client.heartbeat_at_s != 0 && client.heartbeat_at_s <= now_s;
        if beats {
            client.heartbeat_at_s = now_s + u32::from(client.beat_s());
        }
        let pings = match client.ping {
            // Looks at those who joined at one moment are spread, and so their first pings are.
            Ping::Never => silent_s >= ping_after - ping_after / 2,
            Ping::Answered => silent_s >= ping_after,
            Ping::Waits => false,
        };
        if pings {
            client.ping = Ping::Waits;
        }
        let heard_s = if unheard { now_s } else { client.seen_s };
        let next_silence = heard_s + if client.ping == Ping::Waits { close_after } else { ping_after };
        let next_stall = blocked.map(|since| ((since + max_stall_ms) / 1_000 + 1) as u32);
        let next_beat = Some(client.heartbeat_at_s).filter(|&at| at != 0);
        let next = [Some(next_silence), next_stall, next_beat].into_iter().flatten().min();
        if beats {
            self.say_health_check(now, id);
        }
        if tells_expiry {
            self.account.of_mut(Class::Critical).published += 1;
            let frame = self.dialect_of(id).reply(crate::wire::reply::token_expiring(expires_ms), None);
            let payload = Payload::Own(frame.into());
            self.enqueue(now, id, entry(now, EventKind::TokenExpiring, NO_CHANNEL, 0, 0, payload));
        }
        if pings {
            self.ping(now, id);
        }
        self.schedule_check(id, next.unwrap_or(next_silence).max(now_s + 1));
        self.schedule_expiry(now, id);
    }

    /// Looks at the client again when its token is about to run out. After that it writes nothing, and reads on for as
    /// long as its app lets it.
    pub(super) fn schedule_expiry(&mut self, now: Now, id: ClientId) {
        let Some(client) = self.client(id) else { return };
        let told_ms = client.identity.as_ref().map(|identity| identity.expires_ms.saturating_sub(EXPIRY_TOLD_MS));
        let at_ms = if client.expiry_told { self.expiry_closes_ms(client) } else { told_ms };
        let Some(left_ms) = at_ms.map(|at_ms| at_ms.saturating_sub(now.wall_ms)) else { return };
        // A token may be good for years; the wheel looks at the client far more often than that.
        let at_s = now.mono_s().saturating_add(left_ms.div_ceil(1_000)).saturating_add(1);
        self.schedule_check(id, u32::try_from(at_s).unwrap_or(u32::MAX));
    }

    /// When a client is closed that sends no newer token, in Unix milliseconds; `None` if never.
    fn expiry_closes_ms(&self, client: &Client) -> Option<u64> {
        let grace_s = self.apps.get(client.app)?.token_grace_s?;
        Some(client.identity.as_ref()?.expires_ms.saturating_add(u64::from(grace_s) * 1_000))
    }

    /// The peer closed: what waits is written, then the answering Close, behind which nothing may stand, then it ends.
    pub(super) fn on_peer_close(&mut self, now: Now, id: ClientId, close_reply: Vec<u8>) {
        let Some(client) = self.client_mut(id).filter(|client| client.phase == Phase::Open) else { return };
        client.phase = Phase::Closing;
        client.closing = Some(Box::new(Closing::Normal));
        self.keep_and_leave(now, id);
        let Some(client) = self.client_mut(id) else { return };
        if close_reply.is_empty() && client.behind.as_ref().is_none_or(|behind| behind.is_done()) {
            self.words_are_said(now, id);
            return;
        }
        let behind = client.behind.get_or_insert_with(Box::<Behind>::default);
        behind.last_words = (!close_reply.is_empty()).then(|| close_reply.into());
        client.check_s = 0;
        self.list(id.slot);
        self.refresh(id.slot);
        let linger_s = self.options.linger_ms.div_ceil(1_000);
        self.schedule_check(id, now.mono_s() as u32 + linger_s.max(1) + 1);
    }

    /// Our own end of a connection: what may still be said is said.
    pub(super) fn say_last(&mut self, now: Now, id: ClientId, closing: Closing) {
        let linger_s = self.options.linger_ms.div_ceil(1_000);
        let Some(client) = self.client_mut(id) else { return };
        let behind = client.behind.get_or_insert_with(Box::<Behind>::default);
        let stuck = behind.last_try;
        behind.last_words = Some(client.dialect.closing(closing).into());
        if let Some(behind) = self.places[id.slot as usize].client.as_mut().and_then(|client| client.behind.as_mut())
            && !closing.lets_finish()
        {
            behind.outbox.drain_lost(&mut self.account);
        }
        if stuck && closing == Closing::TooSlow {
            // It takes nothing, not even now: there is nobody to talk to.
            self.vanish(now, id);
            return;
        }
        self.list(id.slot);
        self.refresh(id.slot);
        if let Some(client) = self.client_mut(id) {
            client.check_s = 0;
        }
        self.schedule_check(id, now.mono_s() as u32 + linger_s.max(1) + 1);
    }

    /// The last frame is written.
    pub(super) fn words_are_said(&mut self, now: Now, id: ClientId) {
        let linger_s = self.options.linger_ms.div_ceil(1_000);
        let Some(client) = self.client_mut(id) else { return };
        if client.closing.as_deref() == Some(&Closing::Normal) {
            // Both sides have closed; the server ends the connection (RFC 6455 §7.1.1).
            self.vanish(now, id);
            return;
        }
        client.phase = Phase::Lingering;
        client.check_s = 0;
        self.actions.push_back(Action::ShutdownWrite(id));
        self.schedule_check(id, now.mono_s() as u32 + linger_s.max(1) + 1);
    }

    /// The peer is gone, or its socket failed.
    pub fn on_hangup(&mut self, now: Now, id: ClientId) {
        self.vanish(now, id);
    }

    /// The end: leaves everything, loses what waits, and has the socket taken down.
    pub(super) fn vanish(&mut self, now: Now, id: ClientId) {
        if self.client(id).is_none_or(|client| client.phase == Phase::Ending) {
            return;
        }
        self.leave_all(now, id);
        let Some(client) = self.places[id.slot as usize].client.as_mut() else { return };
        if let Some(mut behind) = client.behind.take() {
            behind.rest.drain_lost(&mut self.account);
            behind.outbox.drain_lost(&mut self.account);
        }
        client.phase = Phase::Ending;
        client.codec.release(&mut self.pool);
        let (app, address, echo) = (client.app, client.address.take(), client.echo);
        if !echo {
            self.release(app, address);
        }
        self.clients -= 1;
        self.stages.left += 1;
        self.refresh(id.slot);
        self.actions.push_back(Action::End(id));
        self.report_at_ms.get_or_insert(now.mono_ms() + u64::from(self.options.report_ms));
    }

    /// Leaves every channel and the user's connections. What waits in the outbox is first taken out, with the names of
    /// the channels that its gaps speak of, for their numbers may be given to others from now on.
    pub(super) fn leave_all(&mut self, now: Now, id: ClientId) {
        self.keep_and_leave(now, id);
    }

    fn keep_and_leave(&mut self, now: Now, id: ClientId) {
        let channels = &self.channels;
        let place = &mut self.places[id.slot as usize];
        let Some(client) = &mut place.client else { return };
        let writes = client.closing.as_deref().copied().is_some_and(Closing::lets_finish);
        // Nothing stands before `connection.ready`, so who ends without it is told of nothing but the end.
        let awaits_ready = client.awaits_ready();
        if awaits_ready && let Some(behind) = &mut client.behind {
            behind.outbox.drain_lost(&mut self.account);
        } else if writes && let Some(behind) = &mut client.behind {
            behind.fill(now.mono_ms(), usize::MAX, client.dialect, &mut self.account, |no| {
                channels.get(no as usize).and_then(Option::as_ref).map(|c| c.name.clone()).unwrap_or_default()
            });
        }
        let topics: Vec<TopicNo> = client.subs().map(|sub| sub.topic).collect();
        let places = client.places.take();
        for no in topics {
            self.leave(now, id, no);
        }
        for (no, position) in places {
            self.index.unsubscribe(no, position);
        }
    }

    /// Leaves one channel while the connection lives on: what waits of it is dropped too, for its number may be given
    /// to another channel.
    pub(super) fn leave_channel(&mut self, now: Now, id: ClientId, no: TopicNo) {
        if self.client(id).is_none_or(|client| client.sub(no).is_none()) {
            return;
        }
        self.leave(now, id, no);
        let client = self.places[id.slot as usize].client.as_mut();
        if let Some(behind) = client.and_then(|client| client.behind.as_mut()) {
            behind.outbox.forget(no.0, &mut self.account);
        }
        self.refresh(id.slot);
    }

    /// Leaves one channel: index, filter and room in one step.
    pub(super) fn leave(&mut self, now: Now, id: ClientId, no: TopicNo) {
        let Some(client) = self.client_mut(id) else { return };
        let dialect = client.dialect;
        let user = client.identity.as_ref().map(|identity| identity.user.clone());
        let Some(sub) = client.take_sub(no) else { return };
        let Some(channel) = self.channels.get_mut(no.0 as usize).and_then(Option::as_mut) else { return };
        let member: Option<Member> = self.index.members(no).get(sub.position as usize).copied();
        if let Some(member) = member {
            debug_assert_eq!(member.client, id.slot, "a subscription knows its place");
            channel.settle_leaver(&member, &sub, &mut self.account);
        }
        channel.count_dialect(dialect, -1);
        if matches!(sub.state, SubState::Opening(_)) {
            channel.waiting.retain(|waiting| *waiting != id);
        }
        let topic = self.index.topic(no).cloned();
        if let Some(topic) = &topic {
            self.absent(topic, user.as_ref());
        }
        let left = self.index.unsubscribe(no, sub.position);
        if left.room_left == 0
            && let Some(topic) = topic
        {
            self.emptied.insert((ChannelKey::new(topic.app, topic.name), sub.room));
        }
        if left.topic_gone {
            let gone = self.channels[no.0 as usize].take();
            self.full -= u32::from(gone.is_some_and(|channel| channel.full));
        }
        self.schedule_report(now);
    }

    /// For tests: what the shard holds of each client.
    pub fn clients(&self) -> impl Iterator<Item = (ClientId, &Client)> {
        self.places.iter().enumerate().filter_map(|(slot, place)| {
            let id = ClientId { slot: slot as u32, generation: place.generation };
            place.client.as_deref().map(|client| (id, client))
        })
    }
}
