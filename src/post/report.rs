//! What a shard tells the orchestrator every few seconds, in one letter.
//!
//! Everything in it is absolute or counted from the start of the process, so that a newer report may replace an
//! unread older one.

use crate::base::{Account, RoomReport};

/// Plain counters of one shard, from the start of the process; the seed's own stages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stages {
    /// Events that came to this shard.
    pub events_seen: u64,
    /// … of which the filter said at once that nobody here watches.
    pub filter_noes: u64,
    /// Lookups in the subscription index.
    pub lookups: u64,
    /// Lookups that found nobody: the filter's wrong yes.
    pub false_positives: u64,
    /// Stored events that came twice and were dropped.
    pub duplicates: u64,
    /// Holes in a channel's numbers that were filled from the store.
    pub refetches: u64,
    /// Ticks that were walked.
    pub ticks: u64,
    /// Frames built: one an event, and one more for each tick that was joined.
    pub frames_built: u64,
    /// Events put into an outbox.
    pub queue_writes: u64,
    /// Socket writes.
    pub socket_writes: u64,
    /// Events carried by those writes.
    pub events_written: u64,
    /// Events dropped because a mailbox was full, before any fan-out.
    pub lost_before_fanout: u64,
    /// Connections that were accepted.
    pub joined: u64,
    /// Connections that ended.
    pub left: u64,
    /// Connections closed as too slow.
    pub closed_slow: u64,
    /// Connections closed for silence.
    pub closed_silent: u64,
    /// Connections closed for breaking the protocol.
    pub closed_protocol: u64,
    /// Commands that were malformed.
    pub bad_commands: u64,
}

/// How long a core's turns take, that is: how long a letter waits at the most before its core looks into the mailboxes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Turns {
    /// Turns not longer than each of [`Turns::LIMITS_US`] but longer than the one before, and those beyond all of them.
    pub counts: [u64; 7],
    /// All of them together, in microseconds.
    pub sum_us: u64,
}

impl Turns {
    /// The bounds, in microseconds. Under load a turn shall end within a millisecond.
    pub const LIMITS_US: [u64; 6] = [250, 500, 1_000, 4_000, 20_000, 100_000];

    /// Counts one turn.
    pub fn count(&mut self, turn_us: u64) {
        self.counts[Self::LIMITS_US.partition_point(|&limit| limit < turn_us)] += 1;
        self.sum_us += turn_us;
    }
}

/// One shard's report.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// Its rooms, and the seats that it has processed.
    pub rooms: RoomReport,
    /// The account of deliveries.
    pub account: Account,
    /// Deliveries that wait in ticks, outboxes and unfinished writes.
    pub queued: [u64; 3],
    /// The counters.
    pub stages: Stages,
    /// Its turns.
    pub turns: Turns,
    /// Bounded things here: name, used, limit.
    pub gauges: Vec<(&'static str, crate::base::Gauge)>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_turn_counts_under_the_first_bound_that_holds_it() {
        let mut turns = Turns::default();
        for turn_us in [0, 250, 251, 1_000, 1_001, 100_000, 100_001] {
            turns.count(turn_us);
        }
        assert_eq!(turns.counts, [2, 1, 1, 1, 0, 1, 1]);
        assert_eq!(turns.sum_us, 202_503);
    }
}
