//! What a jail can be asked to be: inert data, checked as far as that is possible without looking
//! at the host.

use std::ffi::OsString;
use std::fmt;
use std::os::fd::RawFd;
use std::path::{Component, Path, PathBuf};
use std::str::FromStr;

use crate::cgroup;
use crate::seccomp::Mode;

/// Where jails are made when nothing else is asked for.
pub const DEFAULT_BASE: &str = "/srv/jailer";
/// How many descriptors a jailed process may have when nothing else is asked for.
pub const DEFAULT_OPEN_FILES: u64 = 2048;
/// Longest id.
pub const MAX_ID: usize = 64;

/// Why an argument was refused: its value and the reason.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{value:?}: {reason}")]
pub struct BadArgument {
    value: String,
    reason: &'static str,
}

/// Refuses `value`.
pub(crate) fn bad<T>(value: impl fmt::Display, reason: &'static str) -> Result<T, BadArgument> {
    let value = value.to_string();
    Err(BadArgument { value, reason })
}

/// What a machine is called: 1 to 64 letters, digits, `-` or `_`. It becomes a directory's name,
/// a cgroup's and the host name in the jail, so nothing else is let in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Id(String);

impl Id {
    /// The text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for Id {
    type Err = BadArgument;

    fn from_str(text: &str) -> Result<Self, BadArgument> {
        let fits = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
        match !text.is_empty() && text.len() <= MAX_ID && text.chars().all(fits) {
            true => Ok(Self(text.to_owned())),
            false => bad(text, "give 1 to 64 letters, digits, `-` or `_`"),
        }
    }
}

/// The network that the jailed process sees.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Network {
    /// A namespace without any interface, not even a usable loopback.
    Empty,
    /// The namespace that this file stands for, as `ip netns add` makes them.
    Join(PathBuf),
    /// The one that the jailer was started in.
    Host,
}

/// A file or directory of the host that is shown in the jail.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Bind {
    /// On the host.
    pub source: PathBuf,
    /// In the jail, absolute.
    pub target: PathBuf,
    /// Whether it can be written to.
    pub writable: bool,
    /// Whether the jail's user has there what the file's owner has on the host, new files included.
    /// (By an ID-mapped mount: nothing of the file itself changes.)
    pub owned: bool,
}

impl FromStr for Bind {
    type Err = BadArgument;

    /// `SOURCE:TARGET` or `SOURCE:TARGET:rw`.
    fn from_str(text: &str) -> Result<Self, BadArgument> {
        let mut parts = text.split(':');
        let (Some(source), Some(target)) = (parts.next(), parts.next()) else {
            return bad(text, "give SOURCE:TARGET, or SOURCE:TARGET:rw");
        };
        let writable = match parts.next() {
            None | Some("ro") => false,
            Some("rw") => true,
            Some(_) => return bad(text, "after the second colon only `ro` or `rw` can stand"),
        };
        if parts.next().is_some() {
            return bad(text, "a path with a colon in it cannot be given");
        }
        let target = Path::new(target);
        let mut components = target.components();
        let absolute = components.next() == Some(Component::RootDir);
        let plain = components
            .clone()
            .all(|c| matches!(c, Component::Normal(_)));
        if !absolute || !plain || components.next().is_none() {
            return bad(
                text,
                "the target is an absolute path in the jail without `.` and `..`",
            );
        }
        if target.starts_with("/dev") {
            return bad(text, "/dev is the jailer's: choose another target");
        }
        Ok(Self {
            source: source.into(),
            target: target.into(),
            writable,
            owned: false,
        })
    }
}

/// Limits of the process, beside those that its cgroup sets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ResourceLimits {
    /// Bytes of a file that it makes longer.
    pub file_size: Option<u64>,
    /// Descriptors.
    pub open_files: u64,
}

impl Default for ResourceLimits {
    fn default() -> Self {
        Self {
            file_size: None,
            open_files: DEFAULT_OPEN_FILES,
        }
    }
}

impl ResourceLimits {
    /// Takes `fsize=BYTES` or `no-file=COUNT`.
    pub fn set(&mut self, text: &str) -> Result<(), BadArgument> {
        let Some((name, value)) = text.split_once('=') else {
            return bad(text, "give RESOURCE=VALUE");
        };
        let Ok(number) = value.parse() else {
            return bad(text, "the value is no whole number");
        };
        match name {
            "fsize" => self.file_size = Some(number),
            "no-file" => self.open_files = number,
            _ => return bad(text, "the resources are `fsize` and `no-file`"),
        }
        Ok(())
    }
}

/// Everything that a jail can be asked to be.
#[derive(Debug, Clone)]
pub struct Config {
    /// What the machine is called.
    pub id: Id,
    /// The program that is run in the jail.
    pub exec_file: PathBuf,
    /// What it runs as. An ordinary user can only have its own.
    pub uid: u32,
    /// What it runs as.
    pub gid: u32,
    /// The directory that jails are made in.
    pub base: PathBuf,
    /// The network that it sees.
    pub network: Network,
    /// The cgroup, or none.
    pub cgroup: cgroup::Request,
    /// Limits of the process.
    pub limits: ResourceLimits,
    /// Leave the session, with `/dev/null` for standard input and outputs.
    pub daemonize: bool,
    /// Be the first process of a PID namespace of its own.
    pub new_pid_ns: bool,
    /// What is done about system calls.
    pub seccomp: Mode,
    /// Descriptors that are handed over, beside 0, 1 and 2.
    pub keep: Vec<RawFd>,
    /// Where the plan forks, the new process becomes a child of the caller's parent, which can then
    /// wait for it as for the caller. The caller does not wait: what goes wrong in the new process is
    /// written to this descriptor, which is one of `keep`.
    pub sibling: Option<RawFd>,
    /// The program is killed when this process ends, which is the caller's parent and, by `sibling`
    /// or without a fork, the program's.
    pub end_with_parent: Option<u32>,
    /// The program may have further names (hard links): it is the launcher's own, and whoever could
    /// write to it could write to the launcher.
    pub linked_program: bool,
    /// Files of the host that are shown in the jail.
    pub binds: Vec<Bind>,
    /// Further arguments of the program.
    pub arguments: Vec<OsString>,
}

impl Config {
    /// A jail for `exec_file` with nothing special.
    pub fn new(id: Id, exec_file: PathBuf, uid: u32, gid: u32) -> Self {
        Self {
            id,
            exec_file,
            uid,
            gid,
            base: DEFAULT_BASE.into(),
            network: Network::Empty,
            cgroup: cgroup::Request::default(),
            limits: ResourceLimits::default(),
            daemonize: false,
            new_pid_ns: false,
            seccomp: Mode::Filter,
            keep: Vec::new(),
            sibling: None,
            end_with_parent: None,
            linked_program: false,
            binds: Vec::new(),
            arguments: Vec::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_letters_digits_and_dashes() {
        for good in ["a", "A-1_b", &"x".repeat(64)] {
            assert_eq!(good.parse::<Id>().unwrap().as_str(), good);
        }
        for wrong in ["", "..", "a/b", "a b", "ä", "a\0", "a.b", &"x".repeat(65)] {
            assert!(wrong.parse::<Id>().is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn binds_name_two_plain_paths() {
        let bind: Bind = "/a/b:/c:rw".parse().unwrap();
        assert!(bind.writable && bind.target == Path::new("/c"));
        assert!(!"/a:/c".parse::<Bind>().unwrap().writable);
        for wrong in [
            "/a",
            "/a:c",
            "/a:/../c",
            "/a:/",
            "/a:/c:x",
            "/a:/b:rw:c",
            "/a:/dev/kvm",
        ] {
            assert!(wrong.parse::<Bind>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn resource_limits_are_named_and_numbers() {
        let mut limits = ResourceLimits::default();
        limits.set("fsize=1000").unwrap();
        limits.set("no-file=64").unwrap();
        assert_eq!((limits.file_size, limits.open_files), (Some(1000), 64));
        for wrong in ["fsize", "fsize=", "fsize=-1", "fsize=1k", "core=0"] {
            assert!(limits.set(wrong).is_err(), "{wrong}");
        }
    }
}
