//! Who watches a channel: what each shard holds of it, told to the channel's partition shard, and what is asked there.
//!
//! Always true: what a shard tells is absolute. A letter may therefore be read twice, and one that waits for a full
//! mailbox may be written anew when there is room: the newest says all that the older ones said.

use crate::base::{Name, ShardId};
use crate::wire::presence::Status;
use crate::wire::topic::Topic;

/// What a user said of itself, and when.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stated {
    /// What.
    pub status: Status,
    /// When, in monotonic microseconds of the process: the newest of several shards holds.
    pub at_us: u64,
}

/// What one shard holds of one channel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holding {
    /// Which shard.
    pub shard: ShardId,
    /// Which channel.
    pub topic: Topic,
    /// All connections there that watch the channel, with a user or without.
    pub connections: u32,
    /// What it holds of one user; other users are as they were.
    pub user: Option<UserHolding>,
}

/// What one shard holds of one user in one channel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UserHolding {
    /// Who.
    pub user: Name,
    /// The name to show; may be empty.
    pub name: String,
    /// The user's connections there that watch the channel.
    pub connections: u32,
    /// What the user said of itself there, if it did.
    pub stated: Option<Stated>,
}

/// To the partition shard of a channel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ToPresence {
    /// So it is now.
    Holding(Box<Holding>),
    /// Who is there? [`super::letters::ToShard::AudienceAnswer`] answers.
    Ask {
        /// For the answer.
        ticket: u64,
        /// Who asks.
        asker: ShardId,
        /// Of this channel.
        topic: Topic,
        /// Each member is asked for, not only how many there are.
        roster: bool,
    },
}

impl ToPresence {
    /// The channel that it speaks of.
    #[must_use]
    pub fn topic(&self) -> &Topic {
        match self {
            Self::Holding(holding) => &holding.topic,
            Self::Ask { topic, .. } => topic,
        }
    }
}

/// Who watches a channel.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Audience {
    /// Connections, with a user or without.
    pub connections: u64,
    /// Distinct users, those included who left a moment ago and may come back.
    pub users: u64,
    /// Each of them, in the order of their names; `None` if that was not asked, or if there are too many to be told.
    pub roster: Option<Vec<Present>>,
}

/// A user who watches a channel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Present {
    /// Who.
    pub user: Name,
    /// The name to show; may be empty.
    pub name: String,
    /// Connections, on all shards; 0 for one who left a moment ago.
    pub connections: u32,
    /// What it says of itself.
    pub status: Status,
}

/// Mailboxes as presence sees them.
pub trait PresenceDoors {
    /// Puts a letter into the mailbox of a partition shard.
    ///
    /// # Errors
    /// The letter, if the mailbox is full.
    fn tell(&mut self, to: ShardId, letter: ToPresence) -> Result<(), ToPresence>;

    /// Puts an answer into the mailbox of the shard that asked.
    ///
    /// # Errors
    /// The answer, if the mailbox is full.
    fn answer(&mut self, to: ShardId, letter: super::letters::ToShard) -> Result<(), super::letters::ToShard>;
}
