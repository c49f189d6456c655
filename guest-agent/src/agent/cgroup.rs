//! A control group (version 2) per command, so that all its descendants can be found and ended, also those that left
//! its session.
//!
//! Making a group is dear in an interpreted kernel (a dozen files each), so emptied ones are used again. Where there is
//! no version 2 hierarchy, commands run without and ending them falls back to their session.

use std::cell::{Cell, RefCell};
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};

use rustix::fs::{AtFlags, Mode, OFlags, openat};

use super::sys;

/// Where groups are made.
#[derive(Default)]
pub struct Cgroups {
    base: Option<OwnedFd>,
    next: Cell<u32>,
    /// Groups without a command, some of which still hold children that were left behind.
    idle: RefCell<Vec<Group>>,
}

/// One group.
pub struct Group {
    dir: OwnedFd,
    events: OwnedFd,
    name: String,
    /// Newer kernels kill what is born later into a group that was killed once.
    killed: Cell<bool>,
}

/// Most idle groups looked through for an empty one, and kept.
const MAX_IDLE: usize = 64;

impl Cgroups {
    /// Groups under this directory; none at all if it is not in a version 2 hierarchy.
    pub fn new(base: &str) -> Self {
        let base = open(rustix::fs::CWD, base, OFlags::DIRECTORY | OFlags::RDONLY)
            .ok()
            .filter(|dir| {
                rustix::fs::accessat(
                    dir,
                    "cgroup.procs",
                    rustix::fs::Access::EXISTS,
                    AtFlags::empty(),
                )
                .is_ok()
            });
        Self {
            base,
            ..Self::default()
        }
    }

    /// An empty group, if groups can be had.
    pub fn acquire(&self) -> Option<Group> {
        let base = self.base.as_ref()?;
        let mut idle = self.idle.borrow_mut();
        if let Some(index) = idle
            .iter()
            .position(|group| !group.killed.get() && group.is_empty())
        {
            return Some(idle.swap_remove(index));
        }
        loop {
            let number = self.next.get();
            self.next.set(number.checked_add(1)?);
            let name = format!("tine-exec-{number}");
            match rustix::fs::mkdirat(base, &*name, Mode::from_raw_mode(0o755)) {
                Ok(()) => {}
                // An earlier agent's, or a guest program's: not ours to use.
                Err(rustix::io::Errno::EXIST) => continue,
                Err(_) => return None,
            }
            let dir = open(base, &name, OFlags::DIRECTORY | OFlags::RDONLY).ok()?;
            let events = open(&dir, "cgroup.events", OFlags::RDONLY).ok()?;
            return Some(Group {
                dir,
                events,
                name,
                killed: Cell::new(false),
            });
        }
    }

    /// Gives a group back when its command has ended.
    pub fn release(&self, group: Group) {
        let mut idle = self.idle.borrow_mut();
        let Some(base) = &self.base else { return };
        let killed = group.killed.get();
        idle.push(group);
        if killed || idle.len() > MAX_IDLE {
            let unused = idle.len() > MAX_IDLE;
            // Removing fails while there are processes in it.
            idle.retain(|group| {
                !(unused || group.killed.get())
                    || rustix::fs::unlinkat(base, &*group.name, AtFlags::REMOVEDIR).is_err()
            });
        }
    }

    /// Removes what can be removed, at the agent's end.
    pub fn clear(&self) {
        if let Some(base) = &self.base {
            for group in self.idle.borrow_mut().drain(..) {
                let _ = rustix::fs::unlinkat(base, &*group.name, AtFlags::REMOVEDIR);
            }
        }
    }
}

impl Group {
    /// For `CLONE_INTO_CGROUP`.
    pub fn raw_dir(&self) -> RawFd {
        self.dir.as_raw_fd()
    }

    /// The name that `/proc/PID/cgroup` shows.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// No process is in it or below it.
    pub fn is_empty(&self) -> bool {
        let mut text = [0; 256];
        match rustix::io::pread(&self.events, &mut text, 0) {
            Ok(count) => text[..count].windows(11).any(|part| part == b"populated 0"),
            // It was removed under us, which needs it to be empty.
            Err(_) => true,
        }
    }

    /// Ends every process in it, also those that are being born.
    pub fn kill(&self) -> io::Result<()> {
        self.killed.set(true);
        let file = open(&self.dir, "cgroup.kill", OFlags::WRONLY)?;
        rustix::io::write(&file, b"1")?;
        Ok(())
    }

    /// Sends a signal to every process in it.
    pub fn signal(&self, signal: i32) {
        for pid in self.processes() {
            let _ = sys::kill(pid, signal);
        }
    }

    /// The processes in the group itself.
    pub fn processes(&self) -> Vec<i32> {
        let Ok(file) = open(&self.dir, "cgroup.procs", OFlags::RDONLY) else {
            return Vec::new();
        };
        let text = std::io::read_to_string(std::fs::File::from(file)).unwrap_or_default();
        text.lines()
            .filter_map(|line| line.parse().ok())
            .filter(|pid| *pid > 1)
            .collect()
    }
}

fn open(dir: impl AsFd, name: &str, flags: OFlags) -> rustix::io::Result<OwnedFd> {
    openat(dir, name, flags | OFlags::CLOEXEC, Mode::empty())
}
