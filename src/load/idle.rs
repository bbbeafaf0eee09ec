//! Viewers who post nothing and get nothing: what a join costs, and what staying costs.
//!
//! Options flow in, CPU and memory a viewer flow out; what is always true is that user and kernel memory are told apart,
//! and that the kernel's is that of both ends, for both are on this machine.

use serde_json::json;
use std::fs;
use std::process::ExitCode;

use super::args::{FanoutArgs, IdleArgs};
use super::bare::Sender;
use super::fanout::{self, Failure};
use super::kernel::now_ns;
use super::meter::Meter;
use super::report::counts_settle_s;
use super::{AUDIT_FAILED, fail};

/// What was found.
pub(super) struct Found {
    joined: u64,
    pub(super) failed: u64,
    join_ns: u64,
    join_cpu_ns: Option<u64>,
    stay_ns: u64,
    stay_cpu_ns: Option<u64>,
    user_bytes: Option<f64>,
    kernel_bytes: Option<f64>,
    pub(super) died: Option<String>,
}

/// Prints what was found: 0 when everybody joined and stayed, 1 when not.
pub(super) fn run(args: &IdleArgs) -> ExitCode {
    match hold(args, None) {
        Ok(found) => {
            found.print();
            if args.start.json {
                println!("{}", found.json(args));
            }
            if found.failed == 0 && found.died.is_none() { ExitCode::SUCCESS } else { AUDIT_FAILED.into() }
        }
        Err(failure) => fail(failure),
    }
}

/// Lets everybody join, and stay for as long as is asked for; `bare` takes them in the place of the node.
///
/// # Errors
/// There is nobody to join, or the viewers cannot be launched.
pub(super) fn hold(args: &IdleArgs, bare: Option<Sender>) -> Result<Found, Failure> {
    let fanout_args = FanoutArgs { bare, ..args.as_fanout() };
    let mut stage = fanout::open(&fanout_args)?;
    let meter = stage.meter();
    let cpu = || meter.and_then(Meter::cpu_ns);
    let memory = || (meter.and_then(Meter::rss_mib), kernel_kib());
    let (before, cpu_before, began_ns) = (memory(), cpu(), now_ns());
    let mut crews = stage.join().map_err(Failure::Own)?;
    let (cpu_joined, joined_ns) = (cpu(), now_ns());
    let (mut stay_ns, mut stay_cpu_ns) = (0, None);
    if args.seconds > 0 {
        // A storm of joins leaves the node things to do that are not an idle viewer's.
        stage.stay(&mut crews, counts_settle_s(args.viewers));
        let (cpu_rested, rested_ns) = (cpu(), now_ns());
        stage.stay(&mut crews, args.seconds);
        stay_ns = now_ns() - rested_ns;
        stay_cpu_ns = cpu_rested.zip(cpu()).map(|(from, to)| to - from);
    }
    let after = memory();
    let (seen, died) = stage.leave(crews);
    let viewers = seen.joined.max(1) as f64;
    Ok(Found {
        joined: seen.joined,
        failed: u64::from(args.viewers) - seen.joined,
        join_ns: joined_ns - began_ns,
        join_cpu_ns: cpu_before.zip(cpu_joined).map(|(from, to)| to - from),
        stay_ns,
        stay_cpu_ns,
        user_bytes: before.0.zip(after.0).map(|(from, to)| (to - from) * 1_048_576.0 / viewers),
        kernel_bytes: before.1.zip(after.1).map(|(from, to)| (to - from) * 1_024.0 / viewers),
        died,
    })
}

/// What the kernel uses for its own objects and page tables, in KiB. Its sockets are slab objects.
fn kernel_kib() -> Option<f64> {
    let text = fs::read_to_string("/proc/meminfo").ok()?;
    let of = |key: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':'))?;
        line.split_whitespace().next()?.parse::<f64>().ok()
    };
    Some(of("Slab")? + of("KernelStack")? + of("PageTables")?)
}

impl Found {
    /// Microseconds of server CPU a join; no number where the server's CPU cannot be read.
    pub(super) fn join_us(&self) -> f64 {
        self.join_cpu_ns.map_or(f64::NAN, |cpu| cpu as f64 / 1e3 / self.joined.max(1) as f64)
    }

    /// In percent of a core.
    fn stay_percent(&self) -> Option<f64> {
        self.stay_cpu_ns.filter(|_| self.stay_ns > 0).map(|cpu| cpu as f64 * 100.0 / self.stay_ns as f64)
    }

    fn joins_per_s(&self) -> f64 {
        self.joined as f64 * 1e9 / self.join_ns.max(1) as f64
    }

    fn print(&self) {
        println!(
            "joins      {} joined, {} failed, {:.0}/s, {:.1} µs of server CPU a join",
            self.joined,
            self.failed,
            self.joins_per_s(),
            self.join_us()
        );
        let bytes = |bytes: Option<f64>| bytes.map_or("?".to_owned(), |bytes| format!("{bytes:.0}"));
        println!(
            "memory     {} bytes of the node's own a viewer, {} of the kernel for both ends",
            bytes(self.user_bytes),
            bytes(self.kernel_bytes)
        );
        if let Some(percent) = self.stay_percent() {
            println!("stay       {:.1} s, {percent:.2} % of a core", self.stay_ns as f64 / 1e9);
        }
        if let Some(died) = &self.died {
            println!("FAILED     {died}");
        }
    }

    fn json(&self, args: &IdleArgs) -> serde_json::Value {
        json!({
            "scenario": if args.seconds == 0 { "storm" } else { "idle" },
            "joined": self.joined,
            "join_failures": self.failed,
            "joins_per_s": self.joins_per_s().round(),
            "server_cpu_us_per_join": self.join_us(),
            "user_bytes_per_viewer": self.user_bytes,
            "kernel_bytes_per_viewer": self.kernel_bytes,
            "server_cpu_percent": self.stay_percent(),
            "died": self.died,
            "options": args,
        })
    }
}
