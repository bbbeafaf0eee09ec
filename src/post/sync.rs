//! The atomics that [`super::bell`] uses. The model checker compiles the same source file against its own.

pub(super) use std::sync::atomic::{AtomicBool, Ordering};
