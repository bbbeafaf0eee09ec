//! The fan-out, from the first join to the last delivery.
//!
//! Options flow in, a report flows out; what is always true is that nothing is posted before everybody has joined, that
//! every wait has a bound, and that what is owed is computed from the node's own acknowledgements.

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::thread::JoinHandle;
use std::time::Duration;

use super::args::FanoutArgs;
use super::foreign::Foreign;
use super::kernel::{self, now_ns};
use super::latency::Latency;
use super::meter::Meter;
use super::pace::{Pace, Say};
use super::plan::{Order, Outcome, Plan, Progress, Schedule};
use super::poster::{Posted, Poster};
use super::random;
use super::report::{Report, Rss};
use super::target::Target;
use super::worker::Crew;
use crate::io::machine;

const SECOND_NS: u64 = 1_000_000_000;
/// Descriptors of a process that are not viewers: posts, epoll, pipes, files.
const SPARE_DESCRIPTORS: u64 = 500;
/// How long nobody may join before no further joins are waited for.
const JOIN_GRACE_NS: u64 = 30 * SECOND_NS;
/// Joins a second, on average, below which a run is given up; half of the rate that is asked for, if that is less.
const JOIN_RATE_MIN: f64 = 500.0;
/// How long posts may be late and answers may take.
const POST_PATIENCE_NS: u64 = 10 * SECOND_NS;
/// How long deliveries may take behind the last post.
const DRAIN_NS: u64 = 10 * SECOND_NS;
/// How long a duplicate may still come behind the last delivery.
const SETTLE: Duration = Duration::from_millis(300);
/// From the order to begin to the first post: workers must have heard it.
const LEAD_NS: u64 = 300_000_000;
/// The pause between two looks at the progress, and the pace of the bar.
const LOOK: Duration = Duration::from_millis(20);

/// Why there is no report.
#[derive(Debug)]
pub(super) enum Failure {
    /// The options make no sense together.
    Use(String),
    /// There is no node to load.
    Node(String),
    /// The load generator itself failed.
    Own(String),
}

/// Runs the scenario.
///
/// # Errors
/// Why there is no report.
pub(super) fn conduct(args: &FanoutArgs) -> Result<Report, Failure> {
    let (report, _) = open(args)?.play(|pace| vec![pace], 0).map_err(Failure::Own)?;
    Ok(report)
}

/// Finds or starts the node.
///
/// # Errors
/// Why there is none.
pub(super) fn open(args: &FanoutArgs) -> Result<Stage<'_>, Failure> {
    args.check().map_err(Failure::Use)?;
    let limit = machine::raise_nofile();
    let room = limit.saturating_sub(SPARE_DESCRIPTORS).clamp(1, u64::from(u32::MAX)) as u32;
    let viewers_a_process = args.viewers_a_process.map_or(room, |wish| wish.min(room));
    let foreign = args.target.as_deref().map(Foreign::load).transpose().map_err(Failure::Use)?;
    let target = Target::open(args, foreign.as_ref()).map_err(Failure::Node)?;
    Ok(Stage::new(args, target, foreign, viewers_a_process))
}

/// Everything of one run.
pub(super) struct Stage<'a> {
    args: &'a FanoutArgs,
    plan: Plan,
    target: Target,
    viewers_a_process: u32,
    rss: Rss,
    bar: ProgressBar,
    died: Option<String>,
}

impl<'a> Stage<'a> {
    fn new(args: &'a FanoutArgs, target: Target, foreign: Option<Foreign>, viewers_a_process: u32) -> Self {
        let plan = Plan {
            addr: target.endpoint.addr,
            host: target.endpoint.host.clone(),
            app: args.app.clone(),
            token: args.token.clone(),
            channels: args.channels,
            viewers: args.viewers,
            first: 0,
            count: args.viewers,
            slow_share: args.slow.0,
            ephemeral: args.ephemeral || foreign.is_some(),
            run: random(),
            foreign,
            join_rate: args.join_rate,
            handshakes: args.handshakes,
            threads: args.threads,
        };
        // Not a terminal: hidden. Drawn by this thread alone, without a ticker.
        let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr_with_hz(10));
        if let Ok(style) = ProgressStyle::with_template("{msg:<8} {wide_bar} {pos}/{len}") {
            bar.set_style(style);
        }
        let rss = Rss::begin(target.meter);
        Self { args, plan, target, viewers_a_process, rss, bar, died: None }
    }

    /// Joins, posts and audits: `parts` says what is posted, given the pace of a fan-out; after it everybody stays for
    /// `rest_s` seconds. Returns what became of each part, too.
    pub(super) fn play(
        mut self,
        parts: impl FnOnce(Pace) -> Vec<Pace>,
        rest_s: u32,
    ) -> Result<(Report, Vec<Posted>), String> {
        let mut crews = self.join()?;
        let processes = crews.len();
        let joined_ns = now_ns();

        let cpu_before = self.target.meter.and_then(Meter::cpu_ns);
        let (schedule, pace) = self.pace();
        order(&mut crews, &Order::Go(schedule));
        let someone = progress(&mut crews).joined > 0;
        let parts = if someone { parts(pace) } else { Vec::new() };
        let stored: Vec<bool> = parts.iter().map(|part| part.say.is_stored() || self.plan.ephemeral).collect();
        let parts = self.post(&mut crews, parts)?;
        let mut posted = Posted::default();
        parts.iter().zip(stored).for_each(|(part, stored)| posted.add(part, stored));
        self.stay(&mut crews, rest_s);

        order(&mut crews, &Order::Finish(posted.acked.clone()));
        self.drain(&mut crews);
        let cpu_after = self.target.meter.and_then(Meter::cpu_ns);
        kernel::nap(SETTLE);
        let ended_ns = now_ns();
        let watched_ns = ended_ns - joined_ns;
        self.look();

        let mut outcomes = Vec::new();
        let mut lost_workers = Vec::new();
        order(&mut crews, &Order::Stop);
        for crew in &mut crews {
            match crew.collect() {
                Ok(found) => outcomes.extend(found),
                Err(error) => lost_workers.push(error.to_string()),
            }
        }
        self.bar.finish_and_clear();
        let (mut outcome, mut healthy, mut slow, mut joins) =
            (Outcome::default(), Latency::default(), Latency::default(), Latency::default());
        for part in &outcomes {
            outcome.add(part);
            healthy.add(&part.healthy.latency);
            slow.add(&part.slow.latency);
            joins.add(&part.join_latency);
        }
        // An empty side still knows which side it is.
        outcome.slow.forgives_close = true;
        let node_end = self.target.close();
        let report = Report {
            args: self.args.clone(),
            audience: (0..self.plan.channels).map(|channel| u64::from(self.plan.audience(channel))).collect(),
            outcome,
            healthy,
            slow,
            joins,
            posted,
            watched_ns,
            ended_ns,
            cpu_ns: cpu_before.zip(cpu_after).map(|(before, after)| after.saturating_sub(before)),
            rss: self.rss,
            processes,
            lost_workers,
            node_died: self.died,
            node_end,
        };
        Ok((report, parts))
    }

    /// Where the data of a started node lie.
    pub(super) fn data_dir(&self) -> Option<&Path> {
        self.target.data_dir()
    }

    /// The node's process.
    pub(super) fn meter(&self) -> Option<Meter> {
        self.target.meter
    }

    /// Lets everybody stay for so long, and gives the node up if it dies.
    pub(super) fn stay(&mut self, crews: &mut [Crew], seconds: u32) {
        self.bar.set_message("stay");
        let deadline = now_ns() + u64::from(seconds) * SECOND_NS;
        while now_ns() < deadline && self.died.is_none() {
            progress(crews);
            self.look();
            kernel::nap(LOOK);
        }
    }

    /// Ends a run without posts: how far the viewers are, and why the node died, if it did.
    pub(super) fn leave(mut self, mut crews: Vec<Crew>) -> (Progress, Option<String>) {
        let seen = progress(&mut crews);
        self.look();
        self.bar.finish_and_clear();
        drop(crews);
        self.target.close();
        (seen, self.died)
    }

    /// Looks around once: memory, and whether the node lives.
    fn look(&mut self) {
        self.rss.look(self.target.meter);
        if self.died.is_none() {
            self.died = self.target.died();
        }
    }

    /// Launches the viewers and waits until all have joined, or until that takes too long.
    pub(super) fn join(&mut self) -> Result<Vec<Crew>, String> {
        let mut crews = Crew::launch(&self.plan, self.viewers_a_process)
            .map_err(|error| format!("the viewers cannot be launched: {error}"))?;
        self.await_joins(&mut crews);
        Ok(crews)
    }

    fn await_joins(&mut self, crews: &mut [Crew]) {
        let viewers = u64::from(self.args.viewers);
        self.bar.set_message("joins");
        self.bar.set_length(viewers);
        let slowest = JOIN_RATE_MIN.min(self.args.join_rate / 2.0);
        let mut seen_ns = now_ns();
        let (mut seen, end_ns) = (0, seen_ns + (viewers as f64 / slowest * 1e9) as u64 + JOIN_GRACE_NS);
        loop {
            let Progress { joined, failed, .. } = progress(crews);
            let now = now_ns();
            if joined + failed > seen {
                (seen, seen_ns) = (joined + failed, now);
            }
            self.bar.set_position(joined);
            self.look();
            if seen >= viewers || now >= end_ns.min(seen_ns + JOIN_GRACE_NS) || self.died.is_some() {
                return;
            }
            kernel::nap(LOOK);
        }
    }

    fn pace(&self) -> (Schedule, Pace) {
        let args = self.args;
        let begin_ns = now_ns() + LEAD_NS;
        let measure_from_ns = begin_ns + u64::from(args.warmup_s) * SECOND_NS;
        let end_ns = measure_from_ns + u64::from(args.seconds) * SECOND_NS;
        let schedule = Schedule {
            measure_from_ns,
            drop_ns: args.drop_at.map(|at| measure_from_ns + u64::from(at) * SECOND_NS),
            pause_ns: measure_from_ns + SECOND_NS,
            resume_ns: end_ns.saturating_sub(SECOND_NS),
        };
        let pace = Pace {
            addr: self.plan.addr,
            host: self.plan.host.clone(),
            app: args.app.clone(),
            key: self.target.key.clone(),
            first_channel: 0,
            channels: args.channels,
            rate: args.rate,
            burst: u64::from(args.burst),
            posts: (args.rate * f64::from(args.warmup_s + args.seconds)).round() as u64,
            payload: args.payload as usize,
            say: if self.plan.ephemeral { Say::Custom } else { Say::Message },
            run: self.plan.run,
            foreign: self.plan.foreign.clone(),
            begin_ns,
            patience_ns: POST_PATIENCE_NS,
            connections: args.connections(),
        };
        (schedule, pace)
    }

    fn post(&mut self, crews: &mut [Crew], parts: Vec<Pace>) -> Result<Vec<Posted>, String> {
        self.bar.reset();
        self.bar.set_message("posts");
        self.bar.set_length(parts.iter().map(|part| part.posts).sum());
        let answered = Arc::<AtomicU64>::default();
        let handles = parts.into_iter().map(|part| {
            let poster = Poster::new(part, Arc::clone(&answered));
            std::thread::Builder::new().name("poster".into()).spawn(move || poster.run())
        });
        let handles: Vec<JoinHandle<Posted>> =
            handles.collect::<Result<_, _>>().map_err(|error| format!("a poster cannot be started: {error}"))?;
        // A poster ends by itself: its deadline is its own.
        while handles.iter().any(|handle| !handle.is_finished()) {
            self.bar.set_position(answered.load(Relaxed));
            self.look();
            // Workers must be listened to, or their pipes fill up.
            progress(crews);
            kernel::nap(LOOK);
        }
        handles.into_iter().map(|handle| handle.join().map_err(|_| "a poster panicked".to_owned())).collect()
    }

    fn drain(&mut self, crews: &mut [Crew]) {
        self.bar.set_message("drain");
        let threads: u32 = crews.iter().map(Crew::threads).sum();
        let deadline = now_ns() + DRAIN_NS;
        while progress(crews).arrived < threads && now_ns() < deadline {
            self.look();
            kernel::nap(LOOK);
        }
    }
}

fn order(crews: &mut [Crew], order: &Order) {
    for crew in crews {
        crew.order(order);
    }
}

fn progress(crews: &mut [Crew]) -> Progress {
    let mut sum = Progress::default();
    for crew in crews {
        sum.add(crew.progress());
    }
    sum
}
