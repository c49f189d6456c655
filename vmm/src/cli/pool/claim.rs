//! Machines of a pool, taken: to keep, or for one command.

use std::future::pending;
use std::time::{Duration, Instant};

use rustix::fs::inotify::WatchFlags;
use serde_json::json;
use tine::client::{Machine, WriteOptions};

use super::clear::end;
use super::place::{Claimed, Pool, Stage};
use super::watch::Watch;
use crate::cli::exec::Place;
use crate::cli::exit::{self, TIMED_OUT};
use crate::cli::failure::Failure;
use crate::cli::identity;
use crate::cli::rundir::{self, SOCKET};
use crate::cli::session::{self, Ended, Signals};
use crate::cli::template::{Named, Store, named};
use crate::cli::{output, parse};
use tine::launch::Pidfd;

/// How long a claim waits when nothing is said.
const PATIENCE: Duration = Duration::from_secs(300);

/// `tine pool claim`.
#[derive(clap::Args)]
#[command(after_help = "\
The machine is the caller's from then on, and ends with `tine rm -f`. Where none is ready, this waits
for the pool to have one.

Examples:
  id=$(tine pool claim web)
  tine exec $id -- git status; tine rm -f $id")]
pub struct Args {
    /// Wait for so long at most (status 124) [default: 5m]
    #[arg(long, value_name = "TIME", value_parser = parse::duration)]
    timeout: Option<Duration>,
    /// Print a JSON object instead of the id
    #[arg(long)]
    json: bool,
    /// The template
    #[arg(value_name = "NAME[@VERSION]", value_parser = named)]
    template: Named,
}

/// Claims a machine; the result is the status to exit with.
pub async fn claim(args: Args) -> Result<u8, Failure> {
    let limit = args.timeout.unwrap_or(PATIENCE);
    let claimed = wait(&args.template, limit).await?;
    let id = claimed.done()?;
    let dir = rundir::root()?.join(&id);
    let text = match args.json {
        true => output::pretty(&json!({ "id": id, "run_dir": dir, "socket": dir.join(SOCKET) })),
        false => format!("{id}\n"),
    };
    if let Err(failure) = output::print(&text) {
        // Nobody knows of it.
        crate::cli::rm::remove(&id, true).await?;
        return Err(failure);
    }
    Ok(0)
}

/// Claims one that is ready now.
pub async fn ready(template: &Named) -> Result<Option<Claimed>, Failure> {
    let version = Store::of_user()?.version(template)?;
    let pool = Pool::of(&template.name)?;
    for marker in pool.markers(Stage::Ready)? {
        if marker.version != version {
            continue;
        }
        let Some(claimed) = pool.claim(&marker)? else {
            continue;
        };
        let socket = rundir::root()?.join(&marker.id).join(SOCKET);
        // It may have waited for hours: from here on the guest's time is that of now, as are the random
        // bytes that it goes on with.
        if Machine::at(socket).refresh().await.is_ok() {
            return Ok(Some(claimed));
        }
        // It has died, or its guest has, and the pool has not seen it yet.
        end(&marker).await?;
        claimed.done()?;
    }
    Ok(None)
}

/// Claims one as soon as there is one.
async fn wait(template: &Named, limit: Duration) -> Result<Claimed, Failure> {
    let deadline = tokio::time::Instant::from_std(Instant::now() + limit);
    let name = &template.name;
    let pool = Pool::of(name)?;
    let none = || {
        Failure::new(format!(
            "no machine of {name} is ready, and no pool makes any: `tine pool start {name}`"
        ))
    };
    let watch = Watch::new()?;
    if watch
        .add(&pool.stage(Stage::Ready), WatchFlags::MOVED_TO)
        .is_err()
    {
        return Err(none());
    }
    loop {
        let keeper = keeper_of(&pool).await;
        if let Some(claimed) = ready(template).await? {
            return Ok(claimed);
        }
        let Some(keeper) = keeper else {
            return Err(none());
        };
        tokio::select! {
            changed = watch.changed() => changed?,
            // Another look, which finds what it did last; also where its end cannot be waited for.
            _ = keeper.ended() => {}
            () = tokio::time::sleep_until(deadline) => {
                return Err(Failure {
                    status: TIMED_OUT,
                    words: format!("no machine of {name} was ready within {limit:?}"),
                });
            }
        }
    }
}

/// The process that keeps a pool.
pub async fn keeper_of(pool: &Pool) -> Option<Pidfd> {
    let process = Pidfd::serving(&pool.socket().ok()?).await;
    // One that was killed may have left a child that is not a `tine-vmm` yet, and has its socket.
    process.filter(|process| !process.has_ended(Duration::ZERO))
}

/// What a machine is claimed for.
pub struct Job {
    pub command: Vec<std::ffi::OsString>,
    pub place: Place,
    pub files: Vec<parse::Copied>,
    pub interactive: bool,
    pub timeout: Option<Duration>,
}

/// Runs a command in a machine that was claimed, and ends that; the result is the status to exit
/// with. If this process is killed, the pool or the next one who looks ends the machine.
pub async fn run(claimed: Claimed, job: Job) -> Result<u8, Failure> {
    let id = claimed.marker.id.clone();
    let mut signals = Signals::watch()?;
    let started = async {
        let machine = rundir::machine(&id)?;
        let failed = |err| Failure::of(&id, &err);
        for file in identity::read(&job.files)? {
            let path = String::from_utf8_lossy(&file.path.0).into_owned();
            let how = WriteOptions {
                mode: file.mode,
                parents: true,
                ..WriteOptions::default()
            };
            let written = machine
                .files()
                .write(path.as_ref(), file.content.0, how)
                .await;
            written.map_err(failed)?;
        }
        let mut request = job.place.request(&job.command);
        request.stdin = job.interactive;
        request.timeout_ms = job.timeout.map(|limit| limit.as_millis() as u64);
        machine.exec(request).await.map_err(failed)
    };
    let started = tokio::select! {
        started = started => started,
        number = signals.ending() => Err(Failure::signal(number)),
    };
    let ended = match started {
        Ok(exec) => match session::join(exec, signals, None, false).await {
            Ok(Ended::Record(record)) => Ok(exit::status(&record)),
            Ok(Ended::Signal(number)) => Err(Failure::signal(number)),
            // Only a terminal is left.
            Ok(Ended::Detached) => pending().await,
            Err(err) => Err(Failure::of(&id, &err)),
        },
        Err(failure) => Err(failure),
    };
    end(&claimed.marker).await?;
    claimed.done()?;
    ended
}
