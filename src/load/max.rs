//! The highest rate that a node holds: rates are tried, each with a fresh node and the same fleet.
//!
//! Options flow in, a rate and what it took flow out; what is always true is that a rate counts as held only if every
//! delivery of it was made and 99 % of them came within the bound.

use serde_json::{Value, json};
use std::process::ExitCode;

use super::args::FanoutArgs;
use super::fanout::{self, Failure};
use super::{AUDIT_FAILED, fail};

/// 99 % of the deliveries are made within this.
const P99_MS_MAX: f64 = 250.0;
/// The first rate, where the options name a lower one.
const RATE_MIN: f64 = 50.0;
/// No rate beyond is tried: the poster is one thread.
const RATE_MAX: f64 = 100_000.0;
/// Halvings between the highest rate that was held and the lowest that was not: the result is 5 % exact.
const HALVINGS: u32 = 4;
/// What are tried as bursts.
const BURSTS: [u32; 5] = [1, 8, 32, 64, 256];

/// One rate that was tried.
struct Try {
    rate: f64,
    held: bool,
    why_not: String,
    deliveries_per_s: f64,
    p50_ms: f64,
    p99_ms: f64,
    cpu_ns: Option<f64>,
}

/// Prints the highest rate: 0 when one was held, 1 when none was.
pub(super) fn run(args: &FanoutArgs) -> ExitCode {
    match search(args) {
        Ok((best, tried)) => {
            print_line(args, best.as_ref());
            if args.json {
                println!("{}", found(args, best.as_ref(), &tried));
            }
            if best.is_some() { ExitCode::SUCCESS } else { AUDIT_FAILED.into() }
        }
        Err(failure) => fail(failure),
    }
}

/// The same for bursts of several sizes.
pub(super) fn run_bursts(args: &FanoutArgs) -> ExitCode {
    let mut rows = Vec::new();
    for burst in BURSTS {
        let args = FanoutArgs { burst, ..args.clone() };
        match search(&args) {
            Ok((best, tried)) => {
                print_line(&args, best.as_ref());
                rows.push((best.is_some(), found(&args, best.as_ref(), &tried)));
            }
            Err(failure) => return fail(failure),
        }
    }
    let held = rows.iter().all(|(held, _)| *held);
    if args.json {
        let rows: Vec<Value> = rows.into_iter().map(|(_, row)| row).collect();
        println!("{}", json!({ "scenario": "burst", "bursts": rows, "options": args }));
    }
    if held { ExitCode::SUCCESS } else { AUDIT_FAILED.into() }
}

fn search(args: &FanoutArgs) -> Result<(Option<Try>, Vec<Value>), Failure> {
    let (mut best, mut tried) = (None::<Try>, Vec::new());
    let mut take = |rate: f64, best: &mut Option<Try>| {
        let one = attempt(args, rate)?;
        eprintln!(
            "{:>9.0} posts/s: {:>11.0} deliveries/s, p99 {:.1} ms{}{}",
            one.rate,
            one.deliveries_per_s,
            one.p99_ms,
            if one.held { "" } else { ", not held: " },
            one.why_not
        );
        tried.push(one.json());
        let held = one.held;
        if held {
            *best = Some(one);
        }
        Ok(held)
    };
    // At least one whole burst a second, or a run would have none.
    let mut rate = args.rate.max(RATE_MIN).max(f64::from(args.burst));
    while rate <= RATE_MAX && take(rate, &mut best)? {
        rate *= 2.0;
    }
    let mut low = best.as_ref().map_or(0.0, |best| best.rate);
    let mut high = rate;
    for _ in 0..HALVINGS {
        let middle = f64::midpoint(low, high);
        if take(middle, &mut best)? {
            low = middle;
        } else {
            high = middle;
        }
    }
    Ok((best, tried))
}

fn attempt(args: &FanoutArgs, rate: f64) -> Result<Try, Failure> {
    let report = fanout::conduct(&FanoutArgs { rate, ..args.clone() })?;
    let mut faults = report.faults();
    let (p50_ms, p99_ms) = (report.healthy.ms(0.5), report.healthy.ms(0.99));
    let side = &report.outcome.healthy;
    if side.told_gaps > 0 {
        faults.push(format!("{} deliveries were lost and told", side.told_gaps));
    }
    if p99_ms > P99_MS_MAX {
        faults.push(format!("p99 is {p99_ms:.0} ms"));
    }
    // An open loop holds the rate, unless something was unsent, which is a fault.
    let seconds = f64::from(args.warmup_s + args.seconds);
    Ok(Try {
        rate,
        held: faults.is_empty(),
        why_not: faults.join("; "),
        deliveries_per_s: side.delivered as f64 / seconds,
        p50_ms,
        p99_ms,
        cpu_ns: report.cpu_ns_per_delivery(),
    })
}

impl Try {
    fn json(&self) -> Value {
        json!({
            "rate": self.rate, "held": self.held, "why_not": self.why_not, "p50_ms": self.p50_ms, "p99_ms": self.p99_ms,
            "deliveries_per_s": self.deliveries_per_s, "server_cpu_ns_per_delivery": self.cpu_ns,
        })
    }
}

fn print_line(args: &FanoutArgs, best: Option<&Try>) {
    match best {
        Some(best) => println!(
            "bursts of {:>3}: {:>8.0} posts/s held, {:>10.0} deliveries/s, p50 {:.1} ms, p99 {:.1} ms, {:.0} ns of CPU a delivery",
            args.burst,
            best.rate,
            best.deliveries_per_s,
            best.p50_ms,
            best.p99_ms,
            best.cpu_ns.unwrap_or(f64::NAN)
        ),
        None => println!("bursts of {:>3}: no rate was held", args.burst),
    }
}

fn found(args: &FanoutArgs, best: Option<&Try>, tried: &[Value]) -> Value {
    json!({
        "scenario": "max",
        "burst": args.burst,
        "highest_rate": best.map_or(0.0, |best| best.rate),
        "deliveries_per_s": best.map_or(0.0, |best| best.deliveries_per_s),
        "p50_ms": best.map(|best| best.p50_ms),
        "p99_ms": best.map(|best| best.p99_ms),
        "server_cpu_ns_per_delivery": best.and_then(|best| best.cpu_ns),
        "tried": tried,
        "options": args,
    })
}
