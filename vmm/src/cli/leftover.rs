//! What a process that was killed has left: a directory that it made, and held the lock of.

use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use rustix::fs::{FlockOperation, flock};

/// The lock of a directory whose maker is gone, to remove it under; `None` while there is one.
pub fn own(dir: &Path) -> Option<File> {
    let lock = File::open(dir).ok()?;
    flock(&lock, FlockOperation::NonBlockingLockExclusive).ok()?;
    is_named(dir, &lock).then_some(lock)
}

/// Whether a path still names what was opened by it.
pub fn is_named(path: &Path, open: &File) -> bool {
    match (fs::symlink_metadata(path), open.metadata()) {
        (Ok(named), Ok(open)) => (named.dev(), named.ino()) == (open.dev(), open.ino()),
        _ => false,
    }
}
