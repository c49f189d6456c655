//! The directory that an archive is unpacked into, and the making of files in it.
//!
//! Every step goes through descriptors, one name at a time, and no link is followed. A file
//! appears under its name when it is complete.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::{
    AtFlags, CWD, Gid, Mode, OFlags, Timespec, Timestamps, Uid, chownat, fchmod, fchown, futimens,
    mkdirat, openat, renameat, symlinkat, unlinkat, utimensat,
};
use rustix::io::{Errno, fcntl_dupfd_cloexec};

use super::UnpackError;
use super::entry::Entry;

/// Bytes moved at once.
const CHUNK: usize = 64 << 10;
/// Zeros in runs of this many bytes become holes.
const BLOCK: usize = 4 << 10;

/// Mode, owner, times.
#[derive(Debug, Clone, Copy)]
pub struct Attributes {
    pub mode: u32,
    pub uid: u32,
    pub gid: u32,
    /// Seconds since 1970.
    pub modified: u64,
}

impl Attributes {
    fn times(self) -> Timestamps {
        let time = Timespec {
            tv_sec: self.modified.min(i64::MAX as u64) as i64,
            tv_nsec: 0,
        };
        Timestamps {
            last_access: time,
            last_modification: time,
        }
    }
}

/// The directory.
pub struct Place {
    base: OwnedFd,
    path: PathBuf,
    /// Owners and all mode bits are kept.
    archive: bool,
    made: u64,
}

impl Place {
    pub fn open(path: &Path, archive: bool) -> io::Result<Self> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let base = openat(CWD, path, flags, Mode::empty())?;
        Ok(Self {
            base,
            path: path.to_owned(),
            archive,
            made: 0,
        })
    }

    /// Makes a file, or replaces it.
    pub fn file(
        &mut self,
        path: &Path,
        head: &Entry,
        content: &mut impl Read,
    ) -> Result<(), UnpackError> {
        let (parent, name) = self.parent(path)?;
        let temporary = self.temporary();
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        let file = openat(&parent, &temporary, flags, Mode::RUSR | Mode::WUSR);
        let file = File::from(file.map_err(self.about(path))?);
        let written = fill(&file, head.size, content)
            .and_then(|()| {
                self.finish(file.as_fd(), head.attributes)
                    .map_err(Into::into)
            })
            .and_then(|()| Ok(renameat(&parent, &temporary, &parent, name)?));
        self.settled(&parent, &temporary, path, written)
    }

    /// Makes a link, or replaces it.
    pub fn symlink(&mut self, path: &Path, head: &Entry) -> Result<(), UnpackError> {
        let (parent, name) = self.parent(path)?;
        let temporary = self.temporary();
        let attributes = head.attributes;
        let made = symlinkat(OsStr::from_bytes(&head.link), &parent, &temporary)
            .and_then(|()| match self.archive {
                true => chownat(
                    &parent,
                    &temporary,
                    Some(Uid::from_raw(attributes.uid)),
                    Some(Gid::from_raw(attributes.gid)),
                    AtFlags::SYMLINK_NOFOLLOW,
                ),
                false => Ok(()),
            })
            .and_then(|()| {
                let flags = AtFlags::SYMLINK_NOFOLLOW;
                utimensat(&parent, &temporary, &attributes.times(), flags)
            })
            .and_then(|()| renameat(&parent, &temporary, &parent, name));
        self.settled(&parent, &temporary, path, made.map_err(Into::into))
    }

    /// Makes a directory, which its owner can fill; one that is there stays.
    pub fn directory(&mut self, path: &Path) -> Result<(), UnpackError> {
        let (parent, name) = self.parent(path)?;
        match mkdirat(&parent, name, Mode::RWXU) {
            Ok(()) => Ok(()),
            Err(Errno::EXIST) => open_directory(&parent, name).map(drop),
            Err(errno) => Err(errno),
        }
        .map_err(|errno| self.about(path)(errno))
    }

    /// Gives a directory its attributes.
    pub fn finish_directory(&self, path: &Path, attributes: Attributes) -> Result<(), UnpackError> {
        let directory = match path.file_name() {
            Some(name) => self
                .walk(path.parent().unwrap_or(Path::new("")), path)
                .and_then(|parent| open_directory(&parent, name).map_err(self.about(path)))?,
            None => fcntl_dupfd_cloexec(&self.base, 3).map_err(self.about(path))?,
        };
        let finished = self.finish(directory.as_fd(), attributes);
        finished.map_err(self.about(path))
    }

    fn finish(
        &self,
        fd: std::os::fd::BorrowedFd<'_>,
        attributes: Attributes,
    ) -> rustix::io::Result<()> {
        let mut mode = attributes.mode & 0o777;
        if self.archive {
            let (uid, gid) = (attributes.uid, attributes.gid);
            fchown(fd, Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid)))?;
            mode = attributes.mode;
        }
        // After the owner, whose change takes the set-id bits away.
        fchmod(fd, Mode::from_raw_mode(mode))?;
        futimens(fd, &attributes.times())
    }

    /// Takes away what was half made.
    fn settled(
        &self,
        parent: &OwnedFd,
        temporary: &OsStr,
        path: &Path,
        made: io::Result<()>,
    ) -> Result<(), UnpackError> {
        made.map_err(|source| {
            let _ = unlinkat(parent, temporary, AtFlags::empty());
            match source.kind() {
                io::ErrorKind::UnexpectedEof => UnpackError::Archive(source),
                _ => self.about(path)(source),
            }
        })
    }

    /// The directory that a path is in, made where it is missing, and the path's last name.
    fn parent<'a>(&self, path: &'a Path) -> Result<(OwnedFd, &'a OsStr), UnpackError> {
        let name = path.file_name().unwrap_or_default();
        let parent = self.walk(path.parent().unwrap_or(Path::new("")), path)?;
        Ok((parent, name))
    }

    fn walk(&self, directory: &Path, about: &Path) -> Result<OwnedFd, UnpackError> {
        let walk = || {
            let mut at = fcntl_dupfd_cloexec(&self.base, 3)?;
            for part in directory.components() {
                let part = part.as_os_str();
                at = match open_directory(&at, part) {
                    Err(Errno::NOENT) => {
                        mkdirat(&at, part, Mode::from_raw_mode(0o755))?;
                        open_directory(&at, part)?
                    }
                    opened => opened?,
                };
            }
            Ok::<_, Errno>(at)
        };
        walk().map_err(self.about(about))
    }

    fn temporary(&mut self) -> OsString {
        self.made += 1;
        format!(".tine-{}-{}", std::process::id(), self.made).into()
    }

    fn about<E: Into<io::Error>>(&self, path: &Path) -> impl FnOnce(E) -> UnpackError {
        let path = self.path.join(path);
        move |source| UnpackError::File {
            path,
            source: source.into(),
        }
    }
}

fn open_directory(parent: &OwnedFd, name: &OsStr) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    openat(parent, name, flags, Mode::empty())
}

/// Writes `size` bytes of content; long runs of zeros take no room.
fn fill(mut file: &File, size: u64, content: &mut impl Read) -> io::Result<()> {
    let mut buffer = vec![0; CHUNK.min(size as usize)];
    let mut left = size;
    while left > 0 {
        let count = left.min(CHUNK as u64) as usize;
        content.read_exact(&mut buffer[..count])?;
        for block in buffer[..count].chunks(BLOCK) {
            if block.iter().all(|byte| *byte == 0) {
                file.seek(SeekFrom::Current(block.len() as i64))?;
            } else {
                file.write_all(block)?;
            }
        }
        left -= count as u64;
    }
    file.set_len(size)
}
