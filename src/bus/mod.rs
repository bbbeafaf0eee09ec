//! One partition of the bus: every event of a channel passes one of these, and so gets its one order.
//!
//! Sealed events flow in from the orchestrator (stored) and from shards (ephemeral), and out to the mailbox of every
//! shard. Always true: what may not be lost (stored and critical events) waits in a line of its own for a mailbox that
//! is full, and nothing passes it there; what may be lost is dropped behind such a line and counted. The lines are
//! bounded because the orchestrator admits no more stored events than its credits, and takes a credit back only when
//! the event lies in every mailbox.

mod unwanted;

use std::collections::VecDeque;

use crate::base::{Class, ShardId};
use crate::wire::sealed::Sealed;
pub use unwanted::Unwanted;

/// Mailboxes as the partition sees them.
pub trait Outgoing {
    /// Puts the event into the mailbox of `shard`; false if it is full.
    fn offer(&mut self, shard: ShardId, sealed: &Sealed) -> bool;
}

/// One partition.
#[derive(Debug)]
pub struct Partition {
    lines: Vec<Line>,
    accepted: u64,
    lost_before_fanout: u64,
}

#[derive(Debug, Default)]
struct Line {
    held: VecDeque<Sealed>,
    /// Events with a credit that this destination has got, from the start.
    placed: u64,
}

/// The event was admitted by a credit and may not be lost.
#[must_use]
pub fn has_credit(sealed: &Sealed) -> bool {
    let row = sealed.kind().row();
    row.stored || row.class == Class::Critical
}

impl Partition {
    /// A partition that serves `shards` mailboxes.
    #[must_use]
    pub fn new(shards: u16) -> Self {
        Self { lines: (0..shards).map(|_| Line::default()).collect(), accepted: 0, lost_before_fanout: 0 }
    }

    /// Gives the event its place in the order and offers it to every shard. Returns to how many shards it is lost.
    pub fn publish(&mut self, sealed: &Sealed, out: &mut impl Outgoing) -> u16 {
        let credit = has_credit(sealed);
        let mut lost = 0;
        self.accepted += u64::from(credit);
        for (i, line) in self.lines.iter_mut().enumerate() {
            if line.held.is_empty() && out.offer(ShardId(i as u16), sealed) {
                line.placed += u64::from(credit);
            } else if credit {
                line.held.push_back(sealed.clone());
            } else {
                lost += 1;
            }
        }
        self.lost_before_fanout += u64::from(lost);
        lost
    }

    /// An event that came here is told to nobody: it counts as lost on its way to every shard.
    pub fn turn_away(&mut self) {
        self.lost_before_fanout += self.lines.len() as u64;
    }

    /// Offers again what had to wait. True while something still does.
    pub fn retry(&mut self, out: &mut impl Outgoing) -> bool {
        let mut waits = false;
        for (i, line) in self.lines.iter_mut().enumerate() {
            while let Some(sealed) = line.held.front() {
                if !out.offer(ShardId(i as u16), sealed) {
                    waits = true;
                    break;
                }
                line.held.pop_front();
                line.placed += 1;
            }
        }
        waits
    }

    /// Something waits for a full mailbox.
    #[must_use]
    pub fn is_holding(&self) -> bool {
        self.lines.iter().any(|line| !line.held.is_empty())
    }

    /// Events with a credit that lie in every mailbox, from the start: what the orchestrator may take back.
    #[must_use]
    pub fn placed(&self) -> u64 {
        self.lines.iter().map(|line| line.placed).min().unwrap_or(self.accepted)
    }

    /// Deliveries to shards that were dropped at a full mailbox.
    #[must_use]
    pub fn lost_before_fanout(&self) -> u64 {
        self.lost_before_fanout
    }

    /// The longest line now.
    #[must_use]
    pub fn held(&self) -> u64 {
        self.lines.iter().map(|line| line.held.len() as u64).max().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::Name;
    use crate::wire::event::EventKind;
    use crate::wire::sealed::Event;
    use crate::wire::topic::{Scope, TopicHasher};

    struct Boxes(Vec<Vec<Sealed>>, usize);

    impl Outgoing for Boxes {
        fn offer(&mut self, shard: ShardId, sealed: &Sealed) -> bool {
            let mailbox = &mut self.0[usize::from(shard.0)];
            let fits = mailbox.len() < self.1;
            if fits {
                mailbox.push(sealed.clone());
            }
            fits
        }
    }

    fn event(kind: EventKind, seq: u64) -> Sealed {
        let name = Name::new("x").unwrap();
        let mut event = Event::new(kind, TopicHasher::new(1).topic(Scope::Channel, &name, &name), 0);
        event.seq = seq;
        Sealed::seal(&event).unwrap()
    }

    #[test]
    fn rule_08_stored_events_wait_in_line_and_ephemeral_ones_behind_them_are_counted_lost() {
        let mut partition = Partition::new(2);
        let mut boxes = Boxes(vec![Vec::new(), Vec::new()], 2);
        for seq in 1..=3 {
            assert_eq!(partition.publish(&event(EventKind::MessageNew, seq), &mut boxes), 0);
        }
        assert_eq!(partition.publish(&event(EventKind::TypingStart, 0), &mut boxes), 2, "both are full");
        assert_eq!((partition.placed(), partition.held(), partition.lost_before_fanout()), (2, 1, 2));
        boxes.0[0].clear();
        assert!(partition.retry(&mut boxes), "the second mailbox is still full");
        assert_eq!(partition.placed(), 2, "a credit comes back when every mailbox has the event");
        boxes.0[1].clear();
        assert!(!partition.retry(&mut boxes));
        assert_eq!((partition.placed(), boxes.0[0][0].seq(), boxes.0[1][0].seq()), (3, 3, 3));
        partition.publish(&event(EventKind::TypingStart, 0), &mut boxes);
        assert_eq!(boxes.0[1].len(), 2);
    }
}
