//! Fan-out on one shard: who wants an event, and what waits for a client that cannot keep up.
//!
//! Topics and events flow in; members to walk over and events to write flow out. Always true: nothing here reads a
//! clock or touches a socket, what a full queue loses is told in its place, and the filter never says no to a topic
//! that the index holds.

pub mod behind;
mod chain;
pub mod client;
pub mod filter;
pub mod gap;
pub mod index;
mod lanes;
mod members;
pub mod outbox;
pub mod score;
pub mod sub;
pub mod tick;
pub mod tick_no;
