//! The result of a run: the verdict, for people and as one line of JSON.
//!
//! What the fleet, the poster and the meter found flows in, text and an exit code flow out; what is always true is that
//! the verdict is computed from the sums and stands in one place, [`Report::faults`].

use serde_json::{Value, json};
use std::fmt::Write;

use super::args::FanoutArgs;
use super::audit::Side;
use super::latency::Latency;
use super::meter::Meter;
use super::plan::{Outcome, channel_name};
use super::poster::Posted;

/// How long counts may take to be right, in seconds: they are told every 5 s, and with more viewers than 100,000 less often;
/// after two intervals they must be right, and a little is for the way.
pub(super) const fn counts_settle_s(viewers: u32) -> u32 {
    let interval_s = if viewers > 100_000 { viewers / 20_000 } else { 5 };
    2 * interval_s + 2
}

/// Up to here a node tells members one by one, and need not tell a count.
const ROSTER_LIMIT: u64 = 500;

/// Resident memory of the node in MiB.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Rss {
    start: Option<f64>,
    peak: Option<f64>,
    end: Option<f64>,
    looks: u32,
}

impl Rss {
    /// The first reading, before anybody joins.
    pub(super) fn begin(meter: Option<Meter>) -> Self {
        let now = meter.and_then(Meter::rss_mib);
        Self { start: now, peak: now, end: now, looks: 0 }
    }

    /// Another look; only each tenth reads, the conductor looks 50 times a second.
    pub(super) fn look(&mut self, meter: Option<Meter>) {
        self.looks += 1;
        if self.looks % 10 != 1 {
            return;
        }
        if let Some(now) = meter.and_then(Meter::rss_mib) {
            self.end = Some(now);
            self.peak = self.peak.max_by_value(now);
        }
    }
}

trait MaxByValue {
    fn max_by_value(self, other: f64) -> Self;
}

impl MaxByValue for Option<f64> {
    fn max_by_value(self, other: f64) -> Self {
        Some(self.map_or(other, |mine| mine.max(other)))
    }
}

/// Whether the last counts that were told are the real ones.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Counts {
    /// On every channel that was told one, or had to be.
    Right,
    /// On these channels not, in words.
    Wrong(Vec<String>),
    /// The run was too short, or no channel is large enough to be told.
    NotChecked,
}

/// Everything that was found.
pub(super) struct Report {
    /// The options.
    pub(super) args: FanoutArgs,
    /// Viewers by channel, as planned.
    pub(super) audience: Vec<u64>,
    /// The sums over all fleets.
    pub(super) outcome: Outcome,
    /// Latencies of those who read.
    pub(super) healthy: Latency,
    /// Latencies of those who paused.
    pub(super) slow: Latency,
    /// From connect to greeting.
    pub(super) joins: Latency,
    /// The posts.
    pub(super) posted: Posted,
    /// From the last join to the end.
    pub(super) watched_ns: u64,
    /// The end, in nanoseconds of the monotonic clock.
    pub(super) ended_ns: u64,
    /// CPU of the node from before the first post to after the last delivery.
    pub(super) cpu_ns: Option<u64>,
    /// Memory of the node.
    pub(super) rss: Rss,
    /// Processes that carried viewers.
    pub(super) processes: usize,
    /// Workers that gave no outcome.
    pub(super) lost_workers: Vec<String>,
    /// The node ended during the run.
    pub(super) node_died: Option<String>,
    /// How a started node ended when it was asked to.
    pub(super) node_end: Option<String>,
}

impl Report {
    fn join_failures(&self) -> u64 {
        self.outcome.join_failures.values().sum()
    }

    fn post_errors(&self) -> u64 {
        self.posted.errors.values().sum()
    }

    fn joined(&self) -> u64 {
        self.outcome.healthy.viewers + self.outcome.slow.viewers
    }

    fn joins_per_s(&self) -> f64 {
        match (self.outcome.first_connect_ns, self.outcome.last_greeting_ns) {
            (Some(first), Some(last)) if last > first => self.joined() as f64 * 1e9 / (last - first) as f64,
            _ => 0.0,
        }
    }

    /// Nanoseconds of the node's CPU, all threads counted.
    pub(super) fn cpu_ns_per_delivery(&self) -> Option<f64> {
        let deliveries = self.outcome.healthy.delivered + self.outcome.slow.delivered;
        self.cpu_ns.filter(|_| deliveries > 0).map(|cpu| (cpu as f64 / deliveries as f64).round())
    }

    /// Whether the counts that viewers were told are right.
    pub(super) fn counts(&self) -> Counts {
        // Other servers tell no counts.
        let settle_ns = u64::from(counts_settle_s(self.args.viewers)) * 1_000_000_000;
        if self.watched_ns < settle_ns || self.args.target.is_some() || self.args.bare.is_some() {
            return Counts::NotChecked;
        }
        let mut checked = false;
        let mut wrong = Vec::new();
        for (number, channel) in (0..).zip(&self.outcome.channels) {
            // Where connections ended the number was moving, and that they ended is a finding of its own.
            let told = match channel.count {
                _ if channel.ended > 0 => continue,
                Some(count) if count.connections == channel.open => None,
                Some(count) => {
                    let ago_ms = self.ended_ns.saturating_sub(count.at_ns) / 1_000_000;
                    Some(format!("told {} connections {ago_ms} ms before the end", count.connections))
                }
                None if channel.open > ROSTER_LIMIT => Some("told no number".to_owned()),
                None => continue,
            };
            checked = true;
            wrong.extend(told.map(|told| format!("{} {told}, and {} are open", channel_name(number), channel.open)));
        }
        match wrong.is_empty() {
            false => Counts::Wrong(wrong),
            true if checked => Counts::Right,
            true => Counts::NotChecked,
        }
    }

    /// What is wrong, in words; nothing if the audit passes.
    pub(super) fn faults(&self) -> Vec<String> {
        let healthy = &self.outcome.healthy;
        let mut faults: Vec<String> = [
            (healthy.missing, "messages are missing"),
            (healthy.duplicate, "messages came twice"),
            (healthy.out_of_order, "messages came out of order"),
            (healthy.told_excess, "messages were told as lost and were not"),
            (healthy.closes.values().sum(), "healthy connections ended early"),
            (self.join_failures(), "joins failed"),
            (self.post_errors(), "posts failed"),
            (self.posted.unsent, "posts could not leave in time"),
            (self.outcome.epoch_changes, "greetings told another epoch than the first of their channel"),
        ]
        .into_iter()
        .filter(|(count, _)| *count > 0)
        .map(|(count, what)| format!("{count} {what}"))
        .collect();
        if !healthy.balanced() {
            faults.push("the account does not balance: delivered + told + missing is not what was expected".into());
        }
        if let Counts::Wrong(channels) = self.counts() {
            let (all, first) = (channels.len(), channels.first().map_or("", String::as_str));
            faults.push(format!("the last viewers.updated of {all} channels is not the real number: {first}"));
        }
        if self.joined() == 0 {
            faults.push("nobody joined, so nothing was posted".into());
        }
        faults.extend(self.lost_workers.iter().cloned());
        faults.extend(self.node_died.iter().cloned());
        faults
    }

    /// The result as one object.
    pub(super) fn json(&self) -> Value {
        let (healthy, slow) = (&self.outcome.healthy, &self.outcome.slow);
        let mut complaints = self.posted.complaints.clone();
        complaints.extend(self.outcome.complaints.iter().cloned());
        // Three objects made into one: the macro's depth grows with the keys.
        let deliveries = json!({
            "scenario": "fanout",
            "ok": self.faults().is_empty(),
            "faults": self.faults(),
            "delivered": healthy.delivered,
            "expected": healthy.expected,
            "missing": healthy.missing,
            "duplicate": healthy.duplicate,
            "out_of_order": healthy.out_of_order,
            "told_gaps": healthy.told_gaps,
            "told_excess": healthy.told_excess,
            "closed": healthy.closes,
            "p50_ms": self.healthy.ms(0.5),
            "p99_ms": self.healthy.ms(0.99),
            "p999_ms": self.healthy.ms(0.999),
            "max_ms": self.healthy.max_ms(),
            "timed": self.healthy.len(),
        });
        let flow = json!({
            "joined": self.joined(),
            "joins_per_s": self.joins_per_s().round(),
            "join_p50_ms": self.joins.ms(0.5),
            "join_p99_ms": self.joins.ms(0.99),
            "join_failures": self.join_failures(),
            "join_failures_by_status": self.outcome.join_failures,
            "viewer_counts_right": match self.counts() {
                Counts::Right => json!(true),
                Counts::Wrong(_) => json!(false),
                Counts::NotChecked => json!("not checked"),
            },
            "server_cpu_ns_per_delivery": self.cpu_ns_per_delivery(),
            "server_cpu_ms": self.cpu_ns.map(|cpu| cpu / 1_000_000),
            "posts": self.posted.posts,
            "post_errors": self.post_errors(),
            "post_errors_by_status": self.posted.errors,
            "posts_unsent": self.posted.unsent,
            "post_late_p50_ms": self.posted.late.ms(0.5),
            "post_late_p99_ms": self.posted.late.ms(0.99),
            "post_late_max_ms": self.posted.late.max_ms(),
            "post_answer_p50_ms": self.posted.answers.ms(0.5),
            "post_answer_p99_ms": self.posted.answers.ms(0.99),
        });
        let rest = json!({
            "slow": {
                "viewers": slow.viewers,
                "delivered": slow.delivered,
                "expected": slow.expected,
                "told_gaps": slow.told_gaps,
                "told_excess": slow.told_excess,
                "missing": slow.missing,
                "duplicate": slow.duplicate,
                "out_of_order": slow.out_of_order,
                "closed": slow.closes,
                "closed_4508": slow.closes.get(&4508).copied().unwrap_or(0),
                "lost_with_close": slow.lost_with_close,
                "clean": slow.clean(),
                "p50_ms": self.slow.ms(0.5),
                "p99_ms": self.slow.ms(0.99),
                "max_ms": self.slow.max_ms(),
            },
            "server_rss_mib_start": self.rss.start,
            "server_rss_mib_peak": self.rss.peak,
            "server_rss_mib_end": self.rss.end,
            "other_events": self.outcome.others,
            "foreign_messages": self.outcome.foreign,
            "audience_by_channel": if self.audience.len() <= 64 { json!(self.audience) } else { Value::Null },
            "processes": self.processes,
            "node_end": self.node_end,
            "complaints": complaints,
            "options": self.args,
        });
        let parts = [deliveries, flow, rest];
        Value::Object(parts.into_iter().filter_map(|part| part.as_object().cloned()).flatten().collect())
    }

    /// The result for people.
    pub(super) fn text(&self) -> String {
        let args = &self.args;
        let mut out = String::new();
        // A String takes every line.
        let mut line = |name: &str, text: String| {
            let _ = writeln!(out, "{name:<10} {text}");
        };
        line(
            "fanout",
            format!(
                "{} viewers, {} channels, {} messages/s of {} bytes, {} s after {} s of warm-up{}",
                args.viewers,
                args.channels,
                args.rate,
                args.payload,
                args.seconds,
                args.warmup_s,
                if args.ephemeral { ", not stored" } else { "" }
            ),
        );
        line(
            "joins",
            format!(
                "{} joined, {} failed, {:.0}/s, p50 {:.1} ms, p99 {:.1} ms",
                self.joined(),
                self.join_failures(),
                self.joins_per_s(),
                self.joins.ms(0.5),
                self.joins.ms(0.99)
            ),
        );
        line(
            "posts",
            format!(
                "{} sent, {} failed, {} unsent; late p50 {:.2} ms, p99 {:.2} ms, max {:.1} ms; answered p50 {:.2} ms, p99 {:.2} ms",
                self.posted.posts,
                self.post_errors(),
                self.posted.unsent,
                self.posted.late.ms(0.5),
                self.posted.late.ms(0.99),
                self.posted.late.max_ms(),
                self.posted.answers.ms(0.5),
                self.posted.answers.ms(0.99)
            ),
        );
        line("healthy", side_text(&self.outcome.healthy));
        line("latency", latency_text(&self.healthy));
        if self.outcome.slow.viewers > 0 {
            let slow = &self.outcome.slow;
            let clean = if slow.clean() { "" } else { "; NOT CLEAN" };
            line("slow", format!("{} viewers: {}{clean}", slow.viewers, side_text(slow)));
            line("", latency_text(&self.slow));
        }
        line(
            "counts",
            match self.counts() {
                Counts::Right => "viewers.updated told the real numbers".to_owned(),
                Counts::Wrong(channels) => format!("viewers.updated told wrong numbers: {}", channels.join("; ")),
                Counts::NotChecked => "not checked".to_owned(),
            },
        );
        let mib = |value: Option<f64>| value.map_or("?".to_owned(), |value| format!("{value:.1}"));
        let cpu = self.cpu_ns_per_delivery().map_or("?".to_owned(), |cpu| format!("{cpu:.0}"));
        line(
            "node",
            format!(
                "{cpu} ns of CPU a delivery; memory {} MiB at the start, {} at most, {} at the end{}",
                mib(self.rss.start),
                mib(self.rss.peak),
                mib(self.rss.end),
                self.node_end.as_ref().map_or(String::new(), |end| format!("; ended: {end}"))
            ),
        );
        for complaint in self.posted.complaints.iter().chain(&self.outcome.complaints) {
            line("note", complaint.clone());
        }
        let faults = self.faults();
        if faults.is_empty() {
            line("audit", "passed".to_owned());
        }
        for fault in faults {
            line("FAILED", fault);
        }
        out
    }
}

fn side_text(side: &Side) -> String {
    format!(
        "{} of {} delivered, {} told as lost, {} missing, {} twice, {} out of order, {} lost with a closed connection ({} closed)",
        side.delivered,
        side.expected,
        side.told_gaps,
        side.missing,
        side.duplicate,
        side.out_of_order,
        side.lost_with_close,
        side.closes.values().sum::<u64>()
    )
}

fn latency_text(latency: &Latency) -> String {
    format!(
        "p50 {:.2} ms, p99 {:.2} ms, p99.9 {:.2} ms, max {:.1} ms",
        latency.ms(0.5),
        latency.ms(0.99),
        latency.ms(0.999),
        latency.max_ms()
    )
}
