//! Everything that is bytes to somebody outside: events, frames, heads, commands. Pure; bytes flow in, proofs flow
//! out: what was parsed once is passed on as a type that cannot be wrong.

pub mod any_json;
mod boundary;
mod chunks;
pub mod close;
pub mod command;
pub mod dialect;
pub mod event;
pub mod filter;
pub mod forwarded;
pub mod frame;
pub mod framing;
pub mod head;
pub mod hook;
pub mod http;
pub mod json;
pub mod position;
pub mod posted_event;
pub mod presence;
pub mod problem;
pub mod proxy;
pub mod reply;
pub mod scan;
pub mod sealed;
pub mod socket;
pub mod topic;
