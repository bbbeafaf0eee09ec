//! The question for a seat and its answer.
//!
//! Plain values flow both ways. Always true: an answer names room, number and total of one moment, and a refusal says
//! its HTTP status.

use crate::base::{ChannelKey, RoomId, ShardId};
use std::fmt;

/// How viewers are seated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SeatingOptions {
    /// The most viewers of a room; at least 1.
    pub room_capacity: u32,
    /// How many shards hold rooms; at least 1.
    pub shards: u16,
    /// The most rooms of all channels together.
    pub rooms_max: u32,
    /// How often one viewer is seated before the answer is "come back later".
    pub attempts_max: u8,
    /// After how many milliseconds a seat that no report covers is thought lost. Several times the interval of
    /// reports, so that one lost report loses nobody.
    pub outstanding_expiry_ms: u32,
}

impl Default for SeatingOptions {
    fn default() -> Self {
        Self { room_capacity: 500, shards: 1, rooms_max: 65_536, attempts_max: 10, outstanding_expiry_ms: 30_000 }
    }
}

/// A shard's question for a seat.
#[derive(Clone, Copy, Debug)]
pub struct Ask<'a> {
    /// The channel to be watched.
    pub topic: &'a ChannelKey,
    /// The shard that asks, and that will hand the seat on.
    pub asker: ShardId,
    /// Which try of this viewer it is: 1, 2, 3 …
    pub attempt: u8,
    /// The room of the try before, which was full: nobody is sent there until its shard reports again.
    pub refused: Option<RoomId>,
    /// The shard that holds the socket already: a later subscription must be seated there. `None` for a new connection.
    pub on_shard: Option<ShardId>,
}

/// Why there is no seat.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SeatError {
    /// Every room tried was full: 429, come back.
    NoSpace,
    /// A room would have to be made, and there are as many as there may be: 503, come back.
    RoomsFull,
}

impl SeatError {
    /// The HTTP status that answers the upgrade; both carry `Retry-After`.
    #[must_use]
    pub const fn status(self) -> u16 {
        match self {
            Self::NoSpace => 429,
            Self::RoomsFull => 503,
        }
    }
}

impl fmt::Display for SeatError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NoSpace => "overloaded: every room that was tried is full",
            Self::RoomsFull => "overloaded: the node has as many rooms as it may have",
        })
    }
}

impl std::error::Error for SeatError {}
