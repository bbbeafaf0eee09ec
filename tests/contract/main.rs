//! What every implementation of a trait owes, as one suite a trait, run for each implementation by factory.

#[macro_use]
mod store;
mod targets;
