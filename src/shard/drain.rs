//! Flow 5 on the shard: closing everybody in waves, each with its own time to come back.
//!
//! Always true: nobody is seated any more once it began, every client is told `draining` at once, closes are spread
//! evenly over the period, and at its end the last one is closed.

use super::Shard;
use super::deliver::entry;
use super::write::NO_CHANNEL;
use crate::base::{Class, ClientId, Now};
use crate::fanout::behind::Payload;
use crate::fanout::client::Phase;
use crate::wire::close::Closing;
use crate::wire::event::EventKind;
use crate::wire::reply;

/// Between two waves, in milliseconds.
const WAVE_MS: u64 = 100;

/// Who is closed when.
#[derive(Debug)]
pub(super) struct Plan {
    began_ms: u64,
    spread_ms: u64,
    next_ms: u64,
    clients: Vec<ClientId>,
    closed: usize,
}

impl Plan {
    /// When the next wave is due, in monotonic milliseconds.
    pub(super) fn next_ms(&self) -> Option<u64> {
        (self.closed < self.clients.len()).then_some(self.next_ms)
    }

    /// How many shall be closed by `now_ms`.
    fn target(&self, now_ms: u64) -> usize {
        let passed = now_ms.saturating_sub(self.began_ms) + WAVE_MS;
        if passed >= self.spread_ms {
            return self.clients.len();
        }
        (self.clients.len() as u64 * passed / self.spread_ms.max(1)) as usize
    }
}

impl Shard {
    /// The node goes away within `spread_ms`.
    pub(super) fn on_drain(&mut self, now: Now, spread_ms: u32) {
        if self.draining.is_some() {
            return;
        }
        self.actions.push_back(super::Action::StopListening);
        let clients: Vec<ClientId> =
            self.clients().filter(|(_, client)| client.phase == Phase::Open).map(|(id, _)| id).collect();
        for &id in &clients {
            self.account.of_mut(Class::Critical).published += 1;
            let frame = reply::draining(self.come_back_ms(id, spread_ms));
            let payload = Payload::Own(self.dialect_of(id).reply(frame, None).into());
            self.enqueue(now, id, entry(now, EventKind::Draining, NO_CHANNEL, 0, 0, payload));
        }
        let (began_ms, spread_ms) = (now.mono_ms(), u64::from(spread_ms));
        self.draining = Some(Plan { began_ms, spread_ms, next_ms: began_ms, clients, closed: 0 });
        self.drain_on(now);
    }

    /// When a client shall come back: spread over the period again, so that the next node sees no storm.
    fn come_back_ms(&self, id: ClientId, spread_ms: u32) -> u32 {
        let conn = self.client(id).map_or(0, |client| client.conn);
        1_000 + (conn % u64::from(spread_ms.max(1))) as u32
    }

    pub(super) fn drain_on(&mut self, now: Now) {
        let Some(plan) = &mut self.draining else { return };
        if plan.next_ms > now.mono_ms() {
            return;
        }
        let (from, to) = (plan.closed, plan.target(now.mono_ms()).max(plan.closed));
        plan.closed = to;
        plan.next_ms = now.mono_ms() + WAVE_MS;
        let spread_ms = plan.spread_ms as u32;
        let wave: Vec<ClientId> = plan.clients[from..to].to_vec();
        for id in wave {
            let retry_after_ms = self.come_back_ms(id, spread_ms);
            self.close(now, id, Closing::Draining { retry_after_ms });
        }
    }

    /// It is draining, and nobody is left.
    #[must_use]
    pub fn is_drained(&self) -> bool {
        self.draining.is_some() && self.clients == 0
    }
}
