//! Our side of one connection: what it watches, what waits for it, and when it was last heard.
//!
//! Always true: a client that keeps up has no [`Behind`], and so no outbox and no heap for one; what a write left
//! unfinished goes first and is never evicted; the account gains `written` only when the kernel has taken a frame
//! whole.

use std::borrow::Cow;
use std::collections::VecDeque;

use super::gap::Gap;
use super::index::TopicNo;
use super::outbox::{Outbox, Popped};
use super::score::OutboxOptions;
use super::tick_no::TickNo;
use crate::base::{Account, AppId, Class};
use crate::post::letters::{AddressKey, Identity};
use crate::post::presence::Stated;
use crate::wire::close::Closing;
use crate::wire::dialect::Dialect;
use crate::wire::event::KindSet;
use crate::wire::reply;
use crate::wire::sealed::Sealed;
use crate::wire::socket::Codec;

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

/// How often a stream hears something when it did not ask, in seconds: below the 30 s after which many proxies close.
const STREAM_BEAT_S: u16 = 25;

/// How far a connection is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// It lives.
    Open,
    /// It watches nothing any more; what waits is written, then the Close frame, then it ends.
    Closing,
    /// The Close frame is written and our side is shut; the peer's end is awaited for a moment.
    Lingering,
    /// The socket is being taken down; nothing is written or read.
    Ending,
}

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

/// A list that is nearly always empty, and is one word then. There are as many as connections.
#[derive(Clone, Debug)]
#[allow(clippy::box_collection, reason = "an empty Vec is three words")]
pub struct Few<T>(Option<Box<Vec<T>>>);

impl<T> Default for Few<T> {
    fn default() -> Self {
        Self(None)
    }
}

impl<T> Few<T> {
    /// Adds one.
    pub fn push(&mut self, item: T) {
        self.0.get_or_insert_with(Box::default).push(item);
    }

    /// All of them.
    #[must_use]
    pub fn as_slice(&self) -> &[T] {
        self.0.as_deref().map_or(&[], Vec::as_slice)
    }

    /// All of them, to be changed.
    pub fn as_mut_slice(&mut self) -> &mut [T] {
        self.0.as_deref_mut().map_or(&mut [], Vec::as_mut_slice)
    }

    /// Takes all out.
    pub fn take(&mut self) -> Vec<T> {
        self.0.take().map_or(Vec::new(), |items| *items)
    }

    /// Takes out the last.
    pub fn pop(&mut self) -> Option<T> {
        let items = self.0.as_mut()?;
        let item = items.pop();
        if items.is_empty() {
            self.0 = None;
        }
        item
    }

    /// Takes one out; the last stands in its place then.
    pub fn swap_remove(&mut self, at: usize) -> Option<T> {
        let items = self.0.as_mut().filter(|items| at < items.len())?;
        let item = items.swap_remove(at);
        if items.is_empty() {
            self.0 = None;
        }
        Some(item)
    }
}

/// What is known of one client that sends: its rates, and what its user said of itself; made when it first sends
/// something.
#[derive(Clone, Debug, Default)]
pub struct Rates {
    /// What its user said of itself here.
    pub stated: Option<Stated>,
    /// The second that the counts are of.
    pub second: u64,
    /// Typing events in it.
    pub typing: u8,
    /// What the user said of itself in it, in times.
    pub statuses: u8,
    /// Custom events in it.
    pub custom: u8,
    /// The minute that the counts below are of.
    pub minute: u64,
    /// Bad commands in it.
    pub bad: u8,
    /// Commands in it that came sooner than their rate allows.
    pub over_rate: u16,
}

impl Rates {
    /// Counts of another second than `second` mean nothing any more.
    pub fn begin_second(&mut self, second: u64) {
        if self.second != second {
            (self.second, self.typing, self.custom, self.statuses) = (second, 0, 0, 0);
        }
    }

    /// Counts of another minute than `minute` mean nothing any more.
    pub fn begin_minute(&mut self, minute: u64) {
        if self.minute != minute {
            (self.minute, self.bad, self.over_rate) = (minute, 0, 0);
        }
    }
}

/// What a silent client was asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ping {
    /// It was never pinged.
    Never,
    /// It was pinged and has not been heard since.
    Waits,
    /// It was heard after its last ping.
    Answered,
}

/// One connection.
#[derive(Debug)]
pub struct Client {
    /// Its opaque number, for `exclude` and for people; 0 is nobody's.
    pub conn: u64,
    /// How far it is.
    pub phase: Phase,
    /// It is sent back what it sends: the echo endpoint of conformance tests.
    pub echo: bool,
    /// Nothing more is read from it until its answers are written.
    pub paused: bool,
    /// The tenant.
    pub app: AppId,
    /// What its frames look like.
    pub dialect: Dialect,
    /// Who it is.
    pub identity: Option<Box<Identity>>,
    /// Its places among the connections of its user and of its tags.
    pub places: Few<(TopicNo, u32)>,
    /// The address that it counts under.
    pub address: Option<AddressKey>,
    /// Its channels. Nearly everybody has one, which needs no second allocation.
    pub first: Option<Sub>,
    /// Its further channels.
    pub more: Few<Sub>,
    /// What it sends.
    pub codec: Codec,
    /// What waits for it.
    pub behind: Option<Box<Behind>>,
    /// When it came, in monotonic seconds.
    pub since_s: u32,
    /// When it was last heard, in monotonic seconds.
    pub seen_s: u32,
    /// When the wheel looks at it; an entry of another second is stale.
    pub check_s: u32,
    /// When the next `health.check` is due, in monotonic seconds; 0 is never.
    pub heartbeat_at_s: u32,
    /// So often, in seconds.
    pub heartbeat_s: u16,
    /// Whether it was pinged, and answered.
    pub ping: Ping,
    /// What it sent lately.
    pub rates: Option<Box<Rates>>,
    /// It was told that its token runs out.
    pub expiry_told: bool,
    /// Why it ends, once it does.
    pub closing: Option<Box<Closing>>,
}

impl Client {
    /// How often something is to be said, in seconds; 0 is never. A stream has no pings, so it is the only way to find out
    /// that its peer is gone.
    #[must_use]
    pub fn beat_s(&self) -> u16 {
        match (self.heartbeat_s, self.dialect) {
            (0, Dialect::Sse) => STREAM_BEAT_S,
            (asked, _) => asked,
        }
    }

    /// As much lies in its rest as its queue may hold: nothing is added to it that can be read again later.
    #[must_use]
    pub fn holds_much(&self, options: &OutboxOptions) -> bool {
        let rest = self.behind.as_ref().map_or(0, |behind| behind.rest.unwritten().len());
        rest >= options.bytes_max as usize
    }

    /// Its channels.
    pub fn subs(&self) -> impl Iterator<Item = &Sub> {
        self.first.iter().chain(self.more.as_slice())
    }

    /// The subscription to `topic`.
    #[must_use]
    pub fn sub(&self, topic: TopicNo) -> Option<&Sub> {
        self.subs().find(|sub| sub.topic == topic)
    }

    /// The subscription to `topic`, to be changed.
    pub fn sub_mut(&mut self, topic: TopicNo) -> Option<&mut Sub> {
        self.first.iter_mut().chain(self.more.as_mut_slice()).find(|sub| sub.topic == topic)
    }

    /// Adds a subscription.
    pub fn add_sub(&mut self, sub: Sub) {
        if self.first.is_none() { self.first = Some(sub) } else { self.more.push(sub) }
    }

    /// Takes a subscription out.
    pub fn take_sub(&mut self, topic: TopicNo) -> Option<Sub> {
        if self.first.as_ref().is_some_and(|sub| sub.topic == topic) {
            return std::mem::replace(&mut self.first, self.more.pop());
        }
        let at = self.more.as_slice().iter().position(|sub| sub.topic == topic)?;
        self.more.swap_remove(at)
    }

    /// `connection.ready` is still owed: until it is said, nothing else may be.
    #[must_use]
    pub fn awaits_ready(&self) -> bool {
        matches!(&self.first, Some(Sub { state: SubState::Opening(owed), .. }) if owed.first)
    }

    /// How many channels it watches.
    #[must_use]
    pub fn channels(&self) -> usize {
        usize::from(self.first.is_some()) + self.more.as_slice().len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_idle_client_is_small() {
        // The allocator's next class above 160 bytes is 192.
        assert!(size_of::<Client>() <= 160, "{}", size_of::<Client>());
    }
}
