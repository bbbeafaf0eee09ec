//! What all viewers of one thread share: what they look for in an event, and where they count.
//!
//! Counts flow in from the viewers, sums flow out when the thread settles; what is always true is that a desk belongs to
//! one thread, so counting takes no lock.

use memchr::memmem::Finder;

use super::foreign::{Foreign, Join};
use super::latency::Latency;
use super::plan::{ChannelSeen, Heard, Plan};
use super::probe;

/// What all viewers of a thread share: what they look for, and where they count.
pub(super) struct Desk {
    /// Events are not stored: the probe counts instead of the seq.
    pub(super) ephemeral: bool,
    /// Another server's viewers: text frames they say behind the upgrade; `None` for ringcast's.
    pub(super) says: Option<Vec<String>>,
    /// Bytes come without frames.
    pub(super) stream: bool,
    /// The run's mark.
    pub(super) run: u32,
    /// The accept header of a right answer; all viewers of a thread send one key.
    pub(super) accept: String,
    /// Finds the seq of an event.
    pub(super) seq: Finder<'static>,
    /// Finds the probe.
    pub(super) mark: Finder<'static>,
    /// Finds the number in `viewers.updated`.
    pub(super) connections: Finder<'static>,
    /// Events due before this are not timed.
    pub(super) measure_from_ns: u64,
    /// Pongs to be written to the viewer that was just read.
    pub(super) pongs: Vec<u8>,
    /// Latencies of those who read.
    pub(super) healthy: Latency,
    /// Latencies of those who paused.
    pub(super) slow: Latency,
    /// From connect to greeting.
    pub(super) joins: Latency,
    /// When the last greeting came.
    pub(super) last_greeting_ns: Option<u64>,
    /// What was seen of each channel.
    pub(super) channels: Vec<ChannelSeen>,
    /// Deliveries, for the progress bar.
    pub(super) delivered: u64,
    /// Messages of others.
    pub(super) foreign: u64,
    /// Events of other types.
    pub(super) others: u64,
    /// What was heard of events that have no account of their own.
    pub(super) heard: Heard,
    /// See [`super::plan::Outcome::epoch_changes`].
    pub(super) epoch_changes: u64,
}

impl Desk {
    /// A desk for viewers who send `key` when they ask for the upgrade.
    pub(super) fn new(plan: &Plan, key: &str) -> Self {
        Self {
            ephemeral: plan.ephemeral,
            says: plan.foreign.as_ref().map(|foreign| match &foreign.join {
                Join::Websocket { say, .. } => say.clone(),
                Join::Tcp { .. } => Vec::new(),
            }),
            stream: matches!(&plan.foreign, Some(Foreign { join: Join::Tcp { .. }, .. })),
            run: plan.run,
            accept: tungstenite::handshake::derive_accept_key(key.as_bytes()),
            seq: Finder::new(b"\"seq\":"),
            mark: Finder::new(probe::MARK),
            connections: Finder::new(b"\"connections\":"),
            measure_from_ns: u64::MAX,
            pongs: Vec::new(),
            healthy: Latency::default(),
            slow: Latency::default(),
            joins: Latency::default(),
            last_greeting_ns: None,
            channels: vec![ChannelSeen::default(); plan.channels as usize],
            delivered: 0,
            foreign: 0,
            others: 0,
            heard: Heard::default(),
            epoch_changes: 0,
        }
    }
}
