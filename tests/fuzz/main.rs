//! Hostile input: every parser of what comes from outside, and a whole shard behind a client's socket, fed with seeded
//! mutations of a small corpus.
//!
//! A plain run tries a short fixed number of inputs a target. `RINGCAST_FUZZ_SECONDS=60` tries for so long a target,
//! `RINGCAST_FUZZ_SEED=n` begins at another seed, and `RINGCAST_FUZZ_ONE=n` runs the one input of a seed. A failure names
//! its seed and shows its bytes; what was once found lies in the corpus as a file of its own, which every run tries first.
//!
//! It is blind to coverage and needs no tool but the compiler that builds the node; what it lacks in aim it has in inputs:
//! tens of thousands a second.

#![allow(clippy::disallowed_methods, reason = "a bound in time needs a clock")]
#![allow(missing_docs, reason = "a test, not a library")]

mod corpus;
mod events;
mod files;
mod heads;
mod memory;
mod mutate;
#[allow(dead_code, reason = "the simulation needs more of it")]
#[path = "../sim/rng.rs"]
mod rng;
mod secrets;
mod shard;
mod sockets;

use std::time::{Duration, Instant};

use mutate::Mutator;
use rng::Rng;

/// Inputs of a plain run; a target whose inputs are dear says how many times fewer.
const INPUTS: u64 = 4_000;
/// The longest input, in bytes.
const INPUT_BYTES_MAX: usize = 24 * 1024;
/// What reading an input may hold in memory at once, in bytes, beside a multiple of the input.
const HELD_BYTES_MAX: usize = 512 * 1024;

/// One target.
pub(crate) struct Target {
    /// Also the name of its corpus.
    pub(crate) name: &'static str,
    /// Whole words that its language knows.
    pub(crate) words: &'static [&'static str],
    /// How many cheap inputs one of this target costs.
    pub(crate) cost: u64,
}

struct Named<'a> {
    target: &'static str,
    seed: Option<u64>,
    input: &'a [u8],
}

impl Drop for Named<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let Self { target, seed, input } = self;
            match seed {
                Some(seed) => eprintln!(
                    "{target}: failed; again: RINGCAST_FUZZ_ONE={seed} cargo test --test fuzz {target}\n\"{}\"",
                    input.escape_ascii()
                ),
                None => eprintln!("{target}: a file of the corpus fails: \"{}\"", input.escape_ascii()),
            }
        }
    }
}

/// Feeds `check` the corpus and then mutations of it. It gets dice of its own, for where an input is cut.
pub(crate) fn run(target: &Target, mut check: impl FnMut(&[u8], &mut Rng)) {
    let number = |key| std::env::var(key).ok().map(|text| text.parse::<u64>().expect("a whole number"));
    let corpus = corpus::of(target.name);
    assert!(!corpus.is_empty(), "tests/fuzz/corpus/{} holds something to begin with", target.name);
    let mut once = |seed: Option<u64>, input: &[u8]| {
        let _named = Named { target: target.name, seed, input };
        let before = memory::Watch::begin();
        check(input, &mut Rng(seed.unwrap_or(0) ^ 0x5EED));
        let peak = before.peak();
        let most = HELD_BYTES_MAX + 64 * input.len();
        assert!(peak <= most, "{} bytes of input held {peak} bytes of memory, more than {most}", input.len());
    };
    let mutator = Mutator::new(&corpus, target.words);
    if let Some(seed) = number("RINGCAST_FUZZ_ONE") {
        return once(Some(seed), &mutator.input(seed));
    }
    for input in &corpus {
        once(None, input);
    }
    let first = number("RINGCAST_FUZZ_SEED").unwrap_or(0);
    let seconds = number("RINGCAST_FUZZ_SECONDS").map(Duration::from_secs);
    let began = Instant::now();
    let mut inputs = 0;
    while seconds.map_or(inputs < (INPUTS / target.cost).max(1), |most| inputs % 16 != 0 || began.elapsed() < most) {
        let seed = first.wrapping_add(inputs);
        once(Some(seed), &mutator.input(seed));
        inputs += 1;
    }
    let rate = inputs as f64 / began.elapsed().as_secs_f64();
    println!("fuzz {}: {inputs} inputs from seed {first}, {rate:.0} a second", target.name);
}
