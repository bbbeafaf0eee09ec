//! What the kernel took of a batch.
//!
//! Results flow in; the account, and who is behind from now on or in step again, flow out. Always true: what the kernel
//! has whole is written and the tail of a broken frame goes first (rule 6); a socket that refuses everything is asked once
//! more before its client counts as too slow.

use super::batch::{SendBatch, SendResult, Shared, Source};
use super::write::{Part, queue_from};
use super::{Action, BUSY, Shard};
use crate::base::{Class, ClientId, Now};
use crate::fanout::behind::Behind;
use crate::fanout::client::Phase;
use crate::fanout::index::TopicNo;
use crate::fanout::sub::SubState;
use crate::fanout::tick::Frozen;
use crate::wire::close::Closing;
use crate::wire::http::Dialect;

impl Shard {
    /// What the kernel took of `batch`: all of every send but those in `results`, which name sends by their number.
    pub fn on_sent(&mut self, now: Now, batch: &mut SendBatch, results: &mut [(u32, SendResult)]) {
        results.sort_unstable_by_key(|(i, _)| *i);
        let mut results = results.iter();
        let mut next = results.next();
        batch.whole.clear();
        batch.whole.resize(batch.slices.len(), 0);
        self.stages.socket_writes += batch.sends.len() as u64;
        for (i, send) in batch.sends.iter().enumerate() {
            let result = next.filter(|(at, _)| *at as usize == i).map(|(_, result)| *result);
            if result.is_some() {
                next = results.next();
            }
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
                (Source::Slice(slice), Some(SendResult::Short(bytes))) => match &batch.slices[usize::from(slice)] {
                    Shared::Tick(frozen, dialect, topic) => {
                        self.fall_behind(now, send.client, frozen, *dialect, *topic, bytes);
                    }
                    Shared::Ping => self.ping_is_short(now, send.client, bytes),
                },
                (source, Some(SendResult::Gone)) => {
                    // What a client has of its own is lost with it.
                    if let Source::Slice(slice) = source {
                        let counts = batch.slices[usize::from(slice)].counts();
                        for class in Class::ALL {
                            self.account.of_mut(class).lost += u64::from(counts[class as usize]);
                        }
                    }
                    self.on_hangup(now, send.client);
                }
            }
        }
        for (shared, whole) in batch.slices.iter().zip(&batch.whole) {
            let counts = shared.counts();
            for class in Class::ALL {
                let events = u64::from(counts[class as usize]) * whole;
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
        let mut rest = crate::fanout::behind::Rest::default();
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

    /// The socket takes no more for now. What a last try puts there may be no more than room that the kernel found in its own
    /// buffers, and no sign of a reader; so the next one is due soon, and before the kernel gives the peer up by itself.
    pub(super) fn block(&mut self, now: Now, id: ClientId) {
        let (stall_ms, grace_ms) = (self.options.max_stall_ms, self.options.stall_grace_ms());
        let Some(client) = self.client_mut(id) else { return };
        let mut stall_s = stall_ms.div_ceil(1_000);
        if let Some(behind) = &mut client.behind {
            let spent_ms = if behind.last_try { stall_ms - grace_ms } else { 0 };
            stall_s = (stall_ms - spent_ms).div_ceil(1_000);
            behind.blocked_since_ms.get_or_insert(now.mono_ms().saturating_sub(spent_ms.into()));
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
    pub(super) fn after_write(&mut self, now: Now, slot: u32) {
        let id = self.id_of(slot);
        let Some(client) = self.places[slot as usize].client.as_mut() else { return };
        let Some(behind) = &mut client.behind else { return };
        (behind.blocked_since_ms, behind.last_try) = (None, false);
        if behind.rest.is_empty() {
            // Each that waits for this, until one has something to say: nothing else would call those behind it.
            let resuming = client.subs().filter(|sub| matches!(sub.state, SubState::Resuming { asked: 0, .. }));
            for no in resuming.map(|sub| sub.topic).collect::<Vec<_>>() {
                self.continue_resume(now, id, no);
                if self.client(id).and_then(|client| client.behind.as_ref()).is_some_and(|it| !it.rest.is_empty()) {
                    break;
                }
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
            // What it said meanwhile is only read now.
            client.seen_s = now.mono_s() as u32;
            self.actions.push_back(Action::ResumeReads(id));
        }
        if client.phase == Phase::Closing {
            self.words_are_said(now, id);
        }
        self.refresh(slot);
    }
}
