//! Where a pool's machines are written down: a file for each, in one of three directories.
//!
//! ```text
//! .pools/web/           beside the machines' directories; locked (flock) by the pool's process
//!   pool.json           how many, of what
//!   pool.sock           answers while the pool's process is there
//!   making/ID@VERSION   being started, or on its way out: only who has the pool's lock touches it
//!   ready/ID@VERSION    waits for somebody
//!   claimed/ID@VERSION  somebody's who holds the file's lock; unlocked, it is left behind
//! ```
//!
//! A machine is claimed by renaming its file, which one claimer can do, and is handed out when the
//! file is gone: from then on it is a machine like any other. The files say what there should be, and
//! the machines' own directories and sockets what there is, so that a pool's process that was killed
//! is not missed: the next one goes on from there.

use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, FlockOperation, Mode, OFlags, flock};
use serde::{Deserialize, Serialize};
use tine::replace::is_named;
use tine_jailer::files;

use crate::cli::failure::Failure;
use crate::cli::rundir;
use crate::cli::template::{Named, named, store};

/// Where pools are, among the machines' directories. It is no machine's id.
const POOLS: &str = ".pools";
/// Name of the file that says what a pool is.
const RECORD: &str = "pool.json";
/// Name of the file with what a pool's process in the background has to say.
const LOG: &str = "pool.log";
/// Name of the socket that tells that the pool's process is there.
const SOCKET: &str = "pool.sock";

/// How far a machine is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// It is being started, or ended.
    Making,
    /// It waits.
    Ready,
    /// Somebody has it.
    Claimed,
}

/// A machine of a pool.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Marker {
    /// Its id.
    pub id: String,
    /// The version of the template that it was made of.
    pub version: u32,
}

/// What a pool is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Record {
    /// `NAME`, or `NAME@VERSION`.
    pub template: String,
    /// How many are to be ready.
    pub count: u32,
}

/// The pool of a template.
#[derive(Debug, Clone)]
pub struct Pool {
    /// The template's name, and its own.
    pub name: String,
    pub(super) dir: PathBuf,
}

/// The right to start and end machines of a pool.
#[derive(Debug)]
pub struct Keeping(#[expect(dead_code, reason = "it is the lock")] File);

/// A machine that is this process's.
#[derive(Debug)]
pub struct Claimed {
    /// Which.
    pub marker: Marker,
    file: PathBuf,
    _lock: File,
}

impl Stage {
    fn name(self) -> &'static str {
        match self {
            Stage::Making => "making",
            Stage::Ready => "ready",
            Stage::Claimed => "claimed",
        }
    }
}

impl Marker {
    fn name(&self) -> String {
        format!("{}@{}", self.id, self.version)
    }

    fn parse(text: &str) -> Option<Self> {
        let Named { name: id, version } = named(text).ok()?;
        let version = version?;
        Some(Self { id, version })
    }
}

impl Pool {
    /// The pool of the template `name`.
    pub fn of(name: &str) -> Result<Self, Failure> {
        Ok(Self {
            name: name.to_owned(),
            dir: rundir::root()?.join(POOLS).join(name),
        })
    }

    /// All pools that there are, sorted by name.
    pub fn all() -> Result<Vec<Self>, Failure> {
        let mut names = store::entries(&rundir::root()?.join(POOLS))?;
        names.retain(|name| rundir::id(name).is_ok());
        names.sort();
        names.iter().map(|name| Self::of(name)).collect()
    }

    /// Makes its directories.
    pub fn make(&self) -> Result<(), Failure> {
        rundir::make_root()?;
        let mut builder = DirBuilder::new();
        builder.recursive(true).mode(0o700);
        for stage in [Stage::Making, Stage::Ready, Stage::Claimed] {
            let dir = self.stage(stage);
            let made = builder.create(&dir);
            made.map_err(|err| store::failed("make", &dir, &err))?;
        }
        Ok(())
    }

    /// Takes the pool's lock; `None` while another process has it, or where there is no pool.
    pub fn keep(&self) -> Option<Keeping> {
        let lock = files::open_dir(&self.dir).ok()?;
        flock(&lock, FlockOperation::NonBlockingLockExclusive).ok()?;
        is_named(&self.dir, &lock).then_some(Keeping(lock))
    }

    /// What it is; `None` where no pool was started.
    pub fn record(&self) -> Result<Option<Record>, Failure> {
        let path = self.dir.join(RECORD);
        store::read(&path).map_err(|err| store::failed("read", &path, &err))
    }

    /// Says what it is.
    pub fn set_record(&self, _: &Keeping, record: &Record) -> Result<(), Failure> {
        let new = self.dir.join(".pool.new");
        store::write(&new, record).map_err(|err| store::failed("write", &new, &err))?;
        let path = self.dir.join(RECORD);
        fs::rename(&new, &path).map_err(|err| store::failed("replace", &path, &err))
    }

    /// Removes its directories, where nothing is in them any more.
    pub fn remove(&self, _: &Keeping) {
        for name in [RECORD, ".pool.new", SOCKET, LOG] {
            let _ = fs::remove_file(self.dir.join(name));
        }
        for stage in [Stage::Making, Stage::Ready, Stage::Claimed] {
            let _ = fs::remove_dir(self.stage(stage));
        }
        let _ = fs::remove_dir(&self.dir);
    }

    /// Where its process in the background says what goes wrong.
    pub fn log(&self) -> PathBuf {
        self.dir.join(LOG)
    }

    /// Where its process can be reached.
    pub fn socket(&self) -> Result<PathBuf, Failure> {
        let socket = self.dir.join(SOCKET);
        rundir::check_socket(&socket)?;
        Ok(socket)
    }

    /// The directory for a stage.
    pub fn stage(&self, stage: Stage) -> PathBuf {
        self.dir.join(stage.name())
    }

    /// The machines at a stage, sorted.
    pub fn markers(&self, stage: Stage) -> Result<Vec<Marker>, Failure> {
        let found = store::entries(&self.stage(stage))?;
        let mut markers: Vec<Marker> = found
            .iter()
            .filter_map(|name| Marker::parse(name))
            .collect();
        markers.sort();
        Ok(markers)
    }

    /// Notes a machine that is about to be started.
    pub fn mark(&self, marker: &Marker) -> Result<(), Failure> {
        let path = self.path(Stage::Making, marker);
        let made = File::create_new(&path);
        made.map(drop)
            .map_err(|err| store::failed("make", &path, &err))
    }

    /// Forgets a machine that is gone.
    pub fn unmark(&self, marker: &Marker) {
        let _ = fs::remove_file(self.path(Stage::Making, marker));
    }

    /// Moves a machine between `making` and `ready`; false when somebody was quicker.
    pub fn shift(&self, marker: &Marker, from: Stage, to: Stage) -> Result<bool, Failure> {
        let (from, to) = (self.path(from, marker), self.path(to, marker));
        match fs::rename(&from, &to) {
            Ok(()) => Ok(true),
            Err(err) if err.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(err) => Err(store::failed("rename", &from, &err)),
        }
    }

    /// Claims a machine that waits; `None` when somebody was quicker.
    pub fn claim(&self, marker: &Marker) -> Result<Option<Claimed>, Failure> {
        let ready = self.path(Stage::Ready, marker);
        // For writing: that it is closed again tells the pool that its claimer has gone.
        let Some(lock) = open(&ready, true)? else {
            return Ok(None);
        };
        let file = self.path(Stage::Claimed, marker);
        match fs::rename(&ready, &file) {
            Ok(()) => Ok(Some(Claimed {
                marker: marker.clone(),
                file,
                _lock: lock,
            })),
            Err(err) if err.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(err) => Err(store::failed("claim", &ready, &err)),
        }
    }

    /// Takes over a machine whose claimer was killed; `None` while there is one.
    pub fn take_over(&self, marker: &Marker) -> Result<Option<Claimed>, Failure> {
        let file = self.path(Stage::Claimed, marker);
        let lock = open(&file, false)?.filter(|lock| is_named(&file, lock));
        Ok(lock.map(|lock| Claimed {
            marker: marker.clone(),
            file,
            _lock: lock,
        }))
    }

    fn path(&self, stage: Stage, marker: &Marker) -> PathBuf {
        self.stage(stage).join(marker.name())
    }
}

impl Claimed {
    /// Forgets it: it was handed out, or is gone.
    pub fn done(self) -> Result<String, Failure> {
        let removed = fs::remove_file(&self.file);
        removed.map_err(|err| store::failed("remove", &self.file, &err))?;
        Ok(self.marker.id)
    }
}

/// Opens a machine's file with its lock; `None` where another process has it, or it is not there.
fn open(path: &Path, write: bool) -> Result<Option<File>, Failure> {
    let flags = match write {
        true => OFlags::RDWR,
        false => OFlags::RDONLY,
    };
    let file = match files::open_at(CWD, path, flags, Mode::empty()) {
        Ok(file) => file,
        Err(err) if err.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(err) => return Err(store::failed("open", path, &err)),
    };
    let locked = flock(&file, FlockOperation::NonBlockingLockExclusive).is_ok();
    Ok(locked.then_some(file))
}
