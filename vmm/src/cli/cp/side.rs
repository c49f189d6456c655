//! One side of a copy, as it is written.

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use crate::cli::rundir;

/// Where something is copied from or to.
#[derive(Debug, PartialEq, Eq)]
pub enum Side {
    /// In a machine.
    Guest(GuestPath),
    /// Here.
    Here(PathBuf),
    /// Standard input or output.
    Stream,
}

/// A path in a machine.
#[derive(Debug, PartialEq, Eq)]
pub struct GuestPath {
    /// The machine.
    pub id: String,
    /// The path, absolute.
    pub path: PathBuf,
}

impl Side {
    /// `ID:PATH`, `-`, or a path. What stands before a colon and cannot be an id is part of a path.
    pub fn parse(text: &OsStr) -> Self {
        let bytes = text.as_bytes();
        if bytes == b"-" {
            return Side::Stream;
        }
        let colon = bytes.iter().position(|byte| *byte == b':');
        let id = colon.and_then(|at| std::str::from_utf8(&bytes[..at]).ok());
        match (colon, id.map(rundir::id)) {
            (Some(at), Some(Ok(id))) => {
                let mut path = bytes[at + 1..].to_vec();
                if path.first() != Some(&b'/') {
                    path.insert(0, b'/');
                }
                let path = OsString::from_vec(path).into();
                Side::Guest(GuestPath { id, path })
            }
            _ => Side::Here(text.into()),
        }
    }
}

impl fmt::Display for GuestPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.id, self.path.display())
    }
}

/// Whether a path stands for what is in a directory, not for the directory: `.` or `DIR/.`, or a
/// root, which has no name.
pub fn is_content(path: &Path) -> bool {
    let bytes = path.as_os_str().as_bytes();
    bytes == b"." || bytes.ends_with(b"/.") || path == Path::new("/")
}

/// Whether a path can be a directory's only.
pub fn is_directory_only(path: &Path) -> bool {
    let bytes = path.as_os_str().as_bytes();
    bytes.ends_with(b"/") || bytes.ends_with(b"/.")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sides() {
        let parse = |text: &str| Side::parse(OsStr::new(text));
        let guest = |id: &str, path: &str| {
            Side::Guest(GuestPath {
                id: id.into(),
                path: path.into(),
            })
        };
        assert_eq!(parse("web:/a:b"), guest("web", "/a:b"));
        assert_eq!(parse("web:a"), guest("web", "/a"));
        assert_eq!(parse("web:"), guest("web", "/"));
        assert_eq!(parse("-"), Side::Stream);
        for here in ["a", "./a:b", "/a:b", "A:b", ":a", "", "a b:c"] {
            assert_eq!(parse(here), Side::Here(here.into()));
        }
        let bytes = OsStr::from_bytes(b"m:/\xff");
        let Side::Guest(guest) = Side::parse(bytes) else {
            panic!("not in a machine");
        };
        assert_eq!(guest.path.as_os_str().as_bytes(), b"/\xff");
    }

    #[test]
    fn contents() {
        for path in [".", "a/.", "/."] {
            assert!(is_content(Path::new(path)), "{path}");
        }
        for path in ["a", "a/", "a.", "..", "a/.."] {
            assert!(!is_content(Path::new(path)), "{path}");
        }
    }
}
