//! What a shard tells of itself: its rooms, its account, what waits, its counters, and how near it is to its limits.
//!
//! Everything a shard knows flows in, a report within each interval flows out. Always true: looking changes nothing but
//! when the next report is due, and is no longer in the middle of a tick to many.

use super::Shard;
use crate::base::{ChannelKey, Class, Gauge, Now, RoomCount, RoomReport};
use crate::post::report::{Report, Stages, Turns};
use crate::wire::topic::Scope;

/// Of so many deliveries a report counts whether they wait. Some 0.05 µs each.
const COUNTED_MAX: u64 = 10_000;

impl Shard {
    /// The same as [`Self::queued`] where counting is short. Where it is long, as with many in the middle of a tick, it would
    /// hold the core up for milliseconds: then what must wait is taken from the account.
    fn queued_shortly(&self) -> [u64; 3] {
        let moving = self.channels.iter().flatten().filter(|channel| channel.is_moving());
        let owed: u64 = moving.map(|channel| channel.audience(&self.index)).sum();
        if owed + self.behind.len() as u64 <= COUNTED_MAX {
            return self.queued();
        }
        Class::ALL.map(|class| u64::try_from(self.account.of(class).open()).unwrap_or(0))
    }

    /// Deliveries that wait in ticks, outboxes and unfinished writes, by class, counted one by one.
    #[must_use]
    pub fn queued(&self) -> [u64; 3] {
        let (mut counts, mut bytes) = ([0; 3], 0);
        for channel in self.channels.iter().flatten() {
            channel.count_queued(&self.index, &self.places, &mut counts);
        }
        for client in self.behind.iter().filter_map(|slot| self.places[slot as usize].client.as_ref()) {
            if let Some(behind) = &client.behind {
                behind.rest.count(&mut counts);
                bytes += behind.outbox.bytes() as u64;
                for class in Class::ALL {
                    counts[class as usize] += behind.outbox.waiting(class) as u64;
                }
            }
        }
        debug_assert_eq!(bytes, self.account.outbox_bytes, "what outboxes hold is kept as it comes and goes");
        counts
    }

    /// The report that is due, if one is.
    pub fn take_report(&mut self, now: Now) -> Option<Report> {
        if self.report_at_ms.is_none_or(|at| at > now.mono_ms()) {
            return None;
        }
        let report = self.report();
        self.emptied.clear();
        // An empty shard says so once and falls silent.
        self.report_at_ms = (self.clients > 0).then(|| now.mono_ms() + u64::from(self.options.report_ms));
        Some(report)
    }

    fn report(&self) -> Report {
        Report {
            rooms: RoomReport {
                shard: self.options.id,
                processed: self.processed.clone(),
                rooms: self.rooms(),
                connections: self.clients,
            },
            account: self.account,
            queued: self.queued_shortly(),
            stages: self.stages(),
            turns: Turns::default(),
            gauges: self.gauges(),
        }
    }

    /// The viewers of each room that is not empty, and of each that became so since the last report.
    #[must_use]
    pub fn rooms(&self) -> Vec<RoomCount> {
        let mut counts = Vec::new();
        for (no, topic) in self.index.topics(Scope::Channel) {
            let key = ChannelKey::new(topic.app.clone(), topic.name.clone());
            let rooms = self.index.rooms(no);
            counts.extend(rooms.map(|(n, viewers)| RoomCount { key: key.clone(), n, viewers }));
        }
        for (key, n) in &self.emptied {
            // Somebody may sit there again since.
            if self.viewers_of(key, *n) == 0 {
                counts.push(RoomCount { key: key.clone(), n: *n, viewers: 0 });
            }
        }
        counts
    }

    /// The counters.
    #[must_use]
    pub fn stages(&self) -> Stages {
        let index = self.index.stats();
        Stages {
            filter_noes: index.noes,
            lookups: index.lookups,
            false_positives: index.misses,
            lost_before_fanout: self.stages.lost_before_fanout + self.partition.lost_before_fanout(),
            ..self.stages
        }
    }

    fn gauges(&self) -> Vec<(&'static str, Gauge)> {
        let subscriptions_max = u64::from(self.options.clients_max) * u64::from(self.options.channels_per_client);
        let mut gauges = vec![
            ("connections", Gauge::new(u64::from(self.clients), u64::from(self.options.clients_max))),
            ("channels", self.index.gauge(Scope::Channel)),
            ("users", self.index.gauge(Scope::User)),
            ("tags", self.index.gauge(Scope::Tag)),
            ("outbox_bytes", self.outbox_bytes()),
            ("contexts", self.pool.gauge()),
            ("asks", Gauge::new(self.pending.len() as u64, u64::from(self.options.asks_max))),
            ("addresses", self.address_rate.gauge()),
            ("patterns", Gauge::new(self.apps.blocklist_patterns() as u64, u64::from(self.options.patterns_max))),
        ];
        let channels_max = u64::from(self.options.shards) * u64::from(self.options.index.channels_max);
        gauges.extend(self.attendance.gauges(subscriptions_max, channels_max));
        gauges
    }

    /// What waits in the outboxes of all clients.
    fn outbox_bytes(&self) -> Gauge {
        let limit = u64::from(self.options.clients_max) * u64::from(self.options.outbox.bytes_max);
        Gauge::new(self.account.outbox_bytes, limit)
    }

    fn viewers_of(&self, key: &ChannelKey, room: u32) -> u32 {
        let (app, channel) = (key.app.as_str(), key.channel.as_str());
        let hash = self.hasher.hash(Scope::Channel, app, channel);
        let no = self.index.find(Scope::Channel, hash, app, channel);
        no.map_or(0, |no| self.index.room_count(no, room))
    }

    /// A report is due within the interval, if none is already.
    pub fn schedule_report(&mut self, now: Now) {
        self.report_at_ms.get_or_insert(now.mono_ms() + u64::from(self.options.report_ms));
    }
}
