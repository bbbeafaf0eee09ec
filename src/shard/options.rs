//! What may be chosen about a shard, and what it is if nobody chooses.
//!
//! The configuration flows in, limits flow out; always true: with the defaults a node runs as it is.

use crate::admission::rate::RateOptions;
use crate::base::ShardId;
use crate::fanout::index::IndexOptions;
use crate::fanout::score::OutboxOptions;
use crate::presence::PresenceOptions;
use crate::wire::socket::SocketLimits;

/// Everything about a shard that may be chosen.
#[derive(Clone, Debug)]
pub struct ShardOptions {
    /// Which one this is.
    pub id: ShardId,
    /// How many there are.
    pub shards: u16,
    /// Connections here at the most.
    pub clients_max: u32,
    /// Questions to the orchestrator that wait for an answer, at the most.
    pub asks_max: u32,
    /// Connections of one room at the most.
    pub room_capacity: u32,
    /// Rooms that may refuse one viewer before it is told to come back.
    pub attempts_max: u8,
    /// Channels that one connection may watch.
    pub channels_per_client: u16,
    /// The queue of a client that is behind.
    pub outbox: OutboxOptions,
    /// An open tick's frames, in bytes.
    pub tick_bytes_max: u32,
    /// Sends in one submit: more take the core away from reads and timers (20,000 took it for 130 ms).
    pub sends_per_submit: u32,
    /// What one write of a client that is behind takes out of its queue, in bytes.
    pub write_bytes: u32,
    /// Stored events kept in memory a channel.
    pub tail_events: u32,
    /// After so much silence a client is pinged, the first time after half of it to all of it, in seconds.
    pub ping_after_s: u32,
    /// After so much silence it is closed, in seconds.
    pub close_after_s: u32,
    /// A client that takes nothing for so long while something waits is closed, in milliseconds.
    pub max_stall_ms: u32,
    /// How long the peer's end is awaited after a Close, in milliseconds.
    pub linger_ms: u32,
    /// Between two reports, in milliseconds.
    pub report_ms: u32,
    /// Requests of one address.
    pub address_rate: RateOptions,
    /// Commands of one connection in a minute that may be refused for their rate; one more and it is closed.
    pub over_rate_max: u16,
    /// What clients send.
    pub socket: SocketLimits,
    /// The subscription index.
    pub index: IndexOptions,
    /// Patterns of one app's list of texts that are not allowed.
    pub patterns_max: u32,
    /// Who is there, in the channels whose partition this shard is.
    pub presence: PresenceOptions,
    /// The echo endpoint of conformance tests is there.
    pub echo: bool,
}

impl ShardOptions {
    /// After a last try that put something into the socket the next is due so soon, in milliseconds.
    #[must_use]
    pub const fn stall_grace_ms(&self) -> u32 {
        self.max_stall_ms / 3
    }
}

impl Default for ShardOptions {
    fn default() -> Self {
        Self {
            id: ShardId(0),
            shards: 1,
            clients_max: 1_000_000,
            asks_max: 4_096,
            room_capacity: 500,
            attempts_max: 10,
            channels_per_client: 128,
            outbox: OutboxOptions::default(),
            tick_bytes_max: 64 * 1024,
            sends_per_submit: 64,
            write_bytes: 16 * 1024,
            tail_events: 64,
            ping_after_s: 60,
            close_after_s: 90,
            max_stall_ms: 30_000,
            linger_ms: 2_000,
            report_ms: 5_000,
            address_rate: RateOptions { requests_max: 600, window_s: 60, keys_max: 100_000 },
            over_rate_max: 300,
            socket: SocketLimits::default(),
            index: IndexOptions::default(),
            patterns_max: 10_000,
            presence: PresenceOptions::default(),
            echo: false,
        }
    }
}
