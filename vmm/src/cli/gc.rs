//! `tine gc`: the end of what machines left that were killed, and of what a power cut left.

use std::path::{Path, PathBuf};

use serde_json::json;
use tine_jailer::Collected;

use super::failure::Failure;
use super::machines::{self, Known};
use super::{jail, leftover, output, rm, rundir};

/// Remove what is left of machines whose process was killed, and of a power cut
#[derive(clap::Args)]
#[command(after_help = "\
Removed are the jails of dead machines with their cgroups, what jails share once none is left, and the
directories of machines that are `dead` in `tine ps`: with their consoles, records, and layers of
disks. Ended are processes that wait for a machine which whoever started them can make no more. Machines that run or have ended with a word of their own are left alone, and so is what is just
being made.

Examples:
  tine gc --dry-run
  tine gc --json")]
pub struct Args {
    /// Tell what would be removed, and remove nothing
    #[arg(long)]
    dry_run: bool,
    /// Print a JSON object
    #[arg(long)]
    json: bool,
}

/// What came of it.
#[derive(Default)]
struct Done {
    removed: Vec<PathBuf>,
    left: Vec<(PathBuf, String)>,
}

/// Removes it; the result is the status to exit with.
pub async fn gc(args: Args) -> Result<u8, Failure> {
    let mut done = Done::default();
    let base = jail::base()?;
    let jails = tine_jailer::collect(&base, args.dry_run);
    let Collected { removed, left, .. } = jails.map_err(|err| Failure::new(err.to_string()))?;
    done.removed.extend(removed);
    done.left.extend(left);
    for known in machines::all().await? {
        if matches!(known.state.as_str(), "dead" | "deleted") {
            remove(&known, args.dry_run, &mut done);
        } else if known.state == "created" {
            end_if_left(&known, args.dry_run, &mut done).await;
        }
    }
    if !args.dry_run {
        for dir in jail::note::orphans(&rundir::root()?) {
            // What cannot be removed is in nobody's way.
            let _ = jail::note::forget(&dir);
        }
        jail::drop_base(&base);
    }
    let failed: Vec<String> = done
        .left
        .iter()
        .map(|(path, why)| format!("{} stays: {why}", path.display()))
        .collect();
    output::print(&match args.json {
        true => output::pretty(&json!({
            "dry_run": args.dry_run,
            "removed": done.removed,
            "left": done.left.iter().map(|(path, why)| json!({ "path": path, "reason": why }))
                .collect::<Vec<_>>(),
        })),
        false => done
            .removed
            .iter()
            .map(|path| format!("{}\n", path.display()))
            .collect(),
    })?;
    match failed.is_empty() {
        true => Ok(0),
        false => Err(Failure::new(failed.join("\ntine: "))),
    }
}

/// Ends a process that was to become a machine, and whose maker was killed before it could say which.
async fn end_if_left(known: &Known, dry_run: bool, done: &mut Done) {
    let dir: &Path = &known.run_dir;
    let begun = dir.join(rundir::BEGUN).symlink_metadata().is_ok();
    let Some(_lock) = leftover::own(dir).filter(|_| begun) else {
        return;
    };
    let ended = match dry_run {
        true => Ok(()),
        false => rm::remove(&known.id, true).await,
    };
    match ended {
        Ok(()) => done.removed.push(dir.to_owned()),
        Err(failure) => done.left.push((dir.to_owned(), failure.words)),
    }
}

/// Removes the directory of a dead machine, if nobody has begun another one in it meanwhile.
fn remove(known: &Known, dry_run: bool, done: &mut Done) {
    let dir: &Path = &known.run_dir;
    let Some(_lock) = leftover::own(dir) else {
        return;
    };
    if rundir::is_served(dir) {
        return;
    }
    match dry_run {
        true => done.removed.push(dir.to_owned()),
        false => match rundir::remove(dir) {
            Ok(()) => done.removed.push(dir.to_owned()),
            Err(err) => done.left.push((dir.to_owned(), err.to_string())),
        },
    }
}
