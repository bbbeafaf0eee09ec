//! The command line of `ringcast load`.
//!
//! Words flow in, checked options flow out; what is always true is that a load is aimed at this machine only, for its
//! target is an [`Endpoint`].

use clap::{Args, Subcommand};
use serde::Serialize;
use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::str::FromStr;

use super::bare::Sender;
use super::endpoint::Endpoint;

/// `ringcast load`: puts a measured load on a node of this machine and audits every delivery.
#[derive(Debug, Args)]
pub struct LoadArgs {
    /// Which load.
    #[command(subcommand)]
    pub(super) scenario: Option<Scenario>,

    /// Carry a part of another process's audience, as told on the standard input.
    #[arg(long, hide = true)]
    pub(super) worker: bool,

    /// Be a bare sender in the place of a node.
    #[arg(long, hide = true, requires = "bare_listen")]
    pub(super) bare: Option<Sender>,

    /// Where that listens.
    #[arg(long, hide = true)]
    pub(super) bare_listen: Option<SocketAddr>,

    /// How many frames go out together.
    #[arg(long, hide = true, default_value_t = 1)]
    pub(super) bare_burst: u32,
}

/// The loads there are.
#[derive(Debug, Subcommand)]
pub(super) enum Scenario {
    /// Messages to channels that many viewers watch: are all delivered, once, in order, and how soon?
    Fanout(FanoutArgs),
    /// The highest rate that is held: every delivery made, and 99 % of them within 250 ms
    Max(FanoutArgs),
    /// The same with 1, 8, 32, 64 and 256 messages at once
    Burst(FanoutArgs),
    /// Joins as fast as they go: what does one cost?
    Storm(StormArgs),
    /// Viewers who only stay: what do they cost?
    Idle(IdleArgs),
    /// A Sunday's peak of two customers: messages, typing, custom events, and viewers who come and go
    Sunday(SundayArgs),
}

/// The options of the fan-out.
#[derive(Clone, Debug, Args, Serialize)]
pub(super) struct FanoutArgs {
    /// Viewers over all channels
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=2_000_000))]
    pub(super) viewers: u32,

    /// Channels; viewer i watches channel i modulo this
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub(super) channels: u32,

    /// Messages a second over all channels together, posted to the channels in turn
    #[arg(long, default_value_t = 10.0, value_parser = positive)]
    pub(super) rate: f64,

    /// Bytes of text a message; a small number gives the bare probe of about 50
    #[arg(long, default_value_t = 128, value_parser = clap::value_parser!(u32).range(0..=16_384))]
    pub(super) payload: u32,

    /// Seconds that are measured
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=86_400))]
    pub(super) seconds: u32,

    /// Share of viewers that stop reading, from 1 s after the measurement begins to 1 s before it ends
    #[arg(long, value_name = "PERCENT", default_value = "0%")]
    pub(super) slow: Share,

    /// So many seconds into the measurement every connection is cut at once, and comes back with its position
    #[arg(long, value_name = "SECONDS", conflicts_with_all = ["ephemeral", "target"])]
    pub(super) drop_at: Option<u32>,

    /// A running node; without it one is started for the run
    #[arg(long)]
    pub(super) url: Option<Endpoint>,

    /// The admin address of that node: the run then begins when it is ready
    #[arg(long, requires = "url")]
    pub(super) admin: Option<Endpoint>,

    /// The app
    #[arg(long, default_value = "demo")]
    pub(super) app: String,

    /// The server key, or a file that holds it; the started node's own if it is not given
    #[arg(long, value_name = "FILE_OR_KEY")]
    #[serde(skip)]
    pub(super) key: Option<String>,

    /// A token for the viewers; without it they read anonymously
    #[arg(long)]
    #[serde(skip)]
    pub(super) token: Option<String>,

    /// Shards of the started node
    #[arg(long, conflicts_with = "url")]
    pub(super) shards: Option<u16>,

    /// A further argument of the started node; may be repeated
    #[arg(long = "node-arg", value_name = "ARG", conflicts_with = "url", allow_hyphen_values = true)]
    pub(super) node_args: Vec<String>,

    /// Messages that are due at the same moment; the rate stays
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub(super) burst: u32,

    /// Post events that are not stored instead of messages
    #[arg(long)]
    pub(super) ephemeral: bool,

    /// Seconds of load before the measurement; audited, but not timed
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(0..=3_600))]
    pub(super) warmup_s: u32,

    /// Joins a second at most
    #[arg(long, default_value_t = 5_000.0, value_parser = positive)]
    pub(super) join_rate: f64,

    /// Handshakes open at a time at most
    #[arg(long, default_value_t = 256, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub(super) handshakes: u32,

    /// Threads that carry viewers, a process
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=256))]
    pub(super) threads: u32,

    /// Viewers one process carries at most; more are carried by worker processes. By default what its descriptors allow
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..))]
    pub(super) viewers_a_process: Option<u32>,

    /// Connections that post; by default enough for a burst, at least 16
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=1_024))]
    pub(super) post_connections: Option<u32>,

    /// CPUs of the started node, such as 1 or 0,1; by default all
    #[arg(long, value_delimiter = ',', conflicts_with = "url")]
    pub(super) cpus: Vec<u16>,

    /// Compare with the floor: so many rounds of the node, of a loop of send(2), and of batches of an io_uring
    #[arg(long, value_name = "ROUNDS", conflicts_with = "url", value_parser = clap::value_parser!(u32).range(1..=99))]
    pub(super) floor: Option<u32>,

    /// Another server than ringcast, as this file describes it; its events are not stored
    #[arg(long, value_name = "FILE", conflicts_with_all = ["url", "floor"])]
    pub(super) target: Option<PathBuf>,

    /// A bare sender instead of the node
    #[arg(skip)]
    pub(super) bare: Option<Sender>,

    /// End with the result as one line of JSON
    #[arg(long)]
    pub(super) json: bool,
}

/// What every load that starts its own node may be told of it.
#[derive(Clone, Debug, Args, Serialize)]
pub(super) struct StartArgs {
    /// Shards of the started node
    #[arg(long)]
    pub(super) shards: Option<u16>,

    /// A further argument of the started node; may be repeated
    #[arg(long = "node-arg", value_name = "ARG", allow_hyphen_values = true)]
    pub(super) node_args: Vec<String>,

    /// CPUs of the started node, such as 1 or 0,1; by default all
    #[arg(long, value_delimiter = ',')]
    pub(super) cpus: Vec<u16>,

    /// Viewers one process carries at most; more are carried by worker processes. By default what its descriptors allow
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..))]
    pub(super) viewers_a_process: Option<u32>,

    /// End with the result as one line of JSON
    #[arg(long)]
    pub(super) json: bool,
}

/// The options of the peak.
#[derive(Clone, Debug, Args, Serialize)]
pub(super) struct SundayArgs {
    /// The part of the audience and of the joins
    #[arg(long, default_value_t = 1.0, value_parser = positive)]
    pub(super) scale: f64,

    /// Seconds that are measured
    #[arg(long, default_value_t = 30, value_parser = clap::value_parser!(u32).range(1..=3_600))]
    pub(super) seconds: u32,

    /// Another mix than the built-in one, as a file like perf/sunday.toml
    #[arg(long, value_name = "FILE")]
    pub(super) scenario: Option<PathBuf>,

    /// Joins a second at most, before it begins
    #[arg(long, default_value_t = 5_000.0, value_parser = positive)]
    pub(super) join_rate: f64,

    /// Its own node
    #[command(flatten)]
    #[serde(flatten)]
    pub(super) start: StartArgs,
}

impl SundayArgs {
    /// The same as a fan-out to so many viewers and channels.
    pub(super) fn as_fanout(&self, viewers: u32, channels: u32) -> FanoutArgs {
        let idle = IdleArgs {
            viewers,
            channels,
            seconds: self.seconds,
            join_rate: self.join_rate,
            handshakes: 256,
            token: None,
            target: None,
            start: self.start.clone(),
        };
        FanoutArgs { payload: 128, warmup_s: 2, ..idle.as_fanout() }
    }
}

/// The options of a storm of joins.
#[derive(Clone, Debug, Args)]
pub(super) struct StormArgs {
    /// Those of everybody who posts nothing
    #[command(flatten)]
    pub(super) idle: IdleArgs,

    /// Compare with the floor: so many rounds of the node, and of a bare server that accepts, answers and does nothing else
    #[arg(long, value_name = "ROUNDS", conflicts_with = "target", value_parser = clap::value_parser!(u32).range(1..=99))]
    pub(super) floor: Option<u32>,
}

/// The options of loads that post nothing.
#[derive(Clone, Debug, Args, Serialize)]
pub(super) struct IdleArgs {
    /// Viewers over all channels
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=2_000_000))]
    pub(super) viewers: u32,

    /// Channels; viewer i watches channel i modulo this
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub(super) channels: u32,

    /// Seconds that the viewers stay
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(0..=86_400))]
    pub(super) seconds: u32,

    /// Joins a second at most
    #[arg(long, default_value_t = 1_000_000.0, value_parser = positive)]
    pub(super) join_rate: f64,

    /// Handshakes open at a time at most
    #[arg(long, default_value_t = 256, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub(super) handshakes: u32,

    /// A token for the viewers; without it they read anonymously
    #[arg(long)]
    #[serde(skip)]
    pub(super) token: Option<String>,

    /// Another server than ringcast, as this file describes it
    #[arg(long, value_name = "FILE")]
    pub(super) target: Option<PathBuf>,

    /// Its own node
    #[command(flatten)]
    #[serde(flatten)]
    pub(super) start: StartArgs,
}

impl IdleArgs {
    /// The same as a fan-out that posts nothing.
    pub(super) fn as_fanout(&self) -> FanoutArgs {
        let start = self.start.clone();
        FanoutArgs {
            viewers: self.viewers,
            channels: self.channels,
            rate: 1.0,
            payload: 0,
            seconds: self.seconds.max(1),
            slow: Share(0.0),
            drop_at: None,
            url: None,
            admin: None,
            app: "demo".to_owned(),
            key: None,
            token: self.token.clone(),
            shards: start.shards,
            node_args: start.node_args,
            burst: 1,
            ephemeral: false,
            warmup_s: 0,
            join_rate: self.join_rate,
            handshakes: self.handshakes,
            threads: 1,
            viewers_a_process: start.viewers_a_process,
            post_connections: None,
            cpus: start.cpus,
            floor: None,
            target: self.target.clone(),
            bare: None,
            json: start.json,
        }
    }
}

impl FanoutArgs {
    /// What no single option can know.
    ///
    /// # Errors
    /// A sentence for the user.
    pub(super) fn check(&self) -> Result<(), String> {
        if self.slow.0 > 0.0 && self.seconds < 3 {
            return Err(
                "--slow pauses from 1 s after the start to 1 s before the end: it needs --seconds 3 or more".into()
            );
        }
        if self.drop_at.is_some_and(|at| at >= self.seconds) {
            return Err("--drop-at must lie before the end of --seconds".into());
        }
        if self.url.is_some() && self.key.is_none() {
            return Err("--url needs --key: the server key of the app, or a file that holds it".into());
        }
        let name = |c: char| c.is_ascii_alphanumeric() || "._-:@".contains(c);
        if self.app.is_empty() || self.app.len() > 128 || !self.app.chars().all(name) {
            return Err(format!("--app: {:?} is not the name of an app", self.app));
        }
        let posts = self.rate * f64::from(self.warmup_s + self.seconds);
        if posts < 1.0 {
            return Err("--rate and --seconds give less than one message".into());
        }
        Ok(())
    }

    /// Connections that post.
    pub(super) fn connections(&self) -> usize {
        self.post_connections.unwrap_or_else(|| (self.burst * 2).clamp(16, 256)) as usize
    }
}

fn positive(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(number) if number > 0.0 && number <= 10_000_000.0 => Ok(number),
        _ => Err("a number above 0, and at most 10000000".into()),
    }
}

/// A part of the audience, 0 to 1.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(super) struct Share(pub(super) f64);

impl FromStr for Share {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.strip_suffix('%').unwrap_or(text).trim().parse::<f64>() {
            Ok(percent) if (0.0..=100.0).contains(&percent) => Ok(Self(percent / 100.0)),
            _ => Err("a share is written like 10%, from 0% to 100%".into()),
        }
    }
}

impl fmt::Display for Share {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}%", self.0 * 100.0)
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        load: LoadArgs,
    }

    /// The options that `line` gives.
    pub(in crate::load) fn fanout(line: &str) -> Result<FanoutArgs, clap::Error> {
        let words = ["load", "fanout"].into_iter().chain(line.split_whitespace());
        match Line::try_parse_from(words)?.load.scenario {
            Some(Scenario::Fanout(args)) => Ok(args),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn shares_are_percent() {
        assert_eq!("10%".parse(), Ok(Share(0.1)));
        assert_eq!("0".parse(), Ok(Share(0.0)));
        assert!("101%".parse::<Share>().is_err());
        assert!("x".parse::<Share>().is_err());
    }

    #[test]
    fn the_documented_line_is_understood_and_wrong_use_is_not() {
        let args =
            fanout("--viewers 100 --channels 3 --rate 50 --payload 64 --seconds 5 --slow 10% --json --node-arg --x");
        let args = args.unwrap();
        assert_eq!((args.viewers, args.channels, args.seconds, args.slow), (100, 3, 5, Share(0.1)));
        assert_eq!(args.node_args, ["--x"]);
        assert!(args.check().is_ok());
        assert!(fanout("--channels 3").is_err());
        assert!(fanout("--viewers 0").is_err());
        assert!(fanout("--viewers 1 --url http://10.1.1.1:1 --key rk_x").is_err());
        assert!(fanout("--viewers 1 --url http://127.0.0.1:1 --shards 2").is_err());
        assert!(fanout("--viewers 1 --url http://127.0.0.1:1").unwrap().check().is_err());
        assert!(fanout("--viewers 1 --seconds 2 --slow 10%").unwrap().check().is_err());
    }

    #[test]
    fn loads_that_start_their_own_node_are_told_of_it_alike() {
        let of = |load: &str| {
            let words = format!("load {load} --shards 2 --node-arg --x --cpus 0,1 --viewers-a-process 5 --json");
            match Line::try_parse_from(words.split_whitespace()).unwrap().load.scenario {
                Some(Scenario::Sunday(args)) => (serde_json::to_value(&args).unwrap(), args.as_fanout(9, 3)),
                Some(Scenario::Idle(args)) => (serde_json::to_value(&args).unwrap(), args.as_fanout()),
                other => panic!("{other:?}"),
            }
        };
        for load in ["sunday", "idle --viewers 9"] {
            let (told, fanout) = of(load);
            assert_eq!((told["shards"].as_u64(), told["viewers_a_process"].as_u64()), (Some(2), Some(5)), "{told}");
            assert_eq!((fanout.shards, fanout.viewers_a_process, fanout.json), (Some(2), Some(5), true));
            assert_eq!((&fanout.node_args[..], &fanout.cpus[..]), (&["--x".to_owned()][..], &[0, 1][..]));
        }
    }
}
