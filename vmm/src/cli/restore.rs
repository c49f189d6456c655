//! `tine restore`: a machine out of a snapshot, for one command, or one that stays.

use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::json;
use tine::agent;
use tine::client::Machine as Client;
use tine::config::{ConsoleConfig, MachineConfig};
use tine::image::Image;
use tine::machine::Machine;
use tine::snapshot::{Loaded, open_disks};
use tine_snapshot::Snapshot;
use tine_snapshot::manifest::Kind;

use super::copies::{self, Options, Origin};
use super::exec::Place;
use super::failure::Failure;
use super::foreground::{self, Job, Ready, RunError};
use super::process::Process;
use super::run::config::keep_console;
use super::rundir::{self, CONSOLE};
use super::session::Signals;
use super::timing::Timing;
use super::{output, parse, run};

/// Make a machine of a snapshot, run a command in it, and remove it; or leave it running (-d)
#[derive(clap::Args)]
#[command(after_help = "\
The machine goes on where the other one was, with its processes; it has its own clock and random
numbers, and connections of before are gone. Nothing of the snapshot is changed, so any number of
machines can be made of it, at the same time too.

Without a COMMAND the machine runs until its guest ends by itself; -d leaves it running, as
`tine run -d` does.

Examples:
  tine restore /srv/snapshots/web-1 -- uname -a
  tine restore -d --name web-2 /srv/snapshots/web-1
  tine restore -d -n 8 --name try /srv/snapshots/web-1")]
pub struct Args {
    /// Leave the machine running, and print its id
    #[arg(short, long, conflicts_with = "interactive")]
    detach: bool,
    /// With -d: so many machines, each with its id as host name, NAME-1, NAME-2, ..
    #[arg(short = 'n', long, value_name = "N", requires = "detach",
        conflicts_with_all = ["command", "hostname", "console"],
        value_parser = clap::value_parser!(u32).range(1..=10_000))]
    count: Option<u32>,
    /// The machine's id, with -d [default: a random one]
    #[arg(long, value_name = "ID", requires = "detach", value_parser = rundir::id)]
    name: Option<String>,
    /// With -d: do not wait for the guest's agent
    #[arg(long, requires = "detach", conflicts_with = "command")]
    no_wait: bool,
    /// With -d: print a JSON object instead of the id
    #[arg(long, requires = "detach")]
    json: bool,
    /// The guest's new host name
    #[arg(long, value_name = "NAME")]
    hostname: Option<String>,
    /// Where the guest's console goes [default: none; with -d where `tine logs` finds it]
    #[arg(long, value_name = "none|stdout|FILE", value_parser = parse::console)]
    console: Option<ConsoleConfig>,
    /// End everything after this time (status 124); with -d: the time until it is running
    #[arg(long, value_name = "TIME", value_parser = parse::duration)]
    timeout: Option<Duration>,
    #[command(flatten)]
    place: Place,
    /// Pass standard input to the command
    #[arg(short, long)]
    interactive: bool,
    /// Print to standard error how long each phase took
    #[arg(long)]
    timing: bool,
    /// The snapshot
    #[arg(value_name = "DIR")]
    dir: PathBuf,
    /// The command and its arguments
    #[arg(last = true, value_name = "COMMAND")]
    command: Vec<std::ffi::OsString>,
}

/// Makes the machine; the result is the status to exit with.
pub fn restore(args: Args) -> Result<u8, Failure> {
    match args.detach {
        true if args.count.is_some() => super::in_runtime(many(args)),
        true => super::in_runtime(detached(args)),
        false => in_foreground(args).map_err(|err| Failure::new(err.to_string())),
    }
}

fn in_foreground(args: Args) -> Result<u8, RunError> {
    let mut timing = Timing::start(args.timing);
    if is_disks_alone(&args.dir) {
        return boot_in_foreground(args, timing);
    }
    let loaded = Loaded::open(&args.dir)?;
    let mut config = loaded.description.config();
    config.console = args.console.clone().unwrap_or_default();
    let own = loaded
        .disks
        .place(&loaded.description, &mut config, &std::env::temp_dir())?;
    timing.phase("snapshot read");
    let hostname = args.hostname.clone();
    let job = job(args, &config);
    let ready = match loaded.description.agent {
        false => Ready::Hello(None),
        true => refreshed(&loaded, hostname)?,
    };
    let make = |on_end| {
        let (memory, sections) = (loaded.memory, loaded.sections);
        let machine = Machine::restore(&config, memory, &sections, on_end);
        // They live for as long as they are open.
        own.iter().for_each(|path| drop(std::fs::remove_file(path)));
        Ok(machine?)
    };
    foreground::run(make, ready, job, &mut timing)
}

async fn detached(args: Args) -> Result<u8, Failure> {
    let mut timing = Timing::start(args.timing);
    let snapshot = std::path::absolute(&args.dir)
        .map_err(|err| Failure::new(format!("{}: {err}", args.dir.display())))?;
    if args.console == Some(ConsoleConfig::Stdout) {
        return Err(Failure::usage(
            "a machine that stays has no standard output: leave --console out, and use `tine logs`",
        ));
    }
    let signals = Signals::watch()?;
    let mut process = Process::prepare(args.name.clone())?;
    let console = match &args.console {
        None => Some(process.dir.join(CONSOLE)),
        Some(ConsoleConfig::File(file)) => Some(file.clone()),
        Some(_) => None,
    };
    let bring_up = async |process: &Process, machine: &_| {
        timing.phase("process");
        if let Some(console) = &console {
            let serial = json!({ "serial_out_path": console });
            process.put(machine, "/serial", &serial).await?;
        }
        if is_disks_alone(&snapshot) {
            let booting = booting(&snapshot, None, &process.dir);
            let (mut config, _) = booting.map_err(|err| process.failure(&err.to_string()))?;
            if let Some(console) = &console {
                let file = console.as_path();
                keep_console(&mut config, false, file);
            }
            process.boot(machine, &config).await?;
            timing.phase("first guest instruction");
            return ready(process, machine, &args, &mut timing).await;
        }
        let mut request = json!({ "snapshot": snapshot });
        if let Some(name) = &args.hostname {
            request["hostname"] = json!(name);
        }
        process.put(machine, "/v1/restore", &request).await?;
        timing.phase("vCPU running");
        ready(process, machine, &args, &mut timing).await
    };
    process.bring_up(signals, bring_up).await?;
    output::print(&run::words(&process, args.json, !args.command.is_empty()))?;
    Ok(0)
}

/// Waits until the machine is running, and starts its command.
async fn ready(
    process: &Process,
    machine: &Client,
    args: &Args,
    timing: &mut Timing,
) -> Result<(), Failure> {
    if args.no_wait {
        return Ok(());
    }
    process.wait_until_running(machine, args.timeout).await?;
    timing.phase("guest to agent");
    let command = &args.command;
    process.run_command(machine, &args.place, command).await
}

/// Whether the machine has to boot. What is wrong with a snapshot is found out by who opens it.
fn is_disks_alone(dir: &Path) -> bool {
    Snapshot::open(dir).is_ok_and(|snapshot| snapshot.manifest().kind == Kind::Disk)
}

/// The machine of a snapshot of the disks, to be booted from the built image; layers of its own are
/// in `own`.
fn booting(
    dir: &Path,
    console: Option<ConsoleConfig>,
    own: &Path,
) -> Result<(MachineConfig, Vec<PathBuf>), RunError> {
    let (description, disks) = open_disks(dir)?;
    let image = Image::built()?;
    let mut config = description.config();
    config.kernel = image.kernel;
    config.initrd = Some(image.initramfs);
    config.console = console.unwrap_or_default();
    let made = disks.place(&description, &mut config, own)?;
    Ok((config, made))
}

fn boot_in_foreground(args: Args, mut timing: Timing) -> Result<u8, RunError> {
    let own = std::env::temp_dir();
    let (config, made) = booting(&args.dir, args.console.clone(), &own)?;
    timing.phase("snapshot read");
    let job = job(args, &config);
    let make = |on_end| {
        let machine = Machine::assemble(&config, on_end);
        // They live for as long as they are open.
        made.iter()
            .for_each(|path| drop(std::fs::remove_file(path)));
        Ok(machine?)
    };
    foreground::run(make, Ready::Hello(None), job, &mut timing)
}

fn job(args: Args, config: &MachineConfig) -> Job {
    Job {
        writable: config.drives.iter().any(|drive| !drive.read_only),
        show_console: config.console == ConsoleConfig::None,
        command: args.command,
        place: args.place,
        interactive: args.interactive,
        timeout: args.timeout,
    }
}

/// Makes as many as are asked for.
async fn many(args: Args) -> Result<u8, Failure> {
    let snapshot = std::path::absolute(&args.dir)
        .map_err(|err| Failure::new(format!("{}: {err}", args.dir.display())))?;
    let opened = Snapshot::open(&snapshot);
    let opened = opened.map_err(|err| Failure::new(err.to_string()))?;
    let origin = Origin {
        request: json!({ "snapshot": snapshot }),
        agent: opened.manifest().machine.config["agent"] == true,
        env: args.place.env,
    };
    let options = Options {
        count: args.count.unwrap_or(1),
        name: args.name,
        files: Vec::new(),
        no_wait: args.no_wait,
        json: args.json,
        timeout: args.timeout,
    };
    let made = copies::make(&options, origin).await?;
    copies::print(&made, args.json)
}

/// How the agent of a restored guest comes to be ready.
pub fn refreshed(loaded: &Loaded, hostname: Option<String>) -> Result<Ready, RunError> {
    let generation = loaded.generation.saturating_add(1);
    let refresh = agent::new_identity(generation);
    let mut refresh = refresh.map_err(|err| RunError::Os("get random bytes", err))?;
    refresh.hostname = hostname;
    Ok(Ready::Refresh(Box::new(refresh)))
}
