//! What everything else stands on: names and numbers of things, time as a value, limits, the alarm table.
//!
//! Nothing flows in and nothing flows out; what is always true is that this module imports `std` only, reads no
//! clock and takes no lock, so that every layer above may use it.

pub mod account;
pub mod alarm;
pub mod few;
pub mod ids;
pub mod limits;
pub mod network;
pub mod room;
pub mod slots;
pub mod time;

pub use account::{Account, Class};
pub use few::Few;
pub use ids::{AppId, BadName, ClientId, Name, ShardId, Ulid};
pub use limits::Gauge;
pub use network::Network;
pub use room::{ChannelKey, Given, RoomChange, RoomCount, RoomId, RoomReport};
pub use slots::SlotSet;
pub use time::Now;
