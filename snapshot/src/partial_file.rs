//! A single file in the making: beside its target, locked as long as its maker lives, renamed over
//! the target when it is whole.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, Dir, FileType, FlockOperation, Mode, OFlags};
use rustix::io::Errno;

use crate::error::WriteError;
use crate::id::Id;
use crate::partial::{is_same, partial_prefix};
use crate::stat;
use crate::steps::step;

/// The file, until it is published or dropped.
pub(crate) struct PartialFile {
    target: PathBuf,
    name: Vec<u8>,
    parent: OwnedFd,
    /// The name it has now; none once it is published.
    hidden: Option<Vec<u8>>,
    file: File,
}

impl PartialFile {
    /// Makes it, after removing what dead writers of the same target left. What is there and is no
    /// regular file is not for replacing: a device's node would be gone for everybody.
    pub(crate) fn begin(target: &Path) -> Result<Self, WriteError> {
        let (parent, name) = crate::partial::open_parent(target)?;
        let failed = |action, source: io::Error| WriteError::Io {
            action,
            path: target.to_owned(),
            source,
        };
        match stat::at(&parent, &name[..]) {
            Ok(there)
                if FileType::from_raw_mode(there.stx_mode.into()) != FileType::RegularFile =>
            {
                let source = io::Error::other("it is no regular file; choose another name");
                return Err(failed("replace", source));
            }
            // Why it cannot be looked at is told by the next step.
            _ => {}
        }
        remove_leftovers(&parent, &name);
        loop {
            let id = Id::random().map_err(|source| failed("choose a name for", source))?;
            let hidden = [&partial_prefix(&name)[..], id.to_string().as_bytes()].concat();
            step();
            let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
            let mode = Mode::RUSR | Mode::WUSR;
            let file = rustix::fs::openat(&parent, &hidden[..], flags, mode)
                .map_err(|errno| failed("make", errno.into()))?;
            step();
            // A cleaner that came in between has the lock, or the file is gone.
            match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Err(Errno::WOULDBLOCK) => continue,
                other => other.map_err(|errno| failed("lock", errno.into()))?,
            }
            let stat = stat::of(&file).map_err(|errno| failed("look at", errno.into()))?;
            if stat.stx_nlink == 0 {
                continue;
            }
            return Ok(Self {
                target: target.to_owned(),
                name,
                parent,
                hidden: Some(hidden),
                file: File::from(file),
            });
        }
    }

    pub(crate) fn target(&self) -> &Path {
        &self.target
    }

    pub(crate) fn file(&self) -> &File {
        &self.file
    }

    /// Makes what is in it durable. It has no name yet that this would be for.
    pub(crate) fn sync(&self) -> Result<(), WriteError> {
        step();
        rustix::fs::fsync(&self.file).map_err(|errno| self.error("sync", errno.into()))
    }

    /// Gives it its name, in place of what had it.
    pub(crate) fn rename(&mut self) -> Result<(), WriteError> {
        step();
        if let Some(hidden) = &self.hidden {
            rustix::fs::renameat(&self.parent, &hidden[..], &self.parent, &self.name[..])
                .map_err(|errno| self.error("publish", errno.into()))?;
            self.hidden = None;
        }
        Ok(())
    }

    /// Makes its name durable.
    pub(crate) fn sync_name(&self) -> Result<(), WriteError> {
        step();
        rustix::fs::fsync(&self.parent).map_err(|errno| self.error("sync", errno.into()))
    }

    pub(crate) fn error(&self, action: &'static str, source: io::Error) -> WriteError {
        match source.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => WriteError::NoSpace {
                path: self.target.clone(),
                needed: self.file.metadata().map_or(0, |meta| meta.len()),
                free: crate::partial::free(&self.parent).unwrap_or(0),
            },
            _ => WriteError::Io {
                action,
                path: self.target.clone(),
                source,
            },
        }
    }
}

impl Drop for PartialFile {
    fn drop(&mut self) {
        if let Some(hidden) = self.hidden.take() {
            let _ = rustix::fs::unlinkat(&self.parent, &hidden[..], AtFlags::empty());
        }
    }
}

/// Removes files whose makers are dead.
fn remove_leftovers(parent: &OwnedFd, name: &[u8]) {
    let Ok(entries) = Dir::read_from(parent) else {
        return;
    };
    for entry in entries.flatten() {
        let found = entry.file_name();
        if !crate::partial::is_partial(found.to_bytes(), name) {
            continue;
        }
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
        let Ok(file) = rustix::fs::openat(parent, found, flags, Mode::empty()) else {
            continue;
        };
        let locked = rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive).is_ok();
        if locked && is_same(parent, found.to_bytes(), &file) {
            let _ = rustix::fs::unlinkat(parent, found, AtFlags::empty());
        }
    }
}
