//! What every implementation of a trait owes, as one suite a trait, run for each implementation by factory.

mod store;
