//! The sends of one submit.
//!
//! The walk of a tick and the queues of those behind flow in, sends flow out. Always true: a slice that many clients get
//! lies in a batch once.

use std::rc::Rc;

use crate::base::ClientId;
use crate::fanout::index::TopicNo;
use crate::fanout::tick::Frozen;
use crate::wire::http::Dialect;

/// What one send carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// The slice of a tick, by its number in the batch.
    Slice(u16),
    /// What the client has of its own.
    Rest,
    /// A Ping frame.
    Ping,
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
    pub(super) slices: Vec<(Rc<Frozen>, Dialect, TopicNo)>,
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
        let at =
            self.slices.iter().rposition(|(f, d, _)| Rc::ptr_eq(f, frozen) && *d == dialect).unwrap_or_else(|| {
                self.slices.push((Rc::clone(frozen), dialect, topic));
                self.slices.len() - 1
            });
        at as u16
    }
}
