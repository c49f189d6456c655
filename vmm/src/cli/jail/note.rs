//! What was shown to a machine in its jail, noted where the machine cannot write.
//!
//! The record that a machine leaves for its next start names files of the host, and the machine's
//! process, which its guest may have taken over, writes it. So who starts the machine again asks the
//! note: it was written by those who had the say, before the machine's first instruction. A machine that
//! never was in a jail has none; what it wrote down, a process in sight of all of the host wrote.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};
use tine::control::record;
use tine::replace::{replace, temporary};
use tine_jailer::files;

use super::{Files, Shown};
use crate::cli::failure::Failure;
use crate::cli::rundir;

/// How the name of a note ends; a dot and the machine's id stand before it. It is no machine's id.
const END: &str = ".shown";

/// What a machine may be shown again.
#[derive(Debug)]
pub struct Note {
    pub(super) shown: Vec<Shown>,
}

/// The name of the note of the machine whose directory is `dir`, beside that.
fn name_of(dir: &Path) -> String {
    let id = dir.file_name().unwrap_or_default().to_string_lossy();
    format!(".{id}{END}")
}

fn path_of(dir: &Path) -> PathBuf {
    dir.with_file_name(name_of(dir))
}

/// Forgets what was shown to a machine whose directory is gone. While there is one, perhaps that of a
/// new machine of the same id, its note stays.
///
/// # Errors
///
/// Those of the operating system.
pub fn forget(dir: &Path) -> io::Result<()> {
    let place = dir.parent().unwrap_or(Path::new("."));
    let lock = files::open_dir(place)?;
    flock(&lock, FlockOperation::LockExclusive)?;
    if dir.symlink_metadata().is_ok() {
        return Ok(());
    }
    remove(dir)
}

fn remove(dir: &Path) -> io::Result<()> {
    let name = name_of(dir);
    // And what is left of one whose writer was killed.
    for name in [temporary(&name), name] {
        match fs::remove_file(dir.with_file_name(name)) {
            Err(err) if err.kind() != io::ErrorKind::NotFound => return Err(err),
            _ => {}
        }
    }
    Ok(())
}

/// Forgets what was shown to an earlier machine of the id, for a new one that gets no jail.
///
/// # Errors
///
/// When a note stays that this machine would be held to.
pub fn drop_stale(dir: &Path) -> Result<(), Failure> {
    remove(dir).map_err(|err| failed("remove", dir, &err))
}

/// The directories, which are not there, of machines that have notes: whoever removed them was killed.
pub fn orphans(root: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(root).into_iter().flatten().flatten();
    let dirs = entries.filter_map(|entry| {
        let name = entry.file_name();
        let name = name.to_str()?;
        let half = name
            .strip_prefix('.')
            .and_then(|name| name.strip_suffix(".new"));
        let id = half.unwrap_or(name).strip_prefix('.')?.strip_suffix(END)?;
        let dir = root.join(rundir::id(id).ok()?);
        dir.symlink_metadata().is_err().then_some(dir)
    });
    dirs.collect()
}

fn failed(what: &str, dir: &Path, why: &dyn std::fmt::Display) -> Failure {
    Failure::new(format!("cannot {what} {}: {why}", path_of(dir).display()))
}

impl Files {
    /// Notes what is shown to the machine whose directory is `dir`, in the place of an earlier note.
    ///
    /// # Errors
    ///
    /// When the note cannot be written.
    pub fn note(&self, dir: &Path) -> Result<(), Failure> {
        let shown: Vec<&Shown> = self.all(dir).collect();
        let write = || -> io::Result<()> {
            let bytes = serde_json::to_vec(&shown)?;
            let place = dir.parent().unwrap_or(Path::new("."));
            let lock = files::open_dir(place)?;
            // Against who has just removed an earlier machine of this id, and its note after that.
            flock(&lock, FlockOperation::LockShared)?;
            replace(place, &name_of(dir), &bytes)
        };
        write().map_err(|err| failed("write", dir, &err))
    }
}

impl Note {
    /// That of the machine whose directory is `dir`; `None` for one that never was in a jail.
    ///
    /// # Errors
    ///
    /// When there is one, and it cannot be read.
    pub fn of(dir: &Path) -> Result<Option<Self>, Failure> {
        match files::read(&path_of(dir), record::MAX_LEN) {
            Ok(bytes) => {
                let shown = serde_json::from_slice(&bytes);
                shown
                    .map(|shown| Some(Self { shown }))
                    .map_err(|err| failed("read", dir, &err))
            }
            Err(err) if err.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(err) => Err(failed("read", dir, &err)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_note_goes_with_its_directory_and_not_before() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path();
        let own = root.join("m");
        fs::create_dir(&own).unwrap();
        fs::write(root.join("disk"), "").unwrap();
        let mut files = Files::default();
        let disk = files.show(&root.join("disk"), true).unwrap();
        files.note(&own).unwrap();
        let noted = Note::of(&own).unwrap().unwrap().shown;
        assert_eq!((&noted[0].path, noted[0].writable), (&disk, true));
        let note = root.join(".m.shown");
        forget(&own).unwrap();
        assert!(note.exists(), "its machine is there");
        assert_eq!(orphans(root), [] as [PathBuf; 0]);
        fs::remove_dir_all(&own).unwrap();
        assert_eq!(orphans(root), std::slice::from_ref(&own));
        forget(&own).unwrap();
        assert!(!note.exists());
        forget(&own).unwrap();
        assert!(Note::of(&own).unwrap().is_none());
        // Of one who was killed while it wrote.
        let half = root.join("..m.shown.new");
        fs::write(&half, "[").unwrap();
        assert_eq!(orphans(root), std::slice::from_ref(&own));
        forget(&own).unwrap();
        assert!(!half.exists());
        fs::write(&note, "[").unwrap();
        assert!(Note::of(&own).is_err(), "it is not as if there were none");
        drop_stale(&own).unwrap();
        assert!(!note.exists());
    }
}
