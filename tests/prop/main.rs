//! Rng alphabets of operations against naive twins: what the machine under test does in a clever way, the twin
//! does in the plainest way there is, and both must agree after every step.
//!
//! A failure names its seed; `RINGCAST_PROP_SEED=<seed>` runs that one alone.

mod behind;
mod ceiling;
mod crowd;
mod group_commit;
mod index_filter;
mod outbox;
mod presence;
mod proxy_header;
#[allow(dead_code, reason = "the simulation needs more of it")]
#[path = "../sim/rng.rs"]
mod rng;
mod seating;
mod silence;
#[path = "../stage/mod.rs"]
mod stage;
mod ticks;
mod welcome;

pub(crate) use rng::Rng;

/// Runs `check` once for each seed and names the seed if it panics.
pub(crate) fn for_seeds(seeds: std::ops::Range<u64>, check: impl Fn(&mut Rng)) {
    struct Named(u64);
    impl Drop for Named {
        fn drop(&mut self) {
            if std::thread::panicking() {
                eprintln!("failed with RINGCAST_PROP_SEED={}", self.0);
            }
        }
    }
    let only = std::env::var("RINGCAST_PROP_SEED").ok().map(|seed| seed.parse().expect("a number as seed"));
    for seed in only.map_or(seeds, |seed: u64| seed..seed + 1) {
        let _named = Named(seed);
        check(&mut Rng(seed));
    }
}
