//! Who is connected: what is asked of every shard, and what each answers.
//!
//! Always true: an answer holds no more connections than were asked for, and says whether there are more.

use crate::base::{AppId, Name, RoomId, ShardId};

/// Which connections. What is not named may be anything.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConnectionsAsk {
    /// The tenant's place in the configuration.
    pub app: AppId,
    /// The tenant.
    pub app_name: Name,
    /// They watch this channel.
    pub channel: Option<Name>,
    /// They are this user's.
    pub user: Option<Name>,
    /// They carry this tag.
    pub tag: Option<Name>,
    /// At most so many.
    pub limit: u32,
}

/// One connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Connection {
    /// Its opaque number.
    pub conn: u64,
    /// Whose it is.
    pub user: Option<Name>,
    /// Its room in the channel that was asked for, or in its first one.
    pub room: Option<(Name, RoomId)>,
    /// Its core.
    pub shard: ShardId,
    /// Since when it is here, in seconds.
    pub age_s: u32,
    /// How long the oldest of what waits for it has waited, in milliseconds.
    pub lag_ms: u64,
    /// Events that wait for it.
    pub queued: u32,
}

/// Connections of one shard or of all.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Connections {
    /// Shard by shard.
    pub list: Vec<Connection>,
    /// There are more than were asked for, or more than a shard looks at for one question.
    pub more: bool,
    /// Every shard has answered in time.
    pub complete: bool,
}
