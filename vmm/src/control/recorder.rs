//! The machine's records in its run directory, kept by the controller.

use std::io;
use std::path::{Path, PathBuf};

use super::access::Figures;
use super::deletion::{Deletion, Times};
use crate::logger::{self, Level};
use crate::usage::{self, UsageFile};

/// The run directory cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("cannot use the run directory {}: {source}", path.display())]
pub struct RecordError {
    /// The directory.
    pub path: PathBuf,
    /// What the host said.
    pub source: io::Error,
}

/// Writes usage records, if there is a run directory.
#[derive(Default)]
pub(super) struct Recorder(Option<UsageFile>);

impl Recorder {
    /// Opens the records of `run_dir`.
    pub fn open(run_dir: Option<&Path>) -> Result<Self, RecordError> {
        let Some(dir) = run_dir else {
            return Ok(Self(None));
        };
        let file = UsageFile::open(dir).map_err(|source| RecordError {
            path: dir.to_owned(),
            source,
        })?;
        Ok(Self(Some(file)))
    }

    /// Whether records are kept.
    pub fn is_on(&self) -> bool {
        self.0.is_some()
    }

    /// Appends a record. One that cannot be written must not end a machine: the log says so.
    pub fn record(
        &mut self,
        event: &str,
        reason: Option<&str>,
        figures: Figures,
        deletion: Option<Times>,
    ) {
        let Some(file) = &mut self.0 else { return };
        if let Err(err) = file.append(event, reason, figures, deletion) {
            logger::log(Level::Error, format_args!("cannot write usage: {err}"));
        }
    }
}

/// Finishes a deletion that an earlier process accepted and did not live to carry out: that
/// process took the machine with it, so what is left is to say so. Returns the times if there was
/// such a deletion.
pub(super) fn finish(
    deletion: &Deletion,
    run_dir: Option<&Path>,
) -> Result<Option<Times>, RecordError> {
    let (Some(times), Some(dir)) = (deletion.times(), run_dir) else {
        return Ok(None);
    };
    let failed = |source| RecordError {
        path: dir.to_owned(),
        source,
    };
    if times.released_at.is_some() && recorded(dir) {
        return Ok(Some(times));
    }
    let last = usage::last(dir).ok().flatten();
    let figures = last.map_or_else(Figures::default, |record| record.usage);
    let times = deletion.release().map_err(failed)?;
    let mut recorder = Recorder::open(Some(dir))?;
    recorder.record("deleted", None, figures, Some(times.clone()));
    Ok(Some(times))
}

/// Whether the last record tells of the release.
fn recorded(dir: &Path) -> bool {
    let last = usage::last(dir).ok().flatten();
    let deletion = last.and_then(|record| record.deletion);
    deletion.is_some_and(|times| times.released_at.is_some())
}
