//! The clocks, read here and nowhere else.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crate::base::Now;

/// Both clocks, with a zero of its own.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    zero: Instant,
}

impl Clock {
    /// A clock whose zero is one second ago, so that no moment of it is zero, which many a field keeps for "never".
    #[must_use]
    #[allow(clippy::disallowed_methods, reason = "this is the one place that reads the clock for the actors")]
    pub fn start() -> Self {
        let now = Instant::now();
        Self { zero: now.checked_sub(Duration::from_secs(1)).unwrap_or(now) }
    }

    /// The time.
    #[must_use]
    #[allow(clippy::disallowed_methods, reason = "this is the one place that reads the clock for the actors")]
    pub fn now(&self) -> Now {
        let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Now { mono_us: Instant::now().duration_since(self.zero).as_micros() as u64, wall_ms: wall.as_millis() as u64 }
    }
}
