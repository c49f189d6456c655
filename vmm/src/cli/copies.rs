//! Many machines out of one snapshot or one other machine: each in a process of its own, a few on
//! their way at a time, and what becomes of one is nothing to the others.

use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;

use rustix::fs::{AtFlags, CWD, Dir, Mode, OFlags, linkat, openat};
use serde_json::{Value, json};
use tine::client::Machine;
use tine::control::GuestIdentity;
use tine::launch;
use tine_guest_agent::refresh::NewFile;
use tokio::sync::Semaphore;
use tokio::task::{JoinSet, LocalSet};

use super::failure::Failure;
use super::jail::Files;
use super::process::Process;
use super::rundir::{self, CONSOLE, SOCKET};
use super::session::Signals;
use super::{identity, output, parse};

/// How many copies, what they are called, and what they are told.
#[derive(clap::Args)]
pub struct Options {
    /// Number of machines
    #[arg(short = 'n', long, value_name = "N", default_value_t = 1,
        value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub count: u32,
    /// The machine's id; of several ones they are NAME-1, NAME-2, .. [default: random ids]
    #[arg(long, value_name = "NAME", value_parser = rundir::id)]
    pub name: Option<String>,
    /// Write a file of this host into the guest, before the machine counts as running
    #[arg(long = "file", value_name = "PATH:GUEST_PATH", value_parser = parse::file)]
    pub files: Vec<parse::Copied>,
    /// Do not wait for the guests' agents
    #[arg(long)]
    pub no_wait: bool,
    /// Print JSON: an object for each machine
    #[arg(long)]
    pub json: bool,
    /// The time that each may take until it is running
    #[arg(long, value_name = "TIME", value_parser = parse::duration)]
    pub timeout: Option<Duration>,
}

/// What all of them are made from.
pub struct Origin {
    /// Where the layers of their disks have names, if they come from a fork and have disks.
    pub layers: Option<PathBuf>,
    /// What their jails show of the host, if they get any.
    pub files: Option<Files>,
    /// The body of `PUT /v1/restore`, as far as it is the same for all.
    pub request: Value,
    /// There is an agent in their guests.
    pub agent: bool,
    /// Variables for later commands.
    pub env: Vec<(String, String)>,
}

/// What became of one.
pub struct Outcome {
    id: String,
    result: Result<Process, Failure>,
}

/// A machine on its way: nothing is left of it unless it gets there.
struct Unfinished(Option<Process>);

impl Drop for Unfinished {
    fn drop(&mut self) {
        if let Some(process) = &mut self.0 {
            process.clean_up();
        }
    }
}

/// Makes them all. An error only where none was begun, or all were given up for a signal.
pub async fn make(options: &Options, origin: Origin) -> Result<Vec<Outcome>, Failure> {
    check_room(options.count)?;
    let files = identity::read(&options.files)?;
    let mut signals = Signals::watch()?;
    let turns = Rc::new(Semaphore::new(launch::at_a_time()));
    let origin = Rc::new(origin);
    let (wait, limit) = (origin.agent && !options.no_wait, options.timeout);
    let all = async {
        let mut set = JoinSet::new();
        for n in 1..=options.count {
            let id = match (&options.name, options.count) {
                (None, _) => rundir::new_id(),
                (Some(name), 1) => name.clone(),
                (Some(name), _) => format!("{name}-{n}"),
            };
            let (turns, origin, files) = (turns.clone(), origin.clone(), files.clone());
            set.spawn_local(async move {
                // Never closed.
                let _turn = turns.acquire().await;
                let result = one(&id, &origin, files, wait.then_some(limit)).await;
                (n, Outcome { id, result })
            });
        }
        let mut outcomes = set.join_all().await;
        outcomes.sort_by_key(|(n, _)| *n);
        outcomes.into_iter().map(|(_, outcome)| outcome).collect()
    };
    let local = LocalSet::new();
    tokio::select! {
        outcomes = local.run_until(all) => Ok(outcomes),
        // What is on its way goes with its task; what runs already was asked for, and is named to
        // nobody any more.
        number = signals.ending() => Err(Failure::signal(number)),
    }
}

/// Refuses a batch that the host has no room for.
pub fn check_room(count: u32) -> Result<(), Failure> {
    let room = launch::check_room(count, &rundir::make_root()?);
    room.map_err(|err| {
        Failure::new(format!(
            "{err}; ask for fewer, or remove others with `tine rm`"
        ))
    })
}

/// Makes one. With `wait` its agent has answered, within that limit, when this returns; what is
/// given up in between leaves nothing.
pub async fn one(
    id: &str,
    origin: &Origin,
    files: Vec<NewFile>,
    wait: Option<Option<Duration>>,
) -> Result<Process, Failure> {
    let mut unfinished = Unfinished(Some(Process::prepare(
        Some(id.to_owned()),
        origin.files.clone(),
    )?));
    let process = unfinished.0.as_mut().expect("it is there until it is done");
    if let (Some(layers), Some(_)) = (&origin.layers, &origin.files) {
        let linked = link_layers(layers, &process.dir);
        linked.map_err(|err| process.failure(&format!("its disks cannot be shared: {err}")))?;
    }
    let mut request = origin.request.clone();
    if origin.agent {
        let identity = GuestIdentity {
            env: identity::variables(origin.env.iter().cloned()),
            files,
            ..GuestIdentity::of(id)
        };
        identity.put_into_request(&mut request);
    }
    let work = async |process: &Process, machine: &Machine| {
        let serial = json!({ "serial_out_path": process.dir.join(CONSOLE) });
        process.put(machine, "/serial", &serial).await?;
        process.put(machine, "/v1/restore", &request).await?;
        match wait {
            Some(limit) => process.wait_until_running(machine, limit).await,
            None => Ok(()),
        }
    };
    process.start(work).await?;
    Ok(unfinished.0.take().expect("it is there until it is done"))
}

/// Gives the layers of a fork's disks names in a machine's directory, which its jail has nothing to do
/// with. The machine that was forked can put anything in their place, and no link of it is followed.
fn link_layers(layers: &Path, dir: &Path) -> io::Result<()> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let layers = openat(CWD, layers, flags, Mode::empty())?;
    for entry in Dir::read_from(&layers)? {
        let entry = entry?;
        let name = entry.file_name();
        if !name.to_bytes().starts_with(b"disk-") {
            continue;
        }
        let linked = dir.join(OsStr::from_bytes(name.to_bytes()));
        linkat(&layers, name, CWD, &linked, AtFlags::empty())?;
        // Only now that it is out of the other's reach.
        if !linked.symlink_metadata()?.is_file() {
            let name = name.to_string_lossy();
            return Err(io::Error::other(format!("its layer {name} is no file")));
        }
    }
    Ok(())
}

/// Prints what became of them; the result is the status to exit with.
pub fn print(outcomes: &[Outcome], json: bool) -> Result<u8, Failure> {
    let mut text = String::new();
    let mut failures = Vec::new();
    let mut list = Vec::new();
    for Outcome { id, result } in outcomes {
        match result {
            Ok(process) => {
                text.push_str(&format!("{id}\n"));
                list.push(json!({
                    "id": id,
                    "run_dir": process.dir,
                    "socket": process.dir.join(SOCKET),
                    "pid": process.pid(),
                }));
            }
            Err(failure) => {
                list.push(json!({ "id": id, "error": failure.words }));
                failures.push(failure.words.as_str());
            }
        }
    }
    output::print(&match json {
        true => output::pretty(&list),
        false => text,
    })?;
    match failures.is_empty() {
        true => Ok(0),
        false => Err(Failure::new(failures.join("\ntine: "))),
    }
}
