//! The machine's own cgroup: version 1, version 2, or a bit of both, whatever the host has.
//!
//! `detect` finds the controllers, `place` decides without touching anything which groups are
//! made where, `make` makes them and reads every limit back, `verify` says whether what was read
//! is what was written.

mod detect;
mod make;
mod place;
mod verify;

use std::path::{Component, Path, PathBuf};
use std::str::FromStr;

pub use detect::{Hierarchies, Unified};
pub(crate) use make::{enter, make, remove};
pub(crate) use place::place;
pub use place::{Group, NoController};

use crate::config::{BadArgument, bad};

/// Which kind of hierarchy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Version {
    /// A hierarchy for each controller, or few of them.
    V1,
    /// One for all.
    V2,
}

impl FromStr for Version {
    type Err = BadArgument;

    fn from_str(text: &str) -> Result<Self, BadArgument> {
        match text {
            "1" => Ok(Self::V1),
            "2" => Ok(Self::V2),
            _ => bad(text, "the versions are 1 and 2"),
        }
    }
}

/// A file of the cgroup and what is written to it, like `memory.max` and `256M`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Setting {
    /// The file's name, which begins with its controller's.
    pub file: String,
    /// What is written.
    pub value: String,
}

impl Setting {
    /// The controller that the file belongs to.
    pub fn controller(&self) -> &str {
        self.file.split('.').next().unwrap_or(&self.file)
    }
}

impl FromStr for Setting {
    type Err = BadArgument;

    /// `FILE=VALUE`. The value may contain further `=`, as `io.max` needs them.
    fn from_str(text: &str) -> Result<Self, BadArgument> {
        let Some((file, value)) = text.split_once('=') else {
            return bad(text, "give FILE=VALUE, like pids.max=64");
        };
        let fits = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '.' || c == '-';
        let parts: Vec<&str> = file.split('.').collect();
        if parts.len() < 2 || !file.chars().all(fits) || parts.iter().any(|p| p.is_empty()) {
            return bad(text, "a cgroup's file is called CONTROLLER.NAME");
        }
        if !is_limit(file) {
            return bad(
                text,
                "that file moves, stops or ends processes, which is no limit: of cgroup.* there are \
                 cgroup.max.descendants and cgroup.max.depth, and of freezer.* none",
            );
        }
        if value.trim().is_empty() || value.contains(['\n', '\0']) {
            return bad(text, "the value is one line that is not empty");
        }
        Ok(Self {
            file: file.to_owned(),
            value: value.trim().to_owned(),
        })
    }
}

/// Whether a file is one of a controller's, and not what groups themselves are worked with: a number
/// written to `cgroup.procs` moves whichever process has it, and a frozen process never begins.
fn is_limit(file: &str) -> bool {
    match file.split('.').next() {
        Some("cgroup") => ["cgroup.max.descendants", "cgroup.max.depth"].contains(&file),
        Some("freezer") => false,
        _ => true,
    }
}

/// What is asked for.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Request {
    /// The version, or whichever has the controller.
    pub version: Option<Version>,
    /// What is set, in this order.
    pub settings: Vec<Setting>,
    /// The group above the machine's [default: named after the program].
    pub parent: Option<PathBuf>,
}

impl Request {
    /// Takes the group above the machine's, a relative path without `.` and `..`.
    pub fn set_parent(&mut self, text: &str) -> Result<(), BadArgument> {
        let path = Path::new(text);
        let plain = path.components().all(|c| matches!(c, Component::Normal(_)));
        if text.is_empty() || !plain || text.contains(['\n', '\0']) {
            return bad(text, "give a relative path without `.` and `..`");
        }
        self.parent = Some(path.to_owned());
        Ok(())
    }

    /// The controllers that the settings need.
    pub fn controllers(&self) -> impl Iterator<Item = &str> {
        self.settings.iter().map(Setting::controller)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_a_file_and_a_value() {
        let setting: Setting = "io.max=8:0 rbps=1000".parse().unwrap();
        assert_eq!(setting.value, "8:0 rbps=1000");
        assert_eq!(setting.controller(), "io");
        let wrong = [
            "pids.max",
            "pids.max=",
            "max=1",
            "../x.y=1",
            "a/b.c=1",
            ".x=1",
            "a.=1",
            "=1",
            "cgroup.procs=1",
            "cgroup.threads=1",
            "cgroup.kill=1",
            "cgroup.freeze=1",
            "cgroup.type=threaded",
            "cgroup.subtree_control=+pids",
            "freezer.state=FROZEN",
        ];
        for wrong in wrong {
            assert!(wrong.parse::<Setting>().is_err(), "{wrong}");
        }
        assert!("cgroup.max.depth=2".parse::<Setting>().is_ok());
    }

    #[test]
    fn a_parent_stays_inside_the_hierarchy() {
        let mut request = Request::default();
        request.set_parent("all/external").unwrap();
        for wrong in ["", "/", "/a", "../a", "a/..", "./a"] {
            assert!(request.set_parent(wrong).is_err(), "{wrong:?}");
        }
        assert_eq!(request.parent.unwrap(), Path::new("all/external"));
    }
}
