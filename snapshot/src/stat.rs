//! What a file is, asked for in one way: by statx(2), as the standard library does it, so that a
//! restricted thread has to be allowed one system call for it and no more.

use std::os::fd::AsFd;

use rustix::fs::{AtFlags, Statx, StatxFlags};
use rustix::io::Errno;

/// Of an open file.
pub(crate) fn of(file: impl AsFd) -> Result<Statx, Errno> {
    let by_fd = AtFlags::EMPTY_PATH;
    rustix::fs::statx(file, c"", by_fd, StatxFlags::BASIC_STATS)
}

/// Of what `name` names in a directory, a link itself.
pub(crate) fn at(dir: impl AsFd, name: impl rustix::path::Arg) -> Result<Statx, Errno> {
    let itself = AtFlags::SYMLINK_NOFOLLOW;
    rustix::fs::statx(dir, name, itself, StatxFlags::BASIC_STATS)
}
