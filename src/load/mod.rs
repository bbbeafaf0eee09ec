//! The load generator: virtual viewers and posts, an exact audit of every delivery, a report.
//!
//! A command line flows in, a report and an exit code flow out; what is always true is that the load stays on this
//! machine, that the run ends by itself, and that the client reads frames, events and answers with code of its own:
//! a mistake of the node is not made a second time here.
//!
//! | file | what it holds |
//! |---|---|
//! | `args` | the command line; loopback only |
//! | `target`, `meter` | the node under load, started or found; its CPU and memory |
//! | `leftovers` | what an interrupted load ends and removes |
//! | `fanout` | the scenario, from the first join to the last delivery |
//! | `floor`, `bare` | the comparison with a bare sender; that sender |
//! | `max` | the highest rate that is held, by bursts of any size |
//! | `idle` | joins, and viewers who only stay |
//! | `sunday`, `churn` | a peak with everything in it; viewers who come and go |
//! | `foreign` | another server, as a target file describes it |
//! | `plan` | what a fleet is told and tells |
//! | `fleet`, `worker` | the viewers of a process; viewers in further processes |
//! | `viewer`, `frames` | one viewer without its socket; its frame reader |
//! | `probe`, `poster`, `http` | what a message carries; who posts it when; how |
//! | `audit`, `latency` | the account of every viewer; the histogram |
//! | `report` | the verdict, as text and as JSON |
//! | `watch` | one viewer for a person, not a load |
//! | `kernel` | the system calls that std has no door to |

mod args;
mod audit;
mod bare;
mod churn;
mod deck;
mod desk;
mod endpoint;
#[cfg(test)]
mod fake;
mod fanout;
mod fleet;
mod floor;
mod foreign;
mod frames;
mod http;
mod idle;
mod kernel;
mod latency;
mod leftovers;
mod max;
mod meter;
mod pace;
mod plan;
mod poster;
mod probe;
mod report;
mod sunday;
mod target;
mod viewer;
mod watch;
mod worker;

pub use args::LoadArgs;
pub use watch::WatchArgs;

use args::{IdleArgs, Scenario, StormArgs};
use fanout::Failure;
use std::process::ExitCode;

/// The audit found a fault.
const AUDIT_FAILED: u8 = 1;
/// The command line makes no sense.
const WRONG_USE: u8 = 2;
/// There is no node to load.
const NO_NODE: u8 = 3;

/// Watches one channel and prints its events.
pub fn run_watch(args: &WatchArgs) -> ExitCode {
    watch::run(args)
}

/// Runs the load: 0 when the audit passes, 1 when it fails, 2 for wrong use, 3 when there is no node.
pub fn run(args: LoadArgs) -> ExitCode {
    if args.worker {
        return worker::serve();
    }
    if let (Some(sender), Some(listen)) = (args.bare, args.bare_listen) {
        return bare::serve(sender, listen, args.bare_burst);
    }
    if let Err(error) = leftovers::guard() {
        return fail(Failure::Own(format!("signals cannot be listened to: {error}")));
    }
    let args = match args.scenario {
        Some(Scenario::Fanout(args)) => args,
        Some(Scenario::Max(args)) => return max::run(&args),
        Some(Scenario::Burst(args)) => return max::run_bursts(&args),
        Some(Scenario::Storm(StormArgs { idle, floor })) => {
            let storm = IdleArgs { seconds: 0, ..idle };
            return floor.map_or_else(|| idle::run(&storm), |rounds| floor::run_storm(&storm, rounds));
        }
        Some(Scenario::Idle(args)) => return idle::run(&args),
        Some(Scenario::Sunday(args)) => return sunday::run(&args),
        None => {
            eprintln!("ringcast load: say which load: fanout, max, burst, storm, idle or sunday");
            return WRONG_USE.into();
        }
    };
    if let Some(rounds) = args.floor {
        return floor::run_fanout(&args, rounds);
    }
    match fanout::conduct(&args) {
        Ok(report) => {
            print!("{}", report.text());
            if args.json {
                println!("{}", report.json());
            }
            if report.faults().is_empty() { ExitCode::SUCCESS } else { AUDIT_FAILED.into() }
        }
        Err(failure) => fail(failure),
    }
}

fn fail(failure: Failure) -> ExitCode {
    let (message, code) = match failure {
        Failure::Use(message) => (message, WRONG_USE),
        Failure::Node(message) => (message, NO_NODE),
        Failure::Own(message) => (message, AUDIT_FAILED),
    };
    eprintln!("ringcast load: {message}");
    code.into()
}

/// A number that no other run has.
fn random() -> u32 {
    // Without randomness the clock is still different from run to run.
    getrandom::u32().unwrap_or_else(|_| kernel::now_ns() as u32)
}
