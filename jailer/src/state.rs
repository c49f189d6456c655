//! What is known of a jail outside of it: who lives in it, and what was made for it.
//!
//! `BASE/PROGRAM/ID/jail` is a short text that only the jailer can write, so nobody in the jail
//! holds a lock or a descriptor for it. While a jail is made or removed, its directory is locked.

use std::fs::File;
use std::io::{ErrorKind, Read, Seek, SeekFrom, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, Mode, OFlags, flock};
use rustix::io::Errno;

use crate::error::{JailError, failed};
use crate::proc_fs::{Identity, Life, Proc};
use crate::{files, paths};

/// The file's name.
pub(crate) const FILE: &str = "jail";
/// The jail's root directory, beside it.
pub(crate) const ROOT: &str = "root";
/// More is none of ours.
const MAX_LEN: u64 = 64 << 10;

/// What was noted down.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Record {
    /// The process in the jail, or the one that is making it.
    pub process: Option<Identity>,
    /// Groups, and how many groups over them go too when they are empty.
    pub groups: Vec<(PathBuf, usize)>,
    /// What was made below the root, to mount over.
    pub made: Vec<PathBuf>,
    /// The file in the root with the process's number.
    pub pid_file: Option<String>,
}

impl Record {
    /// One line for each fact, so that a line cut short costs no other.
    pub fn to_text(&self) -> String {
        let mut text = String::new();
        if let Some(process) = &self.process {
            text += &format!(
                "process {} {} {} {}\n",
                process.pid, process.start, process.boot, process.namespace
            );
        }
        for (path, above) in &self.groups {
            text += &format!("cgroup {above} {}\n", path.display());
        }
        for path in &self.made {
            text += &format!("made {}\n", path.display());
        }
        if let Some(name) = &self.pid_file {
            text += &format!("pid-file {name}\n");
        }
        text
    }

    /// Understands what it can. A power cut may have left anything.
    pub fn from_text(text: &str) -> Self {
        let mut record = Self::default();
        for line in text.lines() {
            let Some((word, rest)) = line.split_once(' ') else {
                continue;
            };
            match word {
                "process" => record.process = identity(rest),
                "cgroup" => {
                    if let Some((above, path)) = rest.split_once(' ')
                        && let Ok(above) = above.parse()
                    {
                        record.groups.push((path.into(), above));
                    }
                }
                "made" => record.made.push(rest.into()),
                "pid-file" => record.pid_file = Some(rest.to_owned()),
                _ => {}
            }
        }
        record
    }
}

fn identity(text: &str) -> Option<Identity> {
    let mut words = text.split(' ');
    Some(Identity {
        pid: words.next()?.parse().ok()?,
        start: words.next()?.parse().ok()?,
        boot: words.next()?.to_owned(),
        namespace: words.next()?.parse().ok()?,
    })
}

/// A jail's directory, locked against everyone else who makes or removes it.
pub(crate) struct Claim {
    /// The directory.
    pub dir: OwnedFd,
    /// What is noted down.
    pub record: Record,
    file: File,
    /// The directory that it is in, and its name there.
    pub above: OwnedFd,
    /// The machine's id.
    pub name: String,
}

/// Who has the directory.
pub(crate) enum Taken {
    /// Now the caller.
    Ours(Claim),
    /// A living process.
    Living(Identity),
    /// Somebody who is making or removing it.
    Locked,
    /// Somebody of whom it cannot be told whether he lives.
    Unknown,
    /// There is no directory any more.
    Gone,
}

impl Claim {
    /// Locks `dir`, which is `name` in `above`, and reads what is noted down. With `create`, a jail
    /// that was never noted down becomes one.
    pub fn take(
        proc: &Proc,
        above: OwnedFd,
        name: &str,
        dir: OwnedFd,
        create: bool,
    ) -> Result<Taken, JailError> {
        match flock(&dir, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(Errno::WOULDBLOCK) => return Ok(Taken::Locked),
            Err(err) => return Err(failed(format!("lock the directory of {name}"))(err)),
        }
        if !paths::is_still(above.as_fd(), name, dir.as_fd()) {
            return Ok(Taken::Gone);
        }
        let flags = match create {
            true => OFlags::RDWR | OFlags::CREATE,
            false => OFlags::RDWR,
        };
        let file = match files::open_at(&dir, FILE, flags, Mode::RUSR | Mode::WUSR) {
            Err(err) if err.kind() == ErrorKind::NotFound => return Ok(Taken::Gone),
            other => other.map_err(failed(format!("open the state of {name}")))?,
        };
        let mut text = String::new();
        // What is no text was not written by us: nothing can be known from it.
        let _ = (&file).take(MAX_LEN).read_to_string(&mut text);
        let record = Record::from_text(&text);
        if let Some(process) = &record.process {
            match proc.life(process) {
                Life::Alive => return Ok(Taken::Living(process.clone())),
                Life::Ending => proc.wait_for_end(process),
                Life::Unknown => return Ok(Taken::Unknown),
                Life::Dead => {}
            }
        }
        Ok(Taken::Ours(Self {
            dir,
            record,
            file,
            above,
            name: name.to_owned(),
        }))
    }

    /// Notes everything down.
    pub fn write(&mut self) -> Result<(), JailError> {
        let text = self.record.to_text();
        let mut put = || {
            self.file.seek(SeekFrom::Start(0))?;
            self.file.write_all(text.as_bytes())?;
            self.file.set_len(text.len() as u64)
        };
        put().map_err(failed("write the jail's state"))
    }
}

/// Where the state of a jail is.
pub(crate) fn file_of(dir: &Path) -> PathBuf {
    dir.join(FILE)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn full() -> Record {
        Record {
            process: Some(Identity {
                pid: 7,
                start: 99,
                boot: "b-c".to_owned(),
                namespace: 4026531836,
            }),
            groups: vec![("/cg/a b".into(), 1)],
            made: vec!["x/y z".into()],
            pid_file: Some("tine-vmm.pid".to_owned()),
        }
    }

    #[test]
    fn what_is_written_is_read() {
        assert_eq!(Record::from_text(&full().to_text()), full());
    }

    #[test]
    fn anything_at_all_can_be_read() {
        let text = full().to_text();
        for end in 0..text.len() {
            Record::from_text(&text[..end]);
        }
        let broken = "process 1 2\ncgroup x /a\nmade\n\n \npid-file";
        assert_eq!(Record::from_text(broken), Record::default());
    }

    #[test]
    fn one_of_two_gets_a_directory() {
        let proc = Proc::open().unwrap();
        let dir = tempfile::tempdir().unwrap();
        let open = || paths::open_dir(dir.path()).unwrap();
        let make = || {
            paths::subdir(open().as_fd(), "a", Mode::from_raw_mode(0o755))
                .unwrap()
                .0
        };
        let take = |create| Claim::take(&proc, open(), "a", make(), create).unwrap();
        assert!(matches!(take(false), Taken::Gone));
        let Taken::Ours(mut claim) = take(true) else {
            panic!("nobody else has it");
        };
        assert!(matches!(take(true), Taken::Locked));
        claim.record.process = Some(proc.identify(proc.namespace().unwrap()).unwrap());
        claim.write().unwrap();
        drop(claim);
        assert!(matches!(take(true), Taken::Living(_)));
        std::fs::remove_dir_all(dir.path().join("a")).unwrap();
        assert!(matches!(take(true), Taken::Ours(_)));
    }
}
