//! What the agent does to the machine as a whole: clock, entropy, names, holding file systems. Or, in tests on a host,
//! only writes down below a directory.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::time::{ClockId, Timespec, clock_settime};

use tine_guest_agent::refresh::NewInterface;

use super::{interfaces, neighbours, sys};

/// Where effects go.
#[derive(Debug, Clone)]
pub enum Effects {
    /// To this machine.
    Machine,
    /// To files below this directory, named after the effect.
    Rehearsed(PathBuf),
}

impl Effects {
    /// Sets the time of day.
    pub fn set_clock(&self, unix_ns: u64) -> io::Result<()> {
        match self {
            Self::Machine => Ok(clock_settime(
                ClockId::Realtime,
                Timespec {
                    tv_sec: (unix_ns / 1_000_000_000) as i64,
                    tv_nsec: (unix_ns % 1_000_000_000) as i64,
                },
            )?),
            Self::Rehearsed(dir) => std::fs::write(dir.join("clock"), unix_ns.to_string()),
        }
    }

    /// Mixes in random bytes, and has the kernel's generator take them up at once.
    pub fn add_entropy(&self, bytes: &[u8]) -> io::Result<()> {
        match self {
            Self::Machine => sys::add_entropy(File::open("/dev/urandom")?.as_fd(), bytes),
            Self::Rehearsed(dir) => std::fs::write(dir.join("entropy"), bytes),
        }
    }

    /// Names the machine.
    pub fn set_hostname(&self, name: &str) -> io::Result<()> {
        match self {
            Self::Machine => Ok(rustix::system::sethostname(name.as_bytes())?),
            Self::Rehearsed(dir) => std::fs::write(dir.join("hostname"), name),
        }
    }

    /// Gives network interfaces other addresses.
    pub fn change_interfaces(&self, wanted: &[NewInterface]) -> io::Result<()> {
        match self {
            Self::Machine => interfaces::change(wanted),
            Self::Rehearsed(_) if wanted.is_empty() => Ok(()),
            Self::Rehearsed(dir) => {
                std::fs::write(dir.join("interfaces"), serde_json::to_vec(wanted)?)
            }
        }
    }

    /// Forgets which link addresses other hosts had.
    pub fn forget_neighbours(&self) -> io::Result<()> {
        match self {
            Self::Machine => neighbours::forget(),
            Self::Rehearsed(dir) => std::fs::write(dir.join("neighbours"), "forgotten"),
        }
    }

    /// Where the machine's file of that name is.
    pub fn path(&self, path: impl AsRef<Path>) -> PathBuf {
        let path = path.as_ref();
        match self {
            Self::Machine => path.into(),
            Self::Rehearsed(dir) => dir.join(path.strip_prefix("/").unwrap_or(path)),
        }
    }

    /// The table of mounts.
    pub fn mounts(&self) -> io::Result<String> {
        std::fs::read_to_string(self.path("/proc/self/mountinfo"))
    }

    /// Writes out the file system that a directory is on, and holds further writes to it.
    pub fn freeze(&self, dir: &OwnedFd, mount: &[u8]) -> io::Result<()> {
        match self {
            Self::Machine => sys::freeze(dir.as_fd()),
            Self::Rehearsed(_) => self.note("freeze", mount),
        }
    }

    /// Lets writes go on.
    pub fn thaw(&self, dir: &OwnedFd, mount: &[u8]) -> io::Result<()> {
        match self {
            Self::Machine => sys::thaw(dir.as_fd()),
            Self::Rehearsed(_) => self.note("thaw", mount),
        }
    }

    fn note(&self, what: &str, mount: &[u8]) -> io::Result<()> {
        let mut log = File::options()
            .append(true)
            .create(true)
            .open(self.path("held"))?;
        log.write_all(&[what.as_bytes(), b" ", mount, b"\n"].concat())
    }
}

/// Makes temporary names differ.
static NEXT: AtomicU32 = AtomicU32::new(0);

/// A name beside `path` that nobody else uses, for writing and renaming.
pub fn temporary(path: &Path) -> PathBuf {
    let name = path.file_name().unwrap_or_default();
    let mut hidden = std::ffi::OsString::from(".");
    // Shortened, so that a name of the greatest length can be written too.
    hidden.push(name.to_string_lossy().chars().take(40).collect::<String>());
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    hidden.push(format!(".tine-{}-{number}", std::process::id()));
    path.with_file_name(hidden)
}
