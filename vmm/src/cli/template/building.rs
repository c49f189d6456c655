//! A version in the making: a hidden directory that its maker holds a lock on. It becomes a version
//! with one rename, or goes with its maker; what a killed one left is cleared by the next.

use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::unix::fs::{DirBuilderExt, symlink};
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, FlockOperation, RenameFlags, flock, renameat_with};
use rustix::io::Errno;
use tine_jailer::files;

use super::record::Version;
use super::store::{self, Locked, SNAPSHOT, Store, VERSION, failed, sync};
use crate::cli::failure::Failure;
use crate::cli::leftover::own;
use crate::cli::{jail, rundir};

const BUILDING: &str = ".building-";
const REMOVED: &str = ".removed-";
/// Name of a link to the directory of the machine that the version is made with.
const MACHINE: &str = "machine";
/// What the ids of such machines begin with.
const MACHINE_ID: &str = "build-";

/// A version in the making.
pub struct Building {
    /// Where it is, until it is published.
    dir: PathBuf,
    id: String,
    /// Held as long as it is in the making.
    _lock: File,
}

impl Store {
    /// Begins a version, after clearing what nobody owns any more.
    pub fn begin(&self) -> Result<Building, Failure> {
        let locked = self.lock()?;
        self.clear(&locked);
        let id = rundir::new_id();
        let dir = self.root.join(format!("{BUILDING}{id}"));
        let made = DirBuilder::new().mode(0o700).create(&dir);
        made.map_err(|err| failed("make", &dir, &err))?;
        let lock = files::open_dir(&dir).map_err(|err| failed("open", &dir, &err))?;
        // Nobody else has it: who clears has the store's lock.
        flock(&lock, FlockOperation::NonBlockingLockExclusive)
            .map_err(|err| failed("lock", &dir, &err.into()))?;
        Ok(Building {
            dir,
            id,
            _lock: lock,
        })
    }

    /// Makes what was built the next version of the template `name`, and the active one if that is
    /// wanted; gives its number. It is there from one moment to the next, whole and durable.
    pub fn publish(
        &self,
        building: Building,
        name: &str,
        record: &Version,
        activate: bool,
    ) -> Result<u32, Failure> {
        let dir = &building.dir;
        let file = dir.join(VERSION);
        store::write(&file, record).map_err(|err| failed("write", &file, &err))?;
        let link = dir.join(MACHINE);
        match fs::remove_file(&link) {
            Err(err) if err.kind() != io::ErrorKind::NotFound => {
                return Err(failed("remove", &link, &err));
            }
            _ => {}
        }
        sync(dir)?;
        let locked = self.lock()?;
        let template = self.dir(name);
        match DirBuilder::new().mode(0o700).create(&template) {
            Err(err) if err.kind() == io::ErrorKind::AlreadyExists => {}
            made => made.map_err(|err| failed("make", &template, &err))?,
        }
        sync(&self.root)?;
        let mut active = self.active(name)?;
        // A process that was killed here before may have published one, and not written that down.
        let highest = self.versions(name)?.pop().unwrap_or(0).max(active.last);
        let version = highest.checked_add(1).ok_or_else(|| {
            Failure::new(format!("template {name} has had all numbers of versions"))
        })?;
        let target = self.version_dir(name, version);
        rename(dir, &target).map_err(|err| failed("publish", &target, &err.into()))?;
        sync(&template)?;
        sync(&self.root)?;
        active.last = version;
        if activate {
            active.activate(version);
        }
        self.set_active(&locked, name, &active)?;
        Ok(version)
    }

    /// Removes what killed processes left: versions in the making with their machines' directories,
    /// what was being deleted, and templates without a version. What cannot be removed is in nobody's
    /// way, and the next one tries again.
    pub fn clear(&self, _: &Locked) {
        for name in store::entries(&self.root).unwrap_or_default() {
            let path = self.root.join(&name);
            if let Some(id) = name.strip_prefix(BUILDING) {
                let Some(_lock) = own(&path) else { continue };
                if clear_machine(&path, id) {
                    let _ = fs::remove_dir_all(&path);
                }
            } else if name.starts_with(REMOVED) {
                if let Some(_lock) = own(&path) {
                    let _ = fs::remove_dir_all(&path);
                }
            } else if rundir::id(&name).is_ok() {
                // Goes only if nothing is in it.
                let _ = fs::remove_dir(&path);
            }
        }
    }

    /// Takes a template's or version's directory out of sight, durably. What is in it is deleted when
    /// the result is given to [`Store::delete`].
    pub fn hide(&self, _: &Locked, dir: &Path) -> Result<PathBuf, Failure> {
        let hidden = self.root.join(format!("{REMOVED}{}", rundir::new_id()));
        rename(dir, &hidden).map_err(|err| failed("remove", dir, &err.into()))?;
        sync(dir.parent().unwrap_or(&self.root))?;
        sync(&self.root)?;
        Ok(hidden)
    }

    /// Deletes what was hidden.
    pub fn delete(&self, hidden: &Path) -> Result<(), Failure> {
        match fs::remove_dir_all(hidden) {
            // Somebody who clears was quicker.
            Err(err) if err.kind() == io::ErrorKind::NotFound => Ok(()),
            done => done.map_err(|err| failed("delete", hidden, &err)),
        }
    }
}

impl Building {
    /// Where the snapshot is to be.
    pub fn snapshot(&self) -> PathBuf {
        self.dir.join(SNAPSHOT)
    }

    /// Refuses a snapshot that is a link: the machine wrote it, and which directory of the host a template
    /// is, and is shown in jails, is not the machine's to say. It has ended.
    pub fn check_snapshot(&self) -> Result<(), Failure> {
        let path = self.snapshot();
        let found = path.symlink_metadata();
        match found.map_err(|err| failed("open", &path, &err))?.is_dir() {
            true => Ok(()),
            false => Err(failed("use", &path, &io::ErrorKind::NotADirectory.into())),
        }
    }

    /// A path for a file that is needed meanwhile; [`Building::drop_scratch`] removes it.
    pub fn scratch(&self) -> PathBuf {
        self.dir.join("scratch")
    }

    /// Removes that file, if there is one.
    pub fn drop_scratch(&self) -> Result<(), Failure> {
        match fs::remove_file(self.scratch()) {
            Err(err) if err.kind() != io::ErrorKind::NotFound => {
                Err(failed("remove", &self.scratch(), &err))
            }
            _ => Ok(()),
        }
    }

    /// The id for the machine that it is made with.
    pub fn machine_id(&self) -> String {
        format!("{MACHINE_ID}{}", self.id)
    }

    /// Notes where that machine's directory is, for whoever has to clear it.
    pub fn note_machine(&self, run_dir: &Path) -> Result<(), Failure> {
        let link = self.dir.join(MACHINE);
        symlink(run_dir, &link).map_err(|err| failed("make", &link, &err))
    }
}

impl Drop for Building {
    fn drop(&mut self) {
        // A published one is not there any more.
        let _ = fs::remove_dir_all(&self.dir);
    }
}

/// A rename that replaces nothing.
fn rename(from: &Path, to: &Path) -> Result<(), Errno> {
    match renameat_with(CWD, from, CWD, to, RenameFlags::NOREPLACE) {
        // A file system that does not know the flag. Under the store's lock the target is not there.
        Err(Errno::INVAL | Errno::NOSYS) => rustix::fs::rename(from, to),
        done => done,
    }
}

/// Removes the directory of a machine that ended with its maker; false while its process is there.
fn clear_machine(dir: &Path, id: &str) -> bool {
    let Ok(machine) = fs::read_link(dir.join(MACHINE)) else {
        return true;
    };
    // Whatever a link says: nothing but such a machine's directory.
    let name = format!("{MACHINE_ID}{id}");
    if machine.file_name().is_none_or(|found| *found != *name) {
        return true;
    }
    if rundir::is_served(&machine) {
        return false;
    }
    // What cannot be removed now is by `tine gc`.
    let _ = jail::discard(&machine);
    let _ = rundir::remove(&machine);
    true
}
