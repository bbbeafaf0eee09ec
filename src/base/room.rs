//! Channels and rooms by name, and what is told about a room: what seating, store, shards and letters all speak of.
//!
//! Checked names flow in; ordered, comparable keys flow out. Always true: two keys are equal only if they name the
//! same thing, and their order is total, so tables keyed by them replay.

use super::{Name, ShardId};
use std::fmt;

/// A channel of an app. Cheap to clone and to send.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ChannelKey {
    /// The tenant.
    pub app: Name,
    /// The channel, unique within its app.
    pub channel: Name,
}

impl ChannelKey {
    /// The key of `channel` in `app`.
    #[must_use]
    pub const fn new(app: Name, channel: Name) -> Self {
        Self { app, channel }
    }
}

impl fmt::Display for ChannelKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.app, self.channel)
    }
}

/// One room of a channel. Its order is the order of creation; the shard only parts rooms that share a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RoomId {
    /// Its number within the channel, 1, 2, 3 …
    pub n: u32,
    /// The one shard it lives on.
    pub shard: ShardId,
}

impl RoomId {
    /// The name people see: `{channel}/{shard}/{n}`.
    #[must_use]
    pub fn name(self, channel: &Name) -> String {
        format!("{channel}/{}/{}", self.shard.0, self.n)
    }
}

/// A seat that was handed out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Given {
    /// The room to go to, and with it the shard.
    pub room: RoomId,
    /// The number of this seat among those given to the shard that asked: 1, 2, 3 … It travels in the Seat letter.
    pub number: u64,
    /// Viewers of the channel, this one included; a hint.
    pub viewers: u64,
}

/// What became of a room since it was last written down.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RoomChange {
    /// The channel it belongs to.
    pub key: ChannelKey,
    /// The room.
    pub room: RoomId,
    /// How many viewers it is thought to hold; `None` when the room is gone.
    pub viewers: Option<u32>,
}

/// How many viewers a shard counts in one of its rooms.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RoomCount {
    /// The channel the room belongs to.
    pub key: ChannelKey,
    /// The room's number; its shard is the one that reports.
    pub n: u32,
    /// Its viewers now.
    pub viewers: u32,
}

/// What a shard says of its rooms. All of it is absolute, so a newer report may replace an unread older one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RoomReport {
    /// Who reports.
    pub shard: ShardId,
    /// For each asking shard, in order: the number of the last seat given to that asker which this shard has
    /// processed, seated or refused; 0 before the first. The counts below include exactly these seats.
    pub processed: Vec<u64>,
    /// Every room that is not empty, and once each room that has become empty.
    pub rooms: Vec<RoomCount>,
    /// Connections of the shard, with a channel or without.
    pub connections: u32,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_room_says_where_it_lives() {
        let channel = Name::new("race-42").unwrap();
        assert_eq!(RoomId { n: 7, shard: ShardId(3) }.name(&channel), "race-42/3/7");
        assert!(RoomId { n: 1, shard: ShardId(9) } < RoomId { n: 2, shard: ShardId(0) });
    }
}
