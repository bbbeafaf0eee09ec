//! Writing as a stage: the audience of a tick is walked once, and all sends of a slice go out in one submit.
//!
//! Ticks and queues flow in, a [`SendBatch`] flows out; what the kernel took of it flows back in by
//! [`Shard::on_sent`] before anything else happens. Always true: a client has at most one send in a batch (rule 2); its
//! way is chosen once a tick, when the walk comes to it, never at append (rule 5); and the account gains `written` only
//! after completion (rule 6).

use std::rc::Rc;

use super::channel::Walk;
use super::deliver::entry;
use super::{Action, BUSY, EASY, Shard};
use crate::base::{Account, Class, ClientId, Now};
use crate::fanout::client::{Behind, Client, Payload, Phase, SubState};
use crate::fanout::index::{TOMBSTONE, TopicNo};
use crate::fanout::outbox::{Entry, Verdict};
use crate::fanout::tick::Frozen;
use crate::wire::close::Closing;
use crate::wire::event::{EventKind, KindSet};
use crate::wire::http::Dialect;

/// The channel number of entries that belong to no channel.
pub(super) const NO_CHANNEL: u32 = crate::fanout::client::REPLY;
/// Sends of one channel before the next channel has its turn.
const TURN_SENDS: usize = 512;
/// Members that one call looks at without sending, at the most.
const VISITS_MAX: usize = 4_096;

/// What one send carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// The slice of a tick, by its number in the batch.
    Slice(u16),
    /// What the client has of its own.
    Rest,
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
    sends: Vec<Send>,
    slices: Vec<(Rc<Frozen>, Dialect, TopicNo)>,
    /// For `on_sent`: how many viewers took each slice whole.
    whole: Vec<u64>,
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

    fn clear(&mut self) {
        self.sends.clear();
        self.slices.clear();
    }

    fn slice(&mut self, frozen: &Rc<Frozen>, dialect: Dialect, topic: TopicNo) -> u16 {
        let at =
            self.slices.iter().rposition(|(f, d, _)| Rc::ptr_eq(f, frozen) && *d == dialect).unwrap_or_else(|| {
                self.slices.push((Rc::clone(frozen), dialect, topic));
                self.slices.len() - 1
            });
        at as u16
    }
}

impl Shard {
    /// The bytes of one send of `batch`.
    #[must_use]
    pub fn bytes_of<'a>(&'a self, batch: &'a SendBatch, send: &Send) -> &'a [u8] {
        match send.source {
            Source::Slice(i) => {
                let (frozen, dialect, _) = &batch.slices[usize::from(i)];
                frozen.encoded(*dialect).slice.bytes()
            }
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
        self.walk(now, batch, max);
        self.fill_from_ready(now, batch, max);
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
        let mut turn = 0;
        while batch.sends.len() < max && visits < VISITS_MAX {
            let Some(&no) = self.queue.front() else { return };
            let Some(channel) = self.channels.get_mut(no.0 as usize).and_then(Option::as_mut) else {
                self.queue.pop_front();
                continue;
            };
            if channel.walk.is_none() {
                if channel.open.is_empty() {
                    channel.queued = false;
                    self.queue.pop_front();
                    continue;
                }
                // A second tick of the same channel in one batch could overtake the unwritten end of the first, also where
                // the first was frozen for an earlier batch and only its last members are in this one.
                if channel.walked_in == self.batch_number {
                    return;
                }
                let frozen = channel.open.freeze(channel.tick, &channel.name, &channel.dialects());
                channel.tick = channel.tick.wrapping_add(1);
                channel.entered = false;
                self.full -= u32::from(std::mem::take(&mut channel.full));
                self.stages.ticks += 1;
                self.stages.frames_built += frozen.frames.len() as u64;
                channel.walk = Some(Walk { frozen: Rc::new(frozen), cursor: 0 });
            }
            channel.walked_in = self.batch_number;
            let before = batch.sends.len();
            let done = self.walk_slice(now, no, batch, max, &mut visits);
            turn += batch.sends.len() - before;
            if done {
                self.end_walk(no);
                turn = 0;
            } else if turn >= TURN_SENDS {
                self.queue.rotate_left(1);
                turn = 0;
            }
        }
        // Between two batches the others have their turn too.
        if self.queue.len() > 1 {
            self.queue.rotate_left(1);
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
            if member.client == TOMBSTONE || member.first_tick > frozen.number {
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
        let Some(channel) = self.channels.get_mut(no.0 as usize).and_then(Option::as_mut) else {
            self.queue.pop_front();
            return;
        };
        channel.walk = None;
        if self.index.should_compact(no) {
            let places = &mut self.places;
            self.index.compact(no, |slot, position| {
                if let Some(sub) = places[slot as usize].client.as_mut().and_then(|client| client.sub_mut(no)) {
                    sub.position = position;
                }
            });
        }
        self.queue.pop_front();
        let Some(channel) = self.channel_mut(no) else { return };
        if channel.open.is_empty() {
            channel.queued = false;
        } else {
            self.queue.push_back(no);
        }
    }

    /// What the kernel took of `batch`: all of every send but those in `results`, which name sends by their number.
    pub fn on_sent(&mut self, now: Now, batch: &mut SendBatch, results: &mut [(u32, SendResult)]) {
        results.sort_unstable_by_key(|(i, _)| *i);
        let mut results = results.iter().peekable();
        batch.whole.clear();
        batch.whole.resize(batch.slices.len(), 0);
        self.stages.socket_writes += batch.sends.len() as u64;
        for (i, send) in batch.sends.iter().enumerate() {
            let result = results.next_if(|(at, _)| *at as usize == i).map(|(_, result)| *result);
            let slot = send.client.slot;
            self.places[slot as usize].flags &= !BUSY;
            match (send.source, result) {
                (Source::Slice(slice), None) => batch.whole[usize::from(slice)] += 1,
                (Source::Rest, None) => {
                    self.advance_rest(slot, usize::MAX);
                    self.after_write(now, slot);
                }
                (Source::Rest, Some(SendResult::Short(0))) if self.is_last_try(send.client) => {
                    self.close(now, send.client, Closing::TooSlow);
                }
                (Source::Rest, Some(SendResult::Short(bytes))) => {
                    self.advance_rest(slot, bytes);
                    self.block(now, send.client);
                }
                (Source::Slice(slice), Some(SendResult::Short(bytes))) => {
                    let (frozen, dialect, topic) = batch.slices[usize::from(slice)].clone();
                    self.fall_behind(now, send.client, &frozen, dialect, topic, bytes);
                }
                (source, Some(SendResult::Gone)) => {
                    if let Source::Slice(slice) = source {
                        let frozen = &batch.slices[usize::from(slice)].0;
                        for class in Class::ALL {
                            self.account.of_mut(class).lost += u64::from(frozen.counts[class as usize]);
                        }
                    }
                    self.on_hangup(now, send.client);
                }
            }
        }
        for ((frozen, ..), whole) in batch.slices.iter().zip(&batch.whole) {
            for class in Class::ALL {
                let events = u64::from(frozen.counts[class as usize]) * whole;
                self.account.of_mut(class).written += events;
                self.stages.events_written += events;
            }
        }
    }

    fn advance_rest(&mut self, slot: u32, bytes: usize) {
        let client = self.places[slot as usize].client.as_mut();
        if let Some(behind) = client.and_then(|client| client.behind.as_mut()) {
            let bytes = bytes.min(behind.rest.unwritten().len());
            self.stages.events_written += behind.rest.advance(bytes, &mut self.account);
        }
    }

    /// Rule 6: what the kernel has whole is written, the tail of the broken frame goes first and is never evicted, the
    /// later frames enter the outbox by its rules.
    fn fall_behind(&mut self, now: Now, id: ClientId, frozen: &Frozen, dialect: Dialect, topic: TopicNo, bytes: usize) {
        let encoded = frozen.encoded(dialect);
        let place = &mut self.places[id.slot as usize];
        let Some(client) = &mut place.client else { return };
        let whole = encoded.ends.partition_point(|&end| end as usize <= bytes);
        for i in 0..whole {
            if let Some(class) = frozen.class(i) {
                self.account.of_mut(class).written += 1;
                self.stages.events_written += 1;
            }
        }
        let mut next = whole;
        let begins = if whole == 0 { 0 } else { encoded.ends[whole - 1] as usize };
        let mut rest = crate::fanout::client::Rest::default();
        if bytes > begins {
            let end = encoded.ends[whole] as usize;
            rest.put(&encoded.slice.bytes()[bytes..end], frozen.class(whole));
            next += 1;
        }
        // Something may have been queued for another channel since; the broken frame still goes before it.
        let behind = client.behind.get_or_insert_with(Box::<Behind>::default);
        debug_assert!(behind.rest.is_empty(), "in step means nothing was unfinished");
        behind.rest = rest;
        let part = Part { from: next, lost: None };
        let queued = queue_from(now, client, topic, frozen, part, &self.options.outbox, &mut self.account);
        self.stages.queue_writes += queued.written;
        self.block(now, id);
        if queued.overrun {
            self.close(now, id, Closing::TooSlow);
        }
    }

    /// The socket takes no more for now.
    fn block(&mut self, now: Now, id: ClientId) {
        let stall_s = self.options.max_stall_ms.div_ceil(1_000);
        let Some(client) = self.client_mut(id) else { return };
        if let Some(behind) = &mut client.behind {
            behind.blocked_since_ms.get_or_insert(now.mono_ms());
            behind.last_try = false;
        }
        self.refresh(id.slot);
        self.actions.push_back(Action::WantWritable(id));
        self.schedule_check(id, now.mono_s() as u32 + stall_s + 1);
    }

    /// The socket has refused everything for as long as may be: it is written to once more before that is believed.
    pub(super) fn try_once_more(&mut self, id: ClientId) {
        if let Some(behind) = self.client_mut(id).and_then(|client| client.behind.as_mut()) {
            behind.blocked_since_ms = None;
            behind.last_try = true;
            self.list(id.slot);
        }
    }

    fn is_last_try(&self, id: ClientId) -> bool {
        self.client(id).and_then(|client| client.behind.as_ref()).is_some_and(|behind| behind.last_try)
    }

    /// The socket takes more.
    pub fn on_writable(&mut self, _now: Now, id: ClientId) {
        if let Some(behind) = self.client_mut(id).and_then(|client| client.behind.as_mut()) {
            behind.blocked_since_ms = None;
            behind.last_try = false;
            self.list(id.slot);
        }
    }

    /// What was to be written is written: in step again, or the next, or the end.
    fn after_write(&mut self, now: Now, slot: u32) {
        let id = self.id_of(slot);
        let Some(client) = self.places[slot as usize].client.as_mut() else { return };
        let Some(behind) = &mut client.behind else { return };
        (behind.blocked_since_ms, behind.last_try) = (None, false);
        if behind.rest.is_empty() {
            let resuming: Option<TopicNo> =
                client.subs().find(|sub| matches!(sub.state, SubState::Resuming { asked: 0, .. })).map(|sub| sub.topic);
            if let Some(no) = resuming {
                self.continue_resume(now, id, no);
            }
        }
        let Some(client) = self.places[slot as usize].client.as_mut() else { return };
        let Some(behind) = &mut client.behind else { return };
        if !behind.is_done() {
            self.list(slot);
            return;
        }
        client.behind = None;
        if client.paused {
            client.paused = false;
            self.actions.push_back(Action::ResumeReads(id));
        }
        if client.phase == Phase::Closing {
            self.words_are_said(now, id);
        }
        self.refresh(slot);
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
        && sub.begins.as_ref().is_none_or(|begins| begins.tick < frozen.number || begins.lost.is_none())
        && !matches!(sub.state, SubState::Resuming { .. })
        && client.phase == Phase::Open
        && client.behind.is_none()
        && !busy
        && sub.filter.covers(frozen.kinds)
        && !(frozen.excludes && frozen.frames.iter().any(|sealed| sealed.exclude() == client.conn));
    if as_it_is { Way::Slice } else { Way::Outbox { from } }
}

#[derive(Default)]
struct Queued {
    written: u64,
    overrun: bool,
}

/// What part of a tick concerns a client.
struct Part {
    /// The first frame.
    from: usize,
    /// What the tick had lost before the client came.
    lost: Option<Box<crate::fanout::gap::Gap>>,
}

/// Puts a part of a tick's frames into a client's outbox, by its filter and position.
fn queue_from(
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
    let (conn, dialect) = (client.conn, client.dialect);
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
            let payload = match dialect {
                Dialect::Json => Payload::Event(sealed.clone()),
                Dialect::Rkyv | Dialect::Sse => Payload::Own(frozen.encoded(dialect).frame(i).into()),
            };
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
