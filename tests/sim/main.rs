//! The whole node in one thread and in virtual time: shards, orchestrator and store as they are, sockets and disk made
//! of memory, viewers of every kind, and trouble from a seed.
//!
//! `RINGCAST_SIM_SEED=n` runs one seed, `RINGCAST_SIM_SEEDS=n` so many, from `RINGCAST_SIM_FIRST=n` on, and
//! `RINGCAST_SIM_TRACE=1` tells everything as it happens. A failure names its seed and shows the last steps.

mod checks;
mod hostile;
mod mutant;
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

use mutant::Mutant;

/// Seeds of an ordinary run.
const SEEDS: u64 = 1_000;
/// Seeds within which each fault that is put in on purpose is found.
const MUTANT_SEEDS: u64 = 300;

fn number(key: &str) -> Option<u64> {
    std::env::var(key).ok().map(|text| text.parse().expect("a whole number"))
}

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
    let first = number("RINGCAST_SIM_FIRST").unwrap_or(0);
    let seeds = match number("RINGCAST_SIM_SEED") {
        Some(seed) => seed..seed + 1,
        None => first..first + number("RINGCAST_SIM_SEEDS").unwrap_or(SEEDS),
    };
    let tokens = plan::tokens();
    let (count, mut ends, mut failed, mut acked) = (seeds.end - seeds.start, 0, 0, 0);
    for seed in seeds {
        let _named = Named(seed);
        let mut world = world::World::new(seed, &tokens, Mutant::None);
        world.run();
        // Each life but the first begins after a crash, or after an end in good order.
        ends += world.life - 1;
        failed += world.truth.failed_commits;
        acked += world.truth.acked.len();
    }
    println!(
        "{count} seeds from {first}: {ends} ends of a node, {failed} failed commits, {acked} acknowledged messages, none of them lost"
    );
}

#[test]
fn the_checks_find_what_is_broken_on_purpose() {
    let tokens = plan::tokens();
    let mut missed = Vec::new();
    for mutant in Mutant::ALL {
        let found = (0..MUTANT_SEEDS).find(|seed| {
            let run = || world::World::new(*seed, &tokens, mutant).run();
            // What the checks say of it is not shown: that they say something is what is asked for.
            std::panic::catch_unwind(std::panic::AssertUnwindSafe(run)).is_err()
        });
        match found {
            Some(seed) => println!("{mutant:?}: found in seed {seed}, the {}. that was tried", seed + 1),
            None => missed.push(mutant),
        }
    }
    assert!(missed.is_empty(), "within {MUTANT_SEEDS} seeds nobody saw {missed:?}");
}
