//! Faults that are put in on purpose, outside of the node: each breaks one promise in the hand that carries its letters,
//! bytes and events, and the checks must see it. A simulation that finds nothing is believed only as far as it finds
//! these.
//!
//! Without a mutant no dice are thrown for one, so that a seed stays the same run.

use ringcast::wire::sealed::{Event, Sealed};

use crate::rng::Rng;

/// What is broken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Mutant {
    /// Nothing.
    #[default]
    None,
    /// An event does not reach a shard, and nobody counts it.
    EventLost,
    /// A critical event does not reach a shard, though it is counted.
    CriticalLost,
    /// The same of one that is for a user.
    UserLost,
    /// An event that is not stored comes to a shard behind a later one.
    EventsSwapped,
    /// A shard gets another text than was stored.
    TextChanged,
    /// The connection that an event excludes is forgotten.
    ExcludeForgotten,
    /// The end of typing is not passed on by its partition.
    TypingStopLost,
    /// The kernel is said to have taken one byte more than it took.
    SendOverstated,
    /// The kernel is said to have taken one byte less than it took.
    SendUnderstated,
    /// Nobody says that a socket takes more again.
    WritableLost,
    /// A socket is not taken down though the shard wants it.
    EndForgotten,
    /// What a client sent is told twice.
    BytesRepeated,
    /// An answer of the orchestrator does not arrive.
    AnswerLost,
    /// A seat that is given back is not.
    SeatKept,
    /// A connection that is gone is not counted out.
    ReleaseLost,
    /// The store says that a batch is durable which it has not written.
    CommitInvented,
    /// A batch is written twice.
    CommitRepeated,
    /// A batch is said to be durable a while before it is.
    ToldBeforeCommit,
    /// The number of who is there is told by its partition, and nobody hears it.
    TotalLost,
}

impl Mutant {
    /// All that must be found.
    pub(crate) const ALL: [Self; 19] = [
        Self::EventLost,
        Self::CriticalLost,
        Self::UserLost,
        Self::EventsSwapped,
        Self::TextChanged,
        Self::ExcludeForgotten,
        Self::TypingStopLost,
        Self::SendOverstated,
        Self::SendUnderstated,
        Self::WritableLost,
        Self::EndForgotten,
        Self::BytesRepeated,
        Self::AnswerLost,
        Self::SeatKept,
        Self::ReleaseLost,
        Self::CommitInvented,
        Self::CommitRepeated,
        Self::ToldBeforeCommit,
        Self::TotalLost,
    ];

    /// It strikes now: `which` of them, in so many of a hundred chances.
    pub(crate) fn strikes(self, which: Self, random: &mut Rng, percent: u64) -> bool {
        self == which && random.chance(percent)
    }
}

/// The same event with something else in it.
pub(crate) fn changed(sealed: &Sealed, change: impl FnOnce(&mut Event)) -> Sealed {
    let mut event = sealed.to_event();
    change(&mut event);
    Sealed::seal(&event).expect("it was an event before")
}
