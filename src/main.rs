//! The command line of ringcast: words flow in, one subcommand runs, its exit code flows out.
//!
//! Always true: 0 is done, 1 is a check or an audit that failed, 2 is wrong use, 3 is a machine or data that refuse.

use clap::{Args, Parser, Subcommand};
use ringcast::base::Name;
use ringcast::config::{Config, Overrides, demo, fresh};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

#[cfg(feature = "mimalloc")]
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const CHECK_FAILED: u8 = 1;
const WRONG_USE: u8 = 2;
const REFUSED: u8 = 3;

/// A WebSocket node for live events: one message in, one to everybody who watches.
///
/// Begin with `ringcast serve`: it needs no configuration, listens on 127.0.0.1:8080 and makes the keys of an app named
/// `demo` in ./ringcast-data. Exit codes: 0 done, 1 a check or an audit failed, 2 wrong use, 3 the machine or the data
/// refuse.
#[derive(Parser)]
#[command(version, max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run a node until SIGTERM or SIGINT
    ///
    /// Without --config every value has its default, and the app `demo` is there, for loopback only. Arguments win over
    /// the file.
    Serve(ServeArgs),
    /// Print a token of the demo app, for tries and tests
    ///
    /// The token is signed with the secret in DIR/demo.jwt, which a node makes at its first start. Apps of a
    /// configuration sign their tokens where their users log in.
    Token(TokenArgs),
    /// Make an app: a block for the configuration, with fresh keys
    App {
        #[command(subcommand)]
        command: AppCommand,
    },
    /// Put a measured load on a node of this machine and audit every delivery
    Load(Box<ringcast::load::LoadArgs>),
    /// Watch one channel and print its events, a line each
    Watch(ringcast::load::WatchArgs),
    /// Copy the database of a data directory to a file while the node runs
    ///
    /// The copy is of one moment, read through once more and synced before it gets its name. A file that is there is not
    /// overwritten.
    Backup {
        /// The data directory of the node
        #[arg(long, value_name = "DIR", default_value = "./ringcast-data")]
        data_dir: PathBuf,
        /// The copy
        file: PathBuf,
    },
    /// Make the database of a data directory from a copy
    ///
    /// No node may run on the directory, and a database that is there is not overwritten. Every channel gets a new epoch:
    /// who comes back with a position of the lost time is told that it cannot be honoured.
    Restore {
        /// The data directory of the node
        #[arg(long, value_name = "DIR", default_value = "./ringcast-data")]
        data_dir: PathBuf,
        /// The copy
        file: PathBuf,
    },
    /// Check a configuration file and start nothing
    ///
    /// Prints the first fault with its line, its key, its value and what is allowed, and exits with 1.
    CheckConfig {
        /// The file
        file: PathBuf,
    },
}

#[derive(Subcommand)]
enum AppCommand {
    /// Print an `[[app]]` with a fresh secret, to be appended to a configuration, and its server key
    ///
    /// The block goes to standard output, so `>> ringcast.toml` takes it and nothing else. The server key goes to standard
    /// error, once: the block holds its hash only.
    New {
        /// The app's name: 1 to 128 of A-Z a-z 0-9 . _ - : @
        #[arg(value_parser = |text: &str| Name::new(text).map_err(|why| why.to_string()))]
        name: Name,
    },
}

#[derive(Args)]
struct ServeArgs {
    /// The configuration; shard-config/default.toml states every key
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,

    /// Where the database and the demo app's keys are [default: ./ringcast-data]
    #[arg(long, value_name = "DIR")]
    data_dir: Option<PathBuf>,

    /// Where viewers and posts arrive [default: 127.0.0.1:8080]
    #[arg(long, value_name = "ADDR")]
    listen: Option<SocketAddr>,

    /// Where /healthz, /readyz and /metrics are asked for [default: 127.0.0.1:8081]
    #[arg(long, value_name = "ADDR")]
    admin: Option<SocketAddr>,

    /// Cores that hold sockets [default: the cores of this process less one, at least 1]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=256))]
    shards: Option<u16>,

    /// The core of the orchestrator and the store [default: the first of this process]
    #[arg(long, value_name = "C")]
    orchestrator_core: Option<u16>,

    /// Echo what comes in at /test/echo, for conformance tests
    #[arg(long, hide = true)]
    test_echo: bool,
}

#[derive(Args)]
struct TokenArgs {
    /// The data directory of the node
    #[arg(long, value_name = "DIR", default_value = "./ringcast-data")]
    data_dir: PathBuf,

    /// The app
    #[arg(long, default_value = demo::NAME)]
    app: String,

    /// The user's id: 1 to 128 of A-Z a-z 0-9 . _ - : @
    #[arg(long, value_name = "USER")]
    sub: String,

    /// The user's name, as others see it
    #[arg(long)]
    name: Option<String>,

    /// How long it is valid: 30s, 15m, 1h, 7d
    #[arg(long, default_value = "1h", value_parser = duration)]
    expires: Duration,
}

fn main() -> ExitCode {
    let done = match Cli::parse().command {
        Command::Load(args) => return ringcast::load::run(*args),
        Command::Watch(args) => return ringcast::load::run_watch(&args),
        Command::Serve(args) => serve(args),
        Command::Token(args) => token(&args),
        Command::Backup { data_dir, file } => copied(ringcast::node::backup(&data_dir, &file)),
        Command::Restore { data_dir, file } => copied(ringcast::node::restore(&data_dir, &file)),
        Command::App { command: AppCommand::New { name } } => new_app(&name),
        Command::CheckConfig { file } => match Config::load(Some(&file), &Overrides::default()) {
            Ok(_) => {
                println!("{}: good", file.display());
                Ok(())
            }
            Err(error) => Err((CHECK_FAILED, error.to_string())),
        },
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err((code, message)) => {
            eprintln!("ringcast: {message}");
            code.into()
        }
    }
}

fn serve(args: ServeArgs) -> Result<(), (u8, String)> {
    let ServeArgs { config, data_dir, listen, admin, shards, orchestrator_core, test_echo } = args;
    let overrides = Overrides { data_dir, listen, admin, shards, orchestrator_core, test_echo };
    let config = Config::load(config.as_deref(), &overrides).map_err(|error| (WRONG_USE, error.to_string()))?;
    ringcast::node::serve(config).map_err(|error| (error.exit_code, error.to_string()))
}

fn copied(done: Result<(), ringcast::node::NodeError>) -> Result<(), (u8, String)> {
    done.map_err(|error| (error.exit_code, error.to_string()))
}

fn token(args: &TokenArgs) -> Result<(), (u8, String)> {
    if args.app != demo::NAME {
        let message = format!("--app {}: only the secret of the app {} lies in a data directory", args.app, demo::NAME);
        return Err((WRONG_USE, message));
    }
    let secret = demo::secret(&args.data_dir).map_err(|error| (REFUSED, error.to_string()))?;
    let expires_s = now().saturating_add(args.expires).as_secs();
    let token = ringcast::admission::auth::make_token(secret.as_bytes(), &args.sub, args.name.as_deref(), expires_s);
    println!("{}", token.map_err(|why| (WRONG_USE, why))?);
    Ok(())
}

fn new_app(name: &Name) -> Result<(), (u8, String)> {
    let app = fresh::app(name).map_err(|why| (REFUSED, why))?;
    print!("{}", app.block);
    eprintln!("The server key of {name}, for its backend; it is not shown again:\n  {}", app.server_key);
    Ok(())
}

/// The time since 1970.
#[allow(
    clippy::disallowed_methods,
    reason = "a command that prints one token is no state machine: it is its own clock"
)]
fn now() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

/// A whole number of seconds, minutes, hours or days, from a second to ten years.
fn duration(text: &str) -> Result<Duration, String> {
    const FORM: &str = "write a number and s, m, h or d, such as 30s, 15m, 1h or 7d";
    let unit_s = match text.chars().last() {
        Some('s') => 1,
        Some('m') => 60,
        Some('h') => 3_600,
        Some('d') => 86_400,
        _ => return Err(FORM.into()),
    };
    let number: u64 = text[..text.len() - 1].parse().map_err(|_| FORM.to_owned())?;
    match number.checked_mul(unit_s) {
        Some(seconds @ 1..=315_360_000) => Ok(Duration::from_secs(seconds)),
        _ => Err("from 1s to 3650d is allowed".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_sound() {
        Cli::command().debug_assert();
    }

    #[test]
    fn durations() {
        let seconds = |text: &str| duration(text).map(|duration| duration.as_secs());
        assert_eq!(
            [seconds("30s"), seconds("15m"), seconds("1h"), seconds("7d")],
            [Ok(30), Ok(900), Ok(3_600), Ok(604_800)]
        );
        for bad in ["", "h", "1", "-1s", "1.5h", "0s", "3651d", "99999999999999999999d", "1µ", "1 h"] {
            assert!(duration(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn arguments_become_overrides() {
        let line = ["ringcast", "serve", "--listen", "127.0.0.1:0", "--shards", "2", "--test-echo"];
        let Command::Serve(args) = Cli::try_parse_from(line).unwrap().command else { panic!() };
        assert_eq!((args.listen.unwrap().port(), args.shards, args.test_echo), (0, Some(2), true));
        assert!(Cli::try_parse_from(["ringcast", "serve", "--shards", "0"]).is_err());
        assert!(Cli::try_parse_from(["ringcast", "serve", "--listen", "localhost:80"]).is_err());
        assert!(Cli::try_parse_from(["ringcast", "token"]).is_err());
        assert!(Cli::try_parse_from(["ringcast", "app", "new", "shop"]).is_ok());
        assert!(Cli::try_parse_from(["ringcast", "app", "new", "a shop"]).is_err());
        assert!(Cli::try_parse_from(["ringcast", "app"]).is_err());
    }
}
