//! Writing as a stage: the audience of a tick is walked once, and all sends of a slice go out in one submit.
//!
//! Ticks and queues flow in, a [`SendBatch`] flows out; what the kernel took of it flows back in by
//! [`Shard::on_sent`] before anything else happens. Always true: a client has at most one send in a batch (rule 2); its
//! way is chosen once a tick, when the walk comes to it, never at append (rule 5); and the account gains `written` only
//! after completion (rule 6).

use std::rc::Rc;

use super::batch::{Send, SendBatch, Source};
use super::channel::Walk;
use super::deliver::entry;
use super::walks::Size;
use super::{BUSY, EASY, Shard};
use crate::base::{Account, Class, ClientId, Now};
use crate::fanout::behind::{Behind, Payload};
use crate::fanout::client::{Client, Phase};
use crate::fanout::index::{TOMBSTONE, TopicNo};
use crate::fanout::outbox::{Entry, Verdict};
use crate::fanout::sub::SubState;
use crate::fanout::tick::Frozen;
use crate::wire::close::Closing;
use crate::wire::event::{EventKind, KindSet};
use crate::wire::http::Dialect;

/// The channel number of entries that belong to no channel.
pub(super) const NO_CHANNEL: u32 = crate::fanout::behind::REPLY;
/// Members that one call looks at without sending, at the most.
const VISITS_MAX: usize = 4_096;

impl Shard {
    /// The bytes of one send of `batch`.
    #[must_use]
    pub fn bytes_of<'a>(&'a self, batch: &'a SendBatch, send: &Send) -> &'a [u8] {
        match send.source {
            Source::Slice(i) => batch.slices[usize::from(i)].bytes(),
            Source::Rest => self
                .client(send.client)
                .and_then(|client| client.behind.as_ref())
                .map_or(&[], |behind| behind.rest.unwritten()),
        }
    }

    /// Fills `batch` with what the next submit shall carry. True while more waits.
    pub fn poll_fanout(&mut self, now: Now, batch: &mut SendBatch) -> bool {
        batch.clear();
        self.batch_number += 1;
        let max = self.options.sends_per_submit as usize;
        // Those who are behind first, so that a busy channel cannot keep a newcomer waiting; at most half, so that
        // they cannot keep the others waiting.
        self.fill_from_ready(now, batch, max / 2);
        self.fill_from_pings(now, batch, max / 2);
        self.walk(now, batch, max);
        self.fill_from_ready(now, batch, max);
        self.fill_from_pings(now, batch, max);
        self.has_fanout()
    }

    fn fill_from_ready(&mut self, now: Now, batch: &mut SendBatch, max: usize) {
        let bytes_max = self.options.write_bytes as usize;
        let mut visits = self.ready.len();
        while batch.sends.len() < max && visits > 0 {
            visits -= 1;
            let Some(slot) = self.ready.pop_front() else { return };
            let place = &mut self.places[slot as usize];
            let Some(client) = &mut place.client else { continue };
            let (awaits_ready, dialect) = (client.awaits_ready(), client.dialect);
            let Some(behind) = &mut client.behind else { continue };
            if place.flags & BUSY != 0 {
                self.ready.push_back(slot);
                continue;
            }
            behind.listed = false;
            if behind.blocked_since_ms.is_some() || client.phase == Phase::Ending {
                continue;
            }
            let channels = &self.channels;
            // Before `connection.ready` only the answer to the upgrade is written.
            let most = if awaits_ready { 0 } else { bytes_max };
            behind.fill(now.mono_ms(), most, dialect, &mut self.account, |no| {
                channels.get(no as usize).and_then(Option::as_ref).map(|c| c.name.clone()).unwrap_or_default()
            });
            if behind.rest.is_empty() {
                // All that waited was stale.
                self.after_write(now, slot);
                continue;
            }
            place.flags |= BUSY;
            let client = ClientId { slot, generation: place.generation };
            batch.sends.push(Send { client, source: Source::Rest });
        }
    }

    fn walk(&mut self, now: Now, batch: &mut SendBatch, max: usize) {
        let mut visits = 0;
        let has_small = self.walks.first(Size::Small).is_some();
        if has_small {
            // First, for they are soon done, and at most half, so that they cannot keep a large one waiting.
            let half = batch.sends.len() + (max - batch.sends.len()).div_ceil(2);
            self.walk_those(now, Size::Small, batch, half, (&mut visits, VISITS_MAX / 2));
        }
        self.walk_those(now, Size::Large, batch, max, (&mut visits, VISITS_MAX));
        if has_small {
            self.walk_those(now, Size::Small, batch, max, (&mut visits, VISITS_MAX));
        }
    }

    fn walk_those(
        &mut self,
        now: Now,
        size: Size,
        batch: &mut SendBatch,
        max: usize,
        (visits, visits_max): (&mut usize, usize),
    ) {
        while batch.sends.len() < max && *visits < visits_max {
            let Some(no) = self.walks.first(size) else { return };
            let Some(channel) = self.channels.get_mut(no.0 as usize).and_then(Option::as_mut) else {
                self.walks.pop(size);
                continue;
            };
            if channel.walk.is_none() {
                if channel.open.is_empty() {
                    channel.queued = false;
                    self.walks.pop(size);
                    continue;
                }
                // A second tick of the same channel in one batch could overtake the unwritten end of the first, also where
                // the first was frozen for an earlier batch and only its last members are in this one.
                if channel.walked_in == self.batch_number {
                    return;
                }
                let frozen = channel.open.freeze(channel.tick, &channel.name, &channel.dialects());
                channel.tick = channel.tick.next();
                channel.entered = false;
                self.full -= u32::from(std::mem::take(&mut channel.full));
                self.stages.ticks += 1;
                self.stages.frames_built += frozen.frames.len() as u64;
                channel.walk = Some(Walk { frozen: Rc::new(frozen), cursor: 0 });
            }
            channel.walked_in = self.batch_number;
            let before = (batch.sends.len(), *visits);
            if self.walk_slice(now, no, batch, max, visits) {
                self.walks.pop(size);
                self.end_walk(no);
            } else {
                // Who is behind is only looked at: eight of them cost no more than a send.
                let sends = batch.sends.len() - before.0 + (*visits - before.1) / 8;
                self.walks.used(size, sends, self.options.sends_per_submit as usize);
            }
        }
    }

    /// Walks on in the members of one channel; true at their end.
    fn walk_slice(&mut self, now: Now, no: TopicNo, batch: &mut SendBatch, max: usize, visits: &mut usize) -> bool {
        let Some(channel) = self.channels[no.0 as usize].as_mut() else { return true };
        let Some(walk) = &mut channel.walk else { return true };
        let frozen = Rc::clone(&walk.frozen);
        // Decided once a slice, not once a viewer.
        let all_alike = !frozen.excludes;
        let json = batch.slice(&frozen, Dialect::Json, no);
        let members = self.index.members(no);
        // Empty, and so without memory, as long as everybody keeps up.
        let (mut overrun, mut touched): (Vec<ClientId>, Vec<u32>) = (Vec::new(), Vec::new());
        let mut cursor = walk.cursor;
        while cursor < members.len() && batch.sends.len() < max && *visits < VISITS_MAX {
            let member = members[cursor];
            cursor += 1;
            if member.client == TOMBSTONE || member.first_tick.is_after(frozen.number) {
                *visits += 1;
                continue;
            }
            let place = &mut self.places[member.client as usize];
            if place.flags & (EASY | BUSY) == EASY && all_alike {
                place.flags |= BUSY;
                let client = ClientId { slot: member.client, generation: place.generation };
                batch.sends.push(Send { client, source: Source::Slice(json) });
                continue;
            }
            *visits += 1;
            let Some(client) = &mut place.client else { continue };
            let way = choose_way(client, place.flags & BUSY != 0, no, &frozen);
            let id = ClientId { slot: member.client, generation: place.generation };
            let mut begins = None;
            if !matches!(way, Way::Nothing)
                && let Some(sub) = client.sub_mut(no)
            {
                begins = sub.begins.take();
                touched.extend(begins.as_ref().map(|_| member.client));
            }
            match way {
                Way::Nothing => {}
                Way::Slice => {
                    place.flags |= BUSY;
                    let slice = batch.slice(&frozen, client.dialect, no);
                    batch.sends.push(Send { client: id, source: Source::Slice(slice) });
                }
                Way::Outbox { from } => {
                    let lost = begins.filter(|begins| begins.tick == frozen.number).and_then(|begins| begins.lost);
                    let part = Part { from, lost };
                    let queued = queue_from(now, client, no, &frozen, part, &self.options.outbox, &mut self.account);
                    self.stages.queue_writes += queued.written;
                    if queued.overrun {
                        overrun.push(id);
                    }
                    touched.push(member.client);
                }
            }
        }
        let done = cursor >= members.len();
        walk.cursor = cursor;
        for slot in touched {
            let client = self.places[slot as usize].client.as_mut();
            if let Some(client) = client
                && client.behind.as_ref().is_some_and(|behind| behind.is_done())
            {
                client.behind = None;
            }
            self.list(slot);
            self.refresh(slot);
        }
        for id in overrun {
            self.close(now, id, Closing::TooSlow);
        }
        done
    }

    fn end_walk(&mut self, no: TopicNo) {
        let Some(channel) = self.channels.get_mut(no.0 as usize).and_then(Option::as_mut) else { return };
        channel.walk = None;
        channel.queued = false;
        if channel.tick.is_milestone() {
            self.index.renew(no, channel.tick);
        }
        if self.index.should_compact(no) {
            let places = &mut self.places;
            self.index.compact(no, |slot, position| {
                if let Some(sub) = places[slot as usize].client.as_mut().and_then(|client| client.sub_mut(no)) {
                    sub.position = position;
                }
            });
        }
        self.queue_walk(no);
    }

    /// The channel's open tick is walked when its turn comes; that of one with a critical event comes soon.
    pub(super) fn queue_walk(&mut self, no: TopicNo) {
        let one_submit = self.index.live(no) <= self.options.sends_per_submit;
        let Some(channel) = self.channels.get_mut(no.0 as usize).and_then(Option::as_mut) else { return };
        let urgent = channel.open.counts()[Class::Critical as usize] > 0;
        if channel.open.is_empty() {
            return;
        }
        if !std::mem::replace(&mut channel.queued, true) {
            self.walks.push(no, if one_submit { Size::Small } else { Size::Large }, urgent);
        } else if urgent {
            self.walks.hurry(no);
        }
    }

    /// Puts the client on the list of those who may write.
    pub(super) fn list(&mut self, slot: u32) {
        let Some(client) = self.places[slot as usize].client.as_mut() else { return };
        let awaits_ready = client.awaits_ready();
        if let Some(behind) = client.behind.as_mut()
            && !behind.listed
            && behind.blocked_since_ms.is_none()
            && !behind.is_done()
            && !(awaits_ready && behind.rest.is_empty())
        {
            behind.listed = true;
            self.ready.push_back(slot);
        }
    }

    /// Queues one entry of the client's own.
    pub(super) fn enqueue(&mut self, now: Now, id: ClientId, entry: Entry<Payload>) {
        let (options, class) = (self.options.outbox, entry.kind.row().class);
        let place = &mut self.places[id.slot as usize];
        let client = place.client.as_mut().filter(|c| place.generation == id.generation && c.phase == Phase::Open);
        let Some(client) = client else {
            self.account.of_mut(class).lost += 1;
            return;
        };
        let (awaits_ready, dialect) = (client.awaits_ready(), client.dialect);
        let behind = client.behind.get_or_insert_with(Box::<Behind>::default);
        let full = class == Class::Critical && behind.outbox.waiting(class) >= options.capacity(class);
        if full && behind.blocked_since_ms.is_none() && !awaits_ready {
            // Its socket has refused nothing: so many answers came within one turn, as after a commit of all that one
            // client has posted. That is no lag; what the socket then does not take is.
            let channels = &self.channels;
            behind.fill(now.mono_ms(), usize::MAX, dialect, &mut self.account, |no| {
                channels.get(no as usize).and_then(Option::as_ref).map(|c| c.name.clone()).unwrap_or_default()
            });
        }
        let verdict = behind.outbox.push(&options, &mut self.account, entry);
        self.stages.queue_writes += 1;
        self.list(id.slot);
        self.refresh(id.slot);
        if verdict == Verdict::Overrun {
            self.close(now, id, Closing::TooSlow);
        }
    }

    /// Queues a frame that only this client gets; it counts as a critical delivery.
    pub(super) fn reply(&mut self, now: Now, id: ClientId, frame: Vec<u8>) {
        self.account.of_mut(Class::Critical).published += 1;
        let frame = self.dialect_of(id).reply(frame, None);
        self.enqueue(now, id, entry(now, EventKind::Ack, NO_CHANNEL, 0, 0, Payload::Own(frame.into())));
    }
}

/// How a tick reaches one member.
enum Way {
    Nothing,
    Slice,
    Outbox { from: usize },
}

fn choose_way(client: &Client, busy: bool, no: TopicNo, frozen: &Frozen) -> Way {
    let Some(sub) = client.sub(no) else { return Way::Nothing };
    let from = sub.skipped(frozen.number);
    if matches!(sub.state, SubState::Opening(_)) || from == usize::MAX {
        return Way::Nothing;
    }
    let as_it_is = from == 0
        && sub.begins.as_ref().is_none_or(|begins| frozen.number.is_after(begins.tick) || begins.lost.is_none())
        && !matches!(sub.state, SubState::Resuming { .. })
        && client.phase == Phase::Open
        && client.behind.is_none()
        && !busy
        && sub.filter.covers(frozen.kinds)
        && !(frozen.excludes && frozen.frames.iter().any(|sealed| sealed.exclude() == client.conn));
    if as_it_is { Way::Slice } else { Way::Outbox { from } }
}

/// What came of queueing.
#[derive(Default)]
pub(super) struct Queued {
    /// Entries.
    pub(super) written: u64,
    /// A critical event found no place.
    pub(super) overrun: bool,
}

/// What part of a tick concerns a client.
pub(super) struct Part {
    /// The first frame.
    pub(super) from: usize,
    /// What the tick had lost before the client came.
    pub(super) lost: Option<Box<crate::fanout::gap::Gap>>,
}

/// Puts a part of a tick's frames into a client's outbox, by its filter and position.
pub(super) fn queue_from(
    now: Now,
    client: &mut Client,
    no: TopicNo,
    frozen: &Frozen,
    part: Part,
    options: &crate::fanout::score::OutboxOptions,
    account: &mut Account,
) -> Queued {
    let mut queued = Queued::default();
    let (filter, resuming) = client
        .sub(no)
        .map_or((KindSet::ALL, false), |sub| (sub.filter, matches!(sub.state, SubState::Resuming { .. })));
    let conn = client.conn;
    let behind = client.behind.get_or_insert_with(Box::<Behind>::default);
    for (i, sealed) in frozen.frames.iter().enumerate().skip(part.from) {
        let row = sealed.kind().row();
        let critical = row.class == Class::Critical;
        if queued.overrun {
            account.of_mut(row.class).lost += 1;
        } else if sealed.exclude() == conn {
            account.of_mut(row.class).excluded += 1;
        } else if !critical && (resuming || !filter.contains(row.kind)) {
            account.of_mut(row.class).filtered += 1;
        } else {
            let payload = Payload::Event(sealed.clone());
            let entry = entry(now, row.kind, no.0, sealed.seq(), frozen.keys[i], payload);
            let verdict = behind.outbox.push(options, account, entry);
            queued.written += 1;
            queued.overrun = verdict == Verdict::Overrun;
        }
    }
    // Who reads by the cursor gets what the tick had no room for.
    // Nor is it told twice to whom its frame was written in part.
    if let Some(gap) = &frozen.overflow
        && !resuming
        && part.from <= frozen.frames.len()
    {
        match &part.lost {
            None => behind.outbox.tell(gap),
            Some(before) => gap.since(before).iter().for_each(|gap| behind.outbox.tell(gap)),
        }
    }
    queued
}
