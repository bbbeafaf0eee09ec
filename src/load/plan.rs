//! What a fleet of viewers is told, and what it tells: the same values between threads and, as lines of JSON, between
//! processes.
//!
//! The options of the run flow in, a plan, orders and an outcome flow out; what is always true is that which viewer
//! watches which channel, from which address and how fast it reads follows from its number alone, so that any split
//! into threads and processes is the same audience.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use super::audit::{ChannelTarget, Side, add_counts};
use super::foreign::Foreign;
use super::latency::Recorded;

/// Viewers of one source address: far below the 28,000 ports an address has, and below the 1,000 connections that a
/// node allows one address.
const VIEWERS_AN_ADDRESS: u32 = 500;

/// The audience, or one process's part of it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Plan {
    /// Where the node listens.
    pub(super) addr: SocketAddr,
    /// What the Host header says.
    pub(super) host: String,
    /// The app.
    pub(super) app: String,
    /// A viewer's token, if reading is not anonymous.
    pub(super) token: Option<String>,
    /// Channels; viewer i watches channel i modulo this.
    pub(super) channels: u32,
    /// The whole audience.
    pub(super) viewers: u32,
    /// The first viewer of this part.
    pub(super) first: u32,
    /// How many viewers this part has.
    pub(super) count: u32,
    /// The share of slow viewers, 0 to 1.
    pub(super) slow_share: f64,
    /// Events that are not stored: the probe's number takes the place of the seq.
    pub(super) ephemeral: bool,
    /// The run's mark in its probes.
    pub(super) run: u32,
    /// A server that is not ringcast: events are counted by their probes.
    pub(super) foreign: Option<Foreign>,
    /// Joins a second, of this part.
    pub(super) join_rate: f64,
    /// Handshakes open at a time, of this part.
    pub(super) handshakes: u32,
    /// Threads, of this part.
    pub(super) threads: u32,
}

impl Plan {
    /// The viewers `first` to `first + count`, with their share of the pace.
    pub(super) fn part(&self, first: u32, count: u32) -> Self {
        let share = f64::from(count) / f64::from(self.count.max(1));
        Self {
            first,
            count,
            join_rate: self.join_rate * share,
            handshakes: ((f64::from(self.handshakes) * share) as u32).max(1),
            ..self.clone()
        }
    }

    /// Which channel the viewer watches.
    pub(super) fn channel(&self, viewer: u32) -> u32 {
        viewer % self.channels
    }

    /// How many viewers of the whole audience watch the channel.
    pub(super) fn audience(&self, channel: u32) -> u32 {
        self.viewers / self.channels + u32::from(channel < self.viewers % self.channels)
    }

    /// Whether the viewer is slow. The audience is laid out channel by channel and every (1 / share)-th is taken, so
    /// that each channel has its part, and the whole has its part even where channels are small.
    pub(super) fn is_slow(&self, viewer: u32) -> bool {
        let before = f64::from(self.channel(viewer)) * (f64::from(self.viewers) / f64::from(self.channels)).ceil();
        let place = before + f64::from(viewer / self.channels);
        ((place + 1.0) * self.slow_share).floor() > (place * self.slow_share).floor()
    }

    /// The loopback address the viewer comes from; `None` where the node is not on IPv4.
    pub(super) fn source(&self, viewer: u32) -> Option<IpAddr> {
        let number = viewer / VIEWERS_AN_ADDRESS + 1;
        self.addr.is_ipv4().then(|| Ipv4Addr::new(127, 1, (number >> 8) as u8, number as u8).into())
    }
}

/// The name of a channel of the run.
pub(super) fn channel_name(channel: u32) -> String {
    format!("load-{channel}")
}

/// When things happen, in nanoseconds of the monotonic clock.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[allow(clippy::struct_field_names, reason = "the unit stands in every name of a quantity")]
pub(super) struct Schedule {
    /// Events due before this are audited but not timed.
    pub(super) measure_from_ns: u64,
    /// Every connection is cut then, and comes back.
    pub(super) drop_ns: Option<u64>,
    /// Slow viewers read nothing from here …
    pub(super) pause_ns: u64,
    /// … to here.
    pub(super) resume_ns: u64,
}

/// What a fleet is ordered to do, in this sequence.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) enum Order {
    /// The joins are over, posting begins: who has not joined yet has failed.
    Go(Schedule),
    /// Posting is over and this was acknowledged: say when all of it has arrived.
    Finish(Vec<ChannelTarget>),
    /// Settle the accounts and end.
    Stop,
}

/// How far a fleet is.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub(super) struct Progress {
    /// Viewers that were greeted.
    pub(super) joined: u64,
    /// Viewers that were not.
    pub(super) failed: u64,
    /// Deliveries, of any kind, so far.
    pub(super) delivered: u64,
    /// Threads to whose viewers nothing more is to come.
    pub(super) arrived: u32,
}

impl Progress {
    /// Adds another fleet's.
    pub(super) fn add(&mut self, other: Self) {
        self.joined += other.joined;
        self.failed += other.failed;
        self.delivered += other.delivered;
        self.arrived += other.arrived;
    }
}

/// What `viewers.updated` said last on a channel.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(super) struct Count {
    /// The number told.
    pub(super) connections: u64,
    /// When it was read.
    pub(super) at_ns: u64,
}

/// One channel as a fleet saw it.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct ChannelSeen {
    /// Connections still open at the end.
    pub(super) open: u64,
    /// Connections that had ended by then.
    pub(super) ended: u64,
    /// The last count that was told.
    pub(super) count: Option<Count>,
    /// The epoch as it stands in `connection.ready`.
    pub(super) epoch: Option<String>,
}

/// Events beside the audited ones, by how many came and how many were told as lost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Heard {
    /// `custom.*` of this run's posts.
    pub(super) custom: u64,
    /// Of which `gap` said that they are lost.
    pub(super) custom_told: u64,
    /// `typing.start` and `typing.stop`.
    pub(super) typing: u64,
    /// Of which `gap` said that they are lost.
    pub(super) typing_told: u64,
    /// `viewers.updated`.
    pub(super) totals: u64,
}

impl Heard {
    fn add(&mut self, other: Self) {
        self.custom += other.custom;
        self.custom_told += other.custom_told;
        self.typing += other.typing;
        self.typing_told += other.typing_told;
        self.totals += other.totals;
    }
}

/// All that a fleet found.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct Outcome {
    /// Viewers that read.
    pub(super) healthy: Side,
    /// Viewers that paused.
    pub(super) slow: Side,
    /// Joins that failed, by status; 0 is a connection that failed or took too long.
    pub(super) join_failures: BTreeMap<u16, u64>,
    /// The first connect, and the last greeting.
    pub(super) first_connect_ns: Option<u64>,
    /// See above.
    pub(super) last_greeting_ns: Option<u64>,
    /// From connect to greeting.
    pub(super) join_latency: Recorded,
    /// One a channel.
    pub(super) channels: Vec<ChannelSeen>,
    /// Messages that this run did not post.
    pub(super) foreign: u64,
    /// Events of other types.
    pub(super) others: u64,
    /// Events that have no account of their own, where messages have it.
    pub(super) heard: Heard,
    /// Greetings whose epoch was another than the channel's first.
    pub(super) epoch_changes: u64,
    /// Why connections were given up: the first few, in words.
    pub(super) complaints: Vec<String>,
}

/// Complaints beyond these say nothing new.
pub(super) const COMPLAINTS_MAX: usize = 8;

impl Outcome {
    /// Adds another fleet's, latencies apart.
    pub(super) fn add(&mut self, other: &Self) {
        self.healthy.add(&other.healthy);
        self.slow.add(&other.slow);
        add_counts(&mut self.join_failures, &other.join_failures);
        self.first_connect_ns = self.first_connect_ns.into_iter().chain(other.first_connect_ns).min();
        self.last_greeting_ns = self.last_greeting_ns.max(other.last_greeting_ns);
        self.foreign += other.foreign;
        self.others += other.others;
        self.heard.add(other.heard);
        self.epoch_changes += other.epoch_changes;
        let room = COMPLAINTS_MAX.saturating_sub(self.complaints.len());
        self.complaints.extend(other.complaints.iter().take(room).cloned());
        self.channels.resize_with(self.channels.len().max(other.channels.len()), ChannelSeen::default);
        for (mine, theirs) in self.channels.iter_mut().zip(&other.channels) {
            mine.open += theirs.open;
            mine.ended += theirs.ended;
            mine.count = match (mine.count, theirs.count) {
                (Some(a), Some(b)) if a.at_ns >= b.at_ns => Some(a),
                (a, b) => b.or(a),
            };
            match (&mine.epoch, &theirs.epoch) {
                (None, _) => mine.epoch.clone_from(&theirs.epoch),
                (Some(a), Some(b)) if a != b => self.epoch_changes += 1,
                _ => {}
            }
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(in crate::load) fn plan(viewers: u32, channels: u32, slow_share: f64) -> Plan {
        Plan {
            addr: "127.0.0.1:1".parse().unwrap(),
            host: "127.0.0.1:1".into(),
            app: "demo".into(),
            token: None,
            channels,
            viewers,
            first: 0,
            count: viewers,
            slow_share,
            ephemeral: false,
            run: 1,
            foreign: None,
            join_rate: 1_000.0,
            handshakes: 100,
            threads: 1,
        }
    }

    #[test]
    fn the_audience_is_spread_over_channels_addresses_and_speeds() {
        let plan = plan(1_003, 10, 0.1);
        assert_eq!((0..10).map(|channel| plan.audience(channel)).sum::<u32>(), 1_003);
        assert_eq!((plan.audience(0), plan.audience(3)), (101, 100));
        for channel in 0..10 {
            let slow = (0..1_003).filter(|&v| plan.channel(v) == channel && plan.is_slow(v)).count();
            assert!((9..=11).contains(&slow), "channel {channel} has {slow}");
        }
        assert_eq!(plan.source(0).unwrap().to_string(), "127.1.0.1");
        assert_eq!(plan.source(499).unwrap().to_string(), "127.1.0.1");
        assert_eq!(plan.source(500).unwrap().to_string(), "127.1.0.2");
        assert_eq!(plan.source(500 * 300).unwrap().to_string(), "127.1.1.45");
    }

    #[test]
    fn small_channels_have_their_slow_viewers_too() {
        let one_each = plan(1_000, 1_000, 0.1);
        assert_eq!((0..1_000).filter(|&v| one_each.is_slow(v)).count(), 100);
        let none = plan(1_000, 3, 0.0);
        assert!(!(0..1_000).any(|v| none.is_slow(v)));
        let all = plan(50, 3, 1.0);
        assert!((0..50).all(|v| all.is_slow(v)));
    }

    #[test]
    fn parts_share_the_pace() {
        let whole = plan(1_000, 3, 0.0);
        let part = whole.part(250, 250);
        assert_eq!((part.first, part.count, part.handshakes), (250, 250, 25));
        assert!((part.join_rate - 250.0).abs() < 1e-9);
        assert_eq!(part.viewers, 1_000);
    }
}
