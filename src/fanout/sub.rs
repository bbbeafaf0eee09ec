//! One channel that a client watches: where it stands, and from where on it is owed something.
//!
//! Always true: who is not let in yet is owed nothing, and who came in the middle of a tick gets nothing that was said
//! before.

use super::gap::Gap;
use super::index::TopicNo;
use super::tick_no::TickNo;
use crate::wire::event::KindSet;

/// Where a subscription stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SubState {
    /// The head of the channel is not known yet; the answer is still owed.
    Opening(Box<Owed>),
    /// It gets what is live.
    Live,
    /// It reads stored events up to the head, at its own pace, and gets nothing stored that is live.
    Resuming {
        /// The next seq to read.
        next_seq: u64,
        /// The low half of the ticket of the page that was asked for; 0 if none was.
        asked: u32,
    },
}

/// Where a member that came in the middle of something begins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Begins {
    /// The tick that was open when it came; what is walked before it does not concern it.
    pub tick: TickNo,
    /// The first frame of that tick that concerns it.
    pub frame: u32,
    /// What the tick had no room for before it came: no loss of this member's.
    pub lost: Option<Box<Gap>>,
}

/// The answer to a subscription that is not given yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Owed {
    /// The command's id, as JSON; the first channel of a connection has none and is answered by `connection.ready`.
    pub id: Option<String>,
    /// It is the first channel.
    pub first: bool,
    /// A position to resume from.
    pub since: Option<crate::wire::position::Since>,
    /// Connections in the channel, as far as is known.
    pub viewers: u64,
}

/// One channel that a client watches.
#[derive(Clone, Debug)]
pub struct Sub {
    /// Its number in the index.
    pub topic: TopicNo,
    /// Its place among the members.
    pub position: u32,
    /// The room.
    pub room: u32,
    /// Which types.
    pub filter: KindSet,
    /// Where it stands.
    pub state: SubState,
    /// What it begins with, until the tick named there is walked.
    pub begins: Option<Box<Begins>>,
}

impl Sub {
    /// How many frames of tick `number`, from the first on, do not concern it.
    #[must_use]
    pub fn skipped(&self, number: TickNo) -> usize {
        match &self.begins {
            Some(begins) if begins.tick == number => begins.frame as usize,
            Some(begins) if begins.tick.is_after(number) => usize::MAX,
            _ => 0,
        }
    }

    /// It gets every tick as it is.
    #[must_use]
    pub fn is_plain(&self) -> bool {
        self.state == SubState::Live && self.begins.is_none() && self.filter == KindSet::ALL
    }
}
