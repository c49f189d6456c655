//! A directory to read from: every file is opened relative to its descriptor, by a name without a
//! slash, following no link, and is a regular file or an error.

use std::fs::File;
use std::io::{self, Read as _};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{FileType, Mode, OFlags};
use rustix::io::Errno;

use crate::error::ReadError;
use crate::stat;

/// An open directory, and its path for messages.
#[derive(Debug)]
pub(crate) struct Dir {
    fd: OwnedFd,
    path: PathBuf,
}

impl Dir {
    pub(crate) fn open(path: &Path) -> Result<Self, ReadError> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        match rustix::fs::openat(rustix::fs::CWD, path, flags, Mode::empty()) {
            Ok(fd) => Ok(Self {
                fd,
                path: path.to_owned(),
            }),
            Err(errno) => Err(ReadError::Open {
                path: path.to_owned(),
                source: errno.into(),
            }),
        }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// The path of a file in it, for messages.
    pub(crate) fn path_of(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// Opens a file and tells its length.
    pub(crate) fn file(&self, name: &str) -> Result<(File, u64), ReadError> {
        let path = self.path_of(name);
        let failed = |errno: Errno| match errno {
            Errno::NOENT => ReadError::Missing { path: path.clone() },
            Errno::LOOP => not_a_file(&path, FileType::Symlink),
            errno => ReadError::Io {
                path: path.clone(),
                source: errno.into(),
            },
        };
        // Looked at before it is opened, as opening a device can have effects, and afterwards, as
        // it may be another by then.
        let stat = stat::at(&self.fd, name).map_err(failed)?;
        require_regular(&path, stat.stx_mode.into())?;
        // A FIFO would not wait for its other end: NONBLOCK means nothing to a regular file.
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
        let fd = rustix::fs::openat(&self.fd, name, flags, Mode::empty()).map_err(failed)?;
        let stat = stat::of(&fd).map_err(failed)?;
        require_regular(&path, stat.stx_mode.into())?;
        Ok((File::from(fd), stat.stx_size))
    }

    /// Opens a file that has to be exactly so long.
    pub(crate) fn file_of_length(&self, name: &str, wanted: u64) -> Result<File, ReadError> {
        let (file, found) = self.file(name)?;
        if found != wanted {
            return Err(ReadError::Length {
                path: self.path_of(name),
                found,
                wanted,
            });
        }
        Ok(file)
    }

    /// All of a file, which is no longer than `limit`.
    pub(crate) fn read(&self, name: &str, limit: u64) -> Result<Vec<u8>, ReadError> {
        let (file, length) = self.file(name)?;
        let path = self.path_of(name);
        if length > limit {
            return Err(ReadError::Damaged {
                path,
                part: "length".to_owned(),
                reason: format!("{length} bytes are more than the {limit} that it can have"),
            });
        }
        read_bounded(&path, &file, length)
    }
}

impl AsFd for Dir {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Reads a file up to the length that was seen; one that grows meanwhile is not followed.
pub(crate) fn read_bounded(path: &Path, file: &File, length: u64) -> Result<Vec<u8>, ReadError> {
    let mut bytes = Vec::with_capacity(length as usize);
    match file.take(length).read_to_end(&mut bytes) {
        Ok(_) => Ok(bytes),
        Err(source) => Err(io_error(path, source)),
    }
}

pub(crate) fn io_error(path: &Path, source: io::Error) -> ReadError {
    ReadError::Io {
        path: path.to_owned(),
        source,
    }
}

pub(crate) fn require_regular(path: &Path, mode: u32) -> Result<(), ReadError> {
    match FileType::from_raw_mode(mode) {
        FileType::RegularFile => Ok(()),
        other => Err(not_a_file(path, other)),
    }
}

fn not_a_file(path: &Path, found: FileType) -> ReadError {
    ReadError::NotAFile {
        path: path.to_owned(),
        found: match found {
            FileType::Symlink => "a symbolic link",
            FileType::Directory => "a directory",
            FileType::Fifo => "a FIFO",
            FileType::Socket => "a socket",
            FileType::CharacterDevice | FileType::BlockDevice => "a device",
            _ => "something unknown",
        },
    }
}
