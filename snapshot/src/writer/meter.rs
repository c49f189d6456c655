//! How far a piece of work is, who is told, and how a step of it ends early.

use std::io;
use std::ops::ControlFlow;

/// How far a piece of work is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progress {
    /// Bytes looked through.
    pub done: u64,
    /// Bytes in all, as far as they are known: never less than `done`.
    pub total: u64,
}

/// Who is told of progress.
type Report<'a> = Box<dyn FnMut(Progress) -> ControlFlow<()> + Send + 'a>;

/// Counts work and tells of it.
pub(crate) struct Meter<'a> {
    pub(super) done: u64,
    pub(super) total: u64,
    pub(super) report: Option<Report<'a>>,
}

impl<'a> Meter<'a> {
    pub(crate) fn new(total: u64, report: Option<Report<'a>>) -> Self {
        Self {
            done: 0,
            total,
            report,
        }
    }

    /// So much more is done. An error when it is to stop.
    pub(crate) fn add(&mut self, bytes: u64) -> Result<(), StepError> {
        self.done += bytes;
        self.total = self.total.max(self.done);
        let progress = Progress {
            done: self.done,
            total: self.total,
        };
        match self.report.as_mut().map(|report| report(progress)) {
            Some(ControlFlow::Break(())) => Err(StepError::Stopped),
            _ => Ok(()),
        }
    }
}

/// Why a step was not done, where there is no path to name.
#[derive(Debug)]
pub(crate) enum StepError {
    Io(io::Error),
    Invalid(String),
    Stopped,
}

impl StepError {
    /// For steps that can fail in one way only.
    pub(crate) fn into_io(self) -> io::Error {
        match self {
            Self::Io(source) => source,
            Self::Invalid(reason) => io::Error::other(reason),
            Self::Stopped => io::Error::other("stopped"),
        }
    }
}

impl From<io::Error> for StepError {
    fn from(source: io::Error) -> Self {
        Self::Io(source)
    }
}
