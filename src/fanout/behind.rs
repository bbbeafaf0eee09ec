//! What waits for a client that does not keep up.
//!
//! What a write left unfinished and events of an outbox flow in, bytes for the next write flow out. Always true: what is
//! unfinished goes first and is never evicted, last words go last, and the account gains `written` only when the kernel has
//! taken a frame whole.

use std::borrow::Cow;
use std::collections::VecDeque;

use super::outbox::{Outbox, Popped};
use crate::base::{Account, Class};
use crate::wire::dialect::Dialect;
use crate::wire::reply;
use crate::wire::sealed::Sealed;

/// What waits in an outbox.
#[derive(Clone, Debug)]
pub enum Payload {
    /// An event.
    Event(Sealed),
    /// Bytes of this client's own.
    Own(Box<[u8]>),
}

impl Payload {
    /// What it takes of a queue, in bytes: the length of the JSON frame, or of the client's own.
    #[must_use]
    pub fn bytes(&self) -> usize {
        match self {
            Self::Event(sealed) => sealed.json_frame().len(),
            Self::Own(bytes) => bytes.len(),
        }
    }

    /// The frame. An event is brought into its form here and not when it is queued, so that it can be found in the queue
    /// when it is taken back.
    #[must_use]
    pub fn frame(&self, dialect: Dialect) -> Cow<'_, [u8]> {
        match self {
            Self::Event(sealed) => dialect.event(sealed),
            Self::Own(bytes) => Cow::Borrowed(bytes),
        }
    }
}

/// Frames that were taken out of the queue and are not yet taken whole by the kernel.
#[derive(Debug, Default)]
pub struct Rest {
    bytes: Vec<u8>,
    at: usize,
    /// Where each frame ends, and the class that it counts under; gaps and recovered events are in no account.
    marks: VecDeque<(u32, Option<Class>)>,
}

impl Rest {
    /// Adds a whole frame, or the tail of a broken one.
    pub fn put(&mut self, bytes: &[u8], class: Option<Class>) {
        self.bytes.extend_from_slice(bytes);
        self.marks.push_back((self.bytes.len() as u32, class));
    }

    /// What to write next.
    #[must_use]
    pub fn unwritten(&self) -> &[u8] {
        &self.bytes[self.at..]
    }

    /// Everything was taken.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.at == self.bytes.len()
    }

    /// The kernel took `bytes` more. Returns how many events and frames it now has whole.
    pub fn advance(&mut self, bytes: usize, account: &mut Account) -> u64 {
        self.at += bytes;
        let mut events = 0;
        while let Some(&(end, class)) = self.marks.front() {
            if end as usize > self.at {
                break;
            }
            if let Some(class) = class {
                account.of_mut(class).written += 1;
                events += 1;
            }
            self.marks.pop_front();
        }
        if self.is_empty() {
            self.bytes.clear();
            self.at = 0;
        }
        events
    }

    /// The connection is gone: what is not whole counts as lost.
    pub fn drain_lost(&mut self, account: &mut Account) {
        for (_, class) in self.marks.drain(..) {
            if let Some(class) = class {
                account.of_mut(class).lost += 1;
            }
        }
        self.bytes.clear();
        self.at = 0;
    }

    /// Events of each class in it, added to `counts`.
    pub fn count(&self, counts: &mut [u64; 3]) {
        for (_, class) in &self.marks {
            if let Some(class) = class {
                counts[*class as usize] += 1;
            }
        }
    }
}

/// A client with something that waits.
#[derive(Debug, Default)]
pub struct Behind {
    /// Goes first.
    pub rest: Rest,
    /// Goes then, by the rules of the outbox.
    pub outbox: Outbox<Payload>,
    /// The socket took less than it was given and has not said since that it takes more; monotonic milliseconds.
    pub blocked_since_ms: Option<u64>,
    /// It was refused for as long as may be, and is tried once more: what takes a byte now is slow, not stuck.
    pub last_try: bool,
    /// It stands on the list of those who may write.
    pub listed: bool,
    /// To be said last; then the connection ends.
    pub last_words: Option<Box<[u8]>>,
}

impl Behind {
    /// Moves frames from the outbox into the rest, up to `bytes_max` and at least one. `channel_name` names the
    /// channel of a gap.
    pub fn fill(
        &mut self,
        now_ms: u64,
        bytes_max: usize,
        dialect: Dialect,
        account: &mut Account,
        mut channel_name: impl FnMut(u32) -> String,
    ) {
        while self.rest.unwritten().len() < bytes_max {
            match self.outbox.pop(now_ms, account) {
                Some(Popped::Entry(entry)) => {
                    self.rest.put(&entry.payload.frame(dialect), Some(entry.kind.row().class));
                }
                Some(Popped::Gap(gap)) => {
                    let frame = reply::gap(&channel_name(gap.channel), gap.from_seq, gap.to_seq, &gap.dropped);
                    self.rest.put(&dialect.reply(frame, None), None);
                }
                None => {
                    if let Some(words) = self.last_words.take() {
                        self.rest.put(&words, None);
                    }
                    return;
                }
            }
        }
    }

    /// Moves the answers that wait into the rest: the one that follows must not pass them.
    pub fn fill_critical(&mut self, dialect: Dialect, account: &mut Account) {
        while let Some(entry) = self.outbox.pop_critical(account) {
            self.rest.put(&entry.payload.frame(dialect), Some(Class::Critical));
        }
    }

    /// Nothing waits any more.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.rest.is_empty() && self.outbox.is_empty() && self.last_words.is_none()
    }
}

/// The channel number of entries that are replies; no channel has it.
pub const REPLY: u32 = u32::MAX;
