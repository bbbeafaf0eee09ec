//! A Sunday's peak: two customers' audiences, their messages, typing and custom events, and viewers who come and go.
//!
//! A scenario file and a scale flow in, the account of every message and the sums of everything else flow out; what is
//! always true is that the mix stands in the file (`perf/sunday.toml` is the one that is built in) and that what is owed is
//! computed from the node's own acknowledgements.

use serde::Deserialize;
use serde_json::json;
use std::fs;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::thread::JoinHandle;

use super::args::SundayArgs;
use super::audit::ChannelTarget;
use super::churn::{Churn, Churned};
use super::fanout::{self, Failure};
use super::pace::{Pace, Say};
use super::plan::Heard;
use super::poster::Posted;
use super::report::Report;
use super::{AUDIT_FAILED, fail};
use crate::admission::auth::make_token;

/// The scenario that is built in.
const PEAK: &str = include_str!("../../perf/sunday.toml");
/// Users that type in turn: each begins again later than its typing has expired.
const TYPISTS: usize = 128;
/// Typing expires 6 s after the last start, and the totals are right two intervals after the last has left, in seconds.
const REST_S: u32 = 14;
/// Connections that come and go, at a time, for each join a second.
const STAYING_MAX: f64 = 10.0;

/// The mix.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Mix {
    joins_per_s: f64,
    stay_s: u32,
    biggest_share: f64,
    #[serde(rename = "customer")]
    customers: Vec<Customer>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Customer {
    name: String,
    viewers: u32,
    channels: u32,
    messages_per_s: f64,
    typing_per_s: f64,
    custom_per_s: f64,
}

impl Mix {
    fn load(file: Option<&Path>) -> Result<Self, String> {
        let (text, name) = match file {
            Some(file) => {
                let text = fs::read_to_string(file).map_err(|error| format!("{}: {error}", file.display()))?;
                (text, file.display().to_string())
            }
            None => (PEAK.to_owned(), "the scenario that is built in".to_owned()),
        };
        let mix: Self = toml::from_str(&text).map_err(|error| format!("{name}: {error}"))?;
        let sane = |number: f64| (0.0..=1e6).contains(&number);
        if mix.customers.is_empty() || !sane(mix.joins_per_s) || !(0.0..=1.0).contains(&mix.biggest_share) {
            return Err(format!(
                "{name}: it needs a customer, joins_per_s from 0 to 1000000, biggest_share from 0 to 1"
            ));
        }
        for customer in &mix.customers {
            let rates = [customer.messages_per_s, customer.typing_per_s, customer.custom_per_s];
            if customer.viewers == 0 || customer.channels == 0 || !rates.into_iter().all(sane) {
                let who = &customer.name;
                return Err(format!("{name}: {who} needs viewers, channels and rates from 0 to 1000000"));
            }
        }
        Ok(mix)
    }

    fn channels(&self) -> u32 {
        self.customers.iter().map(|customer| customer.channels).sum()
    }

    /// What is posted, given the pace of a fan-out.
    fn parts(&self, base: &Pace, typists: &Arc<[String]>) -> Vec<Pace> {
        let seconds = base.posts as f64 / base.rate;
        let mut parts = Vec::new();
        let mut first_channel = 0;
        for customer in &self.customers {
            let mut part = |rate: f64, say: Say, connections: usize| {
                let posts = (rate * seconds).round() as u64;
                if posts > 0 {
                    let channels = customer.channels;
                    parts.push(Pace { first_channel, channels, rate, posts, say, connections, ..base.clone() });
                }
            };
            part(customer.messages_per_s, Say::Message, 8);
            part(customer.custom_per_s, Say::Custom, 8);
            part(customer.typing_per_s, Say::Typing(Arc::clone(typists)), 4);
            first_channel += customer.channels;
        }
        parts
    }
}

/// What is owed to all viewers together of posts that have no account a viewer.
fn owed(acked: &[ChannelTarget], audience: &[u64]) -> u64 {
    acked.iter().zip(audience).map(|(target, viewers)| target.acked * viewers).sum()
}

struct Found {
    report: Report,
    heard: Heard,
    custom_owed: u64,
    typing_owed: u64,
    churned: Churned,
    seconds: f64,
}

/// Plays it: 0 when everything owed came or was told, 1 when not.
pub(super) fn run(args: &SundayArgs) -> ExitCode {
    match play(args) {
        Ok(found) => {
            print!("{}", found.report.text());
            found.print();
            if args.start.json {
                println!("{}", found.json());
            }
            if found.faults().is_empty() { ExitCode::SUCCESS } else { AUDIT_FAILED.into() }
        }
        Err(failure) => fail(failure),
    }
}

fn play(args: &SundayArgs) -> Result<Found, Failure> {
    let mix = Mix::load(args.scenario.as_deref()).map_err(Failure::Use)?;
    let scaled = |number: u32| ((f64::from(number) * args.scale).round() as u32).max(mix.channels());
    let viewers = scaled(mix.customers.iter().map(|customer| customer.viewers).sum());
    let fanout_args = args.as_fanout(viewers, mix.channels());
    let stage = fanout::open(&fanout_args)?;
    let dir = stage.data_dir().ok_or_else(|| Failure::Own("the node's data are not known".into()))?;
    let typists = typists(&dir.join("demo.jwt")).map_err(Failure::Own)?;
    let mut kinds = Vec::new();
    let mut churning: Option<JoinHandle<std::io::Result<Churned>>> = None;
    let begin = |base: Pace| {
        let parts = mix.parts(&base, &typists);
        kinds = parts.iter().map(|part| part.say.clone()).collect::<Vec<_>>();
        let churn = Churn {
            addr: base.addr,
            host: base.host.clone(),
            app: base.app.clone(),
            channels: mix.channels(),
            biggest_share: mix.biggest_share,
            joins_per_s: mix.joins_per_s * args.scale,
            stay_ns: u64::from(mix.stay_s) * 1_000_000_000,
            begin_ns: base.begin_ns,
            end_ns: base.due_ns(base.posts),
            connections_max: (mix.joins_per_s * args.scale * STAYING_MAX) as usize + 1,
        };
        churning = std::thread::Builder::new().name("churn".into()).spawn(move || churn.run()).ok();
        parts
    };
    let (report, posted) = stage.play(begin, REST_S).map_err(Failure::Own)?;
    let churned = match churning.map(JoinHandle::join) {
        Some(Ok(Ok(churned))) => churned,
        Some(Ok(Err(error))) => return Err(Failure::Own(format!("those who come and go: {error}"))),
        Some(Err(_)) | None => return Err(Failure::Own("those who come and go did not".into())),
    };
    let sum = |pick: fn(&Say) -> bool| -> u64 {
        let picked = kinds.iter().zip(&posted).filter(|(say, _)| pick(say));
        picked.map(|(_, posted): (_, &Posted)| owed(&posted.acked, &report.audience)).sum()
    };
    Ok(Found {
        heard: report.outcome.heard,
        custom_owed: sum(|say| matches!(say, Say::Custom)),
        // A start, and the stop that the node says when it has expired.
        typing_owed: 2 * sum(|say| matches!(say, Say::Typing(_))),
        churned,
        seconds: f64::from(fanout_args.warmup_s + fanout_args.seconds),
        report,
    })
}

/// One token a typist.
#[allow(clippy::disallowed_methods, reason = "a token expires by the wall clock")]
fn typists(secret: &Path) -> Result<Arc<[String]>, String> {
    let secret = fs::read_to_string(secret).map_err(|error| format!("no signing secret: {error}"))?;
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_err(|error| error.to_string())?;
    let expires_s = now.as_secs() + 86_400;
    (0..TYPISTS)
        .map(|number| make_token(secret.trim().as_bytes(), &format!("typist-{number}"), None, expires_s))
        .collect()
}

impl Found {
    fn faults(&self) -> Vec<String> {
        let mut faults = self.report.faults();
        let heard = &self.heard;
        for (what, came, owed) in [
            ("custom events", heard.custom + heard.custom_told, self.custom_owed),
            ("typing events", heard.typing + heard.typing_told, self.typing_owed),
        ] {
            if came != owed {
                faults.push(format!("{came} {what} came or were told as lost, and {owed} were owed"));
            }
        }
        if self.churned.failed + self.churned.cut > 0 {
            let Churned { failed, cut, .. } = self.churned;
            faults.push(format!("of those who come and go {failed} did not get in and {cut} were thrown out"));
        }
        faults
    }

    /// Of the audience; those who come and go get theirs too, and nobody counts them.
    fn events_per_s(&self) -> f64 {
        let posted = self.report.outcome.healthy.delivered + self.heard.custom + self.heard.typing;
        // Totals go on while the last typing expires.
        let totals = self.heard.totals as f64 / (self.report.watched_ns as f64 / 1e9);
        posted as f64 / self.seconds + totals
    }

    fn print(&self) {
        let heard = &self.heard;
        println!("custom     {} came, {} told as lost, of {}", heard.custom, heard.custom_told, self.custom_owed);
        println!("typing     {} came, {} told as lost, of {}", heard.typing, heard.typing_told, self.typing_owed);
        println!("totals     {} viewers.updated came", heard.totals);
        let Churned { joined, failed, cut, latency } = &self.churned;
        println!(
            "come, go   {joined} joined, {failed} failed, {cut} thrown out; p50 {:.1} ms, p99 {:.1} ms",
            latency.ms(0.5),
            latency.ms(0.99)
        );
        println!("all        {:.0} events/s to the audience", self.events_per_s());
        for fault in self.faults() {
            println!("FAILED     {fault}");
        }
    }

    fn json(&self) -> serde_json::Value {
        let mut report = self.report.json();
        let heard = &self.heard;
        let also = json!({
            "scenario": "sunday",
            "ok": self.faults().is_empty(),
            "faults": self.faults(),
            "custom": heard.custom,
            "custom_told": heard.custom_told,
            "custom_expected": self.custom_owed,
            "typing": heard.typing,
            "typing_told": heard.typing_told,
            "typing_expected": self.typing_owed,
            "viewers_updated": heard.totals,
            "churn_joined": self.churned.joined,
            "churn_failed": self.churned.failed,
            "churn_cut": self.churned.cut,
            "churn_p99_ms": self.churned.latency.ms(0.99),
            "events_per_s": self.events_per_s().round(),
        });
        if let (Some(report), Some(also)) = (report.as_object_mut(), also.as_object()) {
            report.extend(also.iter().map(|(key, value)| (key.clone(), value.clone())));
        }
        report
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_built_in_mix_meets_the_figures_it_is_made_from() {
        let mix = Mix::load(None).unwrap();
        let viewers: u32 = mix.customers.iter().map(|customer| customer.viewers).sum();
        assert_eq!((viewers, mix.channels()), (80_000, 34));
        let deliveries = |rate: fn(&Customer) -> f64| -> f64 {
            let of = |customer: &Customer| rate(customer) * f64::from(customer.viewers) / f64::from(customer.channels);
            mix.customers.iter().map(of).sum()
        };
        let (messages, typing, custom) =
            (deliveries(|c| c.messages_per_s), 2.0 * deliveries(|c| c.typing_per_s), deliveries(|c| c.custom_per_s));
        assert!((mix.customers.iter().map(|c| c.messages_per_s).sum::<f64>() - 16.7).abs() < 1e-9);
        assert!((38_000.0..40_000.0).contains(&messages), "{messages}");
        assert!((typing / messages - 2.0).abs() < 0.01);
        // Totals are told each 5 s.
        let all = messages + typing + custom + f64::from(viewers) / 5.0;
        assert!((all - 268_681.0).abs() < 1_000.0, "{all}");
    }

    #[test]
    fn a_scenario_file_that_is_wrong_is_told_with_its_name() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("mine.toml");
        for (text, what) in [
            ("joins_per_s = 1.0", "stay_s"),
            ("joins_per_s = 1.0\nstay_s = 1\nbiggest_share = 0.5\ncustomer = []", "a customer"),
            (&PEAK.replace("viewers = 35_000", "viewers = 0"), "chat needs viewers"),
            (&PEAK.replace("stay_s", "stay"), "stay"),
        ] {
            fs::write(&file, text).unwrap();
            let error = Mix::load(Some(&file)).unwrap_err();
            assert!(error.contains("mine.toml") && error.contains(what), "{error}");
        }
        assert!(Mix::load(Some(&dir.path().join("none.toml"))).unwrap_err().contains("none.toml"));
    }

    #[test]
    fn what_is_owed_is_what_was_acknowledged_times_who_watches() {
        let acked = [ChannelTarget { acked: 3, last: 3 }, ChannelTarget { acked: 2, last: 2 }];
        assert_eq!(owed(&acked, &[10, 100]), 230);
    }
}
