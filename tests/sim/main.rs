//! The whole node in one thread and in virtual time: shards, orchestrator and store as they are, sockets and disk made
//! of memory, viewers of every kind, and trouble from a seed.
//!
//! `RINGCAST_SIM_SEED=n` runs one seed, `RINGCAST_SIM_SEEDS=n` so many, and `RINGCAST_SIM_TRACE=1` tells everything as
//! it happens. A failure names its seed and shows the last steps.

mod checks;
mod node;
mod orchestrator_core;
mod people;
mod plan;
mod rng;
mod shard_core;
mod socket;
mod stream;
mod trace;
mod truth;
mod viewer;
mod world;

/// Seeds of an ordinary run.
const SEEDS: u64 = 1_000;

#[test]
fn the_node_keeps_its_promises() {
    struct Named(u64);
    impl Drop for Named {
        fn drop(&mut self) {
            if std::thread::panicking() {
                eprintln!("failed; run it alone: RINGCAST_SIM_SEED={} cargo test --test sim", self.0);
            }
        }
    }
    let number = |key| std::env::var(key).ok().map(|text| text.parse::<u64>().expect("a whole number"));
    let seeds = match number("RINGCAST_SIM_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("RINGCAST_SIM_SEEDS").unwrap_or(SEEDS),
    };
    let tokens = plan::tokens();
    for seed in seeds {
        let _named = Named(seed);
        world::World::new(seed, &tokens).run();
    }
}
