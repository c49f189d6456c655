//! `tine rm`: the end of machines, and of what is left of them.

use std::fs;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use tine::client::Machine;
use tokio::net::UnixStream;

use super::failure::Failure;
use super::machines::{self, Known};
use super::output;
use super::rundir::{self, SOCKET};

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

async fn remove(id: &str, force: bool) -> Result<(), Failure> {
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
    fs::remove_dir_all(&dir)
        .map_err(|err| Failure::new(format!("cannot remove {}: {err}", dir.display())))
}

/// Whether the machine is over, and its process on its way out.
async fn is_ending(id: &str, dir: &Path) -> bool {
    let known = Known::look(id.to_owned(), dir.to_owned()).await;
    known.pid.is_none() && known.state != "silent" || known.is_over() || known.state == "failed"
}

/// Ends the machine's process: in its own way, and if it does not, with SIGKILL.
async fn end(id: &str, dir: &Path) -> Result<(), Failure> {
    let socket = dir.join(SOCKET);
    let Some(process) = process(&socket).await else {
        return Ok(());
    };
    let machine = Machine::at(&socket);
    // A process that cannot record the deletion is ended all the same: its records go too.
    let _ = tokio::time::timeout(PATIENCE, machine.delete()).await;
    if has_ended(&process, PATIENCE) {
        return Ok(());
    }
    eprintln!("tine: machine {id} does not end by itself: killed");
    let _ = pidfd_send_signal(&process, Signal::KILL);
    match has_ended(&process, PATIENCE) {
        true => Ok(()),
        false => Err(Failure::new(format!(
            "machine {id}: its process does not end"
        ))),
    }
}

/// The process that serves a socket; `None` when there is none any more.
async fn process(socket: &Path) -> Option<OwnedFd> {
    let stream = UnixStream::connect(socket).await.ok()?;
    let pid = Pid::from_raw(stream.peer_cred().ok()?.pid()?)?;
    let process = pidfd_open(pid, PidfdFlags::empty()).ok()?;
    // It still serves, so the number is still its own.
    UnixStream::connect(socket).await.ok()?;
    Some(process)
}

fn has_ended(process: &OwnedFd, limit: Duration) -> bool {
    let mut polled = [PollFd::from_borrowed_fd(process.as_fd(), PollFlags::IN)];
    let limit = Timespec {
        tv_sec: limit.as_secs() as i64,
        tv_nsec: 0,
    };
    poll(&mut polled, Some(&limit)).is_ok_and(|count| count > 0)
}
