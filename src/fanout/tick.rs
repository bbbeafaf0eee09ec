//! A channel's tick: the frames that leave together, side by side, built once a shard.
//!
//! Sealed events flow in one by one; a [`Frozen`] tick, which is one slice for every viewer in step, flows out. Always
//! true: an open tick has a limit in bytes, and what is beyond it is told by a gap that is part of the slice; a
//! mergeable event replaces the one with its key for all viewers at once; a tick of one event is sent straight from
//! the sealed event, a longer one copies its frames once.

use std::rc::Rc;

use super::gap::Gap;
use super::tick_no::TickNo;
use crate::base::Class;
use crate::wire::dialect::Dialect;
use crate::wire::event::{EventKind, KindSet};
use crate::wire::reply;
use crate::wire::sealed::Sealed;

/// What became of an event that was appended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Appended {
    /// It rides in this tick.
    Added,
    /// It rides in the place of an older one with its key.
    Merged,
    /// The tick is full: it is lost to everybody, and told.
    Overflowed,
}

/// The tick of a channel that is still open.
#[derive(Debug, Default)]
pub struct Tick {
    frames: Vec<Sealed>,
    bytes: usize,
    counts: [u32; 3],
    kinds: KindSet,
    /// The merge key of each event; 0 for those that never merge.
    keys: Vec<u64>,
    excludes: bool,
    overflow: Option<Gap>,
}

/// Bytes that many viewers are sent.
#[derive(Clone, Debug)]
pub enum Slice {
    /// The frame inside a sealed event.
    One(Sealed),
    /// Frames side by side.
    Joined(Rc<[u8]>),
}

impl Slice {
    /// The bytes.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        match self {
            Self::One(sealed) => sealed.json_frame(),
            Self::Joined(bytes) => bytes,
        }
    }
}

/// One dialect's form of a tick.
#[derive(Clone, Debug)]
pub struct Encoded {
    /// What a viewer in step is sent.
    pub slice: Slice,
    /// Where each frame ends in it; the frame of a gap, if there is one, comes last.
    pub ends: Vec<u32>,
}

impl Encoded {
    /// The bytes of frame `i`.
    #[must_use]
    pub fn frame(&self, i: usize) -> &[u8] {
        let from = if i == 0 { 0 } else { self.ends[i - 1] as usize };
        &self.slice.bytes()[from..self.ends[i] as usize]
    }
}

/// A tick whose walk is under way.
#[derive(Debug)]
pub struct Frozen {
    /// Its number among the ticks of its channel.
    pub number: TickNo,
    /// Its events.
    pub frames: Vec<Sealed>,
    /// The merge key of each; 0 for those that never merge.
    pub keys: Vec<u64>,
    /// `ringcast.json`.
    pub json: Encoded,
    /// The other dialects, as far as anybody on this shard speaks them.
    pub others: Vec<(Dialect, Encoded)>,
    /// How many events of each class.
    pub counts: [u32; 3],
    /// Which types are in it.
    pub kinds: KindSet,
    /// Some event names a connection that shall not get it.
    pub excludes: bool,
    /// What did not fit.
    pub overflow: Option<Gap>,
}

impl Tick {
    /// Nothing was appended since the last freeze.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.frames.is_empty() && self.overflow.is_none()
    }

    /// The events that ride in it.
    #[must_use]
    pub fn frames(&self) -> &[Sealed] {
        &self.frames
    }

    /// What did not fit so far.
    #[must_use]
    pub fn overflow(&self) -> Option<&Gap> {
        self.overflow.as_ref()
    }

    /// Events of each class that ride in it.
    #[must_use]
    pub fn counts(&self) -> [u32; 3] {
        self.counts
    }

    /// Bytes of the frames that ride in it.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// These stored events are lost to everybody before they came here, and told at the end of the tick.
    pub fn lose(&mut self, channel: u32, from_seq: u64, to_seq: u64) {
        let count = u32::try_from(to_seq - from_seq + 1).unwrap_or(u32::MAX);
        let lost = Gap { channel, from_seq, to_seq, dropped: vec![(EventKind::MessageNew, count)] };
        self.overflow.get_or_insert_with(|| Gap::new(channel)).absorb(&lost);
    }

    /// Appends an event. `key` is that of a mergeable one, else 0; `may_replace` allows it to stand in the place of an
    /// older one; `bytes_max` bounds the open tick, critical events excepted.
    pub fn append(&mut self, sealed: &Sealed, channel: u32, key: u64, may_replace: bool, bytes_max: usize) -> Appended {
        let row = sealed.kind().row();
        let bytes = sealed.json_frame().len();
        if may_replace
            && row.class == Class::Mergeable
            && let Some(at) = self.position(row.kind, key)
        {
            let old = std::mem::replace(&mut self.frames[at], sealed.clone());
            self.bytes = self.bytes - old.json_frame().len() + bytes;
            self.kinds.insert(row.kind);
            self.excludes |= sealed.exclude() != 0;
            return Appended::Merged;
        }
        // Once something was lost, what follows in this tick is lost too: nothing may pass the gap. One event alone always
        // fits, however long its text became with escapes.
        let fits = self.frames.is_empty() || self.bytes + bytes <= bytes_max;
        if row.class != Class::Critical && (self.overflow.is_some() || !fits) {
            self.overflow.get_or_insert_with(|| Gap::new(channel)).add(sealed.kind(), sealed.seq());
            return Appended::Overflowed;
        }
        self.keys.push(key);
        self.bytes += bytes;
        self.counts[row.class as usize] += 1;
        self.kinds.insert(row.kind);
        self.excludes |= sealed.exclude() != 0;
        self.frames.push(sealed.clone());
        Appended::Added
    }

    /// Where the event of this type (as it merges) and key stands.
    fn position(&self, kind: EventKind, key: u64) -> Option<usize> {
        let is_it = |at: &usize| self.keys[*at] == key && self.frames[*at].kind().merges_as() == kind.merges_as();
        (0..self.keys.len()).rev().find(is_it)
    }

    /// Closes the tick and opens the next: returns what is walked now. `dialects` asks for
    /// further forms.
    pub fn freeze(&mut self, number: TickNo, channel_name: &str, dialects: &[Dialect]) -> Frozen {
        let tick = std::mem::take(self);
        let gap = tick.overflow.as_ref().map(|gap| reply::gap(channel_name, gap.from_seq, gap.to_seq, &gap.dropped));
        let json = match (&tick.frames[..], &gap) {
            ([one], None) => Encoded { ends: vec![one.json_frame().len() as u32], slice: Slice::One(one.clone()) },
            (frames, gap) => join(tick.bytes, frames.iter().map(Sealed::json_frame), gap.as_deref()),
        };
        let others = dialects.iter().map(|&dialect| {
            let frames: Vec<_> = tick.frames.iter().map(|sealed| dialect.event(sealed)).collect();
            let gap = gap.clone().map(|gap| dialect.reply(gap, None));
            (dialect, join(tick.bytes, frames.iter().map(|frame| &**frame), gap.as_deref()))
        });
        let others = others.collect();
        Frozen {
            number,
            frames: tick.frames,
            keys: tick.keys,
            json,
            others,
            counts: tick.counts,
            kinds: tick.kinds,
            excludes: tick.excludes,
            overflow: tick.overflow,
        }
    }
}

fn join<'f>(bytes: usize, frames: impl Iterator<Item = &'f [u8]>, gap: Option<&'f [u8]>) -> Encoded {
    let mut joined = Vec::with_capacity(bytes + gap.map_or(0, <[u8]>::len));
    let mut ends = Vec::new();
    for frame in frames.chain(gap) {
        joined.extend_from_slice(frame);
        ends.push(joined.len() as u32);
    }
    Encoded { slice: Slice::Joined(joined.into()), ends }
}

impl Frozen {
    /// The tick in this dialect.
    #[must_use]
    pub fn encoded(&self, dialect: Dialect) -> &Encoded {
        self.others.iter().find(|(other, _)| *other == dialect).map_or(&self.json, |(_, encoded)| encoded)
    }

    /// The class of frame `i`; `None` for the gap behind the events, which is in no account.
    #[must_use]
    pub fn class(&self, i: usize) -> Option<Class> {
        self.frames.get(i).map(|sealed| sealed.kind().row().class)
    }

    /// The kind of the event of frame `i`.
    #[must_use]
    pub fn kind(&self, i: usize) -> Option<EventKind> {
        self.frames.get(i).map(Sealed::kind)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::Name;
    use crate::wire::sealed::Event;
    use crate::wire::topic::{Scope, TopicHasher};

    fn event(kind: EventKind, seq: u64) -> Sealed {
        let name = Name::new("x").unwrap();
        let mut event = Event::new(kind, TopicHasher::new(1).topic(Scope::Channel, &name, &name), 0);
        event.seq = seq;
        Sealed::seal(&event).unwrap()
    }

    #[test]
    fn one_event_is_sent_from_where_it_was_sealed_and_more_are_copied_once() {
        let mut tick = Tick::default();
        let first = event(EventKind::MessageNew, 1);
        assert_eq!(tick.append(&first, 0, 0, true, 10_000), Appended::Added);
        let frozen = tick.freeze(TickNo(1), "x", &[]);
        assert_eq!(frozen.json.slice.bytes().as_ptr(), first.json_frame().as_ptr());
        assert!(tick.is_empty());
        tick.append(&first, 0, 0, true, 10_000);
        tick.append(&event(EventKind::MessageNew, 2), 0, 0, true, 10_000);
        let frozen = tick.freeze(TickNo(2), "x", &[Dialect::Rkyv]);
        assert_eq!(frozen.json.frame(0), first.json_frame());
        assert_eq!(frozen.counts, [0, 2, 0]);
        assert_eq!(frozen.others[0].1.frame(1)[0], 0x82);
    }

    #[test]
    fn rule_12_an_open_tick_merges_and_is_bounded_and_tells_what_it_lost() {
        let mut tick = Tick::default();
        let viewers = event(EventKind::ViewersUpdated, 0);
        assert_eq!(tick.append(&viewers, 7, 5, true, 10_000), Appended::Added);
        assert_eq!(tick.append(&viewers, 7, 5, true, 10_000), Appended::Merged);
        assert_eq!(tick.append(&viewers, 7, 6, true, 10_000), Appended::Added);
        // Another kind has a place of its own, and neither pushes the other away.
        let channel = event(EventKind::ChannelUpdated, 0);
        assert_eq!(tick.append(&channel, 7, 5, true, 10_000), Appended::Added);
        assert_eq!(tick.append(&viewers, 7, 5, true, 10_000), Appended::Merged);
        assert_eq!(tick.append(&channel, 7, 5, true, 10_000), Appended::Merged);
        // Who comes and leaves within a tick has left.
        assert_eq!(tick.append(&event(EventKind::MemberJoined, 0), 7, 9, true, 10_000), Appended::Added);
        assert_eq!(tick.append(&event(EventKind::MemberLeft, 0), 7, 9, true, 10_000), Appended::Merged);
        let limit = tick.bytes() + 1;
        assert_eq!(tick.append(&event(EventKind::MessageNew, 4), 7, 0, true, limit), Appended::Overflowed);
        assert_eq!(tick.append(&event(EventKind::MessageNew, 5), 7, 0, true, 100_000), Appended::Overflowed);
        assert_eq!(tick.append(&event(EventKind::AccessRevoked, 0), 7, 0, true, limit), Appended::Added);
        let frozen = tick.freeze(TickNo(1), "x", &[]);
        let gap = frozen.overflow.as_ref().unwrap();
        assert_eq!((gap.channel, gap.from_seq, gap.to_seq), (7, 4, 5));
        assert_eq!(frozen.json.ends.len(), 6);
        assert_eq!(frozen.kind(3), Some(EventKind::MemberLeft));
        assert!(frozen.kinds.contains(EventKind::MemberLeft));
        assert!(String::from_utf8_lossy(frozen.json.frame(5)).contains("\"from_seq\":4"));
        assert_eq!((frozen.class(5), frozen.class(4)), (None, Some(Class::Critical)));
    }
}
