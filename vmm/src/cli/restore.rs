//! `tine restore`: a machine out of a snapshot, for one command, or one that stays.

use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::json;
use tine::agent;
use tine::client::Machine as Client;
use tine::config::{ConsoleConfig, MachineConfig};
use tine::control::{GuestIdentity, give_addresses};
use tine::image::Image;
use tine::machine::Machine;
use tine::snapshot::{Loaded, Prefetch, open_disks};
use tine_guest_agent::refresh::{NewInterface, Refresh};
use tine_snapshot::Snapshot;
use tine_snapshot::manifest::Kind;

use super::copies::{self, Options, Origin};
use super::exec::Place;
use super::failure::Failure;
use super::foreground::{self, Job, OnEnd, Ready, RunError};
use super::process::Process;
use super::run::config::keep_console;
use super::rundir::{self, CONSOLE};
use super::session::Signals;
use super::template::Opened;
use super::timing::Timing;
use super::{identity, jail, output, parse, run};

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
  tine restore -d -n 8 --name try /srv/snapshots/web-1
  tine restore --record-working-set web-1.set /srv/snapshots/web-1 -- make test
  tine restore --working-set web-1.set /srv/snapshots/web-1 -- make test")]
pub struct Args {
    /// Leave the machine running, and print its id
    #[arg(short, long, conflicts_with = "interactive")]
    pub(super) detach: bool,
    /// With -d: so many machines, each with its id as host name, NAME-1, NAME-2, ..
    #[arg(short = 'n', long, value_name = "N", requires = "detach",
        conflicts_with_all = ["command", "hostname", "console"],
        value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub(super) count: Option<u32>,
    /// The machine's id, with -d [default: a random one]
    #[arg(long, value_name = "ID", requires = "detach", value_parser = rundir::id)]
    pub(super) name: Option<String>,
    /// With -d: do not wait for the guest's agent
    #[arg(long, requires = "detach", conflicts_with = "command")]
    pub(super) no_wait: bool,
    /// With -d: print a JSON object instead of the id
    #[arg(long, requires = "detach")]
    pub(super) json: bool,
    #[command(flatten)]
    pub(super) jail: jail::Choice,
    /// The guest's new host name
    #[arg(long, value_name = "NAME")]
    pub(super) hostname: Option<String>,
    /// Write a file of this host into the guest, before the command is run
    #[arg(long = "file", value_name = "PATH:GUEST_PATH", value_parser = parse::file)]
    pub(super) files: Vec<parse::Copied>,
    /// Where the guest's console goes [default: none; with -d where `tine logs` finds it]
    #[arg(long, value_name = "none|stdout|FILE", value_parser = parse::console)]
    pub(super) console: Option<ConsoleConfig>,
    /// End everything after this time (status 124); with -d: the time until it is running
    #[arg(long, value_name = "TIME", value_parser = parse::duration)]
    pub(super) timeout: Option<Duration>,
    #[command(flatten)]
    pub(super) place: Place,
    /// Pass standard input to the command
    #[arg(short, long)]
    pub(super) interactive: bool,
    /// Print to standard error how long each phase took
    #[arg(long)]
    pub(super) timing: bool,
    /// Read ahead what this file says that machines of the snapshot touch first
    #[arg(long, value_name = "FILE")]
    pub(super) working_set: Option<PathBuf>,
    /// Write that file when the command has ended
    #[arg(
        long,
        value_name = "FILE",
        requires = "command",
        conflicts_with = "detach"
    )]
    pub(super) record_working_set: Option<PathBuf>,
    /// The snapshot
    #[arg(value_name = "DIR")]
    pub(super) dir: PathBuf,
    /// The command and its arguments
    #[arg(last = true, value_name = "COMMAND")]
    pub(super) command: Vec<std::ffi::OsString>,
    /// The template's version that the snapshot is, held until its files are open.
    #[arg(skip)]
    pub(super) template: Option<Opened>,
}

/// Makes the machine; the result is the status to exit with.
pub fn restore(args: Args) -> Result<u8, Failure> {
    let sets = args.working_set.is_some() || args.record_working_set.is_some();
    if sets && is_disks_alone(&args.dir) {
        return Err(Failure::new(format!(
            "{} is a snapshot of the disks alone: it has no memory that could be read ahead",
            args.dir.display()
        )));
    }
    match args.detach {
        true if args.count.is_some() => super::in_runtime(many(args)),
        true => super::in_runtime(detached(args)),
        false => {
            args.jail.refuse()?;
            let identity = args.identity(None)?;
            in_foreground(args, identity).map_err(|err| Failure::new(err.to_string()))
        }
    }
}

impl Args {
    /// What of the guest becomes another one; `id` is its machine's, if that stays.
    fn identity(&self, id: Option<&str>) -> Result<GuestIdentity, Failure> {
        let environment = self.template.iter();
        let environment = environment.flat_map(|opened| opened.record.environment.clone());
        // What is given for a command is for all of them, where none is started here.
        let given = id.iter().flat_map(|_| self.place.env.clone());
        let mut identity = GuestIdentity {
            hostname: self.hostname.clone(),
            machine_id: None,
            env: identity::variables(environment.chain(given)),
            files: identity::read(&self.files)?,
        };
        if self.template.is_some() {
            let own = GuestIdentity::of(id.unwrap_or_default());
            identity.machine_id = own.machine_id;
            identity.hostname = identity.hostname.or(own.hostname.filter(|_| id.is_some()));
        }
        Ok(identity)
    }
}

fn in_foreground(mut args: Args, identity: GuestIdentity) -> Result<u8, RunError> {
    let mut timing = Timing::start(args.timing);
    if is_disks_alone(&args.dir) {
        if !identity.is_empty() {
            return Err(RunError::NoAgent);
        }
        return boot_in_foreground(args, timing);
    }
    let loaded = Loaded::open(&args.dir)?;
    let set = args.working_set.iter();
    let prefetch = set.map(|file| Prefetch::of(file, &loaded.memory)).next();
    let prefetch = prefetch.transpose()?;
    let mut config = loaded.description.config();
    config.console = args.console.clone().unwrap_or_default();
    let own = loaded
        .disks
        .place(&loaded.description, &mut config, &std::env::temp_dir())?;
    timing.phase("snapshot read");
    let template = args.template.take();
    let job = job(args, &config);
    let ready = match loaded.description.agent {
        false if !identity.is_empty() => return Err(RunError::NoAgent),
        false => Ready::Hello(None),
        true => {
            let interfaces = give_addresses(&mut config, &[], true);
            let interfaces = interfaces.map_err(|err| RunError::Os("get random bytes", err))?;
            refreshed(&loaded, identity, interfaces)?
        }
    };
    let make = |on_end: OnEnd| {
        if let Some(prefetch) = prefetch {
            prefetch.begin();
        }
        let (memory, sections) = (loaded.memory, loaded.sections);
        let machine = Machine::restore(&config, memory, &sections, move |end| on_end(end));
        // They live for as long as they are open.
        own.iter().for_each(|path| drop(std::fs::remove_file(path)));
        drop(template);
        Ok((machine?, ready))
    };
    foreground::run(make, job, &mut timing)
}

async fn detached(mut args: Args) -> Result<u8, Failure> {
    let mut timing = Timing::start(args.timing);
    let mut snapshot = std::path::absolute(&args.dir)
        .map_err(|err| Failure::new(format!("{}: {err}", args.dir.display())))?;
    if args.console == Some(ConsoleConfig::Stdout) {
        return Err(Failure::usage(
            "a machine that stays has no standard output: leave --console out, and use `tine logs`",
        ));
    }
    let signals = Signals::watch()?;
    let id = args.name.take().unwrap_or_else(rundir::new_id);
    let identity = args.identity(Some(&id))?;
    let mut template = args.template.take();
    let mut files = args.jail.files()?;
    if let Some(files) = &mut files {
        snapshot = show_snapshot(files, &snapshot, &mut args.console)?;
    }
    let working_set = working_set(&args, files.as_mut())?;
    let mut process = Process::prepare(Some(id), files)?;
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
            if !identity.is_empty() {
                return Err(process.failure(&RunError::NoAgent.to_string()));
            }
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
        let mut request = json!({ "snapshot": snapshot, "working_set": working_set });
        identity.put_into_request(&mut request);
        process.put(machine, "/v1/restore", &request).await?;
        // Its files are open.
        drop(template.take());
        timing.phase("vCPU running");
        ready(process, machine, &args, &mut timing).await
    };
    process.bring_up(signals, bring_up).await?;
    output::print(&run::words(&process, args.json, !args.command.is_empty()))?;
    Ok(0)
}

/// Shows in a jail what a snapshot's machine is made of, and where its console goes. Gives the
/// snapshot's path there.
pub fn show_snapshot(
    files: &mut jail::Files,
    snapshot: &Path,
    console: &mut Option<ConsoleConfig>,
) -> Result<PathBuf, Failure> {
    let plain = files.show(snapshot, false)?;
    // What else is wrong with a snapshot is found out by who opens it.
    if let Ok(opened) = Snapshot::open(snapshot) {
        jail::refuse_network(&opened.manifest().machine.config["interfaces"])?;
    }
    if is_disks_alone(snapshot) {
        let image = Image::built().map_err(|err| Failure::new(err.to_string()))?;
        files.show(&image.kernel, false)?;
        files.show(&image.initramfs, false)?;
    }
    if let Some(ConsoleConfig::File(file)) = console {
        files.show_console(file)?;
    }
    Ok(plain)
}

/// The path of the working set that is given, as another process has it.
fn working_set(args: &Args, files: Option<&mut jail::Files>) -> Result<Option<PathBuf>, Failure> {
    let Some(file) = &args.working_set else {
        return Ok(None);
    };
    let shown = match files {
        Some(files) => files.show(file, false)?,
        None => std::path::absolute(file)
            .map_err(|err| Failure::new(format!("{}: {err}", file.display())))?,
    };
    Ok(Some(shown))
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
pub fn is_disks_alone(dir: &Path) -> bool {
    Snapshot::open(dir).is_ok_and(|snapshot| snapshot.manifest().kind == Kind::Disk)
}

/// The machine of a snapshot of the disks, to be booted from the built image; layers of its own are
/// in `own`.
pub fn booting(
    dir: &Path,
    console: Option<ConsoleConfig>,
    own: &Path,
) -> Result<(MachineConfig, Vec<PathBuf>), RunError> {
    let (description, disks) = open_disks(dir)?;
    let image = Image::built()?;
    let mut config = description.config();
    // As a jail shows them.
    let plain = |path: PathBuf| path.canonicalize().unwrap_or(path);
    config.kernel = plain(image.kernel);
    config.initrd = Some(plain(image.initramfs));
    config.console = console.unwrap_or_default();
    let made = disks.place(&description, &mut config, own)?;
    Ok((config, made))
}

fn boot_in_foreground(args: Args, mut timing: Timing) -> Result<u8, RunError> {
    let own = std::env::temp_dir();
    let (config, made) = booting(&args.dir, args.console.clone(), &own)?;
    timing.phase("snapshot read");
    let job = job(args, &config);
    let make = |on_end: OnEnd| {
        let machine = Machine::assemble(&config, move |end| on_end(end));
        // They live for as long as they are open.
        made.iter()
            .for_each(|path| drop(std::fs::remove_file(path)));
        Ok((machine?, Ready::Hello(None)))
    };
    foreground::run(make, job, &mut timing)
}

fn job(args: Args, config: &MachineConfig) -> Job {
    Job {
        writable: config.drives.iter().any(|drive| !drive.read_only),
        show_console: config.console == ConsoleConfig::None,
        command: args.command,
        place: args.place,
        interactive: args.interactive,
        timeout: args.timeout,
        record: args.record_working_set,
    }
}

/// Makes as many as are asked for.
async fn many(args: Args) -> Result<u8, Failure> {
    let mut snapshot = std::path::absolute(&args.dir)
        .map_err(|err| Failure::new(format!("{}: {err}", args.dir.display())))?;
    let opened = Snapshot::open(&snapshot);
    let opened = opened.map_err(|err| Failure::new(err.to_string()))?;
    let environment = args.template.iter();
    let environment = environment.flat_map(|opened| opened.record.environment.clone());
    let mut files = args.jail.files()?;
    if let Some(files) = &mut files {
        snapshot = show_snapshot(files, &snapshot, &mut None)?;
    }
    let working_set = working_set(&args, files.as_mut())?;
    let origin = Origin {
        layers: None,
        files,
        request: json!({ "snapshot": snapshot, "working_set": working_set }),
        agent: opened.manifest().machine.config["agent"] == true,
        env: environment.chain(args.place.env).collect(),
    };
    let options = Options {
        count: args.count.unwrap_or(1),
        name: args.name,
        files: args.files,
        no_wait: args.no_wait,
        json: args.json,
        timeout: args.timeout,
    };
    let made = copies::make(&options, origin).await?;
    copies::print(&made, args.json)
}

/// How the agent of a restored guest comes to be ready.
pub fn refreshed(
    loaded: &Loaded,
    identity: GuestIdentity,
    interfaces: Vec<NewInterface>,
) -> Result<Ready, RunError> {
    let generation = loaded.generation.saturating_add(1);
    let refresh = agent::new_identity(generation);
    let refresh = Refresh {
        interfaces,
        ..refresh.map_err(|err| RunError::Os("get random bytes", err))?
    };
    Ok(Ready::Refresh(Box::new(identity.put_into(refresh))))
}
