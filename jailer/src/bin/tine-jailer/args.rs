//! The arguments of `tine-jailer`. Read by lexopt, which builds nothing: a parser that is described
//! first costs a tenth of the whole start.

mod values;

use std::ffi::OsString;
use std::os::fd::RawFd;
use std::path::PathBuf;
use std::str::FromStr;

use lexopt::{Arg, Parser};
use tine_jailer::cgroup::{Setting, Version};
use tine_jailer::seccomp::Mode;
use tine_jailer::{BadArgument, Bind, Config, DEFAULT_BASE, Id, Network, ResourceLimits};
use values::{again, once, parsed, path, text, unexpected};

/// What `--help` prints.
pub const HELP: &str = "\
Makes a jail and runs a monitor in it

Usage: tine-jailer --id ID --exec-file FILE --uid UID --gid GID [OPTIONS] [-- ARGS...]
       tine-jailer --gc [--chroot-base-dir DIR]

Arguments:
  [ARGS]...                     Arguments of the program

Options:
      --id ID                   What the machine is called: letters, digits, `-` and `_`
      --exec-file FILE          The program that is run in the jail
      --uid UID                 The user that it runs as [default for an ordinary user: that one]
      --gid GID                 The group that it runs as [default for an ordinary user: its own]
      --chroot-base-dir DIR     Where jails are made: the root is DIR/NAME-OF-FILE/ID/root
                                [default: /srv/jailer]
      --netns PATH              The network namespace to run in [default: an empty one]
      --host-network            Run in the caller's network namespace
      --cgroup-version VERSION  Take cgroups of this version only, 1 or 2
                                [default: whichever has the controller]
      --cgroup FILE=VALUE       A limit of the machine's cgroup, like pids.max=64; may be given
                                several times
      --parent-cgroup PATH      The cgroup above the machine's [default: named after FILE]
      --resource-limit RESOURCE=VALUE
                                A limit of the process: fsize=BYTES or no-file=COUNT; may be given
                                several times
      --daemonize               Begin a session of its own, with /dev/null for standard input and
                                outputs
      --new-pid-ns              Be the first process of a PID namespace of its own
      --bind SOURCE:TARGET[:rw] Show a file of the host in the jail, read-only unless `:rw` follows;
                                may be given several times
      --keep-fd N               Hand this descriptor over; may be given several times
      --seccomp MODE            System calls: `filter` allows what a monitor needs, `off` all,
                                `trace` and `trace:FILE` all, and tell in the end what was called
                                [default: filter]
      --dry-run                 Print what would be done, and do nothing
      --gc                      Remove what dead machines left below --chroot-base-dir, and start
                                none
  -h, --help                    Print this help, and end
  -V, --version                 Print the version, and end
";

/// What the process is there for.
#[derive(Debug)]
pub enum Wanted {
    /// A jail.
    Jail(Box<Args>),
    /// What dead machines left below this directory is removed.
    Collection(PathBuf),
    /// The help.
    Help,
    /// The program's version.
    Version,
}

/// A jail. See [`HELP`].
#[derive(Debug)]
pub struct Args {
    id: Id,
    exec_file: PathBuf,
    uid: Option<u32>,
    gid: Option<u32>,
    base: Option<PathBuf>,
    network: Network,
    cgroup_version: Option<Version>,
    cgroup: Vec<Setting>,
    parent_cgroup: Option<String>,
    resource_limits: Vec<String>,
    daemonize: bool,
    new_pid_ns: bool,
    bind: Vec<Bind>,
    keep_fd: Vec<RawFd>,
    seccomp: Mode,
    /// Where a trace is written.
    pub trace_file: Option<PathBuf>,
    /// Print the plan, and do nothing.
    pub dry_run: bool,
    arguments: Vec<OsString>,
}

/// What is done about system calls.
#[derive(Debug)]
struct Seccomp {
    mode: Mode,
    file: Option<PathBuf>,
}

impl FromStr for Seccomp {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (mode, file) = match (text, text.strip_prefix("trace:")) {
            ("filter", _) => (Mode::Filter, None),
            ("off", _) => (Mode::Off, None),
            ("trace", _) => (Mode::Trace, None),
            (_, Some(file)) if !file.is_empty() => (Mode::Trace, Some(file.into())),
            _ => return Err("the modes are filter, off, trace and trace:FILE"),
        };
        Ok(Self { mode, file })
    }
}

/// A descriptor that can be handed over.
struct Kept(RawFd);

impl FromStr for Kept {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text.parse() {
            Ok(number @ 3..) => Ok(Self(number)),
            _ => Err("give a number from 3 on: 0, 1 and 2 are handed over anyway"),
        }
    }
}

/// What was given.
#[derive(Default)]
struct Given {
    id: Option<Id>,
    exec_file: Option<PathBuf>,
    uid: Option<u32>,
    gid: Option<u32>,
    base: Option<PathBuf>,
    netns: Option<PathBuf>,
    host_network: Option<()>,
    cgroup_version: Option<Version>,
    cgroup: Vec<Setting>,
    parent_cgroup: Option<String>,
    resource_limits: Vec<String>,
    daemonize: Option<()>,
    new_pid_ns: Option<()>,
    bind: Vec<Bind>,
    keep_fd: Vec<Kept>,
    seccomp: Option<Seccomp>,
    dry_run: Option<()>,
    gc: Option<()>,
    arguments: Vec<OsString>,
}

impl Wanted {
    /// From the words of a command line, the program's name first.
    ///
    /// # Errors
    ///
    /// In words that name the option, when the line makes no sense.
    pub fn of(words: impl IntoIterator<Item = OsString>) -> Result<Self, String> {
        let mut line = Parser::from_iter(words);
        let mut given = Given::default();
        loop {
            // What follows `--` is the program's, whatever it looks like.
            if let Some(words) = line.try_raw_args()
                && words.peek().is_some_and(|word| word == "--")
            {
                given.arguments = words.skip(1).collect();
                break;
            }
            let Some(arg) = line.next().map_err(|err| err.to_string())? else {
                break;
            };
            let name = match arg {
                Arg::Long(name) => name.to_owned(),
                Arg::Short('h') => "help".to_owned(),
                Arg::Short('V') => "version".to_owned(),
                other => return Err(unexpected(&other)),
            };
            match name.as_str() {
                "help" => return Ok(Self::Help),
                "version" => return Ok(Self::Version),
                _ => given.take(&name, &mut line)?,
            }
        }
        given.all()
    }
}

impl Given {
    fn take(&mut self, name: &str, line: &mut Parser) -> Result<(), String> {
        match name {
            "id" => once(&mut self.id, name, parsed(name, line)?),
            "exec-file" => once(&mut self.exec_file, name, path(name, line)?),
            "uid" => once(&mut self.uid, name, parsed(name, line)?),
            "gid" => once(&mut self.gid, name, parsed(name, line)?),
            "chroot-base-dir" => once(&mut self.base, name, path(name, line)?),
            "netns" => once(&mut self.netns, name, path(name, line)?),
            "host-network" => once(&mut self.host_network, name, ()),
            "cgroup-version" => once(&mut self.cgroup_version, name, parsed(name, line)?),
            "cgroup" => again(&mut self.cgroup, parsed(name, line)?),
            "parent-cgroup" => once(&mut self.parent_cgroup, name, text(name, line)?),
            "resource-limit" => again(&mut self.resource_limits, text(name, line)?),
            "daemonize" => once(&mut self.daemonize, name, ()),
            "new-pid-ns" => once(&mut self.new_pid_ns, name, ()),
            "bind" => again(&mut self.bind, parsed(name, line)?),
            "keep-fd" => again(&mut self.keep_fd, parsed(name, line)?),
            "seccomp" => once(&mut self.seccomp, name, parsed(name, line)?),
            "dry-run" => once(&mut self.dry_run, name, ()),
            "gc" => once(&mut self.gc, name, ()),
            _ => Err(unexpected(&Arg::Long(name))),
        }
    }

    fn all(self) -> Result<Wanted, String> {
        if self.gc.is_some() {
            let others = [
                ("--id", self.id.is_some()),
                ("--exec-file", self.exec_file.is_some()),
                ("--dry-run", self.dry_run.is_some()),
            ];
            return match others.iter().find(|(_, given)| *given) {
                Some((name, _)) => Err(format!("--gc and {name}: --gc starts no machine")),
                None => Ok(Wanted::Collection(
                    self.base.unwrap_or_else(|| DEFAULT_BASE.into()),
                )),
            };
        }
        let missing = |name: &str| format!("--{name} is needed; --help lists all options");
        let network = match (self.netns, self.host_network) {
            (Some(_), Some(())) => {
                return Err("--netns and --host-network: give one of the two".to_owned());
            }
            (Some(path), None) => Network::Join(path),
            (None, Some(())) => Network::Host,
            (None, None) => Network::Empty,
        };
        let (seccomp, trace_file) = match self.seccomp {
            Some(seccomp) => (seccomp.mode, seccomp.file),
            None => (Mode::Filter, None),
        };
        Ok(Wanted::Jail(Box::new(Args {
            id: self.id.ok_or_else(|| missing("id"))?,
            exec_file: self.exec_file.ok_or_else(|| missing("exec-file"))?,
            uid: self.uid,
            gid: self.gid,
            base: self.base,
            network,
            cgroup_version: self.cgroup_version,
            cgroup: self.cgroup,
            parent_cgroup: self.parent_cgroup,
            resource_limits: self.resource_limits,
            daemonize: self.daemonize.is_some(),
            new_pid_ns: self.new_pid_ns.is_some(),
            bind: self.bind,
            keep_fd: self.keep_fd.into_iter().map(|kept| kept.0).collect(),
            seccomp,
            trace_file,
            dry_run: self.dry_run.is_some(),
            arguments: self.arguments,
        })))
    }
}

/// What cannot be made out of the arguments.
#[derive(Debug, thiserror::Error)]
pub enum Unclear {
    /// A value that makes no sense.
    #[error("--{0} {1}")]
    Bad(&'static str, BadArgument),
    /// Root has to say who the program is to be.
    #[error("--uid and --gid are needed: who is the program to run as?")]
    Nobody,
}

impl Args {
    /// The jail that is asked for.
    pub fn config(self) -> Result<Config, Unclear> {
        let (own_uid, own_gid) = (rustix::process::getuid(), rustix::process::getgid());
        let own = |id: u32| (!own_uid.is_root()).then_some(id);
        let uid = self.uid.or(own(own_uid.as_raw())).ok_or(Unclear::Nobody)?;
        let gid = self.gid.or(own(own_gid.as_raw())).ok_or(Unclear::Nobody)?;
        let mut config = Config::new(self.id, self.exec_file, uid, gid);
        if let Some(base) = self.base {
            config.base = base;
        }
        config.network = self.network;
        config.cgroup.version = self.cgroup_version;
        config.cgroup.settings = self.cgroup;
        if let Some(parent) = self.parent_cgroup {
            let set = config.cgroup.set_parent(&parent);
            set.map_err(|err| Unclear::Bad("parent-cgroup", err))?;
        }
        config.limits = limits(&self.resource_limits)?;
        config.daemonize = self.daemonize;
        config.new_pid_ns = self.new_pid_ns;
        config.seccomp = self.seccomp;
        config.binds = self.bind;
        config.keep = self.keep_fd;
        config.arguments = self.arguments;
        Ok(config)
    }
}

fn limits(given: &[String]) -> Result<ResourceLimits, Unclear> {
    let mut limits = ResourceLimits::default();
    for limit in given {
        let set = limits.set(limit);
        set.map_err(|err| Unclear::Bad("resource-limit", err))?;
    }
    Ok(limits)
}

#[cfg(test)]
mod tests;
