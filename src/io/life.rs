//! What the cores know of the node's life: whether it is ready, whether it drains, whether it stops.
//!
//! Flags flow both ways. Always true: each flag has one writer and is only ever raised, but those that say how the node
//! fares at the moment: which core stalls, and whether its memory is at its bound.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

/// No core stalls.
const NONE: usize = usize::MAX;

/// The flags of one node.
#[derive(Debug)]
pub struct Life {
    serving: AtomicBool,
    leaving: AtomicBool,
    stopping: AtomicBool,
    drained: Vec<AtomicBool>,
    beats: Vec<AtomicU64>,
    stalled: AtomicUsize,
    memory_full: AtomicBool,
}

impl Life {
    /// A node of `shards` shards that is not ready yet.
    #[must_use]
    pub fn new(shards: u16) -> Self {
        Self {
            serving: AtomicBool::new(false),
            leaving: AtomicBool::new(false),
            stopping: AtomicBool::new(false),
            drained: (0..shards).map(|_| AtomicBool::new(false)).collect(),
            beats: (0..=shards).map(|_| AtomicU64::new(0)).collect(),
            stalled: AtomicUsize::new(NONE),
            memory_full: AtomicBool::new(false),
        }
    }

    /// Every core has begun.
    pub fn serve(&self) {
        self.serving.store(true, Ordering::Release);
    }

    /// The node goes away, perhaps before it served.
    pub fn leave(&self) {
        self.leaving.store(true, Ordering::Release);
    }

    /// New viewers are welcome.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.serving.load(Ordering::Acquire) && !self.leaving.load(Ordering::Acquire)
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

    /// The last beat of each core, in their order; 0 if it has not begun.
    pub fn beats(&self) -> impl Iterator<Item = u64> + '_ {
        self.beats.iter().map(|beat| beat.load(Ordering::Relaxed))
    }

    /// How many shards there are.
    #[must_use]
    pub fn shards(&self) -> usize {
        self.drained.len()
    }

    /// This core has stalled, or none has.
    pub fn set_stalled(&self, core: Option<usize>) {
        self.stalled.store(core.unwrap_or(NONE), Ordering::Release);
    }

    /// A core that has stalled.
    #[must_use]
    pub fn stalled(&self) -> Option<usize> {
        Some(self.stalled.load(Ordering::Acquire)).filter(|&core| core != NONE)
    }

    /// The process uses as much memory as it may, or does not any more.
    pub fn set_memory_full(&self, full: bool) {
        self.memory_full.store(full, Ordering::Relaxed);
    }

    /// Nobody more may come in, for want of memory.
    #[must_use]
    pub fn is_memory_full(&self) -> bool {
        self.memory_full.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_that_was_asked_to_go_before_it_served_never_becomes_ready() {
        let life = Life::new(2);
        assert!(!life.is_ready());
        life.serve();
        assert!(life.is_ready());
        life.leave();
        assert!(!life.is_ready());

        let life = Life::new(2);
        life.leave();
        life.serve();
        assert!(!life.is_ready());
    }
}
