//! Times of directories while an archive is unpacked: what is made in one changes it, so it is given once the archive
//! has left it.
//!
//! Archives are written depth first, so the directories that may still be filled lie within one another: one path and a
//! number for each is all that has to be kept, whatever the archive holds. One that comes back to a directory later
//! changes its time, as with other programs.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// The directories that the archive is in.
#[derive(Debug, Default)]
pub struct OpenDirs {
    /// The innermost one; those around it are its beginnings.
    path: PathBuf,
    /// Length of each one's path, and its time.
    dirs: Vec<(usize, u64)>,
}

impl OpenDirs {
    /// The archive has had this directory. Those that it is not in must have been left.
    pub fn enter(&mut self, path: PathBuf, mtime: u64) {
        self.dirs.push((path.as_os_str().len(), mtime));
        self.path = path;
    }

    /// A directory that the archive has left, now that it comes to `next` (nothing at its end), and its time; innermost
    /// ones first.
    pub fn leave(&mut self, next: Option<&Path>) -> Option<(PathBuf, u64)> {
        let (len, mtime) = *self.dirs.last()?;
        let dir = Path::new(OsStr::from_bytes(
            self.path.as_os_str().as_bytes().get(..len)?,
        ));
        if next.is_some_and(|next| next != dir && next.starts_with(dir)) {
            return None;
        }
        self.dirs.pop();
        Some((dir.to_owned(), mtime))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directories_are_left_from_the_inside_when_the_archive_is_elsewhere() {
        let mut dirs = OpenDirs::default();
        let mut left = Vec::new();
        let mut come = |dirs: &mut OpenDirs, next: Option<&str>, dir| {
            while let Some((path, mtime)) = dirs.leave(next.map(Path::new)) {
                left.push((path.to_str().unwrap().to_owned(), mtime));
            }
            if let Some(mtime) = dir {
                dirs.enter(next.unwrap().into(), mtime);
            }
            std::mem::take(&mut left)
        };
        let left = |list: &[(&str, u64)]| -> Vec<(String, u64)> {
            list.iter()
                .map(|(path, mtime)| ((*path).to_owned(), *mtime))
                .collect()
        };
        assert_eq!(come(&mut dirs, Some("a"), Some(1)), left(&[]));
        assert_eq!(come(&mut dirs, Some("a/b"), Some(2)), left(&[]));
        assert_eq!(come(&mut dirs, Some("a/b/c"), Some(3)), left(&[]));
        assert_eq!(come(&mut dirs, Some("a/b/c/file"), None), left(&[]));
        let both = left(&[("a/b/c", 3), ("a/b", 2)]);
        // A name is not within another that it begins with.
        assert_eq!(come(&mut dirs, Some("a/bc"), Some(4)), both);
        // Told again: the later time counts.
        assert_eq!(come(&mut dirs, Some("a/bc"), Some(5)), left(&[("a/bc", 4)]));
        assert_eq!(come(&mut dirs, None, None), left(&[("a/bc", 5), ("a", 1)]));
        assert_eq!(come(&mut dirs, None, None), left(&[]));
    }
}
