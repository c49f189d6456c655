//! Checking all of a snapshot, byte by byte.

use std::ops::ControlFlow;

use serde::Serialize;

use crate::copy;
use crate::error::ReadError;
use crate::reader::Snapshot;
use crate::working_set::WorkingSet;
use crate::writer::{Meter, Progress, StepError};

/// What was checked, all of it found whole.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Report {
    /// Sections of the state.
    pub sections: usize,
    /// Bytes of pages in all layers of memory.
    pub memory_bytes: u64,
    /// Bytes of disks' files.
    pub disk_bytes: u64,
    /// Disks' files of which only the head could be checked, as they were written without a
    /// checksum.
    pub unchecked: Vec<String>,
}

impl Snapshot {
    /// Reads everything and compares it with its checksums. `progress` may stop it.
    ///
    /// # Errors
    ///
    /// The first thing that is not as it was written.
    pub fn verify(
        &self,
        mut progress: impl FnMut(Progress) -> ControlFlow<()> + Send,
    ) -> Result<Report, ReadError> {
        let manifest = self.manifest();
        let mut report = Report::default();
        if manifest.state.is_some() {
            report.sections = self.state()?.len();
        }
        let memory = manifest.memory.iter().flat_map(|memory| &memory.layers);
        let disks = || manifest.disks.iter().flat_map(|disk| &disk.layers);
        let stored: u64 = memory.map(|layer| layer.stored_bytes).sum();
        let total = disks().fold(stored, |sum, layer| sum.saturating_add(layer.file_length));
        let mut meter = Meter::new(total, Some(Box::new(&mut progress)));
        if manifest.memory.is_some() {
            let layers = self.memory()?;
            for layer in 0..layers.count() {
                layers.verify_layer(layer, &mut |bytes| {
                    meter.add(bytes).map_err(|_| ReadError::Stopped)
                })?;
            }
            report.memory_bytes = stored;
            WorkingSet::of_opened(&self.dir)?;
        }
        for layer in disks() {
            let file = self.open_disk_layer(layer)?;
            report.disk_bytes += layer.file_length;
            let Some(wanted) = layer.checksum else {
                report.unchecked.push(layer.file.clone());
                continue;
            };
            let path = self.dir.path_of(&layer.file);
            let found = copy::sum(&file, layer.file_length, |bytes| meter.add(bytes));
            let found = found.map_err(|err| match err {
                StepError::Io(source) => crate::dir::io_error(&path, source),
                _ => ReadError::Stopped,
            })?;
            if found != wanted {
                return Err(ReadError::Damaged {
                    path,
                    part: "content".to_owned(),
                    reason: "its checksum does not fit: it is damaged".to_owned(),
                });
            }
        }
        Ok(report)
    }
}
