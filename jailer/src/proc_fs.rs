//! What `/proc` knows of processes, and the files there that a process writes about itself. It is
//! held open, since a jail has none.

use std::cell::OnceCell;
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{AtFlags, Dir, Mode, OFlags, openat, readlinkat, statat};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use crate::error::{JailError, failed};
use crate::paths;

/// An open `/proc`.
pub(crate) struct Proc {
    dir: OwnedFd,
    /// Which start of the host this is, once it has been asked for.
    boot: OnceCell<String>,
}

/// A process, told from every other that had or will have its number.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Identity {
    /// Its number.
    pub pid: u32,
    /// When it started, in the kernel's ticks.
    pub start: u64,
    /// Which start of the host that was in.
    pub boot: String,
    /// The PID namespace that the number is from, by inode.
    pub namespace: u64,
}

/// Fields 3, 20 and 22 of `/proc/PID/stat` (proc(5)).
struct Stat {
    state: char,
    threads: u32,
    start: u64,
}

/// The PID namespace that all others are below (`PROC_PID_INIT_INO`, `linux/proc_ns.h`).
const INITIAL: u64 = 0xEFFF_FFFC;

/// How long a process that was ended may take to give everything back. KVM's machines take longest.
const LAST_WORK: Duration = Duration::from_secs(10);

/// Whether a process that was noted down lives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Life {
    Alive,
    /// It has ended, and some of its threads have not quite.
    Ending,
    Dead,
    /// It was noted down in another PID namespace, which may still be there.
    Unknown,
}

impl Proc {
    /// Opens it.
    pub fn open() -> Result<Self, JailError> {
        let dir = paths::open(Path::new("/proc"), OFlags::PATH | OFlags::DIRECTORY)?;
        let boot = OnceCell::new();
        Ok(Self { dir, boot })
    }

    fn boot(&self) -> Result<&str, std::io::Error> {
        if let Some(boot) = self.boot.get() {
            return Ok(boot);
        }
        let boot = self.read("sys/kernel/random/boot_id")?;
        Ok(self.boot.get_or_init(|| boot.trim().to_owned()))
    }

    /// The PID namespace of the calling process.
    pub fn namespace(&self) -> Result<u64, JailError> {
        let stat = statat(&self.dir, "self/ns/pid", AtFlags::empty());
        Ok(stat.map_err(failed("look at the PID namespace"))?.st_ino)
    }

    /// The calling process as `/proc` sees it, which is from outside of its own PID namespace.
    /// `namespace` is the one that this `/proc` shows.
    pub fn identify(&self, namespace: u64) -> Result<Identity, JailError> {
        let doing = "tell this process's number";
        let link = readlinkat(&self.dir, "self", Vec::new()).map_err(failed(doing))?;
        let pid = link.to_str().ok().and_then(|text| text.parse().ok());
        let pid = pid.ok_or(Errno::SRCH).map_err(failed(doing))?;
        let stat = self.stat(pid).ok_or(Errno::SRCH).map_err(failed(doing))?;
        let boot = self.boot().map_err(failed("tell this boot's id"))?;
        Ok(Identity {
            pid,
            start: stat.start,
            boot: boot.to_owned(),
            namespace,
        })
    }

    /// Whether that process lives. One that only waits to be reaped does not.
    pub fn life(&self, process: &Identity) -> Life {
        match self.boot() {
            Ok(boot) if boot == process.boot => {}
            Ok(_) => return Life::Dead,
            Err(_) => return Life::Unknown,
        }
        match self.namespace() {
            Ok(own) if own == process.namespace => {}
            // From here, all processes and their namespaces can be seen.
            Ok(INITIAL) if !self.is_inhabited(process.namespace) => return Life::Dead,
            _ => return Life::Unknown,
        }
        match self.stat(process.pid) {
            Some(stat) if stat.start != process.start => Life::Dead,
            Some(stat) if !"ZXx".contains(stat.state) => Life::Alive,
            Some(stat) if stat.threads > 1 => Life::Ending,
            _ => Life::Dead,
        }
    }

    /// Whether a process is in that PID namespace, or it cannot be told.
    fn is_inhabited(&self, namespace: u64) -> bool {
        let Ok(entries) = Dir::read_from(&self.dir) else {
            return true;
        };
        let pids = entries
            .flatten()
            .filter_map(|entry| entry.file_name().to_str().ok()?.parse::<u32>().ok());
        let mut within = pids.map(|pid| {
            match statat(&self.dir, format!("{pid}/ns/pid"), AtFlags::empty()) {
                Ok(stat) => stat.st_ino == namespace,
                // It has ended meanwhile.
                Err(Errno::NOENT | Errno::SRCH) => false,
                Err(_) => true,
            }
        });
        within.any(|within| within)
    }

    fn stat(&self, pid: u32) -> Option<Stat> {
        let text = self.read(&format!("{pid}/stat")).ok()?;
        // The name stands in brackets and may contain anything, blanks and brackets too.
        let mut fields = text.rsplit_once(')')?.1.split_whitespace();
        Some(Stat {
            state: fields.next()?.chars().next()?,
            threads: fields.nth(16)?.parse().ok()?,
            start: fields.nth(1)?.parse().ok()?,
        })
    }

    /// Waits until nothing of an ending process is left.
    pub fn wait_for_end(&self, process: &Identity) {
        let limit = Timespec {
            tv_sec: LAST_WORK.as_secs() as i64,
            tv_nsec: 0,
        };
        let pid = Pid::from_raw(process.pid as i32);
        // Whoever is gone by now need not be waited for.
        if let Some(Ok(fd)) = pid.map(|pid| pidfd_open(pid, PidfdFlags::empty())) {
            let _ = poll(&mut [PollFd::new(&fd, PollFlags::IN)], Some(&limit));
        }
    }

    /// Ends a process at once and waits for that.
    pub fn kill(&self, process: &Identity) -> Result<(), std::io::Error> {
        let Some(pid) = Pid::from_raw(process.pid as i32) else {
            return Ok(());
        };
        let held = match pidfd_open(pid, PidfdFlags::empty()) {
            Err(Errno::SRCH) => return Ok(()),
            held => held?,
        };
        // What is held may be another one with its number.
        if let Life::Alive = self.life(process) {
            pidfd_send_signal(&held, Signal::KILL)?;
        }
        drop(held);
        self.wait_for_end(process);
        Ok(())
    }

    /// Reads a short file, like a setting.
    pub fn read(&self, path: &str) -> Result<String, std::io::Error> {
        let fd = openat(
            &self.dir,
            path,
            OFlags::RDONLY | OFlags::CLOEXEC,
            Mode::empty(),
        )?;
        // What is read here is a line, which the kernel hands out in one piece.
        let mut buffer = [0; 1024];
        let len = File::from(fd).read(&mut buffer)?;
        Ok(String::from_utf8_lossy(&buffer[..len]).into_owned())
    }

    /// Opens a file for reading.
    pub fn open_file(&self, path: &str) -> Result<OwnedFd, Errno> {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC;
        openat(&self.dir, path, flags, Mode::empty())
    }

    /// Writes a setting, like `self/uid_map`.
    pub fn write(&self, path: &str, text: &str) -> Result<(), std::io::Error> {
        let fd = openat(
            &self.dir,
            path,
            OFlags::WRONLY | OFlags::CLOEXEC,
            Mode::empty(),
        )?;
        File::from(fd).write_all(text.as_bytes())
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn this_process_lives_and_is_itself() {
        let proc = Proc::open().unwrap();
        let own = proc.identify(proc.namespace().unwrap()).unwrap();
        assert_eq!(own.pid, std::process::id());
        assert_eq!(proc.life(&own), Life::Alive);
        for other in [
            Identity {
                start: own.start + 1,
                ..own.clone()
            },
            Identity {
                boot: "another".to_owned(),
                ..own.clone()
            },
        ] {
            assert_eq!(proc.life(&other), Life::Dead);
        }
        // Where all can be seen, a namespace that nobody is in is gone.
        let elsewhere = Identity {
            namespace: 1,
            ..own.clone()
        };
        let told = match own.namespace == INITIAL && rustix::process::geteuid().is_root() {
            true => Life::Dead,
            false => Life::Unknown,
        };
        assert_eq!(proc.life(&elsewhere), told);
    }

    #[test]
    fn a_process_that_only_waits_to_be_reaped_is_dead() {
        let proc = Proc::open().unwrap();
        let mut child = Command::new("true").spawn().unwrap();
        let own = proc.identify(proc.namespace().unwrap()).unwrap();
        let start = proc.stat(child.id()).unwrap().start;
        let noted = Identity {
            pid: child.id(),
            start,
            ..own
        };
        while proc.life(&noted) == Life::Alive {
            std::thread::yield_now();
        }
        child.wait().unwrap();
        assert_eq!(proc.life(&noted), Life::Dead);
    }
}
