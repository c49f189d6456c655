//! A directory in the making: beside its target under a name of its own, locked as long as its
//! maker lives, and either published whole under the target's name or removed.
//!
//! The lock is `flock` on the directory itself, so that nothing of it stays in the snapshot. The
//! next writer of the same target takes the lock of what it finds: where it gets it, the maker is
//! dead, and the leftovers are removed under that lock.

use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, Dir, FlockOperation, Mode, OFlags, RenameFlags, Statx};
use rustix::io::Errno;

use crate::error::WriteError;
use crate::id::Id;
use crate::stat;
use crate::steps::step;

const DIRECTORY: OFlags = OFlags::RDONLY
    .union(OFlags::DIRECTORY)
    .union(OFlags::CLOEXEC)
    .union(OFlags::NOFOLLOW);
/// Files of a snapshot are never written again.
const FILE_MODE: Mode = Mode::from_raw_mode(0o444);
/// A guest's memory holds its secrets: others get in when the owner lets them.
const DIRECTORY_MODE: Mode = Mode::from_raw_mode(0o700);

/// The name of a file that is made by others.
const SCRATCH: &str = "scratch";

/// The directory, until it is published or dropped.
pub(crate) struct Partial {
    target: PathBuf,
    name: Vec<u8>,
    parent: OwnedFd,
    /// The name it has now; none once it is published or removed.
    hidden: Option<Vec<u8>>,
    dir: OwnedFd,
}

impl Partial {
    /// Makes it, after removing what dead writers of the same target left.
    pub(crate) fn begin(target: &Path) -> Result<Self, WriteError> {
        let (parent, name) = open_parent(target)?;
        let failed = |action, source: Errno| WriteError::Io {
            action,
            path: target.to_owned(),
            source: source.into(),
        };
        match stat::at(&parent, name.as_slice()) {
            Err(Errno::NOENT) => {}
            Ok(_) => {
                return Err(WriteError::Exists {
                    path: target.to_owned(),
                });
            }
            Err(source) => return Err(failed("look at", source)),
        }
        remove_leftovers(&parent, &name);
        loop {
            let id = Id::random().map_err(|source| WriteError::Io {
                action: "choose a name for",
                path: target.to_owned(),
                source,
            })?;
            let hidden = [&partial_prefix(&name)[..], id.to_string().as_bytes()].concat();
            step();
            rustix::fs::mkdirat(&parent, &hidden[..], DIRECTORY_MODE)
                .map_err(|source| failed("make a directory for", source))?;
            step();
            // A cleaner that came between these calls has the lock, or the directory is gone:
            // then another is made.
            let dir = match rustix::fs::openat(&parent, &hidden[..], DIRECTORY, Mode::empty()) {
                Err(Errno::NOENT) => continue,
                other => other.map_err(|source| failed("open the directory made for", source))?,
            };
            match rustix::fs::flock(&dir, FlockOperation::NonBlockingLockExclusive) {
                Err(Errno::WOULDBLOCK) => continue,
                other => other.map_err(|source| failed("lock the directory made for", source))?,
            }
            let stat = stat::of(&dir).map_err(|source| failed("look at", source))?;
            if stat.stx_nlink == 0 {
                continue;
            }
            step();
            return Ok(Self {
                target: target.to_owned(),
                name,
                parent,
                hidden: Some(hidden),
                dir,
            });
        }
    }

    pub(crate) fn target(&self) -> &Path {
        &self.target
    }

    /// The path that a file of it is going to have, for messages.
    pub(crate) fn path_of(&self, name: &str) -> PathBuf {
        self.target.join(name)
    }

    /// Where somebody else may make a file that is taken over afterwards: in it, so that it goes
    /// when it goes.
    pub(crate) fn scratch(&self) -> PathBuf {
        let hidden = self.hidden.as_deref().unwrap_or(&self.name);
        self.target
            .with_file_name(OsStr::from_bytes(hidden))
            .join(SCRATCH)
    }

    /// Removes that file's name.
    pub(crate) fn remove_scratch(&self) -> Result<(), WriteError> {
        step();
        rustix::fs::unlinkat(&self.dir, SCRATCH, AtFlags::empty())
            .map_err(|source| self.error("remove", SCRATCH, source.into()))
    }

    /// Makes a file for reading and writing.
    pub(crate) fn create(&self, name: &str) -> Result<File, WriteError> {
        step();
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        let file = rustix::fs::openat(&self.dir, name, flags, FILE_MODE)
            .map_err(|source| self.error("make", name, source.into()))?;
        // Whatever the umask was.
        rustix::fs::fchmod(&file, FILE_MODE)
            .map_err(|source| self.error("set the mode of", name, source.into()))?;
        Ok(File::from(file))
    }

    /// Makes `name` a further name of an existing file.
    pub(crate) fn link(&self, file: &File, name: &str) -> Result<(), Errno> {
        step();
        let (by_fd, follow) = (AtFlags::EMPTY_PATH, AtFlags::SYMLINK_FOLLOW);
        // The first way may need a capability, the second one /proc.
        rustix::fs::linkat(file, "", &self.dir, name, by_fd).or_else(|_| {
            let path = format!("/proc/self/fd/{}", file.as_raw_fd());
            rustix::fs::linkat(rustix::fs::CWD, path, &self.dir, name, follow)
        })
    }

    /// Makes a file durable.
    pub(crate) fn sync(&self, file: &File, name: &str) -> Result<(), WriteError> {
        step();
        rustix::fs::fsync(file).map_err(|source| self.error("sync", name, source.into()))
    }

    /// Bytes that the file system still has for this process.
    pub(crate) fn free(&self) -> Result<u64, WriteError> {
        free(&self.dir).map_err(|source| self.error("ask for the free space of", "", source))
    }

    /// Gives it its name. It is whole and durable when this returns.
    pub(crate) fn publish(mut self) -> Result<(), WriteError> {
        step();
        rustix::fs::fsync(&self.dir).map_err(|source| self.error("sync", "", source.into()))?;
        step();
        self.rename().map_err(|source| match source {
            Errno::EXIST | Errno::NOTEMPTY | Errno::NOTDIR => WriteError::Exists {
                path: self.target.clone(),
            },
            source => self.error("publish", "", source.into()),
        })?;
        // Until this is durable it is no snapshot: an error below removes it.
        self.hidden = Some(self.name.clone());
        step();
        rustix::fs::fsync(&self.parent).map_err(|source| self.error("sync", "", source.into()))?;
        self.hidden = None;
        Ok(())
    }

    fn rename(&self) -> Result<(), Errno> {
        let (parent, name) = (&self.parent, &self.name[..]);
        let hidden = self.hidden.as_deref().ok_or(Errno::NOENT)?;
        match rustix::fs::renameat_with(parent, hidden, parent, name, RenameFlags::NOREPLACE) {
            // A file system that does not know the flag. Without it an empty directory is
            // replaced, and nothing else.
            Err(Errno::INVAL | Errno::NOSYS) => rustix::fs::renameat(parent, hidden, parent, name),
            other => other,
        }
    }

    /// Removes it.
    pub(crate) fn remove(&mut self) {
        if let Some(hidden) = self.hidden.take() {
            remove(&self.parent, &hidden, &self.dir);
        }
    }

    pub(crate) fn error(&self, action: &'static str, name: &str, source: io::Error) -> WriteError {
        WriteError::Io {
            action,
            path: self.path_of(name),
            source,
        }
    }
}

impl Drop for Partial {
    fn drop(&mut self) {
        self.remove();
    }
}

/// Opens the directory that the target is going to be in, and gives its name there.
pub(crate) fn open_parent(target: &Path) -> Result<(OwnedFd, Vec<u8>), WriteError> {
    let unfit = |reason| WriteError::Target {
        path: target.to_owned(),
        reason,
    };
    let name = target
        .file_name()
        .ok_or_else(|| unfit("it ends in no name"))?
        .as_bytes();
    // The name in the making is longer, and has to fit too.
    if name.len() > 200 {
        return Err(unfit("its name has more than 200 bytes"));
    }
    let parent = match target.parent() {
        Some(path) if !path.as_os_str().is_empty() => path,
        _ => Path::new("."),
    };
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    match rustix::fs::openat(rustix::fs::CWD, parent, flags, Mode::empty()) {
        Ok(fd) => Ok((fd, name.to_vec())),
        Err(source) => Err(WriteError::Io {
            action: "open the directory that is to hold the snapshot,",
            path: parent.to_owned(),
            source: source.into(),
        }),
    }
}

/// What the names of things in the making for one target begin with.
pub(crate) fn partial_prefix(name: &[u8]) -> Vec<u8> {
    [b".", name, b".partial-"].concat()
}

/// Whether `found` is the name of a thing in the making for the target `name`.
pub(crate) fn is_partial(found: &[u8], name: &[u8]) -> bool {
    let id = found.strip_prefix(partial_prefix(name).as_slice());
    let id = id.and_then(|id| std::str::from_utf8(id).ok());
    id.is_some_and(|id| id.parse::<Id>().is_ok())
}

/// Device and number: no two files have the same.
fn place(stat: &Statx) -> (u32, u32, u64) {
    (stat.stx_dev_major, stat.stx_dev_minor, stat.stx_ino)
}

/// Whether the name is that of the open file. Its maker may have published it and gone between a
/// look at the name and the lock: then the lock is that of something whole, and the name is of
/// nothing. Who holds the lock knows that what this says stays so.
pub(crate) fn is_same(parent: &OwnedFd, name: &[u8], open: impl AsFd) -> bool {
    let named = stat::at(parent, name);
    let open = stat::of(open);
    matches!((named, open), (Ok(named), Ok(open))
        if place(&named) == place(&open))
}

/// Bytes that a file system still has for this process.
pub(crate) fn free(fd: impl AsFd) -> io::Result<u64> {
    let stat = rustix::fs::fstatvfs(fd)?;
    Ok(stat.f_bavail.saturating_mul(stat.f_frsize))
}

/// Removes directories whose makers are dead. One that cannot be removed is left: it is in nobody's
/// way.
fn remove_leftovers(parent: &OwnedFd, name: &[u8]) {
    let Ok(entries) = Dir::read_from(parent) else {
        return;
    };
    for entry in entries.flatten() {
        let found = entry.file_name().to_bytes();
        if !is_partial(found, name) {
            continue;
        }
        let Ok(dir) = rustix::fs::openat(parent, found, DIRECTORY, Mode::empty()) else {
            continue;
        };
        let locked = rustix::fs::flock(&dir, FlockOperation::NonBlockingLockExclusive).is_ok();
        if locked && is_same(parent, found, &dir) {
            remove(parent, found, &dir);
        }
    }
}

/// Removes the files in `dir`, and it. A snapshot has no directories in it, and what has is none.
fn remove(parent: &OwnedFd, name: &[u8], dir: &OwnedFd) {
    if let Ok(entries) = Dir::read_from(dir.as_fd()) {
        for entry in entries.flatten() {
            let entry = entry.file_name();
            if entry.to_bytes() != b"." && entry.to_bytes() != b".." {
                step();
                let _ = rustix::fs::unlinkat(dir, entry, AtFlags::empty());
            }
        }
    }
    step();
    let _ = rustix::fs::unlinkat(parent, OsStr::from_bytes(name), AtFlags::REMOVEDIR);
}
