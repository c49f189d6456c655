//! `tine run`: a machine for one command, or one that stays.

pub mod config;
mod detached;
mod template;

pub use detached::words;

use std::path::PathBuf;
use std::time::Duration;

use tine::config::{ConsoleConfig, MachineConfig};
use tine::control::GuestIdentity;
use tine::machine::Machine;
use tine::snapshot::Loaded;

use super::boot_template::BootTemplate;
use super::exec::Place;
use super::failure::Failure;
use super::foreground::{self, Job, OnEnd, Ready, RunError};
use super::template::Named;
use super::timing::Timing;
use super::{jail, parse, rundir};

/// Boot a machine, run a command in it, and remove it; or leave it running (-d)
#[derive(clap::Args)]
#[command(after_help = "\
Without a COMMAND the machine runs until its guest ends by itself.

With -d the machine stays, in a process of its own, and its id is printed once it is running. A
COMMAND is started in it under the request id `main`, and not waited for: `tine attach ID main`
shows it. If anything fails, nothing is left behind. The machine is used with `tine exec`, `cp`,
`forward`, `logs`, `ps`, and ends with `tine rm -f`.

Examples:
  tine run -- uname -a
  echo hi | tine run -i -- cat
  tine run --memory 512M --rootfs debian.ext4 -w /root -- sh -c 'apt list | wc -l'
  tine run --kernel guest.elf --console stdout
  tine run -d --name web --rootfs debian.ext4 -- python3 -m http.server 80
  tine run --template web -- git status")]
pub struct Args {
    /// Leave the machine running, and print its id
    #[arg(short, long, conflicts_with = "interactive")]
    detach: bool,
    /// The machine's id, with -d [default: a random one]
    #[arg(long, value_name = "ID", requires = "detach", value_parser = rundir::id)]
    name: Option<String>,
    /// With -d: do not wait for the guest's agent, which another guest may not have
    #[arg(long, requires = "detach", conflicts_with = "command")]
    no_wait: bool,
    /// With -d: print a JSON object instead of the id
    #[arg(long, requires = "detach")]
    json: bool,
    /// Start from a template, see `tine template`, instead of booting
    #[arg(long, value_name = "NAME[@VERSION]", value_parser = super::template::named,
        conflicts_with_all = ["kernel", "initrd", "cmdline", "vcpus", "memory", "disks", "rootfs", "cold"])]
    template: Option<Named>,
    /// With --template: take a machine that is ready in its pool, see `tine pool`; without one, start
    /// one
    #[arg(long, requires_all = ["template", "command"],
        conflicts_with_all = ["detach", "console", "cgroup"])]
    pool: bool,
    /// With -d and --template: so many machines, NAME-1, NAME-2, ..
    #[arg(short = 'n', long, value_name = "N", requires_all = ["detach", "template"],
        conflicts_with_all = ["command", "console"],
        value_parser = clap::value_parser!(u32).range(1..=10_000))]
    count: Option<u32>,
    /// With --template: write a file of this host into the guest, before the command is run
    #[arg(long = "file", value_name = "PATH:GUEST_PATH", requires = "template",
        value_parser = parse::file)]
    files: Vec<parse::Copied>,
    /// Kernel to boot (ELF or bzImage) [default: the built image]
    #[arg(long, value_name = "FILE")]
    kernel: Option<PathBuf>,
    /// Initial RAM disk [default: the built image's, when its agent is needed]
    #[arg(long, value_name = "FILE")]
    initrd: Option<PathBuf>,
    /// Words for the kernel's command line
    #[arg(
        long,
        value_name = "WORDS",
        default_value = "",
        allow_hyphen_values = true
    )]
    cmdline: String,
    /// Number of vCPUs
    #[arg(long, value_name = "N", default_value_t = 1)]
    vcpus: u8,
    /// Memory, with a unit (K, M, G); a bare number is MiB
    #[arg(long, value_name = "SIZE", default_value = "256M", value_parser = parse::size)]
    memory: u64,
    /// Attach a disk image, raw or qcow2; the guest finds them as vda, vdb, ... (behind the root
    /// drive)
    #[arg(long = "disk", value_name = "PATH[,ro][,qcow2]", value_parser = parse::drive)]
    disks: Vec<parse::Drive>,
    /// Disk image to take as the guest's root file system
    #[arg(long, value_name = "PATH[,ro][,qcow2]", value_parser = parse::drive)]
    rootfs: Option<parse::Drive>,
    /// Where the guest's console goes [default: none; with -d where `tine logs` finds it]
    #[arg(long, value_name = "none|stdout|FILE", value_parser = parse::console)]
    console: Option<ConsoleConfig>,
    /// End everything after this time (status 124); with -d: the time until it is running
    #[arg(long, value_name = "TIME", value_parser = parse::duration)]
    timeout: Option<Duration>,
    #[command(flatten)]
    place: Place,
    #[command(flatten)]
    jail: jail::Choice,
    /// Boot, also where a machine of this kind has been booted before and could go on from there
    #[arg(long)]
    cold: bool,
    /// Pass standard input to the command
    #[arg(short, long)]
    interactive: bool,
    /// Print to standard error how long each phase took
    #[arg(long)]
    timing: bool,
    /// The command and its arguments
    #[arg(last = true, value_name = "COMMAND")]
    command: Vec<std::ffi::OsString>,
}

impl Args {
    /// Whether the guest has to have an agent.
    fn needs_agent(&self) -> bool {
        !self.command.is_empty() || self.detach && !self.no_wait
    }
}

/// Runs the machine; the result is the status to exit with.
pub fn run(mut args: Args) -> Result<u8, Failure> {
    if let Some(named) = args.template.take() {
        return template::run(args, &named);
    }
    match args.detach {
        true => super::in_runtime(detached::start(args)),
        false => {
            args.jail.refuse()?;
            in_foreground(args).map_err(|err| Failure::new(err.to_string()))
        }
    }
}

fn in_foreground(args: Args) -> Result<u8, RunError> {
    let mut timing = Timing::start(args.timing);
    let config = config::local(&args)?;
    let cold = args.cold;
    let mut drives = args.rootfs.iter().chain(&args.disks);
    let job = Job {
        writable: drives.any(|drive| !drive.read_only),
        show_console: args
            .console
            .as_ref()
            .is_none_or(|to| *to == ConsoleConfig::None),
        command: args.command,
        place: args.place,
        interactive: args.interactive,
        timeout: args.timeout,
        record: None,
    };
    let template = match cold || job.command.is_empty() {
        true => None,
        false => BootTemplate::of(&config),
    };
    let loaded = template.as_ref().and_then(BootTemplate::load);
    if loaded.is_some() {
        timing.phase("boot template");
    }
    let mut from_template = false;
    let make = |on_end: OnEnd| {
        let ends = on_end.clone();
        if let Some(Ok(machine)) = loaded.map(|loaded| go_on(&config, loaded, ends)) {
            from_template = true;
            return Ok(machine);
        }
        // What is there and is of no use goes.
        template.iter().for_each(BootTemplate::discard);
        let machine = Machine::assemble(&config, move |end| on_end(end))?;
        Ok((machine, Ready::Hello(template.clone())))
    };
    let done = foreground::run(make, job, &mut timing);
    if done.is_err() && from_template {
        // Whatever it was, the next run starts from scratch.
        template.iter().for_each(BootTemplate::discard);
    }
    done
}

/// The machine of a boot template.
fn go_on(
    config: &MachineConfig,
    loaded: Loaded,
    on_end: OnEnd,
) -> Result<(Machine, Ready), RunError> {
    let ready = super::restore::refreshed(&loaded, GuestIdentity::default(), Vec::new())?;
    let (memory, sections) = (loaded.memory, loaded.sections);
    let machine = Machine::restore(config, memory, &sections, move |end| on_end(end))?;
    Ok((machine, ready))
}
