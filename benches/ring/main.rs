#![allow(unsafe_code, reason = "entries are pushed by hand, to try what the node does not do")]
//! How an io_uring may be set up and used, each way beside a plain loop over the same sockets: why `io/ring` is as it is.
//!
//! Ways flow in, CPU per operation flows out, as a ratio to a plain loop that ran just before. Always true: what is
//! counted is everything that the process used but for its client thread, so the kernel's poller, too; every byte that
//! was sent has arrived before a count ends; and nothing here decides a test.
//!
//! `cargo bench --bench ring` takes two minutes. The conclusions are in perf/METHOD.md, section 8.

mod pairs;
mod reading;
mod sending;

use io_uring::IoUring;
use io_uring::squeue::Entry;
use std::io;

use pairs::Pairs;

/// Connections of a walk; as many descriptors again are the client's.
const SOCKETS: usize = 2_000;
const ROUNDS: usize = 9;
/// Walks of one way in one round, each beside one of the plain loop.
const WALKS: usize = 10;

fn main() -> io::Result<()> {
    // As a test it only has to build.
    if std::env::args().any(|arg| arg == "--test") {
        return Ok(());
    }
    let pairs = Pairs::open(SOCKETS)?;
    sending::compare(&pairs)?;
    reading::compare(&pairs)?;
    drop(pairs);
    reading::weigh()
}

/// Who runs the work that completions leave behind.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Setup {
    Default,
    Coop,
    Deferred,
    KernelPoller,
}

impl Setup {
    fn ring(self) -> io::Result<IoUring> {
        let mut builder = IoUring::builder();
        builder.setup_cqsize(16_384);
        match self {
            Self::Default => &mut builder,
            Self::Coop => builder.setup_coop_taskrun(),
            Self::Deferred => builder.setup_single_issuer().setup_defer_taskrun(),
            Self::KernelPoller => builder.setup_sqpoll(1),
        };
        builder.build(512)
    }
}

/// Queues an entry. What it points to outlives its operation: the buffers of this program are only dropped after the
/// bytes have arrived, or with the ring.
fn push(ring: &mut IoUring, entry: &Entry) -> io::Result<()> {
    // SAFETY: as said above.
    unsafe { ring.submission().push(entry) }.map_err(io::Error::other)
}

/// The ways beside the plain one: the quotients of walks that followed each other, their median and quartiles.
fn print<const WAYS: usize>(what: &str, names: [&str; WAYS], ways: &[Vec<(f64, f64)>; WAYS]) {
    println!("{what:<58} {:>8} {:>8} {:>7} {:>15}", "ns", "plain", "ratio", "quartiles");
    for (name, found) in names.iter().zip(ways) {
        let at = |part: f64, of: fn(&(f64, f64)) -> f64| {
            let mut values: Vec<f64> = found.iter().map(of).collect();
            values.sort_by(f64::total_cmp);
            values[(part * (values.len() - 1) as f64) as usize]
        };
        let ratio = |part| at(part, |(plain, way)| way / plain);
        let (way, plain) = (at(0.5, |found| found.1), at(0.5, |found| found.0));
        println!("{name:<58} {way:>8.0} {plain:>8.0} {:>7.2} {:>7.2} {:>7.2}", ratio(0.5), ratio(0.25), ratio(0.75));
    }
    println!();
}
