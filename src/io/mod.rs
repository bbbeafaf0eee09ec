//! The kernel side: everything that enters the kernel or reads a clock stands here.
//!
//! Sockets, bytes and time flow in, calls to the two actors flow out, and what they want done is done here. Always
//! true: no module below this one knows that a kernel exists; an actor is borrowed, called, let go, and only then is
//! anything awaited.

pub mod admin;
pub mod api;
pub mod clock;
pub mod committer;
pub mod descriptors;
pub mod door;
pub mod executor;
pub mod handoff;
pub mod hooks;
pub mod life;
pub mod machine;
pub mod orchestrator_core;
pub mod proxies;
pub mod requests;
pub mod ring;
pub mod rouser;
pub mod shard_core;
pub mod signal;
pub mod socket;
pub mod usage;
pub mod wait;
pub mod watchdog;
pub mod web_server;
