//! Stored events and their numbering: what is asked to be stored, what lies in the store, what a page carries.
//!
//! Plain values flow both ways. Always true: a position names an epoch and a seq, the epoch of a channel is known before
//! its first event and stays until the database is restored, and seq begins at 1.

use crate::base::{ChannelKey, Ulid};
use crate::wire::event::EventKind;
use crate::wire::topic::{Scope, TopicHasher};

/// The most events one page carries; a larger limit is cut to it.
pub const PAGE_EVENTS_MAX: u32 = 1_000;

/// An event that asks to be stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewEvent {
    /// Where it belongs.
    pub key: ChannelKey,
    /// Its type.
    pub kind: EventKind,
    /// Its own id.
    pub id: Ulid,
    /// When it was made, in Unix milliseconds.
    pub ts_ms: u64,
    /// Who speaks.
    pub user_id: Option<String>,
    /// The name that user goes by.
    pub user_name: Option<String>,
    /// What was posted as text.
    pub text: Option<String>,
    /// What was posted as data: JSON text.
    pub data: Option<String>,
    /// The message that an edit, a deletion, a retraction or a reaction speaks of.
    pub target: Option<Ulid>,
    /// What else the type needs, such as the kind of a reaction.
    pub detail: Option<String>,
    /// The poster's own mark, echoed.
    pub client_id: Option<String>,
    /// Makes a repeat harmless. The caller scopes it: app, author and key.
    pub idempotency_key: Option<String>,
}

/// An event as it lies in the store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredEvent {
    /// Its number in its channel: 1, 2, 3 …
    pub seq: u64,
    /// The numbering that `seq` belongs to.
    pub epoch: u64,
    /// Where it belongs.
    pub key: ChannelKey,
    /// Its type.
    pub kind: EventKind,
    /// Its own id.
    pub id: Ulid,
    /// When it was made, in Unix milliseconds.
    pub ts_ms: u64,
    /// Who spoke.
    pub user_id: Option<String>,
    /// The name that user went by.
    pub user_name: Option<String>,
    /// The text; gone once the message was deleted or retracted.
    pub text: Option<String>,
    /// The data as JSON text; gone once the message was deleted or retracted.
    pub data: Option<String>,
    /// The message it speaks of.
    pub target: Option<Ulid>,
    /// What else the type needs.
    pub detail: Option<String>,
    /// The poster's own mark.
    pub client_id: Option<String>,
}

impl StoredEvent {
    /// It is a message that was neither deleted nor retracted. Nothing more is stored of any other.
    #[must_use]
    pub fn is_standing_message(&self) -> bool {
        self.kind == EventKind::MessageNew && (self.text.is_some() || self.data.is_some())
    }
}

/// A place in a channel's numbering.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Position {
    /// The numbering: 1 … 2^53 − 1, so that a JSON number holds it exactly.
    pub epoch: u64,
    /// The number: 0 before the first event.
    pub seq: u64,
}

/// What was answered to the first call with an idempotency key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FirstAnswer {
    /// The id of the first event.
    pub id: Ulid,
    /// Where it lies.
    pub position: Position,
    /// When it was made, in Unix milliseconds.
    pub ts_ms: u64,
}

/// What a commit says of one event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Appended {
    /// Stored now, at this position.
    New {
        /// Where it lies.
        position: Position,
    },
    /// Its idempotency key was seen before: nothing was stored, this is the first answer.
    Repeat(FirstAnswer),
    /// The message that it speaks of is not there, or not any more: nothing was stored, and its key is not remembered.
    NoTarget,
}

/// Which events of a channel a page should carry. Limits are cut to [`PAGE_EVENTS_MAX`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PageAsk {
    /// The youngest `limit` events below `seq`.
    Before {
        /// The first seq that is too young.
        seq: u64,
        /// At most so many.
        limit: u32,
    },
    /// The oldest `limit` events above `seq`.
    Since {
        /// The last seq that is known already.
        seq: u64,
        /// At most so many.
        limit: u32,
    },
    /// The youngest `limit` events.
    Latest {
        /// At most so many.
        limit: u32,
    },
}

/// Events of one channel and where it stands, all from one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Page {
    /// The channel's numbering; stable from before the first write on.
    pub epoch: u64,
    /// The last seq that was given out; 0 before the first.
    pub head: u64,
    /// The lowest seq that is still stored; `head + 1` when none is.
    pub first_kept: u64,
    /// Ascending by seq.
    pub events: Vec<StoredEvent>,
}

/// Epochs of channels, from one random number of the database: a channel has its epoch before it is first written, so
/// a join writes nothing, and the epoch stays when the first event comes.
#[derive(Clone, Debug)]
pub(super) struct Epochs(TopicHasher);

impl Epochs {
    /// The epochs of a database with this base.
    pub(super) fn new(base: u64) -> Self {
        Self(TopicHasher::new(base))
    }

    /// The base of a database's `generation`-th life. A seed that is used twice still gives another base.
    pub(super) fn base(seed: u64, generation: u64) -> u64 {
        TopicHasher::new(seed).hash_bytes(&generation.to_le_bytes())
    }

    /// 1 … 2^53 − 1: a browser reads it from JSON without loss.
    pub(super) fn of(&self, key: &ChannelKey) -> u64 {
        (self.0.hash(Scope::Channel, key.app.as_str(), key.channel.as_str()) >> 11).max(1)
    }
}

/// The target whose text and data leave the store together with this event.
pub(super) fn wipes(event: &NewEvent) -> Option<Ulid> {
    match event.kind {
        EventKind::MessageDeleted | EventKind::MessageRetracted => event.target,
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::Name;

    #[test]
    fn epochs_fit_a_json_number_and_differ_by_base_and_channel() {
        let key = |channel: &str| ChannelKey::new(Name::new("demo").unwrap(), Name::new(channel).unwrap());
        let epochs = Epochs::new(Epochs::base(7, 1));
        assert!((1..1 << 53).contains(&epochs.of(&key("a"))));
        assert_eq!(epochs.of(&key("a")), Epochs::new(Epochs::base(7, 1)).of(&key("a")));
        assert_ne!(epochs.of(&key("a")), epochs.of(&key("b")));
        assert_ne!(epochs.of(&key("a")), Epochs::new(Epochs::base(7, 2)).of(&key("a")));
    }
}
