//! The comparison with the floor: the node and bare servers in turns, under the same load from the same fleet.
//!
//! Options flow in, a table of CPU per delivery or per join flows out; what is always true is that a ratio is taken
//! within a round, so that what disturbs a minute disturbs all of it, and that a run whose audit fails is said, not
//! averaged away.

use serde::Serialize;
use serde_json::{Value, json};
use std::process::ExitCode;

use super::args::{FanoutArgs, IdleArgs};
use super::bare::Sender;
use super::fanout::Failure;
use super::{AUDIT_FAILED, fail, fanout, idle};

/// The runs of one kind.
struct Row {
    name: &'static str,
    bare: Option<Sender>,
    /// Server CPU of one of what is counted, a round each.
    cpu: Vec<f64>,
}

impl Row {
    fn of(name: &'static str, bare: Option<Sender>) -> Self {
        Self { name, bare, cpu: Vec::new() }
    }
}

/// What one run found.
struct Run {
    cpu: Option<f64>,
    faults: Vec<String>,
}

/// Rounds of a fan-out; the table is of nanoseconds a delivery. 0 when every audit passed, 1 when one failed.
pub(super) fn run_fanout(args: &FanoutArgs, rounds: u32) -> ExitCode {
    let rows = [
        Row::of("node", None),
        Row::of("plain send loop", Some(Sender::Plain)),
        Row::of("batched io_uring", Some(Sender::Ring)),
    ];
    compare(rows, "ns/delivery", rounds, args.json, args, |bare| {
        let report = fanout::conduct(&FanoutArgs { bare, ..args.clone() })?;
        Ok(Run { cpu: report.cpu_ns_per_delivery(), faults: report.faults() })
    })
}

/// Rounds of a storm of joins; the table is of microseconds a join. 0 when everybody joined in each, 1 when not.
pub(super) fn run_storm(args: &IdleArgs, rounds: u32) -> ExitCode {
    let rows = [Row::of("node", None), Row::of("bare accept", Some(Sender::Plain))];
    compare(rows, "µs/join", rounds, args.start.json, args, |bare| {
        let found = idle::hold(args, bare)?;
        let mut faults: Vec<String> = found.died.iter().cloned().collect();
        if found.failed > 0 {
            faults.push(format!("{} joins failed", found.failed));
        }
        Ok(Run { cpu: Some(found.join_us()), faults })
    })
}

/// Runs the rounds and prints the table.
fn compare<const ROWS: usize>(
    mut rows: [Row; ROWS],
    unit: &str,
    rounds: u32,
    as_json: bool,
    options: &impl Serialize,
    run: impl Fn(Option<Sender>) -> Result<Run, Failure>,
) -> ExitCode {
    let mut faults = Vec::new();
    for round in 1..=rounds {
        for row in &mut rows {
            let Run { cpu, faults: more } = match run(row.bare) {
                Ok(run) => run,
                Err(failure) => return fail(failure),
            };
            faults.extend(more.into_iter().map(|fault| format!("round {round}, {}: {fault}", row.name)));
            row.cpu.extend(cpu);
            eprintln!("round {round} of {rounds}, {}: {:.1} {unit}", row.name, cpu.unwrap_or(f64::NAN));
        }
    }
    println!("{:<17} {:>12} {:>17} {:>10} {:>13}", "", unit, "least to most", "node is", "least to most");
    let mut found = Vec::new();
    for row in &rows {
        let ratios: Vec<f64> = rows[0].cpu.iter().zip(&row.cpu).map(|(node, floor)| node / floor).collect();
        let (cpu, ratio) = (Spread::of(&row.cpu), Spread::of(&ratios));
        println!(
            "{:<17} {:>12.1} {:>8.1} {:>8.1} {:>9.2}x {:>6.2} {:>6.2}",
            row.name, cpu.median, cpu.least, cpu.most, ratio.median, ratio.least, ratio.most
        );
        found.push(json!({ "name": row.name, "cpu": cpu.json(), "node_ratio": ratio.json(), "rounds": row.cpu }));
    }
    for fault in &faults {
        println!("FAILED     {fault}");
    }
    if as_json {
        println!("{}", json!({ "floor": found, "unit": unit, "faults": faults, "options": options }));
    }
    if faults.is_empty() { ExitCode::SUCCESS } else { AUDIT_FAILED.into() }
}

/// A median with its spread.
struct Spread {
    least: f64,
    median: f64,
    most: f64,
}

impl Spread {
    fn of(values: &[f64]) -> Self {
        let mut sorted = values.to_vec();
        sorted.sort_by(f64::total_cmp);
        let at = |place: usize| sorted.get(place).copied().unwrap_or(f64::NAN);
        let last = sorted.len().saturating_sub(1);
        Self { least: at(0), median: f64::midpoint(at(last / 2), at(last.div_ceil(2))), most: at(last) }
    }

    fn json(&self) -> Value {
        json!({ "median": self.median, "min": self.least, "max": self.most })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_of_an_even_number_lies_between_the_two_in_the_middle() {
        let odd = Spread::of(&[3.0, 1.0, 2.0]);
        assert!((odd.least - 1.0).abs() + (odd.median - 2.0).abs() + (odd.most - 3.0).abs() < 1e-9);
        assert!((Spread::of(&[4.0, 1.0, 2.0, 3.0]).median - 2.5).abs() < 1e-9);
        assert!(Spread::of(&[]).median.is_nan());
    }
}
