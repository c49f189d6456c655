//! What of a machine's memory has been touched: the working set of its snapshot.

use std::io;

use tine_snapshot::{MAX_RANGES, WorkingSet};

use super::ranges::join;
use super::{Backing, JOIN, MachineMemory, lock, sys};

impl MachineMemory {
    /// What of it has been touched since it was mapped, short gaps filled, and the snapshot that all of
    /// it was mapped from; `None` where it came from elsewhere.
    ///
    /// # Errors
    ///
    /// When the kernel does not tell.
    pub fn touched(&self) -> io::Result<Option<WorkingSet>> {
        let backing = lock(&self.backing);
        let top = match &*backing {
            Some(Backing::Private(image)) => image.layers.last(),
            _ => None,
        };
        let Some(stored) = top.and_then(|layer| layer.stored()) else {
            return Ok(None);
        };
        let mut touched = Vec::new();
        self.each_part(&(0..self.size), |at, offset, len| {
            let pages = sys::present_pages(at, len)?.into_iter();
            touched.extend(pages.map(|pages| offset + pages.start..offset + pages.end));
            Ok(())
        })?;
        let mut gap = JOIN;
        let mut ranges = join(touched, gap);
        while ranges.len() > MAX_RANGES {
            gap *= 2;
            ranges = join(ranges, gap);
        }
        Ok(Some(WorkingSet {
            snapshot: stored.snapshot,
            size: self.size,
            ranges,
        }))
    }
}
