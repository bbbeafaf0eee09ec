//! The three lanes of an outbox and the gaps in them, as chains.
//!
//! Events that were found to fit flow in; events and gaps flow out in the order of leaving. Always true: on the chain
//! of a channel no two gaps are neighbours, the sums of each level agree with what hangs on it, and no step searches.
//!
//! An event hangs on the chain of its lane (the order of leaving), on the chain of its level (the order of going when
//! the queue is full) and, if it is stored, on the chain of its channel (where gaps join each other). A million
//! events that pass a stuck one cost the same each, and the memory of those that went is used again at once.

use super::chain::{By, Ends, NONE, Slab};
use super::gap::Gap;
use super::outbox::Entry;
use super::score::{self, LEVELS};
use crate::base::Class;
use crate::wire::event::EventKind;
use std::collections::BTreeMap;

#[derive(Debug)]
enum Waiting<T> {
    Entry(Entry<T>),
    Gap(Gap),
}

/// What waits. A place is the number of a slot; it holds until what stands there is removed.
#[derive(Debug)]
pub(super) struct Lanes<T> {
    slots: Slab<Waiting<T>>,
    /// By class. Gaps stand in the ordered lane.
    ends: [Ends; 3],
    /// The events of each priority from the oldest to the youngest; a merged one is as young as its last merge.
    levels: [Ends; LEVELS],
    level_bytes: [u64; LEVELS],
    /// The levels at which something waits, as bits.
    occupied: u32,
    /// Stored events and gaps of each channel that has any, sorted by channel: a client watches a few, and a search
    /// among a few neighbours is the quickest there is.
    channels: Vec<(u32, Ends)>,
    /// Where the mergeable event of a type (as it merges) and key waits.
    by_key: BTreeMap<(u64, EventKind), u32>,
    /// Events by class, gaps not counted.
    waiting: [usize; 3],
    bytes: u64,
}

impl<T> Lanes<T> {
    pub(super) const fn new() -> Self {
        Self {
            slots: Slab::new(),
            ends: [Ends::EMPTY; 3],
            levels: [Ends::EMPTY; LEVELS],
            level_bytes: [0; LEVELS],
            occupied: 0,
            channels: Vec::new(),
            by_key: BTreeMap::new(),
            waiting: [0; 3],
            bytes: 0,
        }
    }

    /// How many events of each class wait, gaps not counted.
    pub(super) const fn waiting(&self) -> &[usize; 3] {
        &self.waiting
    }

    /// The bytes of all events that wait.
    pub(super) const fn bytes(&self) -> u64 {
        self.bytes
    }

    /// What leaves the lane of `class` next, or [`NONE`].
    pub(super) const fn first(&self, class: Class) -> u32 {
        self.ends[class as usize].first
    }

    /// What stands first on the chain of `channel`, or [`NONE`].
    pub(super) fn first_of_channel(&self, channel: u32) -> u32 {
        self.channel_at(channel).map_or(NONE, |at| self.channels[at].1.first)
    }

    /// Where the mergeable event of this type and key waits.
    pub(super) fn at_key(&self, kind: EventKind, merge_key: u64) -> Option<u32> {
        self.by_key.get(&(merge_key, kind.merges_as())).copied()
    }

    /// The lowest score among `levels`, given as bits: the oldest event of the lowest level; [`NONE`] if none waits.
    pub(super) fn lowest(&self, levels: u32) -> u32 {
        let level = (levels & self.occupied).trailing_zeros() as usize;
        self.levels.get(level).map_or(NONE, |chain| chain.first)
    }

    /// The bytes that wait at `levels`, given as bits.
    pub(super) fn bytes_at(&self, levels: u32) -> u64 {
        self.level_bytes
            .iter()
            .enumerate()
            .filter(|(level, _)| levels & (1 << level) != 0)
            .map(|(_, bytes)| bytes)
            .sum()
    }

    /// When the oldest event was appended.
    pub(super) fn oldest_at_ms(&self) -> Option<u64> {
        let heads = self.levels.iter().chain([&self.ends[Class::Critical as usize]]);
        heads.filter_map(|chain| self.entry(chain.first)).map(|entry| entry.at_ms).min()
    }

    /// The places of the events of `class` that are `wanted`, in the order of leaving.
    pub(super) fn find(&self, class: Class, mut wanted: impl FnMut(&Entry<T>) -> bool) -> Vec<u32> {
        std::iter::successors(Some(self.first(class)), |&at| Some(self.slots.after(By::Lane, at)))
            .take_while(|&at| at != NONE)
            .filter(|&at| self.entry(at).is_some_and(&mut wanted))
            .collect()
    }

    fn entry(&self, at: u32) -> Option<&Entry<T>> {
        match self.slots.get(at) {
            Some(Waiting::Entry(entry)) => Some(entry),
            Some(Waiting::Gap(_)) | None => None,
        }
    }

    fn gap_mut(&mut self, at: u32) -> Option<&mut Gap> {
        match self.slots.get_mut(at) {
            Some(Waiting::Gap(gap)) => Some(gap),
            Some(Waiting::Entry(_)) | None => None,
        }
    }

    /// Queues an event at the end of its lane.
    pub(super) fn append(&mut self, entry: Entry<T>) {
        let (kind, channel, merge_key, bytes) = (entry.kind, entry.channel, entry.merge_key, entry.bytes);
        let (class, stored) = (kind.row().class, is_stored(&entry));
        let at = self.slots.insert(Waiting::Entry(entry));
        self.slots.push_last(&mut self.ends[class as usize], By::Lane, at);
        self.waiting[class as usize] += 1;
        if class == Class::Mergeable {
            self.by_key.insert((merge_key, kind.merges_as()), at);
        }
        if stored {
            self.enter_channel(channel, at);
        }
        self.enter_level(at, kind, bytes);
    }

    /// Puts a mergeable event into the place of an older one of its type and key, which has left its level.
    pub(super) fn replace(&mut self, at: u32, entry: Entry<T>) {
        let (kind, bytes) = (entry.kind, entry.bytes);
        if let Some(older) = self.slots.get_mut(at) {
            *older = Waiting::Entry(entry);
            self.enter_level(at, kind, bytes);
        }
    }

    /// Drops a waiting event and tells it. A stored one is told in its own place, joined with the gaps beside it.
    /// Returns its class; `None` and nothing done if no event stands at `at`.
    pub(super) fn lose(&mut self, at: u32) -> Option<Class> {
        let entry = self.entry(at)?;
        let (kind, channel, seq) = (entry.kind, entry.channel, entry.seq);
        let class = kind.row().class;
        if !is_stored(entry) {
            self.remove_entry(at);
            self.tell_last(channel, kind, seq);
            return Some(class);
        }
        let (before, after) = (self.slots.before(By::Channel, at), self.slots.after(By::Channel, at));
        let keeper = if self.gap_mut(before).is_some() {
            self.remove_entry(at);
            before
        } else {
            self.leave_level(at);
            self.waiting[class as usize] -= 1;
            if let Some(slot) = self.slots.get_mut(at) {
                *slot = Waiting::Gap(Gap::new(channel));
            }
            at
        };
        let later = if self.gap_mut(after).is_some() { self.remove_gap(after) } else { None };
        if let Some(gap) = self.gap_mut(keeper) {
            gap.add(kind, seq);
            if let Some(later) = later {
                gap.absorb(&later);
            }
        }
        Some(class)
    }

    /// Tells a loss that has no place of its own: in the channel's last gap if no stored event waits behind that, else
    /// in a new one at the end of the ordered lane.
    pub(super) fn tell_last(&mut self, channel: u32, kind: EventKind, seq: u64) {
        self.tell_with(channel, |gap| gap.add(kind, seq));
    }

    /// Tells losses that happened before they came here, behind everything that waits of their channel.
    pub(super) fn tell_gap(&mut self, told: &Gap) {
        self.tell_with(told.channel, |gap| gap.absorb(told));
    }

    fn tell_with(&mut self, channel: u32, add: impl FnOnce(&mut Gap)) {
        let last = self.channel_at(channel).map_or(NONE, |at| self.channels[at].1.last);
        if let Some(gap) = self.gap_mut(last) {
            add(gap);
            return;
        }
        let mut gap = Gap::new(channel);
        add(&mut gap);
        let at = self.slots.insert(Waiting::Gap(gap));
        self.slots.push_last(&mut self.ends[Class::Ordered as usize], By::Lane, at);
        self.enter_channel(channel, at);
    }

    /// Takes a waiting event out of everything; `None` and nothing done if `at` is a gap.
    pub(super) fn remove_entry(&mut self, at: u32) -> Option<Entry<T>> {
        self.entry(at)?;
        self.leave_level(at);
        self.take_off(at)
    }

    /// Takes the event at `at`, which has left its level, off its lane, its channel and its key.
    pub(super) fn take_off(&mut self, at: u32) -> Option<Entry<T>> {
        let entry = self.entry(at)?;
        let (class, channel, stored) = (entry.kind.row().class, entry.channel, is_stored(entry));
        if class == Class::Mergeable {
            let key = (entry.merge_key, entry.kind.merges_as());
            self.by_key.remove(&key);
        }
        self.slots.unlink(&mut self.ends[class as usize], By::Lane, at);
        self.waiting[class as usize] -= 1;
        if stored {
            self.leave_channel(channel, at);
        }
        match self.slots.remove(at) {
            Some(Waiting::Entry(entry)) => Some(entry),
            Some(Waiting::Gap(_)) | None => None,
        }
    }

    pub(super) fn remove_gap(&mut self, at: u32) -> Option<Gap> {
        let channel = self.gap_mut(at)?.channel;
        self.slots.unlink(&mut self.ends[Class::Ordered as usize], By::Lane, at);
        self.leave_channel(channel, at);
        match self.slots.remove(at) {
            Some(Waiting::Gap(gap)) => Some(gap),
            Some(Waiting::Entry(_)) | None => None,
        }
    }

    fn channel_at(&self, channel: u32) -> Result<usize, usize> {
        self.channels.binary_search_by_key(&channel, |&(channel, _)| channel)
    }

    fn enter_channel(&mut self, channel: u32, at: u32) {
        let chain = self.channel_at(channel).unwrap_or_else(|place| {
            self.channels.insert(place, (channel, Ends::EMPTY));
            place
        });
        self.slots.push_last(&mut self.channels[chain].1, By::Channel, at);
    }

    fn leave_channel(&mut self, channel: u32, at: u32) {
        let Ok(chain) = self.channel_at(channel) else { return };
        self.slots.unlink(&mut self.channels[chain].1, By::Channel, at);
        if self.channels[chain].1.is_empty() {
            self.channels.remove(chain);
        }
    }

    fn enter_level(&mut self, at: u32, kind: EventKind, bytes: u32) {
        self.bytes += u64::from(bytes);
        if let Some(level) = score::level(kind) {
            self.slots.push_last(&mut self.levels[level], By::Age, at);
            self.level_bytes[level] += u64::from(bytes);
            self.occupied |= 1 << level;
        }
    }

    /// Takes the event at `at` out of the order of going and out of the byte counts.
    pub(super) fn leave_level(&mut self, at: u32) {
        let Some(entry) = self.entry(at) else { return };
        let (kind, bytes) = (entry.kind, u64::from(entry.bytes));
        self.bytes -= bytes;
        if let Some(level) = score::level(kind) {
            self.slots.unlink(&mut self.levels[level], By::Age, at);
            self.level_bytes[level] -= bytes;
            if self.levels[level].is_empty() {
                self.occupied &= !(1 << level);
            }
        }
    }
}

/// It hangs on the chain of its channel.
fn is_stored<T>(entry: &Entry<T>) -> bool {
    entry.seq != 0 && entry.kind.row().class == Class::Ordered
}
