//! Flow 1 at the orchestrator: an address is counted, a room is chosen.
//!
//! Always true: a connection is counted under its app and its address exactly once, at its first question, and released
//! when its shard says that it ended.

use super::Orchestrator;
use crate::base::{AppId, ChannelKey, Given, Name, Now, RoomId, ShardId};
use crate::post::letters::AddressKey;
use crate::seating::{Ask, SeatError};
use crate::wire::problem::Problem;
use crate::wire::topic::Topic;

/// A question for a seat.
pub(super) struct SeatAsk {
    pub(super) asker: ShardId,
    pub(super) app: AppId,
    pub(super) first: bool,
    pub(super) channel: Option<Topic>,
    pub(super) user: Option<(Name, Name)>,
    pub(super) address: Option<AddressKey>,
    pub(super) attempt: u8,
    pub(super) refused: Option<RoomId>,
    pub(super) here: bool,
}

impl Orchestrator {
    pub(super) fn seat(&mut self, now: Now, ask: &SeatAsk) -> Result<Option<Given>, Problem> {
        if ask.first {
            self.count(ask)?;
        }
        if self.draining {
            return Err(Problem::new(503, "draining", "this node is going away").retry_after(5));
        }
        if let Some((app, user)) = &ask.user {
            self.bans.check(app, user, ask.channel.as_ref().map(|channel| &channel.name), now.wall_ms)?;
        }
        let Some(channel) = &ask.channel else { return Ok(None) };
        let key = ChannelKey::new(channel.app.clone(), channel.name.clone());
        if !self.seating.knows(&key) {
            self.quotas.open_channel(ask.app, self.seating.channels_of(&key.app))?;
        }
        let ask = Ask {
            topic: &key,
            asker: ask.asker,
            attempt: ask.attempt,
            refused: ask.refused,
            on_shard: ask.here.then_some(ask.asker),
        };
        match self.seating.seat(now, &ask) {
            Ok(given) => Ok(Some(given)),
            Err(error) => {
                let code = match error {
                    SeatError::NoSpace => "room_full",
                    SeatError::RoomsFull => "rooms_full",
                };
                Err(Problem::new(error.status(), code, error.to_string()).retry_after(1))
            }
        }
    }

    /// Both counts or none.
    fn count(&mut self, ask: &SeatAsk) -> Result<(), Problem> {
        let max = self.options.address_connections_max;
        let held = ask.address.and_then(|address| self.addresses.get(&address)).copied().unwrap_or(0);
        if ask.address.is_some() && held >= max {
            let detail = format!("this address holds its {max} connections");
            return Err(Problem::new(429, "address_full", detail).retry_after(5));
        }
        self.quotas.connect(ask.app)?;
        if let Some(address) = ask.address {
            self.addresses.insert(address, held + 1);
        }
        Ok(())
    }

    pub(super) fn release(&mut self, addresses: &[(AddressKey, u32)], apps: &[(AppId, u32)]) {
        for (app, ended) in apps {
            self.quotas.disconnect(*app, *ended);
        }
        for (address, ended) in addresses {
            if let Some(count) = self.addresses.get_mut(address) {
                *count = count.saturating_sub(*ended);
                if *count == 0 {
                    self.addresses.remove(address);
                }
            }
        }
    }
}
