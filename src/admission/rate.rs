//! Fixed windows in memory: how often a key did something since its window began.
//!
//! Keys and the time flow in, a permission or the seconds to wait flow out. Always true: the table has a limit, and a
//! limiter that is full lets the request pass (it fails open): it is there against one loud user, not against all.

use std::collections::BTreeMap;

use crate::base::{Gauge, Now};

/// How much of what a key may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RateOptions {
    /// Requests a window.
    pub requests_max: u32,
    /// The window, in seconds.
    pub window_s: u32,
    /// Keys that are remembered at once.
    pub keys_max: u32,
}

/// What a key may do now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rate {
    /// Go on; so many are left in this window.
    Pass {
        /// What remains.
        remaining: u32,
    },
    /// Wait.
    Limited {
        /// Seconds until the window ends, at least 1.
        retry_after_s: u32,
    },
}

/// A table of windows.
#[derive(Debug)]
pub struct FixedWindow<K: Ord> {
    options: RateOptions,
    windows: BTreeMap<K, (u64, u32)>,
    swept_s: u64,
}

impl<K: Ord> FixedWindow<K> {
    /// An empty table.
    #[must_use]
    pub fn new(options: RateOptions) -> Self {
        Self { options, windows: BTreeMap::new(), swept_s: 0 }
    }

    /// Counts one request of `key`.
    pub fn check(&mut self, now: Now, key: K) -> Rate {
        let now_s = now.mono_s();
        let window_s = u64::from(self.options.window_s);
        if now_s >= self.swept_s + window_s {
            // Windows that ended say nothing any more; once a window this is linear and keeps the table small.
            self.windows.retain(|_, (began_s, _)| now_s < *began_s + window_s);
            self.swept_s = now_s;
        }
        if self.windows.len() >= self.options.keys_max as usize && !self.windows.contains_key(&key) {
            return Rate::Pass { remaining: 0 };
        }
        let (began_s, count) = self.windows.entry(key).or_insert((now_s, 0));
        if now_s >= *began_s + window_s {
            (*began_s, *count) = (now_s, 0);
        }
        if *count >= self.options.requests_max {
            return Rate::Limited { retry_after_s: (*began_s + window_s - now_s).max(1) as u32 };
        }
        *count += 1;
        Rate::Pass { remaining: self.options.requests_max - *count }
    }

    /// Keys remembered, and how many may be.
    #[must_use]
    pub fn gauge(&self) -> Gauge {
        Gauge::new(self.windows.len() as u64, u64::from(self.options.keys_max))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Now {
        Now::default().plus_ms(seconds * 1_000)
    }

    #[test]
    fn a_window_is_fixed_and_forgets() {
        let mut rate = FixedWindow::new(RateOptions { requests_max: 2, window_s: 60, keys_max: 2 });
        assert_eq!(rate.check(at(5), "a"), Rate::Pass { remaining: 1 });
        assert_eq!(rate.check(at(50), "a"), Rate::Pass { remaining: 0 });
        assert_eq!(rate.check(at(64), "a"), Rate::Limited { retry_after_s: 1 });
        assert_eq!(rate.check(at(65), "a"), Rate::Pass { remaining: 1 });
    }

    #[test]
    fn a_full_table_fails_open() {
        let mut rate = FixedWindow::new(RateOptions { requests_max: 1, window_s: 60, keys_max: 1 });
        assert_eq!(rate.check(at(0), "a"), Rate::Pass { remaining: 0 });
        assert_eq!(rate.check(at(0), "a"), Rate::Limited { retry_after_s: 60 });
        assert_eq!(rate.check(at(0), "b"), Rate::Pass { remaining: 0 });
        assert_eq!(rate.check(at(0), "b"), Rate::Pass { remaining: 0 });
        assert!(rate.gauge().is_full());
        assert_eq!(rate.check(at(61), "b"), Rate::Pass { remaining: 0 });
        assert_eq!(rate.gauge().used, 1);
    }
}
