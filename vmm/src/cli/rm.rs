//! `tine rm`: the end of machines, and of what is left of them.

use std::path::Path;
use std::time::Duration;

use tine::client::Machine;

use super::failure::Failure;
use super::jail;
use super::leftover::kill_process_of;
use super::machines::{self, Known};
use super::output;
use super::rundir::{self, SOCKET};
use tine::launch::Pidfd;

/// How long a machine's process may take to accept its deletion, and then to end.
const PATIENCE: Duration = Duration::from_secs(10);

/// Remove machines that have ended; with -f also those that run
#[derive(clap::Args)]
#[command(after_help = "\
With -f a machine that runs is deleted: its guest is not asked, and what it has not written is lost.
The console and the records of a machine go with it.

Examples:
  tine rm web
  tine rm -f web build-1 build-2")]
pub struct Args {
    /// Also end a machine that runs
    #[arg(short, long)]
    force: bool,
    /// The machines
    #[arg(value_name = "ID", required = true, value_parser = rundir::id)]
    ids: Vec<String>,
}

/// Removes the machines, each whether or not another one could be.
pub async fn rm(args: Args) -> Result<u8, Failure> {
    let mut failures = Vec::new();
    for id in &args.ids {
        match remove(id, args.force).await {
            Ok(()) => output::print(&format!("{id}\n"))?,
            Err(failure) => failures.push(failure.words),
        }
    }
    match failures.is_empty() {
        true => Ok(0),
        false => Err(Failure::new(failures.join("\ntine: "))),
    }
}

/// Removes a machine; with `force` one that runs, too.
pub async fn remove(id: &str, force: bool) -> Result<(), Failure> {
    let dir = rundir::find(id)?;
    let served = rundir::is_served(&dir);
    if served && !force && !is_ending(id, &dir).await {
        return Err(Failure::new(format!(
            "machine {id} runs: `tine rm -f {id}` ends and removes it"
        )));
    }
    if !served && machines::is_being_made(&dir) {
        return Err(Failure::new(format!(
            "machine {id} is just being made: try again, or end the `tine run` that makes it"
        )));
    }
    if served {
        end(id, &dir).await?;
    }
    // It may have no socket any more and be writing its last record, or have none yet, since who made
    // it was killed.
    kill_process_of(&dir);
    jail::kill(&dir)?;
    rundir::remove(&dir)
        .map_err(|err| Failure::new(format!("cannot remove {}: {err}", dir.display())))?;
    if !served {
        // One that was about to become a machine has found its directory until now.
        kill_process_of(&dir);
    }
    jail::discard(&dir)
}

/// Whether the machine is over, and its process on its way out.
async fn is_ending(id: &str, dir: &Path) -> bool {
    let known = Known::look(id.to_owned(), dir.to_owned()).await;
    match known.state.as_str() {
        // It may have ended between the two looks.
        "silent" => !rundir::is_served(dir),
        "failed" => true,
        _ => known.pid.is_none() || known.is_over(),
    }
}

/// Ends the machine's process: in its own way, and if it does not, with SIGKILL.
async fn end(id: &str, dir: &Path) -> Result<(), Failure> {
    let socket = dir.join(SOCKET);
    let Some(process) = Pidfd::serving(&socket).await else {
        return Ok(());
    };
    let machine = Machine::at(&socket);
    // A process that cannot record the deletion is ended all the same: its records go too.
    let _ = tokio::time::timeout(PATIENCE, machine.delete()).await;
    if process.has_ended(PATIENCE) {
        return Ok(());
    }
    eprintln!("tine: machine {id} does not end by itself: killed");
    process.kill();
    match process.has_ended(PATIENCE) {
        true => Ok(()),
        false => Err(Failure::new(format!(
            "machine {id}: its process does not end"
        ))),
    }
}
