//! The arguments of `tine-jailer`.

use std::ffi::OsString;
use std::os::fd::RawFd;
use std::path::PathBuf;
use std::str::FromStr;

use clap::Parser;
use tine_jailer::cgroup::{Setting, Version};
use tine_jailer::seccomp::Mode;
use tine_jailer::{BadArgument, Bind, Config, DEFAULT_BASE, Id, Network};

/// Makes a jail and runs a monitor in it.
#[derive(Debug, Parser)]
#[command(name = "tine-jailer", version, max_term_width = 100)]
pub struct Args {
    /// What the machine is called: letters, digits, `-` and `_`
    #[arg(long, required_unless_present = "gc")]
    id: Option<Id>,
    /// The program that is run in the jail
    #[arg(long, value_name = "FILE", required_unless_present = "gc")]
    exec_file: Option<PathBuf>,
    /// The user that it runs as [default for an ordinary user: that one]
    #[arg(long)]
    uid: Option<u32>,
    /// The group that it runs as [default for an ordinary user: its own]
    #[arg(long)]
    gid: Option<u32>,
    /// Where jails are made: the root is DIR/NAME-OF-FILE/ID/root
    #[arg(long, value_name = "DIR", default_value = DEFAULT_BASE)]
    pub chroot_base_dir: PathBuf,
    /// The network namespace to run in [default: an empty one]
    #[arg(long, value_name = "PATH", conflicts_with = "host_network")]
    netns: Option<PathBuf>,
    /// Run in the caller's network namespace
    #[arg(long)]
    host_network: bool,
    /// Take cgroups of this version only, 1 or 2 [default: whichever has the controller]
    #[arg(long, value_name = "VERSION")]
    cgroup_version: Option<Version>,
    /// A limit of the machine's cgroup, like pids.max=64; may be given several times
    #[arg(long, value_name = "FILE=VALUE")]
    cgroup: Vec<Setting>,
    /// The cgroup above the machine's [default: named after FILE]
    #[arg(long, value_name = "PATH")]
    parent_cgroup: Option<String>,
    /// A limit of the process: fsize=BYTES or no-file=COUNT; may be given several times
    #[arg(long, value_name = "RESOURCE=VALUE")]
    resource_limit: Vec<String>,
    /// Begin a session of its own, with /dev/null for standard input and outputs
    #[arg(long)]
    daemonize: bool,
    /// Be the first process of a PID namespace of its own
    #[arg(long)]
    new_pid_ns: bool,
    /// Show a file of the host in the jail, read-only unless `:rw` follows; may be given several times
    #[arg(long, value_name = "SOURCE:TARGET[:rw]")]
    bind: Vec<Bind>,
    /// Hand this descriptor over; may be given several times
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(RawFd).range(3..))]
    keep_fd: Vec<RawFd>,
    /// System calls: `filter` allows what a monitor needs, `off` all, `trace` and `trace:FILE` all,
    /// and tell in the end what was called
    #[arg(long, value_name = "MODE", default_value = "filter")]
    pub seccomp: Seccomp,
    /// Print what would be done, and do nothing
    #[arg(long)]
    pub dry_run: bool,
    /// Remove what dead machines left below --chroot-base-dir, and start none
    #[arg(long, conflicts_with_all = ["id", "exec_file", "dry_run"])]
    pub gc: bool,
    /// Arguments of the program
    #[arg(last = true, value_name = "ARGS")]
    arguments: Vec<OsString>,
}

/// What is done about system calls.
#[derive(Debug, Clone)]
pub struct Seccomp {
    mode: Mode,
    /// Where a trace is written.
    pub file: Option<PathBuf>,
}

impl FromStr for Seccomp {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (mode, file) = match (text, text.strip_prefix("trace:")) {
            ("filter", _) => (Mode::Filter, None),
            ("off", _) => (Mode::Off, None),
            ("trace", _) => (Mode::Trace, None),
            (_, Some(file)) if !file.is_empty() => (Mode::Trace, Some(file.into())),
            _ => return Err("the modes are filter, off, trace and trace:FILE".to_owned()),
        };
        Ok(Self { mode, file })
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
        let (Some(id), Some(exec_file)) = (self.id, self.exec_file) else {
            return Err(Unclear::Nobody);
        };
        let mut config = Config::new(id, exec_file, uid, gid);
        config.base = self.chroot_base_dir;
        config.network = match (self.netns, self.host_network) {
            (Some(path), _) => Network::Join(path),
            (None, true) => Network::Host,
            (None, false) => Network::Empty,
        };
        config.cgroup.version = self.cgroup_version;
        config.cgroup.settings = self.cgroup;
        if let Some(parent) = self.parent_cgroup {
            let set = config.cgroup.set_parent(&parent);
            set.map_err(|err| Unclear::Bad("parent-cgroup", err))?;
        }
        for limit in &self.resource_limit {
            let set = config.limits.set(limit);
            set.map_err(|err| Unclear::Bad("resource-limit", err))?;
        }
        config.daemonize = self.daemonize;
        config.new_pid_ns = self.new_pid_ns;
        config.seccomp = self.seccomp.mode;
        config.binds = self.bind;
        config.keep = self.keep_fd;
        config.arguments = self.arguments;
        Ok(config)
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_definition_holds_together() {
        Args::command().debug_assert();
    }

    #[test]
    fn command_lines_of_the_known_jailer_are_understood() {
        let line = "jailer --id 551e7604-e35c-42b3-b825-416853441234 --cgroup cpuset.mems=0 \
            --cgroup cpuset.cpus=0-1 --exec-file /usr/bin/vmm --uid 123 --gid 100 \
            --netns /var/run/netns/my_netns --daemonize --new-pid-ns --cgroup-version 1 \
            --parent-cgroup a/b --resource-limit fsize=250000000 --resource-limit no-file=1024 \
            --chroot-base-dir /srv/x -- --config-file vm.json";
        let config = Args::parse_from(line.split_whitespace()).config().unwrap();
        assert_eq!((config.uid, config.gid), (123, 100));
        assert_eq!(
            config.network,
            Network::Join("/var/run/netns/my_netns".into())
        );
        assert_eq!(config.cgroup.settings.len(), 2);
        assert_eq!(config.limits.open_files, 1024);
        assert!(config.daemonize && config.new_pid_ns);
        assert_eq!(config.arguments, ["--config-file", "vm.json"]);
    }
}
