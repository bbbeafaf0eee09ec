//! Latencies: a histogram that can be merged, sent between processes as text, and read in milliseconds.
//!
//! Nanoseconds flow in, quantiles in milliseconds flow out; what is always true is that a value is kept to three
//! digits and that nothing is dropped: what is beyond the range counts at its edge.

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

/// Ten minutes in microseconds; no run waits that long for a delivery.
const HIGHEST_US: u64 = 600_000_000;

/// A histogram of microseconds.
#[derive(Clone, Debug)]
pub(super) struct Latency(Histogram<u64>);

/// The same as text: value in microseconds and how often.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct Recorded(Vec<(u64, u64)>);

impl Default for Latency {
    fn default() -> Self {
        Self(Histogram::new_with_bounds(1, HIGHEST_US, 3).expect("the bounds are constants that the crate accepts"))
    }
}

impl Latency {
    /// Counts one.
    pub(super) fn record(&mut self, ns: u64) {
        self.0.saturating_record(ns / 1_000);
    }

    /// How many were counted.
    pub(super) fn len(&self) -> u64 {
        self.0.len()
    }

    /// The quantile, in milliseconds; 0 when nothing was counted.
    pub(super) fn ms(&self, quantile: f64) -> f64 {
        self.0.value_at_quantile(quantile) as f64 / 1_000.0
    }

    /// The largest, in milliseconds.
    pub(super) fn max_ms(&self) -> f64 {
        self.0.max() as f64 / 1_000.0
    }

    /// Adds all of `other`.
    pub(super) fn add(&mut self, other: &Recorded) {
        for &(value, count) in &other.0 {
            self.0.saturating_record_n(value, count);
        }
    }

    /// What was counted, to be sent.
    pub(super) fn recorded(&self) -> Recorded {
        Recorded(self.0.iter_recorded().map(|step| (step.value_iterated_to(), step.count_at_value())).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn merging_by_text_keeps_counts_and_quantiles() {
        let mut whole = Latency::default();
        let (mut left, mut right) = (Latency::default(), Latency::default());
        for ms in 1..=1_000_u64 {
            whole.record(ms * 1_000_000);
            if ms % 3 == 0 { &mut left } else { &mut right }.record(ms * 1_000_000);
        }
        let mut merged = Latency::default();
        for part in [&left, &right] {
            let text = serde_json::to_string(&part.recorded()).unwrap();
            merged.add(&serde_json::from_str(&text).unwrap());
        }
        assert_eq!(merged.len(), 1_000);
        for quantile in [0.5, 0.99, 0.999, 1.0] {
            assert!((merged.ms(quantile) - whole.ms(quantile)).abs() < 0.001);
        }
        assert!((merged.ms(0.5) - 500.0).abs() < 1.0);
        assert!((merged.max_ms() - 1_000.0).abs() < 1.0);
    }
}
