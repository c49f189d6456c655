//! Mounts on which the owner of a file on the host is the jail's user: what root keeps for a machine
//! is that machine's to read and write, without a change of the file (mount_setattr(2), ID-mapped
//! mounts).
//!
//! Such a mount takes its map from a user namespace, which is made by a process that does nothing
//! else, once for each owner. Nobody waits for what that process does: the processors may be busy, and
//! each wait for another process would be a turn of theirs.

use std::os::fd::{AsRawFd, OwnedFd};

use rustix::process::{Pid, WaitOptions, waitpid};

use crate::error::{JailError, failed};
use crate::proc_fs::Proc;
use crate::sys;

/// A user and a group.
pub(crate) type Owner = (u32, u32);

/// The maps that one jail's mounts need.
pub(crate) struct Owners<'a> {
    proc: &'a Proc,
    /// Whom files belong to in the jail.
    to: Owner,
    made: Vec<(Owner, OwnedFd)>,
    holders: Vec<Holder>,
}

/// A process that has held a user namespace and is about to end. Dropped, it is waited for.
pub(crate) struct Holder(Pid);

impl Drop for Holder {
    fn drop(&mut self) {
        // In a copy of this process it is nobody's child, which is an error at once.
        let _ = waitpid(Some(self.0), WaitOptions::empty());
    }
}

impl<'a> Owners<'a> {
    /// For a jail whose user and group are `to`.
    pub fn new(proc: &'a Proc, to: Owner) -> Self {
        Self {
            proc,
            to,
            made: Vec::new(),
            holders: Vec::new(),
        }
    }

    /// Those that are still to be waited for, since no further map is needed.
    pub fn let_go(self) -> Vec<Holder> {
        self.holders
    }

    /// The namespace whose map turns `from` into the jail's user, `None` where they are the same.
    pub fn map(&mut self, from: Owner) -> Result<Option<&OwnedFd>, JailError> {
        if from == self.to {
            return Ok(None);
        }
        let at = match self.made.iter().position(|(owner, _)| *owner == from) {
            Some(at) => at,
            None => {
                let namespace = self.make(from)?;
                self.made.push((from, namespace));
                self.made.len() - 1
            }
        };
        Ok(Some(&self.made[at].1))
    }

    fn make(&mut self, from: Owner) -> Result<OwnedFd, JailError> {
        let held = sys::hold_user_namespace()
            .map_err(failed("make a user namespace for the owners of files"))?;
        self.holders
            .extend(Pid::from_raw(held.pid as i32).map(Holder));
        let doing = "find a user namespace";
        // Its number as /proc has it, which need not be the one that its parent knows.
        let about = self
            .proc
            .read(&format!("self/fdinfo/{}", held.process.as_raw_fd()));
        let about = about.map_err(failed(doing))?;
        let number = about.lines().find_map(|line| line.strip_prefix("Pid:"));
        let number = number
            .ok_or(rustix::io::Errno::SRCH)
            .map_err(failed(doing))?
            .trim();
        let write = |file: &str, from: u32, to: u32| {
            let map = format!("{from} {to} 1");
            self.proc
                .write(&format!("{number}/{file}"), &map)
                .map_err(failed(format!("write the map {map:?}")))
        };
        write("uid_map", from.0, self.to.0)?;
        write("gid_map", from.1, self.to.1)?;
        self.proc
            .open_file(&format!("{number}/ns/user"))
            .map_err(failed("open a user namespace"))
    }
}
