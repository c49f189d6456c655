//! The command line of the benchmark.

use std::path::PathBuf;

use clap::builder::PossibleValuesParser;

use crate::peers::{self, Peer};
use crate::questions;

/// Measures what Tine costs, side by side with other monitors.
///
/// Contestants take turns, so that all of them meet the same moods of the machine. Tine takes
/// part twice: what it differs from itself by is the noise, and no smaller difference counts.
#[derive(clap::Parser)]
#[command(
    version,
    max_term_width = 100,
    after_help = "\
Examples:
  tine-bench cold-start
  tine-bench --peer firecracker=/usr/bin/firecracker --json figures.json --html figures.html
  tine-bench --from figures.json --html figures.html
  tine-bench --baseline ../before/target/release cold-start restore socket
  tine-bench --peer other='/opt/vmm --kernel {kernel} --mib {memory} --serial stdout' memory"
)]
pub struct Args {
    /// What to measure
    #[arg(value_name = "QUESTION", default_value = questions::ALL,
          value_parser = PossibleValuesParser::new(questions::names()))]
    pub questions: Vec<String>,
    /// A monitor to compare with: one of those known by name, or any command line with {kernel}
    /// and {memory} (MiB) in it that has COM1 on its standard output
    #[arg(long = "peer", value_name = "NAME=PATH|NAME=COMMAND", value_parser = peers::parse)]
    pub peers: Vec<Peer>,
    /// The `tine` to measure [default: the one beside this program]
    #[arg(long, value_name = "PATH")]
    pub tine: Option<PathBuf>,
    /// Rounds to measure [default: depends on the question]
    #[arg(long, value_name = "N", value_parser = count)]
    pub runs: Option<usize>,
    /// Rounds before that, which do not count
    #[arg(long, value_name = "N", default_value_t = 3)]
    pub warm_up: usize,
    /// Write everything, every single value too, to this file
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Write tables for a document to this file
    #[arg(long, value_name = "FILE")]
    pub markdown: Option<PathBuf>,
    /// Write a page with plots to this file, which needs nothing beside it
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
    /// Measure nothing: take what an earlier run wrote with --json
    #[arg(long, value_name = "FILE", conflicts_with_all = ["questions", "peers", "tine", "runs"])]
    pub from: Option<PathBuf>,
    /// Measure nothing: have `perf trace` or `strace` look at one start of each, and tell system
    /// calls and page faults phase by phase, of cold-start, restore and fork
    #[arg(long, conflicts_with_all = ["from", "baseline"])]
    pub profile: bool,
    /// Compare with an earlier build, and end with status 3 if this one is slower: the directory
    /// its `tine` is in, which then takes part, or a report that has a --peer of this run in it
    #[arg(long, value_name = "DIR|FILE")]
    pub baseline: Option<PathBuf>,
}

fn count(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(number @ 1..=1_000_000) => Ok(number),
        _ => Err("a number from 1 to 1000000 is needed".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use clap::{CommandFactory, Parser};

    use super::*;

    #[test]
    fn the_definition_holds_together() {
        Args::command().debug_assert();
    }

    #[test]
    fn everything_is_asked_when_nothing_is_named() {
        let args = Args::parse_from(["tine-bench"]);
        assert_eq!(args.questions, [questions::ALL]);
    }

    #[test]
    fn a_report_that_is_taken_needs_no_question() {
        assert!(Args::try_parse_from(["tine-bench", "--from", "x.json"]).is_ok());
        assert!(Args::try_parse_from(["tine-bench", "--from", "x.json", "memory"]).is_err());
    }

    #[test]
    fn a_round_at_least_is_measured() {
        assert!(Args::try_parse_from(["tine-bench", "--runs", "0"]).is_err());
        assert!(Args::try_parse_from(["tine-bench", "no-such-question"]).is_err());
    }
}
