//! The command line of ringcast.

use clap::{Parser, Subcommand};
use std::process::ExitCode;

#[cfg(feature = "mimalloc")]
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

#[derive(Parser)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Put a measured load on a node of this machine and audit every delivery
    Load(ringcast::load::LoadArgs),
    /// Run a node
    Serve(Serve),
}

#[derive(clap::Args)]
struct Serve {
    #[arg(long)]
    data_dir: Option<std::path::PathBuf>,
    #[arg(long)]
    listen: Option<std::net::SocketAddr>,
    #[arg(long)]
    admin: Option<std::net::SocketAddr>,
    #[arg(long)]
    shards: Option<u16>,
    #[arg(long)]
    test_echo: bool,
}

fn main() -> ExitCode {
    match Cli::parse().command {
        Command::Load(args) => ringcast::load::run(args),
        Command::Serve(args) => {
            let overrides = ringcast::config::Overrides {
                data_dir: args.data_dir,
                listen: args.listen,
                admin: args.admin,
                shards: args.shards,
                orchestrator_core: None,
                test_echo: args.test_echo,
            };
            let config = ringcast::config::Config::load(None, &overrides).unwrap();
            match ringcast::node::serve(config) {
                Ok(()) => ExitCode::SUCCESS,
                Err(error) => {
                    eprintln!("ringcast: {error}");
                    ExitCode::from(error.exit_code)
                }
            }
        }
    }
}
