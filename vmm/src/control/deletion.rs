//! The deletion of a machine: accepted first, durably, and released after.
//!
//! In the run directory the file `deleted.json` says so. It is written and synced before anybody
//! is told that the deletion was accepted, so that whatever happens later, also to the process,
//! the machine does not come back.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::SystemTime;

use serde::{Deserialize, Serialize};
use tine_devices::bus::lock;
use tine_jailer::files;

use crate::clock::rfc3339;
use crate::replace::replace;

/// Name of the file in the run directory.
pub const FILE: &str = "deleted.json";
/// In bytes; more is none of ours.
const MAX_LEN: u64 = 4 << 10;

/// When a deletion was accepted, and when it was done.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Times {
    /// Accepted: nothing brings the machine back, metering stops.
    pub accepted_at: String,
    /// Everything has been released.
    pub released_at: Option<String>,
}

/// The deletion of one machine.
pub struct Deletion {
    run_dir: Option<PathBuf>,
    times: Mutex<Option<Times>>,
}

impl Deletion {
    /// Reads what the run directory knows. Without one, deletions are not recorded.
    pub fn of(run_dir: Option<&Path>) -> io::Result<Self> {
        let times = match run_dir {
            Some(dir) => read(&dir.join(FILE))?,
            None => None,
        };
        Ok(Self {
            run_dir: run_dir.map(Path::to_owned),
            times: Mutex::new(times),
        })
    }

    /// Whether acceptance survives this process.
    pub fn is_durable(&self) -> bool {
        self.run_dir.is_some()
    }

    /// What is known.
    pub fn times(&self) -> Option<Times> {
        lock(&self.times).clone()
    }

    /// Accepts the deletion, once: a later call gets the first one's times. When this returns
    /// `Ok`, it is on disk. The flag says whether this call was the first.
    pub fn accept(&self) -> io::Result<(Times, bool)> {
        let mut times = lock(&self.times);
        if let Some(known) = times.as_ref() {
            return Ok((known.clone(), false));
        }
        let accepted = Times {
            accepted_at: rfc3339(SystemTime::now()),
            released_at: None,
        };
        self.write(&accepted)?;
        *times = Some(accepted.clone());
        Ok((accepted, true))
    }

    /// Records that everything has been released.
    pub fn release(&self) -> io::Result<Times> {
        let mut times = lock(&self.times);
        let now = rfc3339(SystemTime::now());
        let accepted_at = match times.as_ref() {
            Some(known) => known.accepted_at.clone(),
            None => now.clone(),
        };
        let released = Times {
            accepted_at,
            released_at: Some(now),
        };
        self.write(&released)?;
        *times = Some(released.clone());
        Ok(released)
    }

    fn write(&self, times: &Times) -> io::Result<()> {
        match &self.run_dir {
            Some(dir) => replace(dir, FILE, &serde_json::to_vec(times)?),
            None => Ok(()),
        }
    }
}

fn read(path: &Path) -> io::Result<Option<Times>> {
    match files::read(path, MAX_LEN) {
        Ok(bytes) => Ok(Some(serde_json::from_slice(&bytes)?)),
        Err(err) if err.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(err) => Err(err),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn acceptance_is_on_disk_and_happens_once() {
        let dir = tempfile::tempdir().unwrap();
        let deletion = Deletion::of(Some(dir.path())).unwrap();
        assert_eq!(deletion.times(), None);
        let (first, new) = deletion.accept().unwrap();
        assert!(new);
        assert_eq!(deletion.accept().unwrap(), (first.clone(), false));
        let again = Deletion::of(Some(dir.path())).unwrap();
        assert_eq!(again.times(), Some(first.clone()));
        let released = again.release().unwrap();
        assert_eq!(released.accepted_at, first.accepted_at);
        assert!(released.released_at.is_some());
        let names: Vec<_> = std::fs::read_dir(dir.path()).unwrap().collect();
        assert_eq!(names.len(), 1, "no temporary file is left");
    }

    #[test]
    fn a_deletion_that_cannot_be_written_is_not_accepted() {
        let dir = tempfile::tempdir().unwrap();
        let deletion = Deletion::of(Some(&dir.path().join("missing"))).unwrap();
        assert!(deletion.accept().is_err());
        assert_eq!(deletion.times(), None);
    }

    #[test]
    fn a_record_that_makes_no_sense_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join(FILE), "{").unwrap();
        assert!(Deletion::of(Some(dir.path())).is_err());
    }
}
