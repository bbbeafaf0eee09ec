//! Ringcast: an io_uring, thread-per-core WebSocket node for live events.
//!
//! **The idea in one line.** The node is two pure state machines, an orchestrator and a shard; the cores, the rings and
//! the kernel only carry bytes and time to them. So everything interesting is read, tested and simulated without a
//! kernel, and what touches the kernel is thin.
//!
//! A layer imports only those above it in this table; rooms import no sibling. `tests/tidy.rs` holds that, and that this
//! map names every part.
//!
//! | part | what it is |
//! |---|---|
//! | `base/` | names and numbers of things, time as a value, limits, the alarm table: imports `std` only |
//! | `wire/` | what is on the wire: the registry of events, sealed events, frames, commands, sockets, HTTP, close codes |
//! | `post/` | mailboxes between cores, and the letters that travel in them |
//! | `admission/` | a room: who may do what, in the order that is visible from outside |
//! | `seating/` | a room: which room of a channel a new viewer gets |
//! | `presence/` | a room: who watches a channel: members one by one, or their number; who types |
//! | `store/` | a room: what is kept: group commit, SQLite, and a store in memory that fails on demand |
//! | `bus/` | a room: the partition that gives the events of a channel their one order |
//! | `fanout/` | a room: who wants what, ticks, and the queue of whoever is behind |
//! | `metrics/` | a room: the reports of all cores as exposition text |
//! | `shard/` | one socket core as a pure state machine |
//! | `orchestrator/` | the dedicated core as a pure state machine |
//! | `io/` | what touches the kernel: executors, rings, listeners, HTTP, the store's threads, signals, the clock |
//! | `config/` | a file and the command line become the checked options of every part |
//! | `doctor/` | the machine, held against the configuration before the start |
//! | `load/` | the load generator: virtual viewers, the audit of every delivery, the report |
//! | `node.rs` | builds each part once and joins them: the only file that knows all |
//! | `main.rs` | the command line |
//! | `lib.rs` | this map |

pub mod admission;
pub mod base;
pub mod bus;
pub mod config;
pub mod doctor;
pub mod fanout;
pub mod io;
pub mod load;
pub mod metrics;
pub mod node;
pub mod orchestrator;
pub mod post;
pub mod presence;
pub mod seating;
pub mod shard;
pub mod store;
pub mod wire;
