//! `tine snapshot`: a machine into a directory, and what can be done with one.

mod directory;
mod take;

use std::path::PathBuf;

use super::failure::Failure;
use super::rundir;

/// Take a snapshot of a machine into a directory, which goes on meanwhile
#[derive(clap::Args)]
#[command(
    args_conflicts_with_subcommands = true,
    subcommand_negates_reqs = true,
    after_help = "\
A full snapshot is memory, devices and disks as one thing. In a machine restored from it:
  files        are as they were, those in memory file systems too
  processes    go on
  connections  to the host and the network end, and are made anew
  clock, random numbers, generation (/run/tine/generation)  are new
  credentials  are whatever memory and disks hold: a snapshot is as secret as its machine

With --disk a snapshot has the disks alone, whose file systems the guest holds still for the
moment: a machine that is restored from it boots, and finds its files and nothing else.

The machine stands still for milliseconds, and the snapshot is written while it goes on. Where
most of memory is in an earlier snapshot on the same file system, its files are shared by hard
links, and only what has changed is written: each snapshot is whole, and any can be removed.

Examples:
  tine snapshot web /srv/snapshots/web-1
  tine snapshot --stop web /srv/snapshots/web-2
  tine snapshot verify /srv/snapshots/web-1"
)]
pub struct Args {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    take: Option<take::Args>,
}

#[derive(clap::Subcommand)]
enum Command {
    /// Print what a snapshot is
    Inspect(directory::Inspect),
    /// Check every byte of a snapshot
    Verify(directory::Verify),
    /// Make a snapshot of one layer each of memory and disks, which shares nothing
    Flatten(directory::Flatten),
}

/// Does what the words say.
pub async fn snapshot(args: Args) -> Result<u8, Failure> {
    match (args.command, args.take) {
        (Some(Command::Inspect(args)), _) => directory::inspect(&args),
        (Some(Command::Verify(args)), _) => directory::verify(&args),
        (Some(Command::Flatten(args)), _) => directory::flatten(&args),
        (None, Some(args)) => take::take(args).await,
        (None, None) => Err(Failure::usage("give a machine and a directory")),
    }
}

/// A path for a process that works elsewhere.
fn absolute(path: &PathBuf) -> Result<PathBuf, Failure> {
    std::path::absolute(path)
        .map_err(|err| Failure::new(format!("cannot use the path {}: {err}", path.display())))
}
