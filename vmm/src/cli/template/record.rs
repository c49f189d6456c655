//! What is written down of templates, and the words for them on the command line.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

use super::store::number;
use crate::cli::rundir;

/// Most activations that are remembered.
const MAX_BEFORE: usize = 64;

/// Which version of a template runs.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Active {
    /// The one that a run without a number gets.
    pub version: Option<u32>,
    /// Those that were active before it, the last one last.
    pub before: Vec<u32>,
    /// The highest number that was ever given: none is given twice.
    pub last: u32,
}

impl Active {
    /// Makes a version the active one.
    pub fn activate(&mut self, version: u32) {
        if self.version == Some(version) {
            return;
        }
        self.before.extend(self.version.replace(version));
        let much = self.before.len().saturating_sub(MAX_BEFORE);
        self.before.drain(..much);
    }

    /// Makes the one active that was so before; gives its number.
    pub fn roll_back(&mut self) -> Option<u32> {
        self.version = Some(self.before.pop()?);
        self.version
    }

    /// Forgets a version that is not active.
    pub fn forget(&mut self, version: u32) {
        self.before.retain(|before| *before != version);
        // What stood on both sides of it are one activation now.
        self.before.dedup();
        if self.before.last() == self.version.as_ref() {
            self.before.pop();
        }
    }
}

/// What a version was made of.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Version {
    /// When it was whole: RFC 3339, UTC.
    pub created: String,
    /// The image or snapshot; none when it is the guest image alone.
    pub from: Option<String>,
    /// The commands that were run.
    pub run: Vec<String>,
    /// Variables for the commands of its machines.
    pub environment: BTreeMap<String, String>,
    /// Memory in bytes.
    pub memory: u64,
    /// Number of vCPUs.
    pub vcpus: u32,
}

/// A template as it is named: `NAME`, or `NAME@VERSION`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Named {
    /// Its name.
    pub name: String,
    /// The version; the active one when there is none.
    pub version: Option<u32>,
}

impl fmt::Display for Named {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)?;
        self.version
            .map_or(Ok(()), |version| write!(f, "@{version}"))
    }
}

/// `NAME[@VERSION]`.
pub fn named(text: &str) -> Result<Named, String> {
    let (text, version) = match text.split_once('@') {
        None => (text, None),
        Some((text, digits)) => (text, Some(version(digits)?)),
    };
    let name = name(text)?;
    Ok(Named { name, version })
}

/// A template's name: 1 to 64 of `a-z0-9_-`.
pub fn name(text: &str) -> Result<String, String> {
    // It becomes the name of a directory, as a machine's id does.
    let name = rundir::id(text);
    name.map_err(|_| "a template's name is 1 to 64 of a-z, 0-9, `_` and `-`".to_owned())
}

/// The number of a version, from 1 on.
pub fn version(text: &str) -> Result<u32, String> {
    number(text)
        .ok_or_else(|| "a version is a number from 1 on, as `tine template ls` shows".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names() {
        let web = |version| Named {
            name: "web".to_owned(),
            version,
        };
        assert_eq!(named("web"), Ok(web(None)));
        assert_eq!(named("web@12"), Ok(web(Some(12))));
        for bad in [
            "",
            "@1",
            "web@",
            "web@0",
            "web@01",
            "web@+1",
            "web@-1",
            "web@1@2",
            "web@99999999999",
            "..",
            "../web",
            "a/b",
            ".web",
            "Web",
            "web\n",
        ] {
            assert!(named(bad).is_err(), "{bad:?}");
        }
        assert!(name(&"a".repeat(65)).is_err());
    }

    #[test]
    fn rolling_back_goes_further_each_time() {
        let mut active = Active::default();
        (1..=3).for_each(|version| active.activate(version));
        active.activate(3);
        assert_eq!((active.version, &active.before[..]), (Some(3), &[1, 2][..]));
        assert_eq!((active.roll_back(), active.roll_back()), (Some(2), Some(1)));
        assert_eq!((active.roll_back(), active.version), (None, Some(1)));
    }

    #[test]
    fn what_is_removed_is_not_gone_back_to() {
        let mut active = Active::default();
        [1, 2, 1, 3]
            .into_iter()
            .for_each(|version| active.activate(version));
        active.forget(2);
        assert_eq!(active.before, [1]);
        let mut active = Active::default();
        [1, 2, 1]
            .into_iter()
            .for_each(|version| active.activate(version));
        active.forget(2);
        assert_eq!((active.version, active.roll_back()), (Some(1), None));
        let mut active = Active::default();
        (1..1000).for_each(|version| active.activate(version));
        assert_eq!(active.before.len(), MAX_BEFORE);
    }
}
