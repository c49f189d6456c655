//! What a machine has used: one append-only file in its run directory, one JSON object a line.
//!
//! A record is synced before the machine goes on, so that none is lost however the process ends.
//! A last line that was only half written is dropped on reading, and cut off before the next
//! record is appended.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::Path;
use std::time::SystemTime;

use rustix::fs::{CWD, Mode, OFlags};
use serde::{Deserialize, Serialize};
use tine_jailer::files;

use crate::clock::rfc3339;
use crate::control::{DeletionTimes, Figures};

/// Name of the file in the run directory.
pub const FILE: &str = "usage.jsonl";
/// More bytes than a line has.
const LINE: u64 = 64 << 10;

/// One line.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// When.
    pub at: String,
    /// What happened: a state's word, or `usage` for figures in between.
    pub event: String,
    /// Why, where the event does not say all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// What had been used by then. They stand still from the acceptance of a deletion on.
    pub usage: Figures,
    /// The deletion, in the records after its acceptance.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deletion: Option<DeletionTimes>,
}

/// The file, open for appending.
pub struct UsageFile(File);

impl UsageFile {
    /// Opens the file in `run_dir`, or makes it.
    pub fn open(run_dir: &Path) -> io::Result<Self> {
        let path = run_dir.join(FILE);
        let flags = OFlags::RDWR | OFlags::APPEND | OFlags::CREATE;
        let mode = Mode::from_raw_mode(0o666);
        let mut file = files::open_at(CWD, path, flags, mode)?;
        let whole = whole_lines(&mut file)?;
        if whole < file.seek(SeekFrom::End(0))? {
            file.set_len(whole)?;
        }
        File::open(run_dir)?.sync_all()?;
        Ok(Self(file))
    }

    /// Appends a record; it is on disk when this returns.
    pub fn append(
        &mut self,
        event: &str,
        reason: Option<&str>,
        usage: Figures,
        deletion: Option<DeletionTimes>,
    ) -> io::Result<()> {
        let record = Record {
            at: rfc3339(SystemTime::now()),
            event: event.to_owned(),
            reason: reason.map(str::to_owned),
            usage,
            deletion,
        };
        let mut line = serde_json::to_vec(&record)?;
        line.push(b'\n');
        self.0.write_all(&line)?;
        // As files are synced everywhere else: the length is part of it in any case.
        self.0.sync_all()
    }
}

/// Length of the file up to its last line's end.
fn whole_lines(file: &mut File) -> io::Result<u64> {
    let mut bytes = Vec::new();
    file.rewind()?;
    file.read_to_end(&mut bytes)?;
    let last = bytes.iter().rposition(|byte| *byte == b'\n');
    Ok(last.map_or(0, |at| at as u64 + 1))
}

/// Reads all records in `run_dir`. What a crash left half written is not one.
pub fn read(run_dir: &Path) -> io::Result<Vec<Record>> {
    let mut bytes = Vec::new();
    files::open(&run_dir.join(FILE))?.read_to_end(&mut bytes)?;
    let lines = bytes.split_inclusive(|byte| *byte == b'\n');
    lines
        .filter(|line| line.ends_with(b"\n"))
        .map(|line| serde_json::from_slice(line).map_err(io::Error::from))
        .collect()
}

/// Reads the last record in `run_dir`, however many there are before it. What a crash left half written
/// is not one.
pub fn last(run_dir: &Path) -> io::Result<Option<Record>> {
    let bytes = files::read_end(&run_dir.join(FILE), 2 * LINE)?;
    let end = |bytes: &[u8]| bytes.iter().rposition(|byte| *byte == b'\n');
    let Some(line) = end(&bytes).map(|at| &bytes[..at]) else {
        return Ok(None);
    };
    let line = &line[end(line).map_or(0, |at| at + 1)..];
    Ok(Some(serde_json::from_slice(line)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn append(dir: &Path, event: &str) {
        let mut file = UsageFile::open(dir).unwrap();
        file.append(event, None, Figures::default(), None).unwrap();
    }

    #[test]
    fn a_half_written_line_is_dropped_wherever_it_was_cut() {
        let dir = tempfile::tempdir().unwrap();
        append(dir.path(), "created");
        append(dir.path(), "running");
        let path = dir.path().join(FILE);
        let whole = std::fs::read(&path).unwrap();
        let first = whole.iter().position(|byte| *byte == b'\n').unwrap() + 1;
        for cut in first..whole.len() {
            std::fs::write(&path, &whole[..cut]).unwrap();
            let events = |dir: &Path| -> Vec<String> {
                read(dir).unwrap().into_iter().map(|r| r.event).collect()
            };
            assert_eq!(events(dir.path()), ["created"], "cut at {cut}");
            let last = || last(dir.path()).unwrap().map(|record| record.event);
            assert_eq!(last().as_deref(), Some("created"), "cut at {cut}");
            append(dir.path(), "failed");
            assert_eq!(events(dir.path()), ["created", "failed"], "cut at {cut}");
            assert_eq!(last().as_deref(), Some("failed"), "cut at {cut}");
        }
    }

    #[test]
    fn the_last_of_many_is_found_at_the_end() {
        let dir = tempfile::tempdir().unwrap();
        assert!(last(dir.path()).is_err());
        append(dir.path(), "running");
        let path = dir.path().join(FILE);
        let line = std::fs::read(&path).unwrap();
        let half = &line[..line.len() / 2];
        // A hole first, which nobody who looks for the last one reads.
        let file = File::options().write(true).open(&path).unwrap();
        file.set_len(1 << 40).unwrap();
        let mut file = File::options().append(true).open(&path).unwrap();
        for part in [b"\n", &line[..], half] {
            file.write_all(part).unwrap();
        }
        assert_eq!(last(dir.path()).unwrap().unwrap().event, "running");
        std::fs::write(&path, half).unwrap();
        assert_eq!(last(dir.path()).unwrap(), None);
    }
}
