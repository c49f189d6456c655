//! `tine-bench`: what Tine costs, measured in the same run as what other monitors cost.
//!
//! One file a question (`questions/`). A question prepares each contestant's command lines, has
//! them taken in turn (`rounds`) and says what it measured; comparing (`compare`) and printing
//! (`report`) are the same for all. What is measured from which instant to which stands in
//! NOTES.md, with figures.

mod api;
mod arrivals;
mod cli;
mod compare;
mod contestant;
mod guard;
mod guest;
mod host;
mod mounts;
mod peers;
mod process;
mod profile;
mod program;
mod questions;
mod report;
mod rounds;
mod smaps;
mod stats;
mod unit;

use std::process::ExitCode;

use clap::Parser;

use crate::cli::Args;
use crate::guard::Baseline;
use crate::questions::Bench;
use crate::report::Report;

fn main() -> ExitCode {
    match run(&Args::parse()) {
        Ok(status) => status,
        Err(err) => {
            eprintln!("tine-bench: {err:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let baseline = args.baseline.as_deref().map(Baseline::open).transpose()?;
    let mut report = match &args.from {
        Some(path) => report::read(path)?,
        None => measure(args, baseline.as_ref())?,
    };
    if let Some(Baseline::Report(then)) = &baseline {
        report.guard = Some(guard::against_report(&report, then)?);
    }
    report::write(&report, args)?;
    let slower = report.guard.is_some_and(|guard| !guard.slower.is_empty());
    Ok(match slower && baseline.is_some() {
        true => ExitCode::from(guard::SLOWER),
        false => ExitCode::SUCCESS,
    })
}

fn measure(args: &Args, baseline: Option<&Baseline>) -> anyhow::Result<Report> {
    let before = baseline.and_then(Baseline::build);
    let contestants = contestant::line_up(args.tine.as_deref(), before, &args.peers)?;
    let host = host::Facts::gather();
    for warning in host.warnings() {
        eprintln!("tine-bench: {warning}");
    }
    let mut report = Report::new(host, &contestants);
    let bench = Bench::new(args, contestants)?;
    if args.profile {
        report.profile = Some(profile::look(&bench, &args.questions)?);
        return Ok(report);
    }
    report.answers = questions::ask(&bench, &args.questions)?;
    if let Some(tine) = before {
        let again = |names: &[String]| questions::ask(&bench.again()?, names);
        report.guard = Some(guard::against_build(&report.answers, tine, again)?);
    }
    report.host.end();
    Ok(report)
}
