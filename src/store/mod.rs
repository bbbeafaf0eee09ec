//! Everything that outlives the process: stored events, rooms, alarms, bans, idempotency keys.
//!
//! Batches of new events flow in, positions flow out, and pages of events are read back. Always true: a commit is all
//! or nothing and durable when it returns; the seq of a channel rises by one with no hole; the head of a channel is
//! kept beside its rows and committed with them, so retention never takes it back; a position is valid only with its
//! epoch. Nothing here reads a clock: wall time is handed in.
//!
//! [`Sqlite`] keeps it on disk, [`Memory`] keeps it for simulations, [`Group`] decides which events share a commit.

use crate::base::{ChannelKey, Name, RoomChange, RoomId, Ulid};
use std::fmt;

pub mod chore;
pub mod event;
pub mod group;
pub mod memory;
pub mod sqlite;
mod sqlite_aside;
pub mod sqlite_backup;
mod sqlite_commit;
mod sqlite_rows;
mod sqlite_schema;

pub use crate::post::letters::Ban;
pub use event::{Appended, FirstAnswer, NewEvent, PAGE_EVENTS_MAX, Page, PageAsk, Position, StoredEvent};
pub use group::{Batch, Group, GroupOptions};
pub use memory::Memory;
pub use sqlite::{OpenOptions, Sqlite, SqliteReader, WhenDamaged};
pub use sqlite_aside::MovedAside;
pub use sqlite_schema::OpenError;

/// How long an idempotency key is honoured, in milliseconds: 24 hours.
pub const IDEMPOTENCY_KEPT_MS: u64 = 24 * 60 * 60 * 1_000;

/// One slice of retention: which events of an app may go. An event goes when either rule lets it go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Retention {
    /// The tenant whose rule this is.
    pub app: Name,
    /// The first channel to look at, in the order of names; `None` begins at the first.
    pub from: Option<Name>,
    /// Events made before this moment go, in Unix milliseconds. An event behind one that stays also stays, so what is
    /// kept has no hole.
    pub older_than_ms: Option<u64>,
    /// All but the youngest so many of a channel go.
    pub keep_last: Option<u64>,
    /// The most rows deleted by this call. A channel that is looked at counts as a row, so a call is short even where
    /// there is nothing to delete.
    pub slice: u32,
}

/// What one slice of retention did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Retained {
    /// Rows deleted.
    pub deleted: u32,
    /// Where the next slice begins; `None` when the walk over the app's channels is complete.
    pub next: Option<Name>,
}

/// A room as it lies in the store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RoomRow {
    /// The channel it belongs to.
    pub key: ChannelKey,
    /// The room and the shard it was placed on.
    pub room: RoomId,
    /// Viewers when last written; 0 for every room after a start.
    pub viewers: u32,
}

/// A durable alarm. There is one slot a channel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Alarm {
    /// Whose slot.
    pub key: ChannelKey,
    /// When it is due, in Unix milliseconds.
    pub due_ms: u64,
    /// What to publish then: JSON text.
    pub event: String,
    /// How often it was tried and failed; above 0 it is a retry.
    pub tries: u32,
    /// Tells this setting of the slot from an earlier or later one; rises with every set.
    pub version: u64,
}

/// What shall become of a channel's slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AlarmChange<'a> {
    /// Whose slot.
    pub key: &'a ChannelKey,
    /// When it is due, in Unix milliseconds, and what to publish then; `None` clears the slot.
    pub set: Option<(u64, &'a str)>,
}

/// One setting of a channel's slot: whose, and the version.
pub type AlarmVersion = (ChannelKey, u64);

/// Why the store did not do what was asked. Nothing was changed, unless the variant says otherwise.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StoreError {
    /// The disk, or the bound on the database's size, is full.
    Full,
    /// Somebody else holds the database; asking again may help.
    Busy,
    /// The file is damaged.
    Corrupt(String),
    /// The store cannot do what was asked; asking again does not help.
    Refused(String),
    /// The disk failed. Whether the last commit is durable is not known; an idempotency key makes a repeat safe.
    Io(String),
}

impl StoreError {
    /// Who erred, in the words that all errors share.
    #[must_use]
    pub const fn who(&self) -> &'static str {
        match self {
            Self::Full | Self::Busy => "Overloaded",
            Self::Corrupt(_) | Self::Refused(_) | Self::Io(_) => "OurFault",
        }
    }

    /// The same request may succeed later.
    #[must_use]
    pub const fn come_back(&self) -> bool {
        matches!(self, Self::Full | Self::Busy | Self::Io(_))
    }
}

impl fmt::Display for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Full => f.write_str("overloaded: no room on disk for more events"),
            Self::Busy => f.write_str("overloaded: the database is held by somebody else"),
            Self::Corrupt(what) => write!(f, "our fault: the database is damaged: {what}"),
            Self::Refused(what) => write!(f, "our fault: the store cannot do this: {what}"),
            Self::Io(what) => write!(f, "our fault: the disk failed: {what}"),
        }
    }
}

impl std::error::Error for StoreError {}

/// What can be read without holding up a commit.
pub trait Pages {
    /// Epoch, head and events of a channel, from one moment.
    ///
    /// # Errors
    /// Any [`StoreError`].
    fn page(&mut self, key: &ChannelKey, ask: PageAsk) -> Result<Page, StoreError>;

    /// The event with this id in this channel, if it is still kept: whose message is it, what does it say.
    ///
    /// # Errors
    /// Any [`StoreError`].
    fn find(&mut self, key: &ChannelKey, id: Ulid) -> Result<Option<StoredEvent>, StoreError>;

    /// What was answered to the first call with this idempotency key, if that is still honoured.
    ///
    /// # Errors
    /// Any [`StoreError`].
    fn first_answer(&mut self, now_wall_ms: u64, key: &str) -> Result<Option<FirstAnswer>, StoreError>;
}

/// What outlives the process. Every method may block on a disk: none belongs on a socket core.
pub trait Store: Pages {
    /// Stores `batch` in one transaction, in its order, and answers each event in the same order.
    ///
    /// A deletion or retraction also takes text and data from its target, and from the edits of that target, in the
    /// same transaction. Of two events with one idempotency key the second is a [`Appended::Repeat`] of the first,
    /// also within a batch, for [`IDEMPOTENCY_KEPT_MS`].
    ///
    /// Of a message that does not stand nothing is stored, whatever waited between the look at it and the commit: an
    /// event whose target is no [`StoredEvent::is_standing_message`] of its channel, at its turn in the batch, is
    /// answered [`Appended::NoTarget`]. Its key is asked before, so who repeats the call that took the message away gets
    /// the first answer; and a key of what was not stored is not remembered.
    ///
    /// # Errors
    /// Any [`StoreError`]; then nothing of the batch is stored and heads are as before, except that after
    /// [`StoreError::Io`] it is not known.
    fn commit(&mut self, now_wall_ms: u64, batch: &[NewEvent]) -> Result<Vec<Appended>, StoreError>;

    /// Writes down what became of rooms; a later change of a room replaces an earlier one.
    ///
    /// # Errors
    /// Any [`StoreError`]; then none of the changes is written.
    fn rooms_save(&mut self, changes: &[RoomChange]) -> Result<(), StoreError>;

    /// All rooms, by app, channel and number. After a start their viewers are 0: the process that held the sockets
    /// is gone.
    ///
    /// # Errors
    /// Any [`StoreError`].
    fn rooms_load(&mut self) -> Result<Vec<RoomRow>, StoreError>;

    /// Deletes the oldest events of an app's channels, at most one slice of them.
    ///
    /// # Errors
    /// Any [`StoreError`]; then nothing is deleted.
    fn retain(&mut self, ask: &Retention) -> Result<Retained, StoreError>;

    /// Forgets idempotency keys that are no longer honoured, at most `slice`; says how many went.
    ///
    /// # Errors
    /// Any [`StoreError`]; then none is forgotten.
    fn idempotency_sweep(&mut self, now_wall_ms: u64, slice: u32) -> Result<u32, StoreError>;

    /// Sets the alarm of a channel; replaces what was set, with its tries. Returns the new version.
    ///
    /// # Errors
    /// Any [`StoreError`]; then the slot is as before.
    fn alarm_set(&mut self, key: &ChannelKey, due_ms: u64, event: &str) -> Result<u64, StoreError>;

    /// Sets and clears slots in one transaction, in this order: those who change alarms at the same moment share a sync.
    ///
    /// # Errors
    /// Any [`StoreError`]; then every slot is as before.
    fn alarms_change(&mut self, changes: &[AlarmChange<'_>]) -> Result<(), StoreError>;

    /// Puts each of these alarms off until its moment, in Unix milliseconds, and counts the try; in one transaction, for a
    /// sync costs the same for one and for many. Says of each whether it did: not where the slot was set anew or cleared
    /// meanwhile, for what came later wins.
    ///
    /// # Errors
    /// Any [`StoreError`]; then every slot is as before.
    fn alarms_retry(&mut self, alarms: &[(AlarmVersion, u64)]) -> Result<Vec<bool>, StoreError>;

    /// Clears each of these slots that still holds its version, in one transaction: an alarm that has rung must not take
    /// its successor away. Says of each whether it did.
    ///
    /// # Errors
    /// Any [`StoreError`]; then every slot is as before.
    fn alarms_done(&mut self, alarms: &[AlarmVersion]) -> Result<Vec<bool>, StoreError>;

    /// Clears the slot of a channel, whatever it holds. True if it held something.
    ///
    /// # Errors
    /// Any [`StoreError`]; then the slot is as before.
    fn alarm_clear(&mut self, key: &ChannelKey) -> Result<bool, StoreError>;

    /// Alarms due at or before `due_by_ms`, soonest first, then by version, at most `limit`. `u64::MAX` lists all.
    ///
    /// # Errors
    /// Any [`StoreError`].
    fn alarms(&mut self, due_by_ms: u64, limit: u32) -> Result<Vec<Alarm>, StoreError>;

    /// When the soonest alarm is due, in Unix milliseconds.
    ///
    /// # Errors
    /// Any [`StoreError`].
    fn alarm_next(&mut self) -> Result<Option<u64>, StoreError>;

    /// Sets a ban; replaces one of the same app, user and channel.
    ///
    /// # Errors
    /// Any [`StoreError`]; then the ban is as before.
    fn ban_set(&mut self, ban: &Ban) -> Result<(), StoreError>;

    /// Lifts the ban in exactly this slot. True if there was one.
    ///
    /// # Errors
    /// Any [`StoreError`]; then the ban is as before.
    fn ban_clear(&mut self, app: &Name, user: &Name, channel: Option<&Name>) -> Result<bool, StoreError>;

    /// All bans that have not ended at `now_wall_ms`, in their order.
    ///
    /// # Errors
    /// Any [`StoreError`].
    fn bans(&mut self, now_wall_ms: u64) -> Result<Vec<Ban>, StoreError>;

    /// Forgets bans that have ended, at most `slice`; says how many went.
    ///
    /// # Errors
    /// Any [`StoreError`]; then none is forgotten.
    fn bans_sweep(&mut self, now_wall_ms: u64, slice: u32) -> Result<u32, StoreError>;

    /// Housekeeping for an idle moment; may take tens of milliseconds. Returns the bytes that are still waiting to be
    /// moved from the log into the database.
    ///
    /// # Errors
    /// Any [`StoreError`].
    fn tidy(&mut self) -> Result<u64, StoreError>;

    /// Ends the use of the store in good order.
    ///
    /// # Errors
    /// Any [`StoreError`]; what was committed is durable all the same.
    fn close(self) -> Result<(), StoreError>
    where
        Self: Sized;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_say_who_erred() {
        assert_eq!(StoreError::Full.who(), "Overloaded");
        assert_eq!(StoreError::Corrupt("page 3".into()).to_string(), "our fault: the database is damaged: page 3");
        assert!(StoreError::Busy.come_back() && !StoreError::Refused(String::new()).come_back());
    }
}
