//! Which files the drives are in, as others see it: snapshots and folding change that.

use super::command::Refusal;
use super::controller::Controller;
use super::record;
use crate::logger::{self, Level};

impl Controller {
    /// Lets drives whose images are the caller's have what was written since a snapshot froze them.
    pub(super) fn reunite_disks(&mut self) {
        if let Some(machine) = &self.machine
            && let Err(err) = machine.reunite()
        {
            // The drive goes on in its overlay: nothing is lost, but it is in two files.
            logger::log(Level::Error, err);
        }
        self.note_drives();
    }

    /// Notes which files the drives are in now: snapshots change that. `false`: the record of an
    /// earlier life still names others.
    pub(super) fn note_drives(&mut self) -> bool {
        let files = match &self.machine {
            Some(machine) if !self.settings.drives.is_empty() => machine.drive_files(),
            _ => return true,
        };
        let noted = files.map_err(|err| Refusal::failed("note the disks' files", err));
        let noted = noted.and_then(|files| {
            self.settings.note_drives(files);
            self.publish_settings();
            let dir = self.shared.identity.run_dir.as_deref();
            let rewritten = dir.map_or(Ok(()), |dir| record::rewrite(dir, &self.settings));
            rewritten.map_err(|err| Refusal::failed("note the disks' files", err))
        });
        if let Err(err) = &noted {
            logger::log(Level::Error, err);
        }
        noted.is_ok()
    }
}
