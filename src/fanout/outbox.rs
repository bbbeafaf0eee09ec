//! What waits for one client that is behind; a client in step has no outbox.
//!
//! Events of its channels flow in; what its socket should carry next, and gaps that say what was lost, flow out.
//! Always true: every event that was pushed is popped, merged, evicted, stale, lost or still waiting; stored events of
//! a channel never pass each other; a gap comes out before any later stored event of its channel; and no lane holds
//! more than its capacity, nor all lanes more than the byte bound.
//!
//! **Gaps are bounded.** Two gaps of a channel always have a stored event of it between them, so a channel has at most
//! one gap more than it has stored events waiting: all in all at most `waiting stored events + channels with a loss`,
//! and a client watches a bounded number of channels. A gap lists each type once.

use super::chain::NONE;
use super::gap::Gap;
use super::lanes::Lanes;
use super::score::{self, OutboxOptions};
use crate::base::{Account, Class};
use crate::wire::event::EventKind;

/// One event that waits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry<T> {
    /// Its type, and with it class, priority and time to live.
    pub kind: EventKind,
    /// The shard-local number of its channel; losses of one channel are told together.
    pub channel: u32,
    /// Its number in the channel if it is stored, else 0. Only ordered types are stored.
    pub seq: u64,
    /// What a mergeable event replaces: the waiting one of the same type and key. Not looked at in other classes.
    pub merge_key: u64,
    /// What it counts against the byte bound.
    pub bytes: u32,
    /// When it was appended, in monotonic milliseconds; it never steps back from one push to the next.
    pub at_ms: u64,
    /// What the caller writes in the end.
    pub payload: T,
}

/// What became of a push.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It waits.
    Queued,
    /// It waits in the place of an older one, which counts as merged.
    Merged,
    /// It waits, and so many others had to go for it; said in place of `Merged` if a merge needed room as well.
    Evicted(u32),
    /// It had the lowest score itself: it counts as evicted and a gap tells it.
    Refused,
    /// It must not be dropped and does not fit: it counts as lost and the caller closes the connection with 4508.
    Overrun,
}

/// What the client gets next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Popped<T> {
    /// An event.
    Entry(Entry<T>),
    /// What was lost in this place.
    Gap(Gap),
}

/// The queue of one client that is behind. A new one holds no memory of its own.
#[derive(Debug)]
pub struct Outbox<T> {
    lanes: Lanes<T>,
}

impl<T> Default for Outbox<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T> Outbox<T> {
    /// An empty one.
    #[must_use]
    pub const fn new() -> Self {
        Self { lanes: Lanes::new() }
    }

    /// Takes an event in, or says why not. `published` is the caller's to count; here it is merged, evicted or lost.
    ///
    /// When its lane is full the lowest score of that lane goes, when the byte bound is passed the lowest scores of
    /// all evicting lanes go, the arriving event included. Nobody goes for an event that would not fit even then.
    pub fn push(&mut self, options: &OutboxOptions, account: &mut Account, entry: Entry<T>) -> Verdict {
        let before = self.lanes.bytes();
        let verdict = self.take_in(options, account, entry);
        account.moved(before, self.lanes.bytes());
        verdict
    }

    fn take_in(&mut self, options: &OutboxOptions, account: &mut Account, entry: Entry<T>) -> Verdict {
        let row = entry.kind.row();
        debug_assert!(entry.seq == 0 || row.class == Class::Ordered, "what has a seq rides in order");
        let place = match row.class {
            Class::Mergeable => self.lanes.at_key(entry.kind, entry.merge_key),
            Class::Critical | Class::Ordered => None,
        };
        if let Some(at) = place {
            // From here on the older event counts no more; only its place is kept for the newer one.
            self.lanes.leave_level(at);
            account.of_mut(row.class).merged += 1;
        }
        let lane_full = place.is_none() && self.waiting(row.class) >= options.capacity(row.class);
        let bytes_left = u64::from(options.bytes_max).saturating_sub(self.lanes.bytes());
        let mut evicted = 0;
        if lane_full || u64::from(entry.bytes) > bytes_left {
            if !self.can_make_room(options, &entry, lane_full) {
                if let Some(at) = place {
                    self.lanes.take_off(at);
                }
                return self.turn_away(account, &entry);
            }
            if lane_full && self.evict(account, score::evictable_in(row.class)) {
                evicted += 1;
            }
            let outscored = score::outscored_by(entry.kind);
            while self.lanes.bytes() + u64::from(entry.bytes) > u64::from(options.bytes_max)
                && self.evict(account, outscored)
            {
                evicted += 1;
            }
        }
        match place {
            Some(at) => self.lanes.replace(at, entry),
            None => self.lanes.append(entry),
        }
        match (evicted, place) {
            (0, None) => Verdict::Queued,
            (0, Some(_)) => Verdict::Merged,
            _ => Verdict::Evicted(evicted),
        }
    }

    /// The next thing to write, at `now_ms` in monotonic milliseconds: critical events, then ordered ones with the
    /// gaps among them, then mergeable ones. What is past its time is dropped on the way and counts as stale.
    pub fn pop(&mut self, now_ms: u64, account: &mut Account) -> Option<Popped<T>> {
        let before = self.lanes.bytes();
        let popped = self.take_out(now_ms, account);
        account.moved(before, self.lanes.bytes());
        popped
    }

    fn take_out(&mut self, now_ms: u64, account: &mut Account) -> Option<Popped<T>> {
        for class in Class::ALL {
            loop {
                let at = self.lanes.first(class);
                let Some(entry) = self.lanes.remove_entry(at) else { break };
                let limit_ms = entry.kind.row().stale_after_ms;
                if limit_ms.is_none_or(|limit_ms| now_ms.saturating_sub(entry.at_ms) <= u64::from(limit_ms)) {
                    return Some(Popped::Entry(entry));
                }
                account.of_mut(class).stale += 1;
            }
            if let Some(gap) = self.lanes.remove_gap(self.lanes.first(class)) {
                return Some(Popped::Gap(gap));
            }
        }
        None
    }

    /// The next critical event.
    pub fn pop_critical(&mut self, account: &mut Account) -> Option<Entry<T>> {
        let entry = self.lanes.remove_entry(self.lanes.first(Class::Critical))?;
        account.moved(entry.bytes.into(), 0);
        Some(entry)
    }

    /// Takes out the ordered events for which `keep` is false, such as a message whose text was retracted. They count
    /// as evicted and gaps tell them. Returns how many went. Walks the ordered lane.
    pub fn retract(&mut self, account: &mut Account, mut keep: impl FnMut(&Entry<T>) -> bool) -> usize {
        // Gaps may join each other while events go, so the walk ends before the first one goes.
        let doomed = self.lanes.find(Class::Ordered, |entry| !keep(entry));
        let before = self.lanes.bytes();
        for &at in &doomed {
            self.lanes.lose(at);
        }
        account.moved(before, self.lanes.bytes());
        account.of_mut(Class::Ordered).evicted += doomed.len() as u64;
        doomed.len()
    }

    /// Tells events that were lost before they came here, such as those that did not fit into their channel's tick;
    /// they count nowhere here.
    pub fn tell(&mut self, gap: &Gap) {
        self.lanes.tell_gap(gap);
    }

    /// Drops every event and gap of `channel`, because the client has left it: they count as lost, and nobody is told.
    /// The caller does this before the number of the channel can be given to another one. Walks all lanes.
    pub fn forget(&mut self, channel: u32, account: &mut Account) {
        let before = self.lanes.bytes();
        for class in Class::ALL {
            for at in self.lanes.find(class, |entry| entry.channel == channel) {
                self.lanes.remove_entry(at);
                account.of_mut(class).lost += 1;
            }
        }
        account.moved(before, self.lanes.bytes());
        // Without its events the chain of a channel holds gaps only.
        while self.lanes.remove_gap(self.lanes.first_of_channel(channel)).is_some() {}
    }

    /// The connection has closed: everything that waits counts as lost, and the memory is given back.
    pub fn drain_lost(&mut self, account: &mut Account) {
        for class in Class::ALL {
            account.of_mut(class).lost += self.waiting(class) as u64;
        }
        account.moved(self.lanes.bytes(), 0);
        *self = Self::new();
    }

    /// How many events wait, gaps not counted.
    #[must_use]
    pub fn len(&self) -> usize {
        self.lanes.waiting().iter().sum()
    }

    /// How many events of `class` wait, gaps not counted.
    #[must_use]
    pub const fn waiting(&self, class: Class) -> usize {
        self.lanes.waiting()[class as usize]
    }

    /// What the waiting events count against the byte bound; gaps are not counted.
    #[must_use]
    pub const fn bytes(&self) -> usize {
        self.lanes.bytes() as usize
    }

    /// There is nothing to pop: no event and no gap. An outbox with a gap in it is not empty, though its `len` is 0.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        Class::ALL.iter().all(|&class| self.lanes.first(class) == NONE)
    }

    /// When the oldest waiting event was appended, in monotonic milliseconds. Its age is the client's lag.
    #[must_use]
    pub fn oldest_at_ms(&self) -> Option<u64> {
        self.lanes.oldest_at_ms()
    }

    /// Would evicting what scores below `entry` be enough? Looks at sums only, so that a no costs nobody anything.
    fn can_make_room(&self, options: &OutboxOptions, entry: &Entry<T>, lane_full: bool) -> bool {
        let outscored = score::outscored_by(entry.kind);
        let in_lane = outscored & score::evictable_in(entry.kind.row().class);
        if lane_full && self.lanes.lowest(in_lane) == NONE {
            return false;
        }
        let kept = self.lanes.bytes() - self.lanes.bytes_at(outscored);
        kept + u64::from(entry.bytes) <= u64::from(options.bytes_max)
    }

    /// Drops an arriving event that does not fit.
    fn turn_away(&mut self, account: &mut Account, entry: &Entry<T>) -> Verdict {
        let row = entry.kind.row();
        if row.priority == score::NEVER_EVICTED {
            account.of_mut(row.class).lost += 1;
            return Verdict::Overrun;
        }
        account.of_mut(row.class).evicted += 1;
        self.lanes.tell_last(entry.channel, entry.kind, entry.seq);
        Verdict::Refused
    }

    /// Evicts the lowest score among `levels`; false if nothing waits there.
    fn evict(&mut self, account: &mut Account, levels: u32) -> bool {
        let lost = self.lanes.lose(self.lanes.lowest(levels));
        if let Some(class) = lost {
            account.of_mut(class).evicted += 1;
        }
        lost.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use EventKind::{
        ChannelUpdated, Custom, MessageNew, MessageRetracted, Pong, ReactionNew, TypingStart, ViewersUpdated,
    };

    const TIGHT: OutboxOptions = OutboxOptions {
        lag_budget_ms: 1_000,
        critical_per_s: 2,
        ordered_per_s: 3,
        mergeable_per_s: 2,
        events_min: 1,
        events_max: 64,
        bytes_max: 100,
    };

    fn entry(kind: EventKind, seq: u64, bytes: u32) -> Entry<u64> {
        Entry { kind, channel: 7, seq, merge_key: 0, bytes, at_ms: 0, payload: seq }
    }

    /// What an outbox gives, as text: the seq of an event behind its type, and what a gap covers.
    fn drain(outbox: &mut Outbox<u64>, now_ms: u64, account: &mut Account) -> Vec<String> {
        std::iter::from_fn(|| outbox.pop(now_ms, account))
            .map(|popped| match popped {
                Popped::Entry(entry) => format!("{} {}", entry.kind.row().name, entry.seq),
                Popped::Gap(gap) => format!("gap {}-{} {:?}", gap.from_seq, gap.to_seq, gap.dropped),
            })
            .collect()
    }

    #[test]
    fn critical_goes_first_and_a_newer_state_takes_the_older_place() {
        let (mut outbox, mut account) = (Outbox::new(), Account::default());
        for (kind, seq) in [(ViewersUpdated, 0), (MessageNew, 1), (ChannelUpdated, 0), (Pong, 0)] {
            assert_eq!(outbox.push(&TIGHT, &mut account, entry(kind, seq, 1)), Verdict::Queued);
        }
        let newer = Entry { at_ms: 9, ..entry(ViewersUpdated, 0, 5) };
        assert_eq!(outbox.push(&TIGHT, &mut account, newer), Verdict::Merged);
        assert_eq!((outbox.len(), outbox.bytes(), outbox.oldest_at_ms()), (4, 8, Some(0)));
        let expected = ["pong 0", "message.new 1", "viewers.updated 0", "channel.updated 0"];
        assert_eq!(drain(&mut outbox, 9, &mut account), expected);
        assert_eq!(account.of(Class::Mergeable).merged, 1);
        assert!(outbox.is_empty());
    }

    #[test]
    fn the_lowest_score_goes_and_the_gap_stands_in_its_place() {
        let (mut outbox, mut account) = (Outbox::new(), Account::default());
        for (kind, seq) in [(ReactionNew, 1), (MessageNew, 2), (ReactionNew, 3)] {
            outbox.push(&TIGHT, &mut account, entry(kind, seq, 1));
        }
        assert_eq!(outbox.push(&TIGHT, &mut account, entry(MessageNew, 4, 1)), Verdict::Evicted(1));
        assert_eq!(outbox.push(&TIGHT, &mut account, entry(MessageNew, 5, 1)), Verdict::Evicted(1));
        assert_eq!(outbox.push(&TIGHT, &mut account, entry(TypingStart, 0, 1)), Verdict::Refused);
        let expected = [
            "gap 1-1 [(ReactionNew, 1)]",
            "message.new 2",
            "gap 3-3 [(ReactionNew, 1)]",
            "message.new 4",
            "message.new 5",
            "gap 0-0 [(TypingStart, 1)]",
        ];
        assert_eq!(drain(&mut outbox, 0, &mut account), expected);
        assert_eq!(account.of(Class::Ordered).evicted, 3);
    }

    #[test]
    fn gaps_join_when_what_stood_between_them_goes() {
        let (mut outbox, mut account) = (Outbox::new(), Account::default());
        for (kind, seq) in [(ReactionNew, 1), (MessageNew, 2), (ReactionNew, 3)] {
            outbox.push(&TIGHT, &mut account, entry(kind, seq, 1));
        }
        outbox.retract(&mut account, |entry| entry.kind != ReactionNew);
        assert_eq!(outbox.retract(&mut account, |entry| entry.payload != 2), 1);
        assert_eq!((outbox.len(), outbox.is_empty()), (0, false));
        assert_eq!(drain(&mut outbox, 0, &mut account), ["gap 1-3 [(MessageNew, 1), (ReactionNew, 2)]"]);
    }

    #[test]
    fn nobody_goes_for_an_event_that_would_not_fit_even_then() {
        let (mut outbox, mut account) = (Outbox::new(), Account::default());
        outbox.push(&TIGHT, &mut account, entry(MessageNew, 1, 60));
        outbox.push(&TIGHT, &mut account, entry(ChannelUpdated, 0, 20));
        assert_eq!(outbox.push(&TIGHT, &mut account, entry(ReactionNew, 2, 50)), Verdict::Refused);
        assert_eq!(outbox.len(), 2);
        assert_eq!(outbox.push(&TIGHT, &mut account, entry(ReactionNew, 3, 40)), Verdict::Evicted(1));
        assert_eq!(outbox.push(&TIGHT, &mut account, entry(MessageRetracted, 4, 101)), Verdict::Overrun);
        assert_eq!(outbox.push(&TIGHT, &mut account, entry(MessageRetracted, 5, 100)), Verdict::Evicted(2));
        assert_eq!(outbox.push(&TIGHT, &mut account, entry(Pong, 0, 1)), Verdict::Overrun);
        assert_eq!(account.of(Class::Critical).lost, 1);
    }

    #[test]
    fn what_is_past_its_time_is_dropped_untold() {
        let (mut outbox, mut account) = (Outbox::new(), Account::default());
        outbox.push(&TIGHT, &mut account, entry(TypingStart, 0, 1));
        outbox.push(&TIGHT, &mut account, entry(Custom, 0, 1));
        assert_eq!(drain(&mut outbox, 5_001, &mut account), ["custom.* 0"]);
        outbox.push(&TIGHT, &mut account, entry(TypingStart, 0, 1));
        assert_eq!(drain(&mut outbox, 5_000, &mut account), ["typing.start 0"]);
        assert_eq!(account.of(Class::Ordered).stale, 1);
    }

    #[test]
    fn who_leaves_a_channel_or_goes_is_told_nothing_of_it() {
        let (mut outbox, mut account) = (Outbox::new(), Account::default());
        for (channel, seq) in [(7, 1), (8, 1), (7, 2), (8, 2)] {
            outbox.push(&TIGHT, &mut account, Entry { channel, ..entry(MessageNew, seq, 1) });
        }
        outbox.forget(7, &mut account);
        assert_eq!((outbox.waiting(Class::Ordered), account.of(Class::Ordered).lost), (2, 1));
        outbox.drain_lost(&mut account);
        assert!(outbox.is_empty() && outbox.bytes() == 0);
        assert_eq!(account.of(Class::Ordered).lost, 3);
    }
}
