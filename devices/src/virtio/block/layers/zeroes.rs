//! Zeroes, and what they free: clusters of the top's file, which others take later. Whatever ends
//! the process or the host in between, no cluster may be found in two places afterwards.

use std::fs::File;
use std::io;

use super::place::Place;
use super::{Chain, Format};
use crate::virtio::block::sys;

/// What is written at a time where zeroes have to be written.
const ZEROES: u64 = 256 << 10;

impl Chain {
    /// Makes a range zeroes. `unmap`: give back the room that it has.
    ///
    /// # Errors
    ///
    /// As [`Self::write`].
    pub fn write_zeroes(&mut self, offset: u64, len: u64, unmap: bool) -> io::Result<()> {
        if unmap {
            return self.discard(offset, len);
        }
        self.settle_freed(offset, len)?;
        // From the end of a disk imago counts a whole cluster back: below zero where the disk is smaller.
        // That ends a process with checked arithmetic, and without it leads here.
        if self.virtual_size() < self.top_cluster() {
            self.write_many_zeroes(offset, len)?;
            return self.settle_packed();
        }
        match self.image.write_zeroes(offset, len) {
            // A format that has no word for them.
            Err(error) if error.kind() == io::ErrorKind::Unsupported => {
                self.write_many_zeroes(offset, len)?;
            }
            result => result?,
        }
        self.settle_packed()
    }

    fn write_many_zeroes(&mut self, offset: u64, len: u64) -> io::Result<()> {
        let zeroes = vec![0; len.min(ZEROES) as usize];
        for at in (offset..offset + len).step_by(ZEROES as usize) {
            let piece = &zeroes[..(offset + len - at).min(ZEROES) as usize];
            self.image.write(piece, at)?;
        }
        Ok(())
    }

    /// Forgets a range, which is zeroes from then on, and gives its room back to the host.
    ///
    /// # Errors
    ///
    /// As [`Self::write`].
    pub fn discard(&mut self, offset: u64, len: u64) -> io::Result<()> {
        let end = offset + len;
        let (size, cluster) = (self.virtual_size(), self.top_cluster());
        // Clusters that are in the range as a whole; the last one of a disk ends with it.
        let first = offset.next_multiple_of(cluster).min(end);
        let last = if end == size {
            end
        } else {
            (end / cluster * cluster).max(first)
        };
        // Each step within one table of the image, which is there before clusters are freed: so
        // that none of those is taken again before their room is given back.
        let covered = self.covered();
        let mut at = first;
        while at < last {
            let next = (at / covered + 1).saturating_mul(covered).min(last);
            let discarded = match self.is_all_zero(at, next - at)? {
                true => Ok(()),
                false => self.discard_clusters(at, next - at),
            };
            match discarded {
                // A format that has no word for zeroes.
                Err(error) if error.kind() == io::ErrorKind::Unsupported => {
                    self.write_many_zeroes(at, next - at)?;
                }
                result => result?,
            }
            at = next;
        }
        for (start, end) in [(offset, first), (last, end)] {
            if start < end {
                self.write_zeroes(start, end - start, false)?;
            }
        }
        Ok(())
    }

    fn discard_clusters(&mut self, offset: u64, len: u64) -> io::Result<()> {
        let places = self.places(offset, len)?;
        // All of the range is in one table. If that is not there, it takes a cluster.
        let table = offset / self.covered();
        let there = places.iter().any(|(_, _, place)| *place != Place::Below);
        if !there && !self.tables.contains(&table) {
            self.settle_freed(offset, len)?;
        }
        self.image.discard_to_zero(offset, len)?;
        self.tables.insert(table);
        let Some(top) = self
            .layers
            .last()
            .filter(|top| top.format() == Format::Qcow2)
        else {
            // A raw image's room is given back.
            return Ok(());
        };
        // imago leaves the file as it is.
        for (at, len, place) in places {
            let Place::File(in_file) = place else {
                continue;
            };
            if self.is_out_of_file(at, len)? {
                let _ = punch(top.file(), in_file, len);
            }
        }
        // Before the freed clusters are used again: a process killed later must not leave them in
        // two places.
        self.freed = true;
        self.image.flush()
    }

    /// Bytes of the disk that one table of the top's is for.
    fn covered(&self) -> u64 {
        match self.top_cluster() {
            // A raw image has none.
            1 => u64::MAX,
            cluster => cluster / 8 * cluster,
        }
    }

    /// Bytes that the top allocates at once.
    fn top_cluster(&self) -> u64 {
        self.layers.last().map_or(1, |top| top.cluster)
    }

    /// Makes it durable that clusters are free before a write may take one: after a crash of the
    /// host it might otherwise be in two places, and hold what was in it before.
    pub(super) fn settle_freed(&mut self, offset: u64, len: u64) -> io::Result<()> {
        if self.freed && !self.is_in_file(offset, len)? {
            self.sync()?;
        }
        Ok(())
    }

    /// Writing over compressed data frees clusters: see [`Self::discard`].
    pub(super) fn settle_packed(&self) -> io::Result<()> {
        match self.layers.last() {
            Some(top) if top.packed => self.image.flush(),
            _ => Ok(()),
        }
    }
}

/// Gives back the room that a range of a file has.
fn punch(file: &File, offset: u64, len: u64) -> io::Result<()> {
    let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
    sys::fallocate(file, mode, offset, len)
}
