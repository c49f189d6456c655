//! `tine restore`: a machine out of a snapshot, for one command, or one that stays.

mod foreground;
mod staying;

use std::path::{Path, PathBuf};
use std::time::Duration;

use tine::config::{ConsoleConfig, MachineConfig};
use tine::control::GuestIdentity;
use tine::image::Image;
use tine::snapshot::open_disks;
use tine_snapshot::Snapshot;
use tine_snapshot::manifest::Kind;

pub use self::foreground::refreshed;
pub use self::staying::show_snapshot;
use super::exec::Place;
use super::failure::Failure;
use super::foreground::RunError;
use super::template::Opened;
use super::{identity, jail, parse, rundir};

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
    pub(in crate::cli) detach: bool,
    /// With -d: so many machines, each with its id as host name, NAME-1, NAME-2, ..
    #[arg(short = 'n', long, value_name = "N", requires = "detach",
        conflicts_with_all = ["command", "hostname", "console"],
        value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub(in crate::cli) count: Option<u32>,
    /// The machine's id, with -d [default: a random one]
    #[arg(long, value_name = "ID", requires = "detach", value_parser = rundir::id)]
    pub(in crate::cli) name: Option<String>,
    /// With -d: do not wait for the guest's agent
    #[arg(long, requires = "detach", conflicts_with = "command")]
    pub(in crate::cli) no_wait: bool,
    /// With -d: print a JSON object instead of the id
    #[arg(long, requires = "detach")]
    pub(in crate::cli) json: bool,
    #[command(flatten)]
    pub(in crate::cli) jail: jail::Choice,
    /// The guest's new host name
    #[arg(long, value_name = "NAME")]
    pub(in crate::cli) hostname: Option<String>,
    /// Write a file of this host into the guest, before the command is run
    #[arg(long = "file", value_name = "PATH:GUEST_PATH", value_parser = parse::file)]
    pub(in crate::cli) files: Vec<parse::Copied>,
    /// Where the guest's console goes [default: none; with -d where `tine logs` finds it]
    #[arg(long, value_name = "none|stdout|FILE", value_parser = parse::console)]
    pub(in crate::cli) console: Option<ConsoleConfig>,
    /// End everything after this time (status 124); with -d: the time until it is running
    #[arg(long, value_name = "TIME", value_parser = parse::duration)]
    pub(in crate::cli) timeout: Option<Duration>,
    #[command(flatten)]
    pub(in crate::cli) place: Place,
    /// Pass standard input to the command
    #[arg(short, long)]
    pub(in crate::cli) interactive: bool,
    /// Print to standard error how long each phase took
    #[arg(long)]
    pub(in crate::cli) timing: bool,
    /// Read ahead what this file says that machines of the snapshot touch first
    #[arg(long, value_name = "FILE")]
    pub(in crate::cli) working_set: Option<PathBuf>,
    /// Write that file when the command has ended
    #[arg(
        long,
        value_name = "FILE",
        requires = "command",
        conflicts_with = "detach"
    )]
    pub(in crate::cli) record_working_set: Option<PathBuf>,
    /// The snapshot
    #[arg(value_name = "DIR")]
    pub(in crate::cli) dir: PathBuf,
    /// The command and its arguments
    #[arg(last = true, value_name = "COMMAND")]
    pub(in crate::cli) command: Vec<std::ffi::OsString>,
    /// The template's version that the snapshot is, held until its files are open.
    #[arg(skip)]
    pub(in crate::cli) template: Option<Opened>,
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
        true if args.count.is_some() => super::in_runtime(staying::many(args)),
        true => super::in_runtime(staying::one(args)),
        false => {
            args.jail.refuse()?;
            let identity = args.identity(None)?;
            foreground::restore(args, identity).map_err(|err| Failure::new(err.to_string()))
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
