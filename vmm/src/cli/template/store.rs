//! Where templates are kept: a directory for each under this user's data, and in it one for each
//! version, named by its number.
//!
//! ```text
//! templates/              locked (flock) while a name in it is made, moved or removed
//!   web/
//!     active.json         which version runs, which ran before it; replaced as a whole
//!     1/                  a version, never changed: `version.json` and the full snapshot
//!     2/
//!   .building-ID/         a version in the making, locked as long as its maker lives
//!   .removed-ID/          what has been removed, and is being deleted
//! ```
//!
//! A version appears and goes with one rename. Who opens a version holds a shared lock on it until
//! all of its files are open or mapped, and whoever removes it waits for that; from then on the
//! files are there for as long as somebody has them, with or without a name.

use std::fs::{self, DirBuilder, File};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};
use serde::de::DeserializeOwned;
use tine_jailer::files;

use super::record::{Active, Version};
use crate::cli::failure::Failure;
use crate::cli::rundir;

/// Name of a template's file that says which version runs.
const ACTIVE: &str = "active.json";
/// Name of a version's file that says what it is.
pub const VERSION: &str = "version.json";
/// Name of the snapshot in a version's directory.
pub const SNAPSHOT: &str = "snapshot";
/// Most bytes of either file.
const MAX_RECORD: u64 = 1 << 20;

/// All templates of a user.
#[derive(Debug, Clone)]
pub struct Store {
    pub(super) root: PathBuf,
}

/// A template.
#[derive(Debug)]
pub struct Template {
    /// Its name.
    pub name: String,
    /// Which of its versions runs.
    pub active: Active,
    /// Their numbers, the lowest first.
    pub versions: Vec<u32>,
}

/// The store, for as long as nobody else changes it.
pub struct Locked(#[expect(dead_code, reason = "it is the lock")] File);

impl Store {
    /// This user's.
    pub fn of_user() -> Result<Self, Failure> {
        let root = data_dir()?.join("templates");
        Ok(Self { root })
    }

    /// Makes the store if it is not there, and waits until it is this process's to change.
    pub fn lock(&self) -> Result<Locked, Failure> {
        let root = &self.root;
        if !root.is_dir() {
            let mut builder = DirBuilder::new();
            let made = builder.recursive(true).mode(0o700).create(root);
            made.map_err(|err| failed("make", root, &err))?;
        }
        check_private(root)?;
        let lock = files::open_dir(root).map_err(|err| failed("open", root, &err))?;
        flock(&lock, FlockOperation::LockExclusive)
            .map_err(|err| failed("lock", root, &err.into()))?;
        Ok(Locked(lock))
    }

    /// The directory of the template `name`.
    pub fn dir(&self, name: &str) -> PathBuf {
        self.root.join(name)
    }

    /// The directory of a version.
    pub fn version_dir(&self, name: &str, version: u32) -> PathBuf {
        self.dir(name).join(version.to_string())
    }

    /// The names of all templates that have a version, sorted.
    pub fn names(&self) -> Result<Vec<String>, Failure> {
        let mut names = Vec::new();
        for found in entries(&self.root)? {
            if let Ok(name) = rundir::id(&found)
                && !self.versions(&name)?.is_empty()
            {
                names.push(name);
            }
        }
        names.sort();
        Ok(names)
    }

    /// The template `name`, which has to be there.
    pub fn template(&self, name: &str) -> Result<Template, Failure> {
        let versions = self.versions(name)?;
        if versions.is_empty() {
            let all = self.names()?;
            return Err(Failure::new(match all.as_slice() {
                [] => format!(
                    "there is no template {name}, nor any other: `tine template build` makes one"
                ),
                all => format!("there is no template {name}: there are {}", all.join(", ")),
            }));
        }
        Ok(Template {
            name: name.to_owned(),
            active: self.active(name)?,
            versions,
        })
    }

    /// The numbers of a template's versions, the lowest first.
    pub fn versions(&self, name: &str) -> Result<Vec<u32>, Failure> {
        let found = entries(&self.dir(name))?;
        let mut versions: Vec<u32> = found.iter().filter_map(|name| number(name)).collect();
        versions.sort_unstable();
        Ok(versions)
    }

    /// Which version runs. Nothing is known of a template that has none yet.
    pub fn active(&self, name: &str) -> Result<Active, Failure> {
        let path = self.dir(name).join(ACTIVE);
        match read(&path) {
            Ok(None) => Ok(Active::default()),
            Ok(Some(active)) => Ok(active),
            Err(err) => Err(failed("read", &path, &err)),
        }
    }

    /// What a version is.
    pub fn record(&self, name: &str, version: u32) -> Result<Version, Failure> {
        let path = self.version_dir(name, version).join(VERSION);
        match read(&path) {
            Ok(Some(record)) => Ok(record),
            Ok(None) => Err(failed("read", &path, &io::ErrorKind::NotFound.into())),
            Err(err) => Err(failed("read", &path, &err)),
        }
    }

    /// Has all later runs use what `active` says. When this returns, it survives a crash of the host.
    pub fn set_active(&self, _: &Locked, name: &str, active: &Active) -> Result<(), Failure> {
        let dir = self.dir(name);
        // The lock makes the name this process's own, whatever an earlier one left there.
        let new = dir.join(".active.new");
        write(&new, active).map_err(|err| failed("write", &new, &err))?;
        let path = dir.join(ACTIVE);
        fs::rename(&new, &path).map_err(|err| failed("replace", &path, &err))?;
        sync(&dir)
    }
}

/// The number that names a version's directory.
pub fn number(text: &str) -> Option<u32> {
    let digits = text.bytes().all(|byte| byte.is_ascii_digit()) && !text.starts_with('0');
    digits.then(|| text.parse().ok())?
}

/// Where what users make is kept.
fn data_dir() -> Result<PathBuf, Failure> {
    let set = |name| std::env::var_os(name).filter(|value| !value.is_empty());
    if let Some(dir) = set("TINE_DATA_DIR") {
        return std::path::absolute(dir)
            .map_err(|err| Failure::new(format!("cannot use TINE_DATA_DIR: {err}")));
    }
    if rustix::process::geteuid().is_root() {
        return Ok("/var/lib/tine".into());
    }
    let home = || set("HOME").map(|home| Path::new(&home).join(".local/share"));
    let base = set("XDG_DATA_HOME").map(PathBuf::from).or_else(home);
    match base.filter(|base| base.is_absolute()) {
        Some(base) => Ok(base.join("tine")),
        None => Err(Failure::new(
            "there is no place for templates: set XDG_DATA_HOME or TINE_DATA_DIR to a directory",
        )),
    }
}

/// A template is as secret as the memory that is in it, and what others could write to would run.
pub fn check_private(root: &Path) -> Result<(), Failure> {
    let meta = fs::metadata(root).map_err(|err| failed("use", root, &err))?;
    let ours = meta.uid() == rustix::process::geteuid().as_raw();
    if meta.is_dir() && ours && meta.mode() & 0o022 == 0 {
        return Ok(());
    }
    Err(Failure::new(format!(
        "templates cannot be kept in {}: it must be a directory of yours that nobody else can write \
         to",
        root.display()
    )))
}

/// The names in a directory that are text; none where there is no directory.
pub fn entries(dir: &Path) -> Result<Vec<String>, Failure> {
    let found = match fs::read_dir(dir) {
        Ok(found) => found,
        Err(err) if err.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(err) => return Err(failed("read", dir, &err)),
    };
    let names = found.flatten().map(|entry| entry.file_name().into_string());
    Ok(names.filter_map(Result::ok).collect())
}

/// Writes a record, durably.
pub fn write(path: &Path, record: &impl serde::Serialize) -> io::Result<()> {
    let mut file = files::create(path)?;
    serde_json::to_writer_pretty(&mut file, record)?;
    file.write_all(b"\n")?;
    file.sync_all()
}

/// Reads a record; `None` where there is none.
pub fn read<T: DeserializeOwned>(path: &Path) -> io::Result<Option<T>> {
    match files::read(path, MAX_RECORD) {
        Ok(bytes) => Ok(Some(serde_json::from_slice(&bytes)?)),
        Err(err) if err.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(err) => Err(err),
    }
}

/// Makes names in a directory durable.
pub fn sync(dir: &Path) -> Result<(), Failure> {
    let synced = files::open_dir(dir).and_then(|dir| dir.sync_all());
    synced.map_err(|err| failed("sync", dir, &err))
}

/// Something of the store cannot be done.
pub fn failed(what: &str, path: &Path, err: &io::Error) -> Failure {
    Failure::new(format!("cannot {what} {}: {err}", path.display()))
}
