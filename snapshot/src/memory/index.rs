//! A layer's index: the extents of pages that the layer has, and a checksum for each chunk of
//! memory that it stores something of (`FORMAT.md`, "memory-N.index").

use std::path::Path;

use super::{CHUNK_PAGES, PAGE};
use crate::checksum::{Checksum, Summer};
use crate::error::ReadError;
use crate::header::{Kind, damaged, u32_at, u64_at};
use crate::id::Id;
use crate::manifest::MAX_MEMORY;

/// An index is no longer than this: enough for 256 GiB of which every second page is used.
pub(crate) const MAX_INDEX: u64 = 512 << 20;

const KIND: Kind = Kind {
    magic: *b"TINEMIDX",
    version: 1,
    length: HEADER,
    name: "the index of a memory layer",
};
const HEADER: usize = 64;
const EXTENT: usize = 8;
const SUM: usize = 8;
/// The bit of an extent's second word that says: zeroes, whatever lies below.
const ZERO: u32 = 1 << 31;

/// Pages that follow one another in a layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Extent {
    /// The first page.
    pub(crate) first: u32,
    /// How many.
    pub(crate) count: u32,
    /// They are zeroes, and nothing is stored; otherwise they are in the file.
    pub(crate) zero: bool,
}

impl Extent {
    /// The page behind the last one.
    pub(crate) fn end(&self) -> u32 {
        self.first + self.count
    }
}

/// What the index of one layer says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Index {
    pub(crate) id: Id,
    /// Of the whole memory, in bytes.
    pub(crate) size: u64,
    /// In ascending order, disjoint.
    pub(crate) extents: Vec<Extent>,
    /// One for each chunk in which a page is stored, in ascending order.
    pub(crate) sums: Vec<Checksum>,
}

impl Index {
    /// The file's length.
    pub(crate) fn encoded_len(&self) -> u64 {
        (HEADER + EXTENT * self.extents.len() + SUM * self.sums.len()) as u64
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(self.encoded_len() as usize);
        bytes.extend(KIND.magic);
        bytes.extend(KIND.version.to_le_bytes());
        bytes.extend((PAGE as u32).to_le_bytes());
        bytes.extend(self.size.to_le_bytes());
        bytes.extend(self.id.0);
        bytes.extend((CHUNK_PAGES as u32).to_le_bytes());
        bytes.extend((self.extents.len() as u32).to_le_bytes());
        bytes.extend((self.sums.len() as u32).to_le_bytes());
        // Reserved, and where the checksum goes.
        bytes.extend([0; 12]);
        for extent in &self.extents {
            bytes.extend(extent.first.to_le_bytes());
            let flag = if extent.zero { ZERO } else { 0 };
            bytes.extend((extent.count | flag).to_le_bytes());
        }
        for sum in &self.sums {
            bytes.extend(sum.0.to_le_bytes());
        }
        let sum = file_sum(&bytes);
        bytes[56..HEADER].copy_from_slice(&sum.0.to_le_bytes());
        bytes
    }

    /// Reads an index and checks all of it: nothing in it is believed afterwards that is not so.
    pub(crate) fn decode(path: &Path, bytes: &[u8]) -> Result<Self, ReadError> {
        let damaged = |part: &str, reason: &str| damaged(path, part, reason);
        let header = |reason: &str| damaged("header", reason);
        let (head, body) = KIND.split(path, bytes)?;
        let (count, sums) = (u32_at(head, 44) as usize, u32_at(head, 48) as usize);
        // 32-bit numbers times 8: no overflow.
        if body.len() != EXTENT * count + SUM * sums {
            return Err(header("it counts more or fewer entries than the file has"));
        }
        if file_sum(bytes).0 != u64_at(head, 56) {
            return Err(damaged(
                "checksum",
                "it does not fit the file: it is damaged",
            ));
        }
        let known = [8, 12, 40, 52].map(|at| u32_at(head, at))
            == [KIND.version, PAGE as u32, CHUNK_PAGES as u32, 0];
        if !known {
            return Err(header("it does not say what an index of this version says"));
        }
        let size = u64_at(head, 16);
        if size == 0 || size > MAX_MEMORY || !size.is_multiple_of(PAGE) {
            return Err(header("an impossible size of memory"));
        }
        let index = Self {
            id: Id(head[24..40].try_into().expect("16 bytes")),
            size,
            extents: body[..EXTENT * count]
                .chunks_exact(EXTENT)
                .map(|entry| Extent {
                    first: u32_at(entry, 0),
                    count: u32_at(entry, 4) & !ZERO,
                    zero: u32_at(entry, 4) & ZERO != 0,
                })
                .collect(),
            sums: body[EXTENT * count..]
                .chunks_exact(SUM)
                .map(|entry| Checksum(u64_at(entry, 0)))
                .collect(),
        };
        let mut end = 0;
        for (n, extent) in index.extents.iter().enumerate() {
            let part = format!("extent {n}");
            let next = u64::from(extent.first) + u64::from(extent.count);
            if extent.count == 0 || next > size / PAGE {
                return Err(damaged(&part, "empty, or beyond the end of memory"));
            }
            if u64::from(extent.first) < end {
                return Err(damaged(&part, "not behind the one before it"));
            }
            end = next;
        }
        if index.stored_chunks().count() != sums {
            return Err(header("not one checksum for each chunk that is stored"));
        }
        Ok(index)
    }

    /// Bytes of pages in the layer's file.
    pub(crate) fn stored_bytes(&self) -> u64 {
        let stored = self.extents.iter().filter(|extent| !extent.zero);
        stored.map(|extent| u64::from(extent.count) * PAGE).sum()
    }

    /// The numbers of the chunks in which a page is stored, in ascending order.
    pub(crate) fn stored_chunks(&self) -> impl Iterator<Item = u64> {
        let mut next = 0;
        let stored = self.extents.iter().filter(|extent| !extent.zero);
        stored.flat_map(move |extent| {
            let first = (u64::from(extent.first) / CHUNK_PAGES).max(next);
            let end = (u64::from(extent.end()) - 1) / CHUNK_PAGES + 1;
            next = end;
            first..end
        })
    }

    /// The extents that have pages in a chunk.
    pub(crate) fn extents_in(&self, chunk: u64) -> &[Extent] {
        let (start, end) = (chunk * CHUNK_PAGES, (chunk + 1) * CHUNK_PAGES);
        let from = self
            .extents
            .partition_point(|extent| u64::from(extent.end()) <= start);
        let to = self
            .extents
            .partition_point(|extent| u64::from(extent.first) < end);
        &self.extents[from..to]
    }
}

/// Over all of the file but the checksum in its header.
fn file_sum(bytes: &[u8]) -> Checksum {
    let mut summer = Summer::new();
    summer.update(&bytes[..HEADER - SUM]);
    summer.update(&bytes[HEADER..]);
    summer.sum()
}
