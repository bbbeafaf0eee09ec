//! Reports as Prometheus text (exposition format 0.0.4).
//!
//! Always true: the account's columns are shown beside what is still queued, and `ringcast_account_open` is what they
//! leave over: zero if no delivery went missing.

use std::fmt::Write;

use crate::base::{Class, Gauge, Name};
use crate::post::report::{Report, Stages, Turns};

/// What the orchestrator says of itself.
#[derive(Debug, Default)]
pub struct Own {
    /// Bounded things: name, used, limit.
    pub gauges: Vec<(&'static str, Gauge)>,
    /// Bounded things of apps: name, app, used, limit.
    pub of_apps: Vec<(&'static str, Name, Gauge)>,
    /// Counters from the start of the process: name, what it counts, count.
    pub counters: Vec<(&'static str, &'static str, u64)>,
    /// Events dropped at a full mailbox.
    pub lost_before_fanout: u64,
}

/// Renders the last report of each shard and what the orchestrator says of itself.
#[must_use]
pub fn render(reports: &[Option<Report>], own: &Own) -> String {
    let mut out = String::with_capacity(8 * 1024);
    let reports: Vec<&Report> = reports.iter().flatten().collect();
    account(&mut out, &reports);
    stages(&mut out, &reports);
    turns(&mut out, &reports);
    line(&mut out, "ringcast_lost_before_fanout_total", "shard=\"orchestrator\"", own.lost_before_fanout);
    for (name, help, count) in &own.counters {
        let name = format!("ringcast_{name}_total");
        header(&mut out, &name, "counter", help);
        line(&mut out, &name, "shard=\"orchestrator\"", *count);
    }
    header(&mut out, "ringcast_connections", "gauge", "Connections, by shard");
    for report in &reports {
        line(&mut out, "ringcast_connections", &shard(report), u64::from(report.rooms.connections));
    }
    for (name, pick) in [("ringcast_used", Gauge::used as fn(&Gauge) -> u64), ("ringcast_limit", Gauge::limit)] {
        header(&mut out, name, "gauge", "Of each bounded thing: alert where used / limit > 0.7");
        for report in &reports {
            for (what, gauge) in &report.gauges {
                line(&mut out, name, &format!("what=\"{what}\",{}", shard(report)), pick(gauge));
            }
        }
        for (what, gauge) in &own.gauges {
            line(&mut out, name, &format!("what=\"{what}\",shard=\"orchestrator\""), pick(gauge));
        }
        for (what, app, gauge) in &own.of_apps {
            line(&mut out, name, &format!("what=\"{what}\",app=\"{app}\",shard=\"orchestrator\""), pick(gauge));
        }
    }
    out
}

fn account(out: &mut String, reports: &[&Report]) {
    header(
        out,
        "ringcast_deliveries_total",
        "counter",
        "Deliveries (one event to one subscriber), by class and outcome",
    );
    let mut open = [0_i128; 3];
    for report in reports {
        for class in Class::ALL {
            let a = report.account.of(class);
            let queued = report.queued[class as usize];
            open[class as usize] += a.open() - i128::from(queued);
            for (outcome, count) in [
                ("published", a.published),
                ("written", a.written),
                ("merged", a.merged),
                ("evicted", a.evicted),
                ("stale", a.stale),
                ("filtered", a.filtered),
                ("excluded", a.excluded),
                ("lost", a.lost),
            ] {
                let labels = format!("class=\"{}\",outcome=\"{outcome}\",{}", class.name(), shard(report));
                line(out, "ringcast_deliveries_total", &labels, count);
            }
        }
    }
    header(out, "ringcast_deliveries_queued", "gauge", "Deliveries that wait in ticks, outboxes and unfinished writes");
    for report in reports {
        for class in Class::ALL {
            let labels = format!("class=\"{}\",{}", class.name(), shard(report));
            line(out, "ringcast_deliveries_queued", &labels, report.queued[class as usize]);
        }
    }
    header(out, "ringcast_account_open", "gauge", "Deliveries that the account cannot explain: zero, always");
    for class in Class::ALL {
        let _ = writeln!(out, "ringcast_account_open{{class=\"{}\"}} {}", class.name(), open[class as usize]);
    }
}

fn stages(out: &mut String, reports: &[&Report]) {
    type Pick = fn(&Stages) -> u64;
    let rows: [(&str, &str, Pick); 18] = [
        ("events_seen", "Events that came to a shard", |s| s.events_seen),
        ("filter_noes", "Events that the filter ended at once", |s| s.filter_noes),
        ("lookups", "Lookups in the subscription index", |s| s.lookups),
        ("false_positives", "Lookups that found nobody", |s| s.false_positives),
        ("duplicates", "Stored events that came twice and were dropped", |s| s.duplicates),
        ("refetches", "Holes in a channel's numbers that were filled from the store", |s| s.refetches),
        ("ticks", "Ticks that were walked", |s| s.ticks),
        ("frames_built", "Frames built", |s| s.frames_built),
        ("queue_writes", "Events put into an outbox", |s| s.queue_writes),
        ("socket_writes", "Socket writes", |s| s.socket_writes),
        ("events_written", "Events carried by socket writes", |s| s.events_written),
        ("joined", "Connections accepted", |s| s.joined),
        ("left", "Connections ended", |s| s.left),
        ("closed_slow", "Connections closed as too slow", |s| s.closed_slow),
        ("closed_silent", "Connections closed for silence", |s| s.closed_silent),
        ("closed_protocol", "Connections closed for breaking the protocol", |s| s.closed_protocol),
        ("bad_commands", "Malformed commands", |s| s.bad_commands),
        ("lost_before_fanout", "Events dropped at a full mailbox", |s| s.lost_before_fanout),
    ];
    for (name, help, pick) in rows {
        let name = format!("ringcast_{name}_total");
        header(out, &name, "counter", help);
        for report in reports {
            line(out, &name, &shard(report), pick(&report.stages));
        }
    }
}

fn turns(out: &mut String, reports: &[&Report]) {
    header(out, "ringcast_turn_seconds", "histogram", "How long a core goes without a look into its mailboxes");
    for report in reports {
        let (shard, turns) = (shard(report), &report.turns);
        let mut count = 0;
        for (turns, limit_us) in turns.counts.iter().zip(Turns::LIMITS_US) {
            count += turns;
            let limit_s = limit_us as f64 / 1e6;
            line(out, "ringcast_turn_seconds_bucket", &format!("le=\"{limit_s}\",{shard}"), count);
        }
        count += turns.counts[Turns::LIMITS_US.len()];
        line(out, "ringcast_turn_seconds_bucket", &format!("le=\"+Inf\",{shard}"), count);
        line(out, "ringcast_turn_seconds_count", &shard, count);
        let _ = writeln!(out, "ringcast_turn_seconds_sum{{{shard}}} {}", turns.sum_us as f64 / 1e6);
    }
}

fn header(out: &mut String, name: &str, kind: &str, help: &str) {
    let _ = writeln!(out, "# HELP {name} {help}\n# TYPE {name} {kind}");
}

fn line(out: &mut String, name: &str, labels: &str, value: u64) {
    let _ = writeln!(out, "{name}{{{labels}}} {value}");
}

fn shard(report: &Report) -> String {
    format!("shard=\"{}\"", report.rooms.shard.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::{Account, RoomReport, ShardId};

    #[test]
    fn an_account_that_does_not_balance_shows() {
        let mut account = Account::default();
        account.of_mut(Class::Ordered).published = 10;
        account.of_mut(Class::Ordered).written = 7;
        let report = Report {
            rooms: RoomReport { shard: ShardId(1), processed: Vec::new(), rooms: Vec::new(), connections: 3 },
            account,
            queued: [0, 2, 0],
            stages: Stages { ticks: 4, ..Stages::default() },
            turns: Turns { counts: [5, 0, 1, 0, 0, 0, 1], sum_us: 1_500_000 },
            gauges: vec![("rooms", Gauge::new(1, 2))],
        };
        let own = Own {
            gauges: vec![("posts", Gauge::new(0, 9))],
            of_apps: vec![("app_channels", Name::new("shop").unwrap(), Gauge::new(1, 2))],
            counters: vec![("hook_asked", "Questions", 5)],
            ..Own::default()
        };
        let text = render(&[None, Some(report)], &own);
        assert!(text.contains("ringcast_used{what=\"app_channels\",app=\"shop\",shard=\"orchestrator\"} 1\n"));
        assert!(text.contains(
            "# TYPE ringcast_hook_asked_total counter\nringcast_hook_asked_total{shard=\"orchestrator\"} 5\n"
        ));
        assert!(text.contains("ringcast_account_open{class=\"ordered\"} 1\n"));
        assert!(text.contains("ringcast_ticks_total{shard=\"1\"} 4\n"));
        assert!(text.contains("ringcast_turn_seconds_bucket{le=\"0.0005\",shard=\"1\"} 5\n"));
        assert!(text.contains("ringcast_turn_seconds_bucket{le=\"+Inf\",shard=\"1\"} 7\n"));
        assert!(text.contains("ringcast_turn_seconds_sum{shard=\"1\"} 1.5\n"));
        assert!(text.contains("ringcast_limit{what=\"posts\",shard=\"orchestrator\"} 9\n"));
    }
}
