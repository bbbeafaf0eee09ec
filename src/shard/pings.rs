//! Pings of clients that keep up: two bytes that are the same for all.
//!
//! Clients that were silent flow in, sends of the one frame flow out. Always true: who has something of its own to be
//! written gets its ping behind that; a ping is in the account from when it is put into a batch; and no more wait than
//! one call of the wheel looks at.
//!
//! Each ping was a frame and a queue of the client's own before; without them our code took 8 % of a core's time while it
//! pings, and not 13.

use super::batch::{Send, SendBatch, Source};
use super::deliver::entry;
use super::write::NO_CHANNEL;
use super::{BUSY, Shard};
use crate::base::{Class, ClientId, Now};
use crate::fanout::behind::{Behind, Payload};
use crate::fanout::client::Phase;
use crate::wire::event::EventKind;
use crate::wire::frame::PING;

impl Shard {
    /// Asks the client whether it is there.
    pub(super) fn ping(&mut self, now: Now, id: ClientId) {
        let Some(client) = self.client(id) else { return };
        if client.behind.is_none() && !client.awaits_ready() {
            self.pings.push_back(id);
            return;
        }
        self.account.of_mut(Class::Critical).published += 1;
        let payload = Payload::Own(PING.as_slice().into());
        self.enqueue(now, id, entry(now, EventKind::HealthCheck, NO_CHANNEL, 0, 0, payload));
    }

    /// Puts pings into the batch until it has `max` sends.
    pub(super) fn fill_from_pings(&mut self, now: Now, batch: &mut SendBatch, max: usize) {
        for _ in 0..self.pings.len() {
            if batch.sends.len() >= max {
                return;
            }
            let Some(id) = self.pings.pop_front() else { return };
            let place = &mut self.places[id.slot as usize];
            let busy = place.flags & BUSY != 0;
            match place.client.as_ref().filter(|_| place.generation == id.generation) {
                // Its send is in this batch already.
                Some(_) if busy => self.pings.push_back(id),
                Some(client) if client.phase == Phase::Open && client.behind.is_none() => {
                    place.flags |= BUSY;
                    self.account.of_mut(Class::Critical).published += 1;
                    let source = Source::Slice(batch.ping());
                    batch.sends.push(Send { client: id, source });
                }
                // Something was queued for it meanwhile.
                Some(client) if client.phase == Phase::Open => self.ping(now, id),
                // It ends, and nobody asks it any more.
                _ => {}
            }
        }
    }

    /// The kernel took only the first `bytes` of the ping.
    pub(super) fn ping_is_short(&mut self, now: Now, id: ClientId, bytes: usize) {
        let Some(client) = self.client_mut(id) else { return };
        let behind = client.behind.get_or_insert_with(Box::<Behind>::default);
        behind.rest.put(&PING[bytes.min(PING.len())..], Some(Class::Critical));
        self.block(now, id);
    }
}
