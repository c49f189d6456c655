//! Holding writes to the guest's disks while the host copies them.
//!
//! Freezing waits for disks and so runs on a thread; thawing does not and runs on the loop, where nothing can keep it
//! from happening: commands that write meanwhile wait in the kernel, and a host that goes away is not waited for.

use std::cell::Cell;
use std::collections::HashSet;
use std::ffi::OsStr;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::rc::Rc;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::fs::{Mode, OFlags};
use tine_guest_agent::octets::Octets;
use tine_guest_agent::refresh::{DEFAULT_FREEZE_MS, Freeze, Frozen};
use tokio::time::Instant;

use super::effects::Effects;
use super::fault::Fault;
use super::{Agent, Either, race};

/// What is held now.
#[derive(Default)]
pub struct Freezer {
    held: Cell<Option<Arc<Mutex<Held>>>>,
    /// Counts freezes, so that a late timer does not end a later one.
    turn: Cell<u64>,
}

/// One freeze, as the thread that does it and the loop that ends it share it.
#[derive(Default)]
struct Held {
    mounts: Vec<(OwnedFd, Vec<u8>)>,
    /// It is over: what is frozen from here on is thawed by who froze it.
    over: bool,
}

/// Freezes every file system of a disk, and has them thawed when the time is up.
pub async fn freeze(agent: &Rc<Agent>, wanted: Freeze) -> Result<Frozen, Fault> {
    let limit = Duration::from_millis(wanted.timeout_ms.unwrap_or(DEFAULT_FREEZE_MS));
    let deadline = Instant::now() + limit;
    let Some((turn, held)) = agent.freezer.begin() else {
        return Err(Fault::conflict("the file systems are frozen already"));
    };
    let waiting = agent.clone();
    tokio::task::spawn_local(async move {
        tokio::time::sleep_until(deadline).await;
        if waiting.freezer.turn.get() == turn {
            waiting.freezer.thaw(&waiting.config.effects);
        }
    });
    let effects = agent.config.effects.clone();
    let work = super::files::blocking(move || freeze_all(&effects, &held));
    let result = match race(work, tokio::time::sleep_until(deadline)).await {
        Either::Left(result) => result,
        Either::Right(()) => Err(Fault::new(
            504,
            "timed_out",
            "a file system could not be frozen in time; all are thawed again",
        )),
    };
    if result.is_err() {
        agent.freezer.thaw(&agent.config.effects);
    }
    result
}

impl Freezer {
    fn begin(&self) -> Option<(u64, Arc<Mutex<Held>>)> {
        if let Some(held) = self.held.take() {
            self.held.set(Some(held));
            return None;
        }
        let held = Arc::<Mutex<Held>>::default();
        self.held.set(Some(held.clone()));
        self.turn.set(self.turn.get() + 1);
        Some((self.turn.get(), held))
    }

    /// Lets writes go on. False if nothing was held.
    pub fn thaw(&self, effects: &Effects) -> bool {
        let Some(held) = self.held.take() else {
            return false;
        };
        let mut held = lock(&held);
        held.over = true;
        for (dir, mount) in held.mounts.drain(..).rev() {
            // Somebody in the guest may have thawed it before, which has the same result.
            let _ = effects.thaw(&dir, &mount);
        }
        true
    }
}

fn lock(held: &Mutex<Held>) -> MutexGuard<'_, Held> {
    held.lock().unwrap_or_else(PoisonError::into_inner)
}

fn freeze_all(effects: &Effects, held: &Mutex<Held>) -> Result<Frozen, Fault> {
    let table = effects
        .mounts()
        .map_err(|error| Fault::io(&error, "the table of mounts"))?;
    let mut frozen = Frozen::default();
    // The last mounted first: a file system in a file of another one needs that one to write itself out.
    for mount in disks(&table).into_iter().rev() {
        let name = String::from_utf8_lossy(&mount).into_owned();
        let failed = |error: &std::io::Error| Fault::io(error, &name);
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let dir = match rustix::fs::open(OsStr::from_bytes(&mount), flags, Mode::empty()) {
            Ok(dir) => dir,
            // A single file can be a mount point, too; its file system has others or is read-only in effect.
            Err(rustix::io::Errno::NOTDIR) => continue,
            Err(errno) => return Err(failed(&errno.into())),
        };
        match effects.freeze(&dir, &mount) {
            Ok(()) => {}
            Err(error) if error.raw_os_error() == Some(libc::EOPNOTSUPP) => {
                rustix::fs::syncfs(&dir).map_err(|errno| failed(&errno.into()))?;
                frozen.synced.push(Octets(mount));
                continue;
            }
            Err(error) => return Err(failed(&error)),
        }
        let mut held = lock(held);
        if held.over {
            let _ = effects.thaw(&dir, &mount);
            return Err(Fault::conflict("thawed before all was frozen"));
        }
        held.mounts.push((dir, mount.clone()));
        drop(held);
        frozen.frozen.push(Octets(mount));
    }
    Ok(frozen)
}

/// A mount point for each writable file system on a block device, in the order of mounting.
fn disks(table: &str) -> Vec<Vec<u8>> {
    let mut seen = HashSet::new();
    let mut mounts = Vec::new();
    for line in table.lines() {
        // ID PARENT MAJOR:MINOR ROOT POINT OPTIONS [FIELDS..] - TYPE SOURCE SUPER-OPTIONS
        let Some((place, kind)) = line.split_once(" - ") else {
            continue;
        };
        let place: Vec<&str> = place.split(' ').collect();
        let kind: Vec<&str> = kind.split(' ').collect();
        let ([_, _, device, _, point, ..], [_, source, options, ..]) = (&place[..], &kind[..])
        else {
            continue;
        };
        let read_only = options.split(',').any(|option| option == "ro");
        if source.starts_with('/') && !read_only && seen.insert(*device) {
            mounts.push(unescape(point));
        }
    }
    mounts
}

/// The table spells blanks and backslashes as three octal digits.
fn unescape(text: &str) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        let digits = after.get(..3).filter(|_| *first == b'\\');
        let value = digits
            .and_then(|digits| std::str::from_utf8(digits).ok())
            .and_then(|digits| u8::from_str_radix(digits, 8).ok());
        bytes.push(value.unwrap_or(*first));
        rest = if value.is_some() { &after[3..] } else { after };
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_writable_disks_and_each_once() {
        let table = "\
            1 0 0:2 / / rw - rootfs rootfs rw\n\
            22 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw\n\
            23 22 0:21 / /proc rw - proc proc rw\n\
            24 22 254:16 / /a\\040b\\134 rw,noexec - ext4 /dev/vdb rw,errors=continue\n\
            25 22 254:16 /sub /again rw - ext4 /dev/vdb rw\n\
            26 22 254:32 / /ro rw - ext4 /dev/vdc ro\n\
            nonsense\n";
        assert_eq!(disks(table), [b"/".to_vec(), b"/a b\\".to_vec()]);
    }
}
