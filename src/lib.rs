//! Ringcast: an io_uring, thread-per-core WebSocket node for live events.

pub mod base;
pub mod wire;
