//! The seats that were given and that no report has covered yet.
//!
//! Seats flow in with the shard that asked and the shard that will hold them; they leave covered, taken back or too old.
//! Always true: seats of one asker are numbered 1, 2, 3 … without a hole; those of one asker on one shard leave in the
//! order in which they came, as their letters do; and each leaves once.

use crate::base::{Now, RoomId, ShardId};
use std::collections::VecDeque;

/// What a seat is counted in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Claim {
    /// The channel's slot.
    pub(super) slot: u32,
    /// The room.
    pub(super) room: RoomId,
    /// It brings a connection to the shard that was not there before.
    pub(super) brings_socket: bool,
}

#[derive(Debug)]
struct Seat {
    number: u64,
    since_us: u64,
    /// `None` once it was given back; the place in the queue stays until those before it have left.
    claim: Option<Claim>,
}

/// All seats under way, by holding shard and asking shard.
#[derive(Debug)]
pub(super) struct Ledger {
    shards: usize,
    queues: Vec<VecDeque<Seat>>,
    last_number: Vec<u64>,
    open: u64,
}

impl Ledger {
    pub(super) fn new(shards: u16) -> Self {
        let shards = usize::from(shards);
        Self {
            shards,
            queues: (0..shards * shards).map(|_| VecDeque::new()).collect(),
            last_number: vec![0; shards],
            open: 0,
        }
    }

    /// Seats under way.
    pub(super) const fn open(&self) -> u64 {
        self.open
    }

    /// Enters a seat; returns its number among those of its asker.
    pub(super) fn enter(&mut self, now: Now, asker: ShardId, claim: Claim) -> u64 {
        let last = &mut self.last_number[usize::from(asker.0)];
        *last += 1;
        let number = *last;
        let queue = self.place(claim.room.shard, asker);
        self.queues[queue].push_back(Seat { number, since_us: now.mono_us, claim: Some(claim) });
        self.open += 1;
        number
    }

    /// Takes one seat back, wherever it was to be held. `None` if it has left already.
    pub(super) fn take_back(&mut self, asker: ShardId, number: u64) -> Option<Claim> {
        for shard in 0..self.shards {
            let queue = self.place(ShardId(shard as u16), asker);
            let queue = &mut self.queues[queue];
            let Ok(at) = queue.binary_search_by_key(&number, |seat| seat.number) else { continue };
            let claim = queue[at].claim.take();
            while queue.front().is_some_and(|seat| seat.claim.is_none()) {
                queue.pop_front();
            }
            self.open -= u64::from(claim.is_some());
            return claim;
        }
        None
    }

    /// Takes out one seat of `asker` that `shard` has processed, its number being at most `processed`.
    pub(super) fn pop_covered(&mut self, shard: ShardId, asker: ShardId, processed: u64) -> Option<Claim> {
        self.pop_while(shard, asker, |seat| seat.number <= processed)
    }

    /// Takes out one seat of `asker` on `shard` that was given at or before `until_us`.
    pub(super) fn pop_old(&mut self, shard: ShardId, asker: ShardId, until_us: u64) -> Option<Claim> {
        self.pop_while(shard, asker, |seat| seat.since_us <= until_us)
    }

    fn pop_while(&mut self, shard: ShardId, asker: ShardId, goes: impl Fn(&Seat) -> bool) -> Option<Claim> {
        let queue = self.place(shard, asker);
        while self.queues[queue].front().is_some_and(&goes) {
            // What was given back lies here without a claim and is passed over.
            if let Some(claim) = self.queues[queue].pop_front().and_then(|seat| seat.claim) {
                self.open -= 1;
                return Some(claim);
            }
        }
        None
    }

    fn place(&self, shard: ShardId, asker: ShardId) -> usize {
        usize::from(shard.0) * self.shards + usize::from(asker.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seats_leave_once_and_in_order() {
        let claim = |shard, n| Claim { slot: 0, room: RoomId { n, shard: ShardId(shard) }, brings_socket: true };
        let mut ledger = Ledger::new(2);
        let (now, asker) = (Now::default(), ShardId(0));
        let numbers: Vec<_> =
            [claim(0, 1), claim(1, 2), claim(0, 1), claim(0, 3)].map(|claim| ledger.enter(now, asker, claim)).into();
        assert_eq!(numbers, [1, 2, 3, 4]);
        assert_eq!(ledger.take_back(asker, 3), Some(claim(0, 1)));
        assert_eq!(ledger.take_back(asker, 3), None);
        assert_eq!(ledger.pop_covered(ShardId(0), asker, 3), Some(claim(0, 1)));
        assert_eq!(ledger.pop_covered(ShardId(0), asker, 3), None, "the one given back is not covered as well");
        assert_eq!(ledger.take_back(asker, 1), None, "covered before");
        assert_eq!(ledger.pop_old(ShardId(1), asker, 0), Some(claim(1, 2)));
        assert_eq!(ledger.open(), 1);
    }
}
