//! Our side of one connection: what it watches, what waits for it, and when it was last heard.
//!
//! Always true: a client that keeps up has no [`Behind`], and so no outbox and no heap for one; and an idle one is small, for
//! there may be a million of them.

use super::behind::Behind;
use super::index::TopicNo;
use super::score::OutboxOptions;
use super::sub::{Sub, SubState};
use crate::base::{AppId, Few};
use crate::post::letters::{AddressKey, Identity};
use crate::post::presence::Stated;
use crate::wire::close::Closing;
use crate::wire::dialect::Dialect;
use crate::wire::socket::Codec;

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
