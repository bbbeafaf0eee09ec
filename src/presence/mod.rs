//! Who is there: members of channels by user, told one by one while few watch and as a number while many do.
//!
//! | file | what it holds |
//! |---|---|
//! | `holdings` | on every shard: what it holds of each channel, and what of that its partition shards do not know yet |
//! | `rosters` | on a channel's partition shard: its members over all shards, how it tells of them, its totals |
//! | `channel` | one channel of these |
//! | `typing` | on the partition shard: who types, and for how long |
//!
//! Letters of shards, typing events and the time flow in; events of presence flow out ([`Presence::poll_news`], to be
//! polled dry after each call). Always true: two connections of a user are one member; who comes back within the grace
//! never left; no table is larger than its limit; and when every holding is told, the numbers here are the truth.
//!
//! **Why it does not grow with the square of the audience.** Each change is told to everybody who watches, so changes ×
//! audience is bounded by leaving changes away: a channel that more than `roster_limit` connections watch tells no
//! member, only its totals, once an interval.

mod channel;
mod holdings;
mod rosters;
mod typing;

use std::collections::VecDeque;

pub use holdings::{Holdings, Watcher};

use crate::base::{ChannelKey, Gauge, Now};
use crate::post::presence::{Audience, Holding};
use crate::wire::event::EventKind;
use crate::wire::sealed::{Event, Sealed};
use rosters::Rosters;
use typing::Typing;

/// Everything about presence that may be chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PresenceOptions {
    /// Up to so many connections and members of a channel its members are told one by one; again at 80 % of it.
    pub roster_limit: u32,
    /// Who comes back within so long did not leave, in milliseconds.
    pub grace_ms: u32,
    /// Members of all channels of one partition shard at the most; who comes beyond is counted as a connection only.
    pub members_max: u32,
    /// Who says nothing for so long types no more, in milliseconds.
    pub typing_ms: u32,
    /// Users that type at a time in all channels of one partition shard; beyond it nobody is told that another begins.
    pub typing_max: u32,
    /// Between two `viewers.updated` of one channel, in milliseconds.
    pub viewers_interval_ms: u32,
    /// Deliveries of `viewers.updated` a second for the channels of one partition shard, about: with more viewers than
    /// this and an interval allow, the interval is longer, also that after a large change.
    pub viewers_deliveries_per_s_max: u32,
}

impl Default for PresenceOptions {
    fn default() -> Self {
        Self {
            roster_limit: 500,
            grace_ms: 5_000,
            members_max: 1_000_000,
            typing_ms: 6_000,
            typing_max: 65_536,
            viewers_interval_ms: 5_000,
            viewers_deliveries_per_s_max: 20_000,
        }
    }
}

/// The presence of all channels of one partition shard.
#[derive(Debug)]
pub struct Presence {
    rosters: Rosters,
    typing: Typing,
    news: VecDeque<Event>,
}

impl Presence {
    /// Nobody.
    #[must_use]
    pub fn new(options: PresenceOptions) -> Self {
        Self { rosters: Rosters::new(options), typing: Typing::new(options), news: VecDeque::new() }
    }

    /// The next event to publish.
    pub fn poll_news(&mut self) -> Option<Event> {
        self.news.pop_front()
    }

    /// A shard tells what it holds.
    pub fn on_holding(&mut self, now: Now, holding: &Holding) {
        self.rosters.on_holding(now, holding, &mut self.news);
        if let Some(user) = &holding.user
            && user.connections == 0
        {
            let key = ChannelKey::new(holding.topic.app.clone(), holding.topic.name.clone());
            if !self.rosters.is_connected(&key, &user.user) {
                self.news.extend(self.typing.end(now, key, user.user.clone()));
            }
        }
    }

    /// A typing event comes to be ordered; false if it must not be told, because its end could not be.
    pub fn on_typing(&mut self, now: Now, sealed: &Sealed) -> bool {
        match sealed.kind() {
            EventKind::TypingStart => self.typing.begin(now, sealed),
            EventKind::TypingStop => {
                self.typing.ended(sealed);
                true
            }
            _ => true,
        }
    }

    /// An event of this did not reach every shard. Totals are told again, else the last
    /// ones could stay wrong for as long as nobody comes or goes; what one member did stays lost, and the bus counts it.
    pub fn on_lost(&mut self, sealed: &Sealed) {
        if sealed.kind() == EventKind::ViewersUpdated {
            let topic = sealed.topic();
            self.rosters.on_totals_lost(&ChannelKey::new(topic.app.clone(), topic.name.clone()));
        }
    }

    /// Time has passed.
    pub fn on_alarm(&mut self, now: Now) {
        self.rosters.on_alarm(now, &mut self.news);
        self.typing.on_alarm(now, &mut self.news);
    }

    /// When [`Presence::on_alarm`] has something to do, in monotonic milliseconds.
    #[must_use]
    pub fn next_alarm_ms(&self) -> Option<u64> {
        [self.rosters.next_alarm_ms(), self.typing.next_alarm_ms()].into_iter().flatten().min()
    }

    /// Who watches a channel; each member only if `roster` asks for it and there are not too many.
    #[must_use]
    pub fn audience(&self, key: &ChannelKey, roster: bool) -> Audience {
        self.rosters.audience(key, roster)
    }

    /// Bounded things here: name, used, limit.
    #[must_use]
    pub fn gauges(&self) -> [(&'static str, Gauge); 2] {
        [("presence_members", self.rosters.gauge()), ("typing", self.typing.gauge())]
    }

    /// Channels that somebody watches, or has left a moment ago.
    #[must_use]
    pub fn channels(&self) -> usize {
        self.rosters.channels()
    }
}
