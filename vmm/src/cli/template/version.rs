//! A version of a template, opened to make machines of it, and its end.

use std::fs::File;
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};
use tine::replace::is_named;
use tine_jailer::files;

use super::record::{Named, Version};
use super::store::{SNAPSHOT, Store, check_private, failed};
use crate::cli::failure::Failure;

/// A version that stays for as long as this is held: until all files of its snapshot are open.
#[derive(Debug)]
pub struct Opened {
    /// Its snapshot.
    pub snapshot: PathBuf,
    /// What it is.
    pub record: Version,
    _lock: File,
}

impl Store {
    /// The number of a version, of the active one when none is named.
    pub fn version(&self, named: &Named) -> Result<u32, Failure> {
        let template = self.template(&named.name)?;
        template.named(named)
    }

    /// Opens a version, the active one when none is named.
    pub fn open(&self, named: &Named) -> Result<Opened, Failure> {
        let name = &named.name;
        let template = self.template(name)?;
        check_private(&self.root)?;
        let version = template.named(named)?;
        let dir = self.version_dir(name, version);
        let lock = hold(&dir, FlockOperation::LockShared)?;
        let lock = lock
            .ok_or_else(|| Failure::new(format!("{name}@{version} was removed at this moment")))?;
        Ok(Opened {
            snapshot: dir.join(SNAPSHOT),
            record: self.record(name, version)?,
            _lock: lock,
        })
    }

    /// Makes a version the active one.
    pub fn activate(&self, name: &str, version: u32) -> Result<(), Failure> {
        let locked = self.lock()?;
        let mut template = self.template(name)?;
        template.require(version)?;
        template.active.activate(version);
        self.set_active(&locked, name, &template.active)
    }

    /// Makes the version active that was so before; gives its number.
    pub fn roll_back(&self, name: &str) -> Result<u32, Failure> {
        let locked = self.lock()?;
        let mut template = self.template(name)?;
        let version = template.active.roll_back().ok_or_else(|| {
            Failure::new(format!(
                "no version of template {name} was active before: `tine template activate {name} \
                 VERSION` takes any"
            ))
        })?;
        self.set_active(&locked, name, &template.active)?;
        Ok(version)
    }

    /// Removes a version that is not active, or all of a template.
    pub fn remove(&self, named: &Named) -> Result<(), Failure> {
        let name = &named.name;
        let locked = self.lock()?;
        let mut template = self.template(name)?;
        let (going, dir) = match named.version {
            None => (template.versions.clone(), self.dir(name)),
            Some(version) => (vec![version], self.version_dir(name, version)),
        };
        if let Some(version) = named.version {
            template.require(version)?;
            if template.active.version == Some(version) {
                return Err(Failure::new(format!(
                    "{name}@{version} is the active version: activate another one first, or remove \
                     all of it with `tine template rm {name}`"
                )));
            }
        }
        // Whoever is opening one has all of its files open when its lock is had here.
        let versions = going.iter().map(|version| self.version_dir(name, *version));
        let held = versions.map(|dir| hold(&dir, FlockOperation::LockExclusive));
        let held: Vec<_> = held.collect::<Result<_, _>>()?;
        if let Some(version) = named.version {
            template.active.last = template
                .active
                .last
                .max(*template.versions.last().unwrap_or(&0));
            template.active.forget(version);
            self.set_active(&locked, name, &template.active)?;
        }
        let hidden = self.hide(&locked, &dir)?;
        drop(held);
        self.delete(&hidden)
    }
}

impl super::store::Template {
    /// Which version is named; it was there when this was looked at.
    fn named(&self, named: &Named) -> Result<u32, Failure> {
        let version = named.version.or(self.active.version);
        let version = version.ok_or_else(|| {
            Failure::new(format!(
                "template {0} has no active version: `tine template activate {0} VERSION`",
                self.name
            ))
        })?;
        self.require(version)?;
        Ok(version)
    }

    fn require(&self, version: u32) -> Result<(), Failure> {
        if self.versions.contains(&version) {
            return Ok(());
        }
        let all: Vec<String> = self.versions.iter().map(u32::to_string).collect();
        Err(Failure::new(format!(
            "template {} has no version {version}: there are {}",
            self.name,
            all.join(", ")
        )))
    }
}

/// Waits for the lock of a version's directory. `None` where there is none, or was none any more
/// when the lock was had.
fn hold(dir: &Path, how: FlockOperation) -> Result<Option<File>, Failure> {
    let Ok(lock) = files::open_dir(dir) else {
        return Ok(None);
    };
    flock(&lock, how).map_err(|err| failed("lock", dir, &err.into()))?;
    Ok(is_named(dir, &lock).then_some(lock))
}
