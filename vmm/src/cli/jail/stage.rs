//! Where a machine in a jail writes a snapshot: a directory beside the one that it is going to be,
//! made for it and shown in its jail. What is in it then takes its place, whole, in one step.

use std::fs::{DirBuilder, File};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, FlockOperation, RenameFlags, flock, renameat_with};
use tine_jailer::{Inhabited, files};

use super::bind;
use super::start::base;
use crate::cli::failure::Failure;
use crate::cli::{leftover, rundir};

/// A directory that is shown in a machine's jail.
pub struct Stage {
    jail: Inhabited,
    /// The directory, and its lock: one that nobody holds is left of a process that was killed.
    dir: PathBuf,
    _lock: File,
    target: PathBuf,
}

impl Stage {
    /// For the snapshot `target` of the machine `id`; `None` for a machine without a jail, which
    /// writes to the place itself.
    pub fn open(id: &str, target: &Path) -> Result<Option<Self>, Failure> {
        let failed = |err: &dyn std::fmt::Display| {
            Failure::new(format!(
                "the machine {id} cannot write to {} from its jail: {err}",
                target.display()
            ))
        };
        let jail = Inhabited::find(&base()?, rundir::PROGRAM, id).map_err(|err| failed(&err))?;
        let Some(jail) = jail else { return Ok(None) };
        let (Some(parent), Some(name)) = (target.parent(), target.file_name()) else {
            return Err(failed(&"give the directory to make"));
        };
        let parent = parent.canonicalize().map_err(|err| failed(&err))?;
        let target = parent.join(name);
        if target.symlink_metadata().is_ok() {
            return Err(Failure::new(format!("{} exists already", target.display())));
        }
        let mut hidden = std::ffi::OsString::from(".");
        hidden.push(name);
        hidden.push(".tine");
        let dir = parent.join(hidden);
        let lock = make(&dir).map_err(|err| failed(&err))?;
        let stage = Self {
            jail,
            dir,
            _lock: lock,
            target: target.clone(),
        };
        stage
            .jail
            .show(&bind(&stage.dir, true))
            .map_err(|err| failed(&err))?;
        Ok(Some(stage))
    }

    /// Where the machine is to write.
    pub fn path(&self) -> PathBuf {
        self.dir.join(self.target.file_name().unwrap_or_default())
    }

    /// Puts what the machine has written where it belongs.
    pub fn publish(self) -> Result<(), Failure> {
        let put = || -> io::Result<()> {
            let flags = RenameFlags::NOREPLACE;
            renameat_with(CWD, self.path(), CWD, &self.target, flags)?;
            // The machine has written it, and may be hostile. It could put a link there until now.
            if !self.target.symlink_metadata()?.is_dir() {
                std::fs::remove_file(&self.target)?;
                return Err(io::ErrorKind::NotADirectory.into());
            }
            files::open_dir(self.target.parent().unwrap_or(Path::new("/")))?.sync_all()
        };
        let done = put();
        done.map_err(|err| Failure::new(format!("cannot make {}: {err}", self.target.display())))
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        // In a jail whose machine has ended, nothing is shown any more.
        let _ = self.jail.hide(&self.dir);
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

/// Makes the directory and locks it, in the place of one that a killed process left.
fn make(dir: &Path) -> io::Result<File> {
    match DirBuilder::new().mode(0o700).create(dir) {
        Err(err) if err.kind() == io::ErrorKind::AlreadyExists => {
            let Some(_lock) = leftover::own(dir) else {
                return Err(io::Error::other("another snapshot is being written there"));
            };
            std::fs::remove_dir_all(dir)?;
            DirBuilder::new().mode(0o700).create(dir)?;
        }
        made => made?,
    }
    let lock = files::open_dir(dir)?;
    flock(&lock, FlockOperation::NonBlockingLockExclusive)?;
    Ok(lock)
}
