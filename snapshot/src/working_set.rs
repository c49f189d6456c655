//! The pages that machines of a snapshot touch first: a file beside the snapshot, which they can be
//! read from ahead of them (`FORMAT.md`, "A working set"). It is a hint: a machine is the same without
//! it.

use std::fs::File;
use std::io::Write as _;
use std::ops::Range;
use std::path::Path;

use rustix::fs::{Mode, OFlags};

use crate::checksum::{Checksum, Summer};
use crate::dir::{Dir, io_error, read_bounded, require_regular};
use crate::error::{ReadError, WriteError};
use crate::header::{Kind, damaged, u32_at, u64_at};
use crate::id::Id;
use crate::manifest::MAX_MEMORY;
use crate::memory::PAGE;
use crate::partial_file::PartialFile;
use crate::stat;

/// Most ranges of a working set.
pub const MAX_RANGES: usize = 1 << 16;

const KIND: Kind = Kind {
    magic: *b"TINEWSET",
    version: 1,
    length: HEADER,
    name: "the working set of a snapshot",
};
const HEADER: usize = 48;
const RANGE: usize = 8;
const MAX_LEN: u64 = (HEADER + RANGE * MAX_RANGES) as u64;

/// Parts of a snapshot's memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkingSet {
    /// The snapshot that it is of.
    pub snapshot: Id,
    /// Bytes of its memory.
    pub size: u64,
    /// In bytes, whole pages, ascending and disjoint.
    pub ranges: Vec<Range<u64>>,
}

impl WorkingSet {
    /// Name of the one in a snapshot's own directory, which is read without being asked for.
    pub const OWN: &str = "working-set";

    /// How many bytes there are in it.
    pub fn bytes(&self) -> u64 {
        self.ranges
            .iter()
            .map(|range| range.end - range.start)
            .sum()
    }

    /// Writes it to `path`, in the place of a working set or an empty file that is there, and makes it
    /// durable.
    ///
    /// # Errors
    ///
    /// When a reader would not take it, what is there is something else, or it cannot be written. What
    /// was there stays.
    pub fn write(&self, path: &Path) -> Result<(), WriteError> {
        let bytes = self.encode();
        // What is written is read, by whoever comes.
        Self::decode(path, &bytes)?;
        require_no_other(path)?;
        let mut partial = PartialFile::begin(path)?;
        let written = partial.file().write_all(&bytes);
        written.map_err(|source| partial.error("write", source))?;
        partial.sync()?;
        partial.rename()?;
        partial.sync_name()
    }

    /// Reads the one in a snapshot's own directory, if there is one ([`Self::OWN`]). As all of a snapshot's
    /// files it has to be in there: a link is refused.
    ///
    /// # Errors
    ///
    /// As for [`Self::read`], and when there is no such directory.
    pub fn of(dir: &Path) -> Result<Option<Self>, ReadError> {
        Self::of_opened(&Dir::open(dir)?)
    }

    pub(crate) fn of_opened(dir: &Dir) -> Result<Option<Self>, ReadError> {
        match dir.read(Self::OWN, MAX_LEN) {
            Err(ReadError::Missing { .. }) => Ok(None),
            Err(err) => Err(err),
            Ok(bytes) => Self::decode(&dir.path_of(Self::OWN), &bytes).map(Some),
        }
    }

    /// Reads one. Nothing in it is believed that is not so.
    ///
    /// # Errors
    ///
    /// When it cannot be read, or is no working set.
    pub fn read(path: &Path) -> Result<Self, ReadError> {
        let failed = |errno: rustix::io::Errno| io_error(path, errno.into());
        // A FIFO would not wait for its other end: NONBLOCK means nothing to a regular file.
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
        let fd = rustix::fs::openat(rustix::fs::CWD, path, flags, Mode::empty()).map_err(failed)?;
        let stat = stat::of(&fd).map_err(failed)?;
        require_regular(path, stat.stx_mode.into())?;
        if stat.stx_size > MAX_LEN {
            return Err(damaged(path, "length", "longer than one can be"));
        }
        let bytes = read_bounded(path, &File::from(fd), stat.stx_size)?;
        Self::decode(path, &bytes)
    }

    fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(HEADER + RANGE * self.ranges.len());
        bytes.extend(KIND.magic);
        bytes.extend(KIND.version.to_le_bytes());
        bytes.extend((self.ranges.len() as u32).to_le_bytes());
        bytes.extend(self.size.to_le_bytes());
        bytes.extend(self.snapshot.0);
        bytes.extend([0; 8]);
        for range in &self.ranges {
            bytes.extend(((range.start / PAGE) as u32).to_le_bytes());
            bytes.extend(((range.end.saturating_sub(range.start) / PAGE) as u32).to_le_bytes());
        }
        let sum = file_sum(&bytes);
        bytes[HEADER - 8..HEADER].copy_from_slice(&sum.0.to_le_bytes());
        bytes
    }

    fn decode(path: &Path, bytes: &[u8]) -> Result<Self, ReadError> {
        let header = |reason: &str| damaged(path, "header", reason);
        let (head, body) = KIND.split(path, bytes)?;
        if file_sum(bytes).0 != u64_at(head, 40) {
            return Err(damaged(
                path,
                "checksum",
                "it does not fit the file: it is damaged",
            ));
        }
        let (count, size) = (u32_at(head, 12) as usize, u64_at(head, 16));
        if u32_at(head, 8) != KIND.version || count > MAX_RANGES || body.len() != RANGE * count {
            return Err(header("it counts more or fewer ranges than the file has"));
        }
        if !(1..=MAX_MEMORY).contains(&size) || !size.is_multiple_of(PAGE) {
            return Err(header("an impossible size of memory"));
        }
        let mut ranges = Vec::with_capacity(count);
        let mut at = 0;
        for (n, entry) in body.chunks_exact(RANGE).enumerate() {
            let (first, pages) = (u64::from(u32_at(entry, 0)), u64::from(u32_at(entry, 4)));
            let range = first * PAGE..(first + pages) * PAGE;
            if pages == 0 || range.start < at || range.end > size {
                let reason = "empty, not behind the one before it, or beyond the end of memory";
                return Err(damaged(path, format!("range {n}"), reason));
            }
            at = range.end;
            ranges.push(range);
        }
        Ok(Self {
            snapshot: Id(head[24..40].try_into().expect("16 bytes")),
            size,
            ranges,
        })
    }
}

/// Refuses a path at which there is a file with something else in it. Whether it is a file at all is
/// asked by who replaces it.
fn require_no_other(path: &Path) -> Result<(), WriteError> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOFOLLOW;
    let Ok(fd) = rustix::fs::openat(rustix::fs::CWD, path, flags, Mode::empty()) else {
        return Ok(());
    };
    let mut begins = [0; 8];
    match rustix::io::pread(&fd, &mut begins, 0) {
        Ok(read) if read > 0 && begins != KIND.magic => Err(WriteError::Io {
            action: "replace",
            path: path.to_owned(),
            source: std::io::Error::other("there is something else in it; choose another name"),
        }),
        _ => Ok(()),
    }
}

/// Over all of the file but the checksum in its header.
fn file_sum(bytes: &[u8]) -> Checksum {
    let mut summer = Summer::new();
    summer.update(&bytes[..HEADER - 8]);
    summer.update(&bytes[HEADER..]);
    summer.sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(ranges: &[(u64, u64)]) -> WorkingSet {
        WorkingSet {
            snapshot: Id([7; 16]),
            size: 100 * PAGE,
            ranges: ranges.iter().map(|r| r.0 * PAGE..r.1 * PAGE).collect(),
        }
    }

    #[test]
    fn what_is_written_is_read() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("set");
        for ranges in [&[][..], &[(0, 1), (1, 7), (99, 100)]] {
            let set = set(ranges);
            set.write(&path).unwrap();
            assert_eq!(WorkingSet::read(&path).unwrap(), set);
        }
        assert_eq!(set(&[(0, 1), (4, 7)]).bytes(), 4 * PAGE);
        let names = std::fs::read_dir(dir.path()).unwrap().count();
        assert_eq!(names, 1, "nothing else is left");
    }

    #[test]
    fn a_snapshots_own_is_a_file_in_its_directory() {
        let dir = tempfile::tempdir().unwrap();
        let own = dir.path().join(WorkingSet::OWN);
        assert_eq!(WorkingSet::of(dir.path()).unwrap(), None);
        let set = set(&[(1, 2)]);
        set.write(&own).unwrap();
        assert_eq!(WorkingSet::of(dir.path()).unwrap(), Some(set.clone()));
        // One that is elsewhere is as good, and not the snapshot's.
        let elsewhere = tempfile::NamedTempFile::new().unwrap();
        set.write(elsewhere.path()).unwrap();
        std::fs::remove_file(&own).unwrap();
        std::os::unix::fs::symlink(elsewhere.path(), &own).unwrap();
        let err = WorkingSet::of(dir.path()).unwrap_err().to_string();
        assert!(
            err.contains("symbolic link") && err.contains(WorkingSet::OWN),
            "{err}"
        );
        std::fs::remove_file(&own).unwrap();
        std::fs::write(&own, vec![0; MAX_LEN as usize + 1]).unwrap();
        assert!(WorkingSet::of(dir.path()).is_err());
    }

    #[test]
    fn nothing_else_is_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let refused = |path: &Path| {
            let err = set(&[(1, 2)]).write(path).unwrap_err().to_string();
            assert!(
                err.contains("replace") && err.contains("another name"),
                "{err}"
            );
        };
        let path = dir.path().join("file");
        std::fs::write(&path, "a letter").unwrap();
        refused(&path);
        assert_eq!(std::fs::read(&path).unwrap(), b"a letter");
        let socket = dir.path().join("socket");
        let _listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
        refused(&socket);
        let link = dir.path().join("link");
        std::os::unix::fs::symlink(&path, &link).unwrap();
        refused(&link);
        let names = std::fs::read_dir(dir.path()).unwrap().count();
        assert_eq!(names, 3, "and nothing is left");
        // What mktemp(1) has made is meant for it.
        std::fs::write(&path, "").unwrap();
        set(&[(1, 2)]).write(&path).unwrap();
    }

    #[test]
    fn what_no_reader_takes_is_not_written() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("set");
        set(&[(1, 2)]).write(&path).unwrap();
        for wrong in [set(&[(4, 5), (3, 4)]), set(&[(3, 3)]), set(&[(99, 101)])] {
            let err = wrong.write(&path).unwrap_err().to_string();
            assert!(err.contains("range"), "{err}");
        }
        assert_eq!(WorkingSet::read(&path).unwrap(), set(&[(1, 2)]));
    }

    #[test]
    fn whatever_is_wrong_with_a_file_is_told() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("set");
        let whole = set(&[(0, 1), (4, 7)]).encode();
        let read = |bytes: &[u8]| {
            std::fs::write(&path, bytes).unwrap();
            let err = WorkingSet::read(&path).unwrap_err().to_string();
            assert!(err.contains(path.to_str().unwrap()), "{err}");
            err
        };
        for length in 0..whole.len() {
            read(&whole[..length]);
        }
        for at in 0..whole.len() {
            for bit in 0..8 {
                let mut bytes = whole.clone();
                bytes[at] ^= 1 << bit;
                read(&bytes);
            }
        }
        // With a checksum that fits.
        let patched = |at: usize, value: u32| {
            let mut bytes = whole.clone();
            bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
            let sum = file_sum(&bytes);
            bytes[40..48].copy_from_slice(&sum.0.to_le_bytes());
            read(&bytes)
        };
        assert!(patched(8, 2).contains("version 2"));
        assert!(patched(12, 1).contains("more or fewer"));
        assert!(patched(12, u32::MAX).contains("more or fewer"));
        assert!(patched(16, 1).contains("size of memory"));
        assert!(patched(48, 5).contains("range 1"));
        assert!(patched(60, u32::MAX).contains("range 1"));
        let long = vec![0; MAX_LEN as usize + 1];
        assert!(read(&long).contains("longer"));
        std::fs::remove_file(&path).unwrap();
        std::fs::create_dir(&path).unwrap();
        let err = WorkingSet::read(&path).unwrap_err().to_string();
        assert!(err.contains("directory"), "{err}");
    }
}
