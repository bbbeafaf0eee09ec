//! What the cores know of the node's life: whether it is ready, whether it drains, whether it stops.
//!
//! Flags flow both ways. Always true: each flag has one writer and is only ever raised, but `ready`, which falls once.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// The flags of one node.
#[derive(Debug)]
pub struct Life {
    ready: AtomicBool,
    stopping: AtomicBool,
    drained: Vec<AtomicBool>,
    beats: Vec<AtomicU64>,
}

impl Life {
    /// A node of `shards` shards that is not ready yet.
    #[must_use]
    pub fn new(shards: u16) -> Self {
        Self {
            ready: AtomicBool::new(false),
            stopping: AtomicBool::new(false),
            drained: (0..shards).map(|_| AtomicBool::new(false)).collect(),
            beats: (0..=shards).map(|_| AtomicU64::new(0)).collect(),
        }
    }

    /// Everything listens; or, with false, the node goes away.
    pub fn set_ready(&self, ready: bool) {
        self.ready.store(ready, Ordering::Release);
    }

    /// New viewers are welcome.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.ready.load(Ordering::Acquire)
    }

    /// Every core ends its loop.
    pub fn stop(&self) {
        self.stopping.store(true, Ordering::Release);
    }

    /// The loops end.
    #[must_use]
    pub fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Acquire)
    }

    /// A shard has nobody left.
    pub fn set_drained(&self, shard: usize) {
        self.drained[shard].store(true, Ordering::Release);
    }

    /// No shard has anybody left.
    #[must_use]
    pub fn all_drained(&self) -> bool {
        self.drained.iter().all(|flag| flag.load(Ordering::Acquire))
    }

    /// A core lives: shards by their number, the orchestrator behind them. `mono_ms` is its time.
    pub fn beat(&self, core: usize, mono_ms: u64) {
        self.beats[core].store(mono_ms, Ordering::Relaxed);
    }

    /// The core that was silent for longest, and the time of its last beat.
    #[must_use]
    pub fn oldest_beat(&self) -> (usize, u64) {
        let beats = self.beats.iter().map(|beat| beat.load(Ordering::Relaxed)).enumerate();
        beats.min_by_key(|(_, at)| *at).unwrap_or((0, 0))
    }
}
