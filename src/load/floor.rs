//! The comparison with the floor: the node and two bare senders in turns, under the same load from the same fleet.
//!
//! Options flow in, a table of CPU per delivery flows out; what is always true is that a ratio is taken within a round,
//! so that what disturbs a minute disturbs all three, and that a run whose audit fails is said, not averaged away.

use serde_json::{Value, json};
use std::process::ExitCode;

use super::args::FanoutArgs;
use super::bare::Sender;
use super::{AUDIT_FAILED, fail, fanout};

/// The runs of one kind.
struct Row {
    name: &'static str,
    bare: Option<Sender>,
    /// Nanoseconds of server CPU a delivery, one a round.
    cpu_ns: Vec<f64>,
}

/// Runs the rounds and prints the table: 0 when every audit passed, 1 when one failed.
pub(super) fn run(args: &FanoutArgs, rounds: u32) -> ExitCode {
    let row = |name, bare| Row { name, bare, cpu_ns: Vec::new() };
    let mut rows =
        [row("node", None), row("plain send loop", Some(Sender::Plain)), row("batched io_uring", Some(Sender::Ring))];
    let mut faults = Vec::new();
    for round in 1..=rounds {
        for row in &mut rows {
            let report = match fanout::conduct(&FanoutArgs { bare: row.bare, ..args.clone() }) {
                Ok(report) => report,
                Err(failure) => return fail(failure),
            };
            faults.extend(report.faults().into_iter().map(|fault| format!("round {round}, {}: {fault}", row.name)));
            row.cpu_ns.extend(report.cpu_ns_per_delivery());
            eprintln!("round {round} of {rounds}, {}: {:.0} ns", row.name, row.cpu_ns.last().unwrap_or(&f64::NAN));
        }
    }
    println!("{:<17} {:>12} {:>17} {:>10} {:>13}", "", "ns/delivery", "least to most", "node is", "least to most");
    let mut found = Vec::new();
    for row in &rows {
        let ratios: Vec<f64> = rows[0].cpu_ns.iter().zip(&row.cpu_ns).map(|(node, floor)| node / floor).collect();
        let (cpu, ratio) = (Spread::of(&row.cpu_ns), Spread::of(&ratios));
        println!(
            "{:<17} {:>12.0} {:>8.0} {:>8.0} {:>9.2}x {:>6.2} {:>6.2}",
            row.name, cpu.median, cpu.least, cpu.most, ratio.median, ratio.least, ratio.most
        );
        found.push(json!({
            "name": row.name, "cpu_ns_per_delivery": cpu.json(), "node_ratio": ratio.json(), "rounds": row.cpu_ns,
        }));
    }
    for fault in &faults {
        println!("FAILED     {fault}");
    }
    if args.json {
        println!("{}", json!({ "floor": found, "faults": faults, "options": args }));
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
