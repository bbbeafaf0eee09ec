//! The real binary on loopback: public bug reports of this field replayed as cases, and the promises of the protocol.
//!
//! A case is named after its row (`case_a17_…`). Every test is bounded in time, and those that leave a node as they
//! found it share one.

#![allow(clippy::disallowed_methods, reason = "peers of a node are threads that wait and read a clock")]
#![allow(clippy::disallowed_types, reason = "threads of a test may share a lock")]
#![allow(clippy::format_collect, reason = "a request more or less costs a test nothing")]
#![allow(missing_docs, reason = "a test, not a library")]

mod client;
mod fault;
mod hook_server;
mod node;
mod stopped;

mod access;
mod alarms;
mod api;
mod backend;
mod ceilings;
mod changes;
mod commands;
mod crash;
mod dialect;
mod disk;
mod ends;
mod frames;
mod gauges;
mod handshake;
mod leaving;
mod loads;
mod moderation;
mod presence;
mod pressure;
mod proxies;
mod refusals;
mod resume;
mod rooms;
mod secrecy;
mod smuggling;
mod stale;
mod starts;
mod tenants;
mod tokens;
mod watchdog;
