//! The wake protocol between a core that sleeps and those that bring it letters.
//!
//! The sleeper: [`Bell::prepare`], look into every mailbox once more, sleep only if all are empty. The bringer: push,
//! then [`Bell::announce`], and wake the sleeper if it says so. Always true: either the sleeper sees the letter in its
//! last look, or the bringer sees the flag; with sequentially consistent orderings there is no third way, and a
//! sleeper that is awake costs the bringer one load.

use super::sync::{AtomicBool, Ordering};

/// The flag of one sleeper.
#[derive(Debug, Default)]
pub struct Bell {
    asleep: AtomicBool,
}

impl Bell {
    /// A bell whose owner is awake.
    #[must_use]
    pub fn new() -> Self {
        Self { asleep: AtomicBool::new(false) }
    }

    /// The owner is about to sleep; it must look into its mailboxes once more after this.
    pub fn prepare(&self) {
        self.asleep.store(true, Ordering::SeqCst);
    }

    /// The owner is awake.
    pub fn awake(&self) {
        self.asleep.store(false, Ordering::SeqCst);
    }

    /// The owner sleeps, and nothing was announced since.
    #[must_use]
    pub fn is_asleep(&self) -> bool {
        self.asleep.load(Ordering::SeqCst)
    }

    /// Something was pushed before this call. True for one bringer only: it wakes the owner.
    pub fn announce(&self) -> bool {
        // The load keeps the line shared while the owner is busy; only a sleeper costs the exchange.
        self.asleep.load(Ordering::SeqCst) && self.asleep.swap(false, Ordering::SeqCst)
    }
}
