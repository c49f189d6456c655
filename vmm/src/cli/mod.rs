//! The command line: what the words mean, and what becomes of them.
//!
//! Exit statuses: a command's own; 128 and the signal's number when it was killed; 124 when time
//! ran out; 1 when Tine itself could not do what was asked; 2 when the words made no sense.

mod parse;
mod run;
mod signals;
mod timing;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Runs code you did not write in a machine of its own.
#[derive(Parser)]
#[command(name = "tine", version, max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Boot a machine, run a command in it, and remove it
    Run(run::Args),
}

/// Runs what the process's arguments say.
pub fn main() -> ExitCode {
    let cli = Cli::parse();
    let result = match cli.command {
        Command::Run(args) => run::run(args),
    };
    match result {
        Ok(status) => ExitCode::from(status),
        Err(err) => {
            // A broken pipe on standard error leaves nobody to tell.
            let _ = std::io::Write::write_all(
                &mut std::io::stderr(),
                format!("tine: {err}\n").as_bytes(),
            );
            ExitCode::from(1)
        }
    }
}
