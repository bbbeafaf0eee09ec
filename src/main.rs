//! The command line of ringcast.

use clap::{Parser, Subcommand};
use std::process::ExitCode;

#[derive(Parser)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Put a measured load on a node of this machine and audit every delivery
    Load(ringcast::load::LoadArgs),
}

fn main() -> ExitCode {
    match Cli::parse().command {
        Command::Load(args) => ringcast::load::run(args),
    }
}
