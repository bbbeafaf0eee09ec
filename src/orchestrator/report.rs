//! Flow 4 at the orchestrator: reports correct the seating, and what changed in the totals is told.
//!
//! Always true: a channel's total goes out once an interval, and once a second at the most after a large change; a
//! seat that no report ever covers is taken back after a while, so that nothing lost leaves a ghost.

use std::collections::BTreeMap;

use super::{Action, Orchestrator};
use crate::base::{ChannelKey, Now};
use crate::post::report::Report;
use crate::wire::event::EventKind;
use crate::wire::sealed::{Event, Member, Sealed};
use crate::wire::topic::{Scope, partition};

/// How often totals are looked at, in milliseconds.
pub(super) const TICK_MS: u64 = 1_000;

/// What was told of each channel, and what is still to be told.
#[derive(Debug, Default)]
pub(super) struct Viewers {
    told: BTreeMap<ChannelKey, (u64, u64)>,
    changed: BTreeMap<ChannelKey, u64>,
}

impl Viewers {
    /// The totals that are due at `now_ms`.
    fn due(&mut self, now_ms: u64, interval_ms: u64) -> Vec<(ChannelKey, u64)> {
        let told = &self.told;
        let is_due = |key: &ChannelKey, total: u64| {
            let Some((at_ms, last)) = told.get(key) else { return true };
            let large = total.abs_diff(*last) * 10 >= (*last).max(1);
            now_ms >= at_ms + if large { TICK_MS } else { interval_ms }
        };
        let due: Vec<(ChannelKey, u64)> =
            self.changed.iter().filter(|(key, total)| is_due(key, **total)).map(|(k, t)| (k.clone(), *t)).collect();
        for (key, total) in &due {
            self.changed.remove(key);
            if *total == 0 {
                // Nobody is left to be told.
                self.told.remove(key);
            } else {
                self.told.insert(key.clone(), (now_ms, *total));
            }
        }
        due
    }
}

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
        for (key, total) in self.seating.totals_changed() {
            self.viewers.changed.insert(key, total);
        }
        for (key, total) in self.viewers.due(now.mono_ms(), u64::from(self.options.viewers_interval_ms)) {
            self.tell_viewers(now, &key, total);
        }
        let changes = self.seating.take_changes();
        if !changes.is_empty() {
            self.actions.push_back(Action::SaveRooms(changes));
        }
    }

    fn tell_viewers(&mut self, now: Now, key: &ChannelKey, total: u64) {
        let topic = self.hasher.topic(Scope::Channel, &key.app, &key.channel);
        let partition = partition(Scope::Channel, key.app.as_str(), key.channel.as_str(), self.options.shards);
        let event = Event {
            members: vec![("connections".to_owned(), Member::Number(total))],
            ..Event::new(EventKind::ViewersUpdated, topic, now.wall_ms)
        };
        if let Ok(sealed) = Sealed::seal(&event) {
            self.actions.push_back(Action::Publish { partition, sealed });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::Name;

    #[test]
    fn totals_are_told_once_an_interval_and_once_a_second_after_a_large_change() {
        let name = Name::new("x").unwrap();
        let key = ChannelKey::new(name.clone(), name);
        let mut viewers = Viewers::default();
        viewers.changed.insert(key.clone(), 100);
        assert_eq!(viewers.due(0, 5_000), [(key.clone(), 100)]);
        assert!(viewers.due(10_000, 5_000).is_empty(), "nothing changed");
        viewers.changed.insert(key.clone(), 101);
        assert!(viewers.due(1_000, 5_000).is_empty(), "a small change waits for the interval");
        assert_eq!(viewers.due(5_000, 5_000), [(key.clone(), 101)]);
        viewers.changed.insert(key.clone(), 200);
        assert!(viewers.due(5_500, 5_000).is_empty());
        assert_eq!(viewers.due(6_000, 5_000), [(key.clone(), 200)]);
        viewers.changed.insert(key.clone(), 0);
        viewers.due(20_000, 5_000);
        assert!(viewers.told.is_empty());
    }
}
