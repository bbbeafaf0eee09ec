//! The audit: every message owed to a viewer is found again as delivered, told as lost, or missing.
//!
//! Numbers of messages, gaps and the last acknowledged number flow in, sums flow out; what is always true at the end is
//! `delivered + told_gaps + missing + lost_with_close == expected` for a node that sends each message once.
//! A viewer is one small struct: what was seen is remembered as the last number and as counts, never as a list.

use serde::{Deserialize, Serialize};
use std::cmp::Ordering;
use std::collections::BTreeMap;

use super::latency::Recorded;

/// What became of one message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// New, and perhaps beyond a hole.
    Delivered,
    /// The number that came last, once more.
    Duplicate,
    /// A number below the last one.
    OutOfOrder,
}

/// The account of one viewer, in numbers of its channel: the seq, or the probe's own number where nothing is stored.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Tally {
    /// The last number, beginning with the head that was told at the join.
    pub(super) last: u64,
    /// New messages of this run.
    pub(super) delivered: u64,
    /// See [`Verdict::Duplicate`].
    pub(super) duplicate: u64,
    /// See [`Verdict::OutOfOrder`].
    pub(super) out_of_order: u64,
    /// Numbers that were jumped over and not told in place.
    holes: u64,
    /// Losses told in place of the loss: the range began at the next number and was lost as a whole.
    told: u64,
    /// Losses told in another way: earlier or later than the jump, or with survivors inside the range.
    credit: u64,
}

impl Tally {
    /// Begins behind `head`: nothing up to it may come.
    pub(super) fn after(head: u64) -> Self {
        Self { last: head, ..Self::default() }
    }

    /// A message arrived. `ours` is false for one that this run did not post; it moves the position and is not counted.
    pub(super) fn message(&mut self, number: u64, ours: bool) -> Verdict {
        match number.cmp(&self.last) {
            Ordering::Greater => {
                self.holes += number - self.last - 1;
                self.last = number;
                self.delivered += u64::from(ours);
                Verdict::Delivered
            }
            Ordering::Equal => {
                self.duplicate += 1;
                Verdict::Duplicate
            }
            Ordering::Less => {
                self.out_of_order += 1;
                Verdict::OutOfOrder
            }
        }
    }

    /// A gap told that `lost` messages of the range are gone.
    ///
    /// A range that begins at the next number and was lost as a whole moves the position, so that a message of it that
    /// comes nevertheless is out of order. Any other gap is credit against holes, before or after it.
    pub(super) fn gap(&mut self, range: Option<(u64, u64)>, lost: u64) {
        match range {
            Some((from, to)) if from == self.last + 1 && to >= from && to - from + 1 == lost => {
                self.last = to;
                self.told += lost;
            }
            _ => self.credit += lost,
        }
    }

    /// Nothing up to `number` can still be on its way.
    pub(super) fn reached(&self, number: u64) -> bool {
        self.last + self.credit.saturating_sub(self.holes) >= number
    }

    /// Adds this viewer, of whom `target` is owed, to `side`. `closed` says that his connection ended early.
    pub(super) fn settle(&self, target: ChannelTarget, closed: bool, side: &mut Side) {
        let tail = target.last.saturating_sub(self.last);
        let (holes, lost_with_close) =
            if closed && side.forgives_close { (self.holes, tail) } else { (self.holes + tail, 0) };
        let told_late = holes.min(self.credit);
        side.viewers += 1;
        side.expected += target.acked;
        side.delivered += self.delivered;
        side.duplicate += self.duplicate;
        side.out_of_order += self.out_of_order;
        side.told_gaps += self.told + told_late;
        side.missing += holes - told_late;
        side.told_excess += (self.credit - told_late).saturating_sub(lost_with_close);
        side.lost_with_close += lost_with_close;
        side.viewers_short += u64::from(holes > told_late);
    }
}

/// What was acknowledged on a channel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct ChannelTarget {
    /// How many posts.
    pub(super) acked: u64,
    /// The highest number among them.
    pub(super) last: u64,
}

/// The sums over the viewers of one side, the healthy or the slow.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct Side {
    /// A viewer whose connection the node closed is owed nothing more: true for slow ones.
    pub(super) forgives_close: bool,
    /// Viewers that joined.
    pub(super) viewers: u64,
    /// Acknowledged messages × viewers.
    pub(super) expected: u64,
    /// Messages that came, each counted once.
    pub(super) delivered: u64,
    /// Neither came nor told.
    pub(super) missing: u64,
    /// Came again at once.
    pub(super) duplicate: u64,
    /// Came below a later one.
    pub(super) out_of_order: u64,
    /// Told as lost, and lost.
    pub(super) told_gaps: u64,
    /// Told as lost, and not lost.
    pub(super) told_excess: u64,
    /// Owed to connections that the node closed.
    pub(super) lost_with_close: u64,
    /// Viewers to whom something is missing.
    pub(super) viewers_short: u64,
    /// Connections that ended before the run did, by close code; 1006 is an end without a Close.
    pub(super) closes: BTreeMap<u16, u64>,
    /// From the intended sending to the read that brought it.
    pub(super) latency: Recorded,
}

impl Side {
    /// The account of the slow viewers.
    pub(super) fn slow() -> Self {
        Self { forgives_close: true, ..Self::default() }
    }

    /// Every message owed is in exactly one column.
    pub(super) fn balanced(&self) -> bool {
        self.delivered + self.told_gaps + self.missing + self.lost_with_close == self.expected
    }

    /// Nothing is missing, came twice, came in the wrong place, or was told wrongly.
    pub(super) fn clean(&self) -> bool {
        self.missing == 0
            && self.duplicate == 0
            && self.out_of_order == 0
            && self.told_excess == 0
            && self.balanced()
            && (self.forgives_close || self.closes.is_empty())
    }

    /// Adds another part of the same side, latencies apart: those are merged where they are read.
    pub(super) fn add(&mut self, other: &Self) {
        self.viewers += other.viewers;
        self.expected += other.expected;
        self.delivered += other.delivered;
        self.missing += other.missing;
        self.duplicate += other.duplicate;
        self.out_of_order += other.out_of_order;
        self.told_gaps += other.told_gaps;
        self.told_excess += other.told_excess;
        self.lost_with_close += other.lost_with_close;
        self.viewers_short += other.viewers_short;
        add_counts(&mut self.closes, &other.closes);
    }
}

/// Adds counts by key.
pub(super) fn add_counts<K: Ord + Clone>(mine: &mut BTreeMap<K, u64>, theirs: &BTreeMap<K, u64>) {
    for (key, count) in theirs {
        *mine.entry(key.clone()).or_default() += count;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn audit(head: u64, target: u64, closed: bool, mut side: Side, story: impl Fn(&mut Tally)) -> Side {
        let mut tally = Tally::after(head);
        story(&mut tally);
        tally.settle(ChannelTarget { acked: target - head, last: target }, closed, &mut side);
        assert!(side.balanced(), "{side:?}");
        side
    }

    fn healthy(head: u64, target: u64, numbers: &[u64]) -> Side {
        audit(head, target, false, Side::default(), |tally| {
            for &number in numbers {
                tally.message(number, true);
            }
        })
    }

    #[test]
    fn a_clean_run_is_clean() {
        let side = healthy(10, 14, &[11, 12, 13, 14]);
        assert!(side.clean());
        assert_eq!((side.expected, side.delivered, side.missing), (4, 4, 0));
        assert!(healthy(0, 0, &[]).clean());
    }

    #[test]
    fn a_hole_a_double_a_swap_and_a_short_end_are_each_seen() {
        let hole = healthy(0, 5, &[1, 2, 4, 5]);
        assert_eq!((hole.missing, hole.delivered, hole.viewers_short), (1, 4, 1));
        let double = healthy(0, 3, &[1, 2, 2, 3]);
        assert_eq!((double.duplicate, double.missing), (1, 0));
        let swap = healthy(0, 4, &[1, 3, 2, 4]);
        assert_eq!((swap.out_of_order, swap.missing, swap.delivered), (1, 1, 3));
        let tail = healthy(0, 9, &[1, 2, 3]);
        assert_eq!((tail.missing, tail.delivered), (6, 3));
        for side in [hole, double, swap, tail] {
            assert!(!side.clean());
        }
    }

    #[test]
    fn what_is_not_newer_than_the_head_may_not_come() {
        let mut tally = Tally::after(7);
        assert_eq!(tally.message(7, true), Verdict::Duplicate);
        assert_eq!(tally.message(3, true), Verdict::OutOfOrder);
        assert_eq!(tally.message(8, true), Verdict::Delivered);
    }

    #[test]
    fn a_told_loss_is_not_missing() {
        let in_place = audit(0, 6, false, Side::default(), |tally| {
            tally.message(1, true);
            tally.gap(Some((2, 4)), 3);
            tally.message(5, true);
            tally.message(6, true);
        });
        assert!(in_place.clean());
        assert_eq!((in_place.told_gaps, in_place.delivered), (3, 3));
        let at_the_end = audit(0, 4, false, Side::default(), |tally| {
            tally.message(1, true);
            tally.gap(Some((2, 4)), 3);
            assert!(tally.reached(4));
        });
        assert!(at_the_end.clean());
    }

    #[test]
    fn a_gap_before_or_after_its_place_and_with_survivors_counts_as_credit() {
        let early = audit(0, 6, false, Side::default(), |tally| {
            tally.gap(Some((3, 4)), 2);
            for number in [1, 2, 5, 6] {
                tally.message(number, true);
            }
        });
        assert!(early.clean(), "{early:?}");
        let late = audit(0, 6, false, Side::default(), |tally| {
            for number in [1, 4] {
                tally.message(number, true);
            }
            tally.gap(Some((2, 3)), 2);
            for number in [5, 6] {
                tally.message(number, true);
            }
        });
        assert!(late.clean(), "{late:?}");
        let survivor = audit(0, 4, false, Side::default(), |tally| {
            tally.gap(Some((1, 3)), 2);
            for number in [2, 4] {
                tally.message(number, true);
            }
        });
        assert!(survivor.clean(), "{survivor:?}");
        assert_eq!(survivor.told_gaps, 2);
    }

    #[test]
    fn a_gap_that_lies_is_seen() {
        let delivered_after_all = audit(0, 3, false, Side::default(), |tally| {
            tally.gap(Some((1, 2)), 2);
            for number in [1, 2, 3] {
                tally.message(number, true);
            }
        });
        assert_eq!((delivered_after_all.out_of_order, delivered_after_all.duplicate), (1, 1));
        let too_much = audit(0, 3, false, Side::default(), |tally| {
            tally.message(1, true);
            tally.gap(Some((2, 2)), 5);
            tally.message(3, true);
        });
        assert_eq!((too_much.told_gaps, too_much.told_excess), (1, 4));
        let too_little = audit(0, 5, false, Side::default(), |tally| {
            tally.gap(Some((1, 4)), 3);
            tally.message(5, true);
        });
        assert_eq!((too_little.told_gaps, too_little.missing), (3, 1));
        for side in [delivered_after_all, too_much, too_little] {
            assert!(!side.clean());
        }
    }

    #[test]
    fn a_slow_viewer_that_was_closed_is_owed_nothing_more_and_a_healthy_one_is() {
        let story = |tally: &mut Tally| {
            tally.message(1, true);
            tally.gap(Some((2, 5)), 4);
            tally.message(6, true);
        };
        let slow = audit(0, 20, true, Side::slow(), story);
        assert!(slow.clean());
        assert_eq!((slow.delivered, slow.told_gaps, slow.lost_with_close, slow.missing), (2, 4, 14, 0));
        let untold = audit(0, 20, true, Side::slow(), |tally| {
            tally.message(1, true);
            tally.message(4, true);
        });
        assert_eq!((untold.missing, untold.lost_with_close), (2, 16));
        let healthy = audit(0, 20, true, Side::default(), story);
        assert_eq!((healthy.missing, healthy.lost_with_close), (14, 0));
    }

    #[test]
    fn what_others_post_moves_the_position_only() {
        let mut tally = Tally::after(0);
        let mut side = Side::default();
        assert_eq!(tally.message(1, true), Verdict::Delivered);
        assert_eq!(tally.message(2, false), Verdict::Delivered);
        assert_eq!(tally.message(3, true), Verdict::Delivered);
        tally.settle(ChannelTarget { acked: 2, last: 3 }, false, &mut side);
        assert!(side.clean(), "{side:?}");
    }
}
