//! Flow 4 at the orchestrator: reports correct the seating.
//!
//! Reports and the time flow in, changes of rooms flow out to the store. Always true: a seat that no report ever covers is
//! taken back after a while, so that nothing lost leaves a ghost. How many watch a channel is told by its partition shard,
//! which knows them by user.

use super::{Action, Orchestrator};
use crate::base::Now;
use crate::post::report::Report;

/// How often seats, bans and rooms are looked at, in milliseconds.
pub(super) const TICK_MS: u64 = 1_000;

impl Orchestrator {
    /// A shard reports.
    pub fn on_report(&mut self, now: Now, report: Report) {
        self.seating.on_report(now, &report.rooms);
        let at = usize::from(report.rooms.shard.0);
        if let Some(slot) = self.reports.get_mut(at) {
            *slot = Some(report);
        }
    }

    /// Time has passed.
    pub fn on_alarm(&mut self, now: Now) {
        self.expire_gatherings(now);
        if now.mono_ms() < self.tick_at_ms {
            return;
        }
        self.tick_at_ms = now.mono_ms() + TICK_MS;
        self.seating.expire(now);
        self.bans.sweep(now.wall_ms);
        let changes = self.seating.take_changes();
        if !changes.is_empty() {
            self.actions.push_back(Action::SaveRooms(changes));
        }
    }
}
