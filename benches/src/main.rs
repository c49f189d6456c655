//! `tine-bench`: what Tine costs, measured in the same run as what other monitors cost.
//!
//! One file a question (`questions/`). A question prepares each contestant's command lines, has
//! them taken in turn (`rounds`) and says what it measured; comparing (`compare`) and printing
//! (`report`) are the same for all. What is measured from which instant to which stands in
//! NOTES.md, with figures.

mod api;
mod cli;
mod compare;
mod contestant;
mod guest;
mod host;
mod mounts;
mod peers;
mod process;
mod program;
mod questions;
mod report;
mod rounds;
mod smaps;
mod stats;

use std::process::ExitCode;

use clap::Parser;

use crate::cli::Args;
use crate::questions::Bench;
use crate::report::Report;

fn main() -> ExitCode {
    match run(&Args::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(err) => {
            eprintln!("tine-bench: {err:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(args: &Args) -> anyhow::Result<()> {
    let contestants = contestant::line_up(args.tine.as_deref(), &args.peers)?;
    let host = host::Facts::gather();
    for warning in host.warnings() {
        eprintln!("tine-bench: {warning}");
    }
    let mut report = Report::new(host, &contestants);
    let bench = Bench::new(args, contestants)?;
    for question in questions::asked(&args.questions) {
        report.answers.push((question.answer)(&bench)?);
    }
    report::write(&report, args)
}
