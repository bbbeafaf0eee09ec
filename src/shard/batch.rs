//! The sends of one submit.
//!
//! The walk of a tick and the queues of those behind flow in, sends flow out. Always true: a slice that many clients get
//! lies in a batch once.

use std::rc::Rc;

use crate::base::ClientId;
use crate::fanout::index::TopicNo;
use crate::fanout::tick::Frozen;
use crate::wire::frame::PING;
use crate::wire::http::Dialect;

/// What one send carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// What many are sent, by its number in the batch.
    Slice(u16),
    /// What the client has of its own.
    Rest,
}

/// What many are sent.
#[derive(Clone, Debug)]
pub(super) enum Shared {
    /// A tick of this channel in this dialect.
    Tick(Rc<Frozen>, Dialect, TopicNo),
    /// A Ping frame: a critical delivery.
    Ping,
}

impl Shared {
    pub(super) fn bytes(&self) -> &[u8] {
        match self {
            Self::Tick(frozen, dialect, _) => frozen.encoded(*dialect).slice.bytes(),
            Self::Ping => &PING,
        }
    }

    /// Deliveries of each class that it is.
    pub(super) fn counts(&self) -> [u32; 3] {
        match self {
            Self::Tick(frozen, ..) => frozen.counts,
            Self::Ping => [1, 0, 0],
        }
    }
}

/// One send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Send {
    /// To whom.
    pub client: ClientId,
    /// What.
    pub source: Source,
}

/// What became of a send that the kernel did not take whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SendResult {
    /// It took so many bytes, and may take none.
    Short(usize),
    /// The connection is gone.
    Gone,
}

/// The sends of one submit.
#[derive(Debug, Default)]
pub struct SendBatch {
    pub(super) sends: Vec<Send>,
    pub(super) slices: Vec<Shared>,
    /// For `on_sent`: how many viewers took each slice whole.
    pub(super) whole: Vec<u64>,
}

impl SendBatch {
    /// The sends, in the order in which `on_sent` numbers them.
    #[must_use]
    pub fn sends(&self) -> &[Send] {
        &self.sends
    }

    /// Nothing to send.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.sends.is_empty()
    }

    pub(super) fn clear(&mut self) {
        self.sends.clear();
        self.slices.clear();
    }

    pub(super) fn slice(&mut self, frozen: &Rc<Frozen>, dialect: Dialect, topic: TopicNo) -> u16 {
        let is_it = |it: &Shared| matches!(it, Shared::Tick(f, d, _) if Rc::ptr_eq(f, frozen) && *d == dialect);
        self.number_of(is_it, || Shared::Tick(Rc::clone(frozen), dialect, topic))
    }

    pub(super) fn ping(&mut self) -> u16 {
        self.number_of(|it| matches!(it, Shared::Ping), || Shared::Ping)
    }

    fn number_of(&mut self, is_it: impl Fn(&Shared) -> bool, make: impl FnOnce() -> Shared) -> u16 {
        let at = self.slices.iter().rposition(is_it).unwrap_or_else(|| {
            self.slices.push(make());
            self.slices.len() - 1
        });
        at as u16
    }
}
