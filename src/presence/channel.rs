//! One channel as its partition shard sees it: connections by shard, members by user, and what was told of them last.
//!
//! What shards hold flows in, whether something is new flows out. Always true: totals are the sums of what each shard
//! told last; and above the limit members are counted and not told, until so many have left that it does not change
//! with every one who comes and goes.

use std::collections::BTreeMap;

use crate::base::{Name, ShardId};
use crate::post::presence::{Present, Stated, UserHolding};
use crate::wire::presence::Status;
use crate::wire::topic::Topic;

/// How often in an interval a large change of the totals is told.
const LARGE_CHANGES_AN_INTERVAL: u32 = 5;
/// Totals are never told more often, in milliseconds.
const WAIT_MS_MIN: u32 = 1_000;

/// Counts by shard. Nearly every user is on one shard, and no channel is on many.
#[derive(Debug, Default)]
struct Counts(Vec<(ShardId, u32)>);

impl Counts {
    fn set(&mut self, shard: ShardId, count: u32) {
        match self.0.iter().position(|(of, _)| *of == shard) {
            Some(at) if count == 0 => _ = self.0.swap_remove(at),
            Some(at) => self.0[at].1 = count,
            None if count == 0 => {}
            None => self.0.push((shard, count)),
        }
    }

    fn total(&self) -> u64 {
        self.0.iter().map(|(_, count)| u64::from(*count)).sum()
    }
}

/// One user in one channel.
#[derive(Debug, Default)]
pub(super) struct Member {
    pub(super) name: String,
    counts: Counts,
    stated: Option<Box<Stated>>,
}

impl Member {
    pub(super) fn new(holding: &UserHolding, shard: ShardId) -> Self {
        let mut member = Self::default();
        member.update(holding, shard);
        member
    }

    /// Takes over what a shard holds. True if the user says something else of itself than before.
    pub(super) fn update(&mut self, holding: &UserHolding, shard: ShardId) -> bool {
        self.counts.set(shard, holding.connections);
        if !holding.name.is_empty() && self.name != holding.name {
            self.name.clone_from(&holding.name);
        }
        let newer = holding
            .stated
            .as_ref()
            .filter(|stated| self.stated.as_ref().is_none_or(|known| known.at_us < stated.at_us));
        let Some(stated) = newer else { return false };
        let changed = self.status() != stated.status;
        self.stated = Some(Box::new(stated.clone()));
        changed
    }

    pub(super) fn connections(&self) -> u64 {
        self.counts.total()
    }

    /// What it says of itself; who has said nothing is online.
    pub(super) fn status(&self) -> Status {
        self.stated.as_ref().map(|stated| stated.status.clone()).unwrap_or_default()
    }
}

/// The totals that were told last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Totals {
    connections: u64,
    users: u64,
    one_by_one: bool,
}

impl Totals {
    /// A tenth of either number, or the way of telling.
    fn differs_largely(self, from: Self) -> bool {
        let large = |now: u64, then: u64| now.abs_diff(then) * 10 >= then.max(1);
        large(self.connections, from.connections) || large(self.users, from.users) || self.one_by_one != from.one_by_one
    }
}

/// One channel.
#[derive(Debug)]
pub(super) struct Channel {
    pub(super) topic: Topic,
    pub(super) members: BTreeMap<Name, Member>,
    /// Members are told one by one.
    pub(super) one_by_one: bool,
    counts: Counts,
    /// `None` when they did not reach every shard.
    told: Option<Totals>,
    told_at_ms: u64,
}

impl Channel {
    /// Nobody was there until now.
    pub(super) fn new(topic: Topic, now_ms: u64) -> Self {
        let told = Some(Totals { connections: 0, users: 0, one_by_one: true });
        Self { topic, members: BTreeMap::new(), one_by_one: true, counts: Counts::default(), told, told_at_ms: now_ms }
    }

    pub(super) fn connections(&self) -> u64 {
        self.counts.total()
    }

    /// Takes over how many connections a shard holds.
    pub(super) fn update(&mut self, shard: ShardId, connections: u32) {
        self.counts.set(shard, connections);
    }

    /// The way of telling follows the numbers, after each change of connections or members. Members whose grace lasts
    /// count, too: a crowd that leaves at once is not told one by one to the few who stay.
    pub(super) fn choose_mode(&mut self, roster_limit: u32) {
        let (size, limit) = (self.connections().max(self.members.len() as u64), u64::from(roster_limit));
        if limit == 0 || size > limit {
            self.one_by_one = false;
        } else if size * 100 <= limit * 80 {
            self.one_by_one = true;
        }
    }

    /// Nobody is there, and nobody may come back.
    pub(super) fn is_over(&self) -> bool {
        self.connections() == 0 && self.members.is_empty()
    }

    fn totals(&self) -> Totals {
        Totals { connections: self.connections(), users: self.members.len() as u64, one_by_one: self.one_by_one }
    }

    /// When the totals are to be told, in monotonic milliseconds; `None` if they are as they were told.
    /// Never sooner than `least_ms` after the last time.
    pub(super) fn tell_at_ms(&self, interval_ms: u32, least_ms: u32) -> Option<u64> {
        let now = self.totals();
        let soon = self.told.is_none_or(|told| now.differs_largely(told));
        let wait_ms = if soon { interval_ms / LARGE_CHANGES_AN_INTERVAL } else { interval_ms };
        (self.told != Some(now)).then_some(self.told_at_ms + u64::from(wait_ms.max(least_ms).max(WAIT_MS_MIN)))
    }

    /// The totals are told now: connections and users.
    pub(super) fn tell(&mut self, now_ms: u64) -> (u64, u64) {
        let totals = self.totals();
        (self.told, self.told_at_ms) = (Some(totals), now_ms);
        (totals.connections, totals.users)
    }

    /// What was told last did not reach every shard: it is told again, though nothing changes.
    pub(super) fn tell_again(&mut self) {
        self.told = None;
    }

    /// Each member, in the order of their names.
    pub(super) fn roster(&self) -> Vec<Present> {
        let present = |(user, member): (&Name, &Member)| Present {
            user: user.clone(),
            name: member.name.clone(),
            connections: u32::try_from(member.connections()).unwrap_or(u32::MAX),
            status: member.status(),
        };
        self.members.iter().map(present).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::topic::{Scope, TopicHasher};

    fn channel() -> Channel {
        let name = Name::new("x").unwrap();
        Channel::new(TopicHasher::new(1).topic(Scope::Channel, &name, &name), 0)
    }

    fn hold(channel: &mut Channel, shard: u16, connections: u32, roster_limit: u32) {
        channel.update(ShardId(shard), connections);
        channel.choose_mode(roster_limit);
    }

    #[test]
    fn the_way_of_telling_changes_at_the_limit_and_back_at_80_percent() {
        let mut channel = channel();
        let mut at = |shard, connections| {
            channel.update(ShardId(shard), connections);
            channel.choose_mode(10);
            channel.one_by_one
        };
        assert!(at(0, 6) && at(1, 4), "at the limit");
        assert!(!at(1, 5) && !at(1, 3), "above it, and then not yet far enough below");
        assert!(at(0, 5), "at 80 %");
        assert!(at(1, 0) && at(0, 10));
        for n in 0..11 {
            channel.members.insert(Name::new(&format!("u{n}")).unwrap(), Member::default());
        }
        channel.choose_mode(10);
        assert!(!channel.one_by_one, "members count, also those who have left a moment ago");
        channel.choose_mode(14);
        assert!(channel.one_by_one);
        channel.choose_mode(0);
        assert!(!channel.one_by_one, "a limit of none");
    }

    #[test]
    fn totals_are_told_once_an_interval_and_once_a_second_after_a_large_change() {
        let mut channel = channel();
        assert_eq!(channel.tell_at_ms(5_000, 0), None);
        hold(&mut channel, 0, 100, 500);
        assert_eq!(channel.tell_at_ms(5_000, 0), Some(1_000));
        assert_eq!(channel.tell(1_000), (100, 0));
        hold(&mut channel, 1, 1, 500);
        assert_eq!(channel.tell_at_ms(5_000, 0), Some(6_000), "a small change waits for the interval");
        hold(&mut channel, 1, 10, 500);
        assert_eq!(channel.tell_at_ms(5_000, 0), Some(2_000));
        assert_eq!(channel.tell_at_ms(5_000, 3_000), Some(4_000), "not even then");
        hold(&mut channel, 1, 0, 500);
        assert_eq!(channel.tell_at_ms(5_000, 0), None, "it is as it was told");
        hold(&mut channel, 0, 99, 99);
        channel.tell(3_000);
        hold(&mut channel, 0, 100, 99);
        assert_eq!(channel.tell_at_ms(5_000, 0), Some(4_000), "that members are told no more is told soon");
        channel.tell(4_000);
        assert_eq!(channel.tell_at_ms(5_000, 0), None);
        channel.tell_again();
        assert_eq!(channel.tell_at_ms(5_000, 0), Some(5_000), "what was lost is told again");
    }

    #[test]
    fn the_newest_of_what_a_user_says_holds() {
        let user = Name::new("ann").unwrap();
        let holding = |connections, name: &str, said: Option<(u64, &str)>| UserHolding {
            user: user.clone(),
            name: name.into(),
            connections,
            stated: said
                .map(|(at_us, text)| Stated { status: Status { text: text.into(), ..Status::default() }, at_us }),
        };
        let mut member = Member::new(&holding(2, "Ann", None), ShardId(0));
        assert!(!member.update(&holding(1, "", Some((3, ""))), ShardId(1)), "who says nothing is online");
        assert!(member.update(&holding(1, "", Some((5, "tea"))), ShardId(1)));
        assert!(!member.update(&holding(2, "", Some((4, "late"))), ShardId(0)));
        assert!(!member.update(&holding(2, "", Some((6, "tea"))), ShardId(0)), "it says the same again");
        assert_eq!((member.name.as_str(), member.connections(), member.status().text.as_str()), ("Ann", 3, "tea"));
    }
}
