//! Mounts on which the owner of a file on the host is the jail's user: what root keeps for a machine
//! is that machine's to read and write, without a change of the file (mount_setattr(2), ID-mapped
//! mounts).
//!
//! Such a mount takes its map from a user namespace, which is made by a process that does nothing
//! else, once for each owner.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;

use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{Pid, WaitOptions, waitpid};

use crate::error::{JailError, failed};
use crate::proc_fs::Proc;
use crate::sys::{self, fork_flags};

/// A user and a group.
pub(crate) type Owner = (u32, u32);

/// The maps that one jail's mounts need.
pub(crate) struct Owners<'a> {
    proc: &'a Proc,
    /// Whom files belong to in the jail.
    to: Owner,
    made: Vec<(Owner, OwnedFd)>,
}

impl<'a> Owners<'a> {
    /// For a jail whose user and group are `to`.
    pub fn new(proc: &'a Proc, to: Owner) -> Self {
        Self {
            proc,
            to,
            made: Vec::new(),
        }
    }

    /// The namespace whose map turns `from` into the jail's user, `None` where they are the same.
    pub fn map(&mut self, from: Owner) -> Result<Option<&OwnedFd>, JailError> {
        if from == self.to {
            return Ok(None);
        }
        let at = match self.made.iter().position(|(owner, _)| *owner == from) {
            Some(at) => at,
            None => {
                self.made.push((from, make(self.proc, from, self.to)?));
                self.made.len() - 1
            }
        };
        Ok(Some(&self.made[at].1))
    }
}

fn make(proc: &Proc, from: Owner, to: Owner) -> Result<OwnedFd, JailError> {
    let pipe = || pipe_with(PipeFlags::CLOEXEC).map_err(failed("make a pipe"));
    let (said, tell) = pipe()?;
    let (wait, done) = pipe()?;
    let child = sys::fork(fork_flags::NEW_USER_NS, None)
        .map_err(failed("make a user namespace for the owners of files"))?;
    let Some(pid) = child else {
        drop((said, done));
        // Its number as /proc has it, which need not be the one that the parent knows.
        let number = std::fs::read_link("/proc/self").unwrap_or_default();
        let _ = File::from(tell).write_all(number.as_os_str().as_encoded_bytes());
        // Until the parent has what it wants, or is gone.
        let _ = File::from(wait).read(&mut [0]);
        sys::leave(0);
    };
    drop((tell, wait));
    let mut number = String::new();
    let heard = File::from(said)
        .read_to_string(&mut number)
        .map_err(failed("hear of a user namespace"));
    let made = heard.and_then(|_| {
        let write = |file: &str, from: u32, to: u32| {
            let map = format!("{from} {to} 1");
            proc.write(&format!("{number}/{file}"), &map)
                .map_err(failed(format!("write the map {map:?}")))
        };
        write("uid_map", from.0, to.0)?;
        write("gid_map", from.1, to.1)?;
        proc.open_file(&format!("{number}/ns/user"))
            .map_err(failed("open a user namespace"))
    });
    drop(done);
    let _ = waitpid(Pid::from_raw(pid as i32), WaitOptions::empty());
    made
}
