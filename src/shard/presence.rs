//! Presence on a shard: what it holds is told to the partitions of its channels; and of the channels whose partition it
//! is itself, members, typing and totals are kept and told to all.
//!
//! Joins, leaves, letters of shards and the time flow in; letters for [`PresenceDoors`] and events for the bus flow out.
//! Always true: every subscription in the index is in the holdings, and no other; a letter that finds no room is not
//! lost but written anew later; and a node that drains says no more who leaves, for everybody does.

use std::collections::{BTreeSet, VecDeque};

use super::Shard;
use crate::base::{ChannelKey, ClientId, Gauge, Name, Now, ShardId};
use crate::bus::Outgoing;
use crate::fanout::index::TopicNo;
use crate::post::letters::ToShard;
use crate::post::presence::{PresenceDoors, Stated, ToPresence};
use crate::presence::{Holdings, Presence, PresenceOptions, Watcher};
use crate::wire::event::EventKind;
use crate::wire::presence::Status;
use crate::wire::problem::Problem;
use crate::wire::sealed::Sealed;
use crate::wire::topic::{Topic, partition};

/// Between two flushes, in milliseconds. In a storm of joins, those without a user cost one letter a channel and flush.
const FLUSH_MS: u64 = 20;
/// Letters of one flush at the most, so that it holds up nobody's events.
const FLUSH_LETTERS_MAX: usize = 1_024;
/// How soon a question or an answer that found its mailbox full is tried again, in milliseconds.
const RETRY_MS: u64 = 1;
/// What a user says of itself, in times a second and connection: each is told to everybody who watches.
const STATUS_PER_S: u8 = 1;

/// What a shard keeps for presence.
#[derive(Debug)]
pub(super) struct Attendance {
    holdings: Holdings,
    presence: Presence,
    flush_at_ms: u64,
    retry_at_ms: u64,
    /// Questions on their way to a partition; each is one that waits, and those are bounded by `asks_max`.
    asks: VecDeque<ToPresence>,
    /// When the time of a question is over, in monotonic milliseconds, and its ticket.
    deadlines: BTreeSet<(u64, u64)>,
    /// Answers on their way to who asked, whose mailbox has a place for each.
    answers: VecDeque<(ShardId, ToShard)>,
    /// The moment that was given to the last status: of two at once the later one holds.
    stated_us: u64,
}

impl Attendance {
    pub(super) fn new(shard: ShardId, options: PresenceOptions) -> Self {
        Self {
            holdings: Holdings::new(shard),
            presence: Presence::new(options),
            flush_at_ms: 0,
            retry_at_ms: 0,
            asks: VecDeque::new(),
            deadlines: BTreeSet::new(),
            answers: VecDeque::new(),
            stated_us: 0,
        }
    }

    /// When [`Shard::on_alarm`] or [`Shard::flush_presence`] has something to do, in monotonic milliseconds.
    pub(super) fn next_alarm_ms(&self) -> Option<u64> {
        let flush = self.holdings.has_untold().then_some(self.flush_at_ms);
        let retry = (!self.asks.is_empty() || !self.answers.is_empty()).then_some(self.retry_at_ms);
        let deadline = self.deadlines.first().map(|(until_ms, _)| *until_ms);
        [self.presence.next_alarm_ms(), flush, retry, deadline].into_iter().flatten().min()
    }

    /// Sends a question on its way; it is answered until then.
    pub(super) fn ask(&mut self, ticket: u64, until_ms: u64, question: ToPresence) {
        self.asks.push_back(question);
        self.deadlines.insert((until_ms, ticket));
    }

    /// Nobody waits for this answer any more.
    pub(super) fn forget_ask(&mut self, of: u64, until_ms: u64) {
        self.deadlines.remove(&(until_ms, of));
        self.asks.retain(|ask| !matches!(ask, ToPresence::Ask { ticket, .. } if *ticket == of));
    }

    /// The ticket of a question whose time is over.
    pub(super) fn pop_late(&mut self, now: Now) -> Option<u64> {
        let (until_ms, _) = self.deadlines.first()?;
        if *until_ms > now.mono_ms() {
            return None;
        }
        self.deadlines.pop_first().map(|(_, ticket)| ticket)
    }

    /// Bounded things here. A shard has at most `subscriptions_max` to tell of; all shards together watch at most
    /// `channels_max` channels.
    pub(super) fn gauges(&self, subscriptions_max: u64, channels_max: u64) -> [(&'static str, Gauge); 4] {
        let [members, typing] = self.presence.gauges();
        let untold = Gauge::new(self.holdings.untold() as u64, subscriptions_max);
        let channels = Gauge::new(self.presence.channels() as u64, channels_max);
        [members, typing, ("presence_untold", untold), ("presence_channels", channels)]
    }
}

impl Shard {
    /// A letter about presence came: this shard is the partition of its channel.
    pub fn on_presence(&mut self, now: Now, letter: ToPresence) {
        match letter {
            ToPresence::Holding(holding) => {
                self.attendance.presence.on_holding(now, &holding);
            }
            ToPresence::Ask { ticket, asker, topic, roster } => {
                let key = ChannelKey::new(topic.app, topic.name);
                let audience = self.attendance.presence.audience(&key, roster);
                self.attendance.answers.push_back((asker, ToShard::AudienceAnswer { ticket, audience }));
            }
        }
    }

    /// An event came to be given its order here. False if it is told to nobody.
    pub fn order(&mut self, now: Now, sealed: &Sealed, out: &mut impl Outgoing) -> bool {
        let typing = matches!(sealed.kind(), EventKind::TypingStart | EventKind::TypingStop);
        if typing && !self.attendance.presence.on_typing(now, sealed) {
            self.partition.turn_away();
            return false;
        }
        self.partition.publish(sealed, out);
        true
    }

    /// The next event of presence, to be published with [`Shard::publish_news`]; to be polled dry like actions. Only the
    /// mailboxes of the shards can be full for it: what it says of who came and who types must not be said by halves.
    pub fn poll_news(&mut self) -> Option<Sealed> {
        loop {
            let event = self.attendance.presence.poll_news()?;
            if self.draining.is_some() {
                continue;
            }
            // Names and statuses are bounded, so what is made of them always fits.
            if let Ok(sealed) = Sealed::seal(&event) {
                return Some(sealed);
            }
        }
    }

    /// Gives an event of presence its place in this shard's own partition.
    pub fn publish_news(&mut self, sealed: &Sealed, out: &mut impl Outgoing) {
        if self.partition.publish(sealed, out) > 0 {
            self.attendance.presence.on_lost(sealed);
        }
    }

    /// Puts into other shards' mailboxes what there is for them, as far as there is room. To be called at the end of
    /// every turn.
    pub fn flush_presence(&mut self, now: Now, doors: &mut impl PresenceDoors) {
        let (attendance, shards) = (&mut self.attendance, self.options.shards);
        let home = |topic: &Topic| partition(topic.scope, topic.app.as_str(), topic.name.as_str(), shards);
        while let Some(ask) = attendance.asks.pop_front() {
            if let Err(back) = doors.tell(home(ask.topic()), ask) {
                attendance.asks.push_front(back);
                break;
            }
        }
        while let Some((to, answer)) = attendance.answers.pop_front() {
            if let Err(back) = doors.answer(to, answer) {
                attendance.answers.push_front((to, back));
                break;
            }
        }
        attendance.retry_at_ms = now.mono_ms() + RETRY_MS;
        if attendance.holdings.has_untold() && attendance.flush_at_ms <= now.mono_ms() {
            attendance.flush_at_ms = now.mono_ms() + FLUSH_MS;
            attendance.holdings.flush(FLUSH_LETTERS_MAX, |holding| {
                let to = home(&holding.topic);
                doors.tell(to, ToPresence::Holding(Box::new(holding))).is_ok()
            });
        }
    }

    /// What time brings to presence.
    pub(super) fn presence_on_alarm(&mut self, now: Now) {
        self.attendance.presence.on_alarm(now);
        self.expire_audience_asks(now);
    }

    /// A connection watches a channel from now on.
    pub(super) fn attend(&mut self, id: ClientId, topic: &Topic) {
        let Some(client) = self.places.get(id.slot as usize).and_then(|place| place.client.as_ref()) else { return };
        let watcher = client.identity.as_ref().map(|identity| Watcher {
            user: &identity.user,
            name: &identity.name,
            stated: client.rates.as_ref().and_then(|rates| rates.stated.as_ref()),
        });
        self.attendance.holdings.join(topic, watcher);
    }

    /// A connection watches a channel no more. `user` is who it counted for.
    pub(super) fn absent(&mut self, topic: &Topic, user: Option<&Name>) {
        self.attendance.holdings.leave(topic, user);
    }

    /// A connection speaks for another user than before, or under another name: its channels count it anew.
    pub(super) fn attend_as(&mut self, id: ClientId, before: Option<&Name>) {
        let topics: Vec<TopicNo> =
            self.client(id).map(|client| client.subs().map(|sub| sub.topic).collect()).unwrap_or_default();
        for no in topics {
            if let Some(topic) = self.index.topic(no).cloned() {
                // First in, then out: in between it would have been nobody.
                self.attend(id, &topic);
                self.absent(&topic, before);
            }
        }
    }

    /// A user says something of itself: it holds in the channels that the connection watches, and in those to come.
    pub(super) fn command_status(&mut self, now: Now, id: ClientId, status: Status) -> Result<(), Problem> {
        let stated = Stated { status, at_us: now.mono_us.max(self.attendance.stated_us + 1) };
        let gone = || Problem::new(404, "gone", "the connection is gone");
        let client = self.client(id).ok_or_else(gone)?;
        let identity = match client.identity.as_deref() {
            None => return Err(Problem::new(403, "anonymous", "who has no token has no status")),
            Some(identity) if identity.expires_ms <= now.wall_ms => {
                let detail = "the token has expired: send a newer one with `auth`";
                return Err(Problem::new(401, "token_expired", detail));
            }
            Some(identity) => identity,
        };
        let (user, app) = (identity.user.clone(), client.app);
        self.apps.get(app).map_or(Ok(()), |app| app.check_words(Some(&stated.status.text), None))?;
        let client = self.client_mut(id).ok_or_else(gone)?;
        let rates = client.rates.get_or_insert_default();
        rates.begin_second(now.mono_s());
        if rates.statuses >= STATUS_PER_S {
            return Err(Problem::new(429, "over_rate", format!("at most {STATUS_PER_S} status a second")));
        }
        rates.statuses += 1;
        rates.stated = Some(stated.clone());
        let topics: Vec<TopicNo> = client.subs().map(|sub| sub.topic).collect();
        self.attendance.stated_us = stated.at_us;
        for no in topics {
            if let Some(topic) = self.index.topic(no) {
                self.attendance.holdings.state(topic, &user, &stated);
            }
        }
        Ok(())
    }

    /// For tests: the channel that a subscription of this shard is to.
    #[must_use]
    pub fn channel_of(&self, sub: &crate::fanout::sub::Sub) -> Option<&Name> {
        self.index.topic(sub.topic).map(|topic| &topic.name)
    }

    /// For tests: the presence of the channels whose partition this shard is, and what it holds itself.
    #[must_use]
    pub fn presence(&self) -> (&Presence, &Holdings) {
        (&self.attendance.presence, &self.attendance.holdings)
    }
}
