//! What a queue has lost of one channel, so that its client can be told.
//!
//! Losses flow in one by one; the fields of a `gap` event flow out. Always true: the range covers every stored event
//! that was counted, and the counts by type add up to the number of losses.

use crate::wire::event::EventKind;

/// Neighbouring losses of one channel, told as one `gap` event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gap {
    /// The shard-local number of the channel.
    pub channel: u32,
    /// The lowest seq that was lost; 0 if nothing stored was.
    pub from_seq: u64,
    /// The highest seq that was lost; 0 if nothing stored was.
    pub to_seq: u64,
    /// How many of each type, sorted by type; never empty once a loss was added, at most one item a type.
    pub dropped: Vec<(EventKind, u32)>,
}

impl Gap {
    /// A gap in which nothing is lost yet.
    pub(super) const fn new(channel: u32) -> Self {
        Self { channel, from_seq: 0, to_seq: 0, dropped: Vec::new() }
    }

    /// Counts one lost event; `seq` is 0 if it was not stored.
    pub(super) fn add(&mut self, kind: EventKind, seq: u64) {
        self.add_many(kind, 1);
        self.widen(seq, seq);
    }

    /// Takes over everything that `other` counts.
    pub(super) fn absorb(&mut self, other: &Self) {
        for &(kind, count) in &other.dropped {
            self.add_many(kind, count);
        }
        self.widen(other.from_seq, other.to_seq);
    }

    /// What was lost since this gap stood at `before`; `None` if nothing was.
    #[must_use]
    pub fn since(&self, before: &Self) -> Option<Self> {
        let count_before = |kind| before.dropped.iter().find(|(of, _)| *of == kind).map_or(0, |(_, count)| *count);
        let dropped: Vec<_> = self
            .dropped
            .iter()
            .map(|&(kind, count)| (kind, count - count_before(kind)))
            .filter(|(_, count)| *count > 0)
            .collect();
        if dropped.is_empty() {
            return None;
        }
        // Stored events are lost in the order of their seqs.
        let (from_seq, to_seq) = match (self.to_seq > before.to_seq, before.to_seq) {
            (false, _) => (0, 0),
            (true, 0) => (self.from_seq, self.to_seq),
            (true, last) => (last + 1, self.to_seq),
        };
        Some(Self { channel: self.channel, from_seq, to_seq, dropped })
    }

    fn add_many(&mut self, kind: EventKind, count: u32) {
        match self.dropped.binary_search_by_key(&kind, |&(kind, _)| kind) {
            Ok(at) => self.dropped[at].1 = self.dropped[at].1.saturating_add(count),
            Err(at) => self.dropped.insert(at, (kind, count)),
        }
    }

    fn widen(&mut self, from_seq: u64, to_seq: u64) {
        if from_seq != 0 && (self.from_seq == 0 || from_seq < self.from_seq) {
            self.from_seq = from_seq;
        }
        self.to_seq = self.to_seq.max(to_seq);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_widen_and_counts_stay_sorted() {
        let mut gap = Gap::new(3);
        gap.add(EventKind::TypingStart, 0);
        assert_eq!((gap.from_seq, gap.to_seq), (0, 0));
        gap.add(EventKind::MessageNew, 8);
        gap.add(EventKind::MessageNew, 6);
        let mut later = Gap::new(3);
        later.add(EventKind::ReactionNew, 9);
        later.add(EventKind::MessageNew, 10);
        gap.absorb(&later);
        assert_eq!((gap.from_seq, gap.to_seq), (6, 10));
        assert_eq!(gap.dropped, [(EventKind::MessageNew, 3), (EventKind::ReactionNew, 1), (EventKind::TypingStart, 1)]);
        let before = gap.clone();
        assert_eq!(gap.since(&before), None);
        gap.add(EventKind::MessageNew, 11);
        let later = gap.since(&before).unwrap();
        assert_eq!((later.from_seq, later.to_seq, later.dropped), (11, 11, vec![(EventKind::MessageNew, 1)]));
    }
}
