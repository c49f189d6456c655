//! Reading ahead what machines of a snapshot touch first, as one of them was found to do: beside the
//! machine's start, so that a guest waits for the disk as seldom as can be.

use std::fs::File;
use std::num::NonZero;
use std::ops::Range;
use std::path::{Path, PathBuf};

use rustix::fs::{Advice, fadvise};
use tine_jailer::seccomp::Role;
use tine_snapshot::WorkingSet;

use super::{LoadError, Place};
use crate::logger::{self, Level};
use crate::memory::Initial;
use crate::threads::Starter;

/// What is to be read ahead.
#[derive(Debug)]
pub struct Prefetch {
    files: Vec<File>,
    /// Each with the number of the file that has it.
    parts: Vec<(Range<u64>, usize)>,
}

impl Prefetch {
    /// What the file that is `given` says, or else the working set in the directory of the snapshot at
    /// `place`, if there is one.
    ///
    /// # Errors
    ///
    /// As for [`Self::of`].
    pub fn wanted(
        given: Option<&Path>,
        place: &Place,
        memory: &Initial,
    ) -> Result<Option<Self>, LoadError> {
        match (given, place) {
            (Some(file), _) => Self::of(file, memory).map(Some),
            (None, Place::Directory(dir)) => match WorkingSet::of(dir)? {
                Some(set) => Self::new(&set, &dir.join(WorkingSet::OWN), memory).map(Some),
                None => Ok(None),
            },
            (None, _) => Ok(None),
        }
    }

    /// What the working set in `file` says of the snapshot that `memory` is of.
    ///
    /// # Errors
    ///
    /// When it cannot be read, or is of another snapshot.
    pub fn of(file: &Path, memory: &Initial) -> Result<Self, LoadError> {
        Self::new(&WorkingSet::read(file)?, file, memory)
    }

    fn new(set: &WorkingSet, file: &Path, memory: &Initial) -> Result<Self, LoadError> {
        let other = |reason: String| LoadError::WorkingSet {
            path: PathBuf::from(file),
            reason,
        };
        let Initial::Image(image) = memory else {
            return Err(other("its memory comes from another process".to_owned()));
        };
        let stored = image.layers.last().and_then(|layer| layer.stored());
        match stored {
            Some(stored) if stored.snapshot == set.snapshot && image.size == set.size => {}
            _ => {
                let reason = format!("it is of the snapshot {}: record one of this", set.snapshot);
                return Err(other(reason));
            }
        }
        let files = image.layers.iter().map(|layer| layer.file.try_clone());
        let files = files.collect::<Result<_, _>>();
        Ok(Self {
            files: files.map_err(|err| other(err.to_string()))?,
            parts: image.files_of(&set.ranges),
        })
    }

    /// Begins, by a thread of its own, which nobody waits for.
    pub fn begin(self) {
        let read = move || {
            for (range, file) in &self.parts {
                let len = NonZero::new(range.end - range.start);
                // A hint: what cannot be read ahead is read when it is touched.
                let _ = fadvise(&self.files[*file], range.start, len, Advice::WillNeed);
            }
        };
        if let Err(err) = Starter::default().spawn("prefetch", Role::Prefetch, read) {
            logger::log(Level::Warning, format_args!("nothing is read ahead: {err}"));
        }
    }
}
