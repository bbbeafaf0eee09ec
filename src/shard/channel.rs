//! One channel on one shard: its numbering, its open tick, the walk under way, and the last stored events.
//!
//! Always true: `Open.last_seq` is the last stored seq that was appended here, and stored events are appended in the
//! order of their seqs without a hole; what comes twice is dropped, what is missing is fetched.

use std::collections::VecDeque;
use std::rc::Rc;

use super::Place;
use crate::base::{Account, Class};
use crate::fanout::index::{Index, Member, TOMBSTONE, TopicNo};
use crate::fanout::sub::{Begins, Sub, SubState};
use crate::fanout::tick::{Frozen, Tick};
use crate::fanout::tick_no::TickNo;
use crate::wire::dialect::Dialect;
use crate::wire::sealed::Sealed;

/// Events that may be held while the head of a channel is unknown; what is beyond is fetched from the store again, and
/// ephemeral ones are dropped.
pub(super) const HELD_MAX: usize = 1_024;

/// What is known of a channel's numbering.
#[derive(Debug)]
pub(super) enum Head {
    /// The store was asked; what arrives meanwhile is held.
    Asked {
        /// In the order of arrival.
        held: Vec<Sealed>,
        /// It was open before, up to this seq, and a hole is being filled.
        since: Option<u64>,
    },
    /// It is known.
    Open {
        /// The numbering.
        epoch: u64,
        /// The last stored seq appended here.
        last_seq: u64,
    },
}

/// A tick on its way to the viewers.
#[derive(Debug)]
pub(super) struct Walk {
    pub(super) frozen: Rc<Frozen>,
    /// The next member to look at.
    pub(super) cursor: usize,
}

/// One channel.
#[derive(Debug)]
pub(super) struct Channel {
    pub(super) topic: TopicNo,
    /// Its name, for gaps.
    pub(super) name: String,
    pub(super) head: Head,
    pub(super) open: Tick,
    /// The number of the open tick.
    pub(super) tick: TickNo,
    pub(super) walk: Option<Walk>,
    /// The number of the last batch in which some of its members were walked.
    pub(super) walked_in: u64,
    /// It stands in the queue of those whose ticks are walked.
    pub(super) queued: bool,
    /// The open tick has more than half of what it may have, and this core takes no events until it is walked.
    pub(super) full: bool,
    /// Somebody joined since the open tick began: its mergeable events are not replaced any more, for the newcomer
    /// is owed only what comes after.
    pub(super) entered: bool,
    /// Viewers here that speak `ringcast.rkyv` and SSE.
    pub(super) other_viewers: [u32; 2],
    /// The last stored events, in order.
    pub(super) tail: VecDeque<Sealed>,
    /// The lowest seq that the store had when it was asked.
    pub(super) first_kept: u64,
    /// The ticket of the page that was asked for last. An earlier one may have been asked for by a channel that had
    /// this number before, or had nobody in between: its page may lack what came meanwhile.
    pub(super) asked: u64,
    /// Members whose answer waits for the head.
    pub(super) waiting: Vec<crate::base::ClientId>,
}

impl Channel {
    pub(super) fn new(topic: TopicNo, name: &str) -> Self {
        Self {
            topic,
            name: name.to_owned(),
            head: Head::Asked { held: Vec::new(), since: None },
            open: Tick::default(),
            tick: TickNo::FIRST,
            walk: None,
            walked_in: 0,
            queued: false,
            full: false,
            entered: false,
            other_viewers: [0; 2],
            tail: VecDeque::new(),
            first_kept: 1,
            asked: 0,
            waiting: Vec::new(),
        }
    }

    /// A viewer of this dialect came or left.
    pub(super) fn count_dialect(&mut self, dialect: Dialect, change: i32) {
        let count = match dialect {
            Dialect::Json => return,
            Dialect::Rkyv => &mut self.other_viewers[0],
            Dialect::Sse => &mut self.other_viewers[1],
        };
        *count = count.saturating_add_signed(change);
    }

    /// The dialects that are spoken here beside JSON.
    pub(super) fn dialects(&self) -> Vec<Dialect> {
        let spoken = [Dialect::Rkyv, Dialect::Sse].into_iter().zip(self.other_viewers);
        spoken.filter(|(_, viewers)| *viewers > 0).map(|(dialect, _)| dialect).collect()
    }

    /// Keeps a stored event for those who come back soon.
    pub(super) fn remember(&mut self, sealed: &Sealed, tail_events: usize) {
        if tail_events == 0 {
            return;
        }
        while self.tail.len() >= tail_events {
            self.tail.pop_front();
        }
        self.tail.push_back(sealed.clone());
    }

    /// Where a member begins that is let in now: it is owed what is appended from here on, and nothing of a tick whose
    /// walk may still come to it.
    pub(super) fn begins(&mut self) -> Option<Box<Begins>> {
        if self.open.is_empty() && self.walk.is_none() {
            return None;
        }
        self.entered |= !self.open.is_empty();
        let lost = self.open.overflow().cloned().map(Box::new);
        Some(Box::new(Begins { tick: self.tick, frame: self.open.counts().iter().sum(), lost }))
    }

    /// The tick being walked, if it has not come to this member and concerns it.
    fn walk_ahead(&self, member: &Member, position: u32) -> Option<&Frozen> {
        let walk = self.walk.as_ref()?;
        let ahead = position as usize >= walk.cursor && !member.first_tick.is_after(walk.frozen.number);
        ahead.then_some(&*walk.frozen)
    }

    /// The events of the walk and of the open tick that a member is still owed, in order.
    pub(super) fn owed(&self, member: &Member, sub: &Sub) -> Vec<Sealed> {
        let walked = self.walk_ahead(member, sub.position);
        let walked = walked.into_iter().flat_map(|frozen| frozen.frames.iter().skip(sub.skipped(frozen.number)));
        walked.chain(self.open.frames().iter().skip(sub.skipped(self.tick))).cloned().collect()
    }

    /// The deliveries of the open tick and of the walk that a member is still owed, as losses: it leaves.
    pub(super) fn settle_leaver(&self, member: &Member, sub: &Sub, account: &mut Account) {
        // Who is not let in yet is owed nothing.
        if matches!(sub.state, SubState::Opening(_)) {
            return;
        }
        if let Some(frozen) = self.walk_ahead(member, sub.position) {
            add_counts(account, &counts_from(&frozen.frames, frozen.counts, sub.skipped(frozen.number)));
        }
        add_counts(account, &counts_from(self.open.frames(), self.open.counts(), sub.skipped(self.tick)));
    }

    /// The members that are let in; who waits for the head is owed nothing yet.
    pub(super) fn audience(&self, index: &Index) -> u64 {
        u64::from(index.live(self.topic)) - self.waiting.len() as u64
    }

    /// A tick is open or on its way to the members.
    pub(super) fn is_moving(&self) -> bool {
        !self.open.is_empty() || self.walk.is_some()
    }

    /// Adds what the members are still owed.
    pub(super) fn count_queued(&self, index: &Index, places: &[Place], queued: &mut [u64; 3]) {
        if !self.is_moving() {
            return;
        }
        let mut account = Account::default();
        for member in index.members(self.topic) {
            if member.client == TOMBSTONE {
                continue;
            }
            let client = places.get(member.client as usize).and_then(|place| place.client.as_ref());
            if let Some(sub) = client.and_then(|client| client.sub(self.topic)) {
                self.settle_leaver(member, sub, &mut account);
            }
        }
        for class in Class::ALL {
            queued[class as usize] += account.of(class).lost;
        }
    }
}

/// The classes of all frames but the first `skip`; `all` are those of all.
fn counts_from(frames: &[Sealed], all: [u32; 3], skip: usize) -> [u32; 3] {
    if skip == 0 {
        return all;
    }
    let mut counts = [0; 3];
    for sealed in frames.iter().skip(skip) {
        counts[sealed.kind().row().class as usize] += 1;
    }
    counts
}

fn add_counts(account: &mut Account, counts: &[u32; 3]) {
    for class in Class::ALL {
        account.of_mut(class).lost += u64::from(counts[class as usize]);
    }
}
