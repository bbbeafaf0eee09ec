//! Ringcast: an io_uring, thread-per-core WebSocket node for live events.

pub mod admission;
pub mod base;
pub mod bus;
pub mod config;
pub mod fanout;
pub mod load;
pub mod orchestrator;
pub mod post;
pub mod seating;
pub mod shard;
pub mod store;
pub mod wire;
