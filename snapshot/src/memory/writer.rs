//! Writing a layer of memory: pages come in ascending order, zeroes among them stay holes, and the
//! index grows along.

use std::fs::File;
use std::os::unix::fs::FileExt;

use super::index::{Extent, Index};
use super::{CHUNK, PAGE};
use crate::checksum::Summer;
use crate::copy::is_zero;
use crate::error::WriteError;
use crate::id::Id;
use crate::writer::{Meter, SnapshotWriter, StepError};

/// What is looked through, summed up and written at a time, while it is in the processor's cache.
const PIECE: usize = 1 << 20;

/// A layer in the making.
pub(crate) struct LayerBuilder {
    file: File,
    index: Index,
    /// There is a layer below: zeroes have to be said.
    lower: bool,
    /// Behind the last byte that was given.
    next: u64,
    /// The chunk that is being summed up.
    chunk: Option<(u64, Summer)>,
}

impl LayerBuilder {
    pub(crate) fn new(file: File, id: Id, size: u64, lower: bool) -> Self {
        Self {
            file,
            index: Index {
                id,
                size,
                extents: Vec::new(),
                sums: Vec::new(),
            },
            lower,
            next: 0,
            chunk: None,
        }
    }

    /// Which layer this is going to be, and of how large a memory.
    pub(crate) fn id_and_size(&self) -> (Id, u64) {
        (self.index.id, self.index.size)
    }

    pub(crate) fn write(
        &mut self,
        offset: u64,
        data: &[u8],
        meter: &mut Meter<'_>,
    ) -> Result<(), StepError> {
        self.advance(offset, data.len() as u64)?;
        let mut at = offset;
        for piece in data.chunks(PIECE) {
            let same_kind = |a: &&[u8], b: &&[u8]| is_zero(a) == is_zero(b);
            let pages: Vec<&[u8]> = piece.chunks(PAGE as usize).collect();
            for run in pages.chunk_by(same_kind) {
                let start = (at - offset) as usize;
                let len = run.len() * PAGE as usize;
                if is_zero(run[0]) {
                    self.add_zeroes(at, len as u64);
                } else {
                    self.store(at, &data[start..start + len])?;
                }
                at += len as u64;
            }
            meter.add(piece.len() as u64)?;
        }
        Ok(())
    }

    pub(crate) fn zero(&mut self, offset: u64, len: u64) -> Result<(), StepError> {
        self.advance(offset, len)?;
        self.add_zeroes(offset, len);
        Ok(())
    }

    /// Ends the file, and gives it back with what belongs into the index.
    pub(crate) fn finish(mut self, trailer: &[u8]) -> Result<(File, Index), StepError> {
        self.end_chunk();
        self.file.set_len(self.index.size)?;
        self.file.write_all_at(trailer, self.index.size)?;
        Ok((self.file, self.index))
    }

    fn advance(&mut self, offset: u64, len: u64) -> Result<(), StepError> {
        let end = offset
            .checked_add(len)
            .filter(|end| *end <= self.index.size);
        let reason = match end {
            None => "beyond the end of memory",
            Some(_) if offset < self.next => "not behind what was written before",
            Some(_) if !offset.is_multiple_of(PAGE) || !len.is_multiple_of(PAGE) => {
                "no whole pages"
            }
            Some(end) => {
                self.next = end;
                return Ok(());
            }
        };
        let range = format!("memory at {offset:#x}, {len:#x} bytes: {reason}");
        Err(StepError::Invalid(range))
    }

    fn add_zeroes(&mut self, offset: u64, len: u64) {
        if self.lower && len > 0 {
            self.add_extent(offset, len, true);
        }
    }

    fn add_extent(&mut self, offset: u64, len: u64, zero: bool) {
        let (first, count) = ((offset / PAGE) as u32, (len / PAGE) as u32);
        match self.index.extents.last_mut() {
            Some(last) if last.zero == zero && last.end() == first => last.count += count,
            _ => self.index.extents.push(Extent { first, count, zero }),
        }
    }

    fn store(&mut self, offset: u64, data: &[u8]) -> Result<(), StepError> {
        self.add_extent(offset, data.len() as u64, false);
        let (mut at, mut rest) = (offset, data);
        while !rest.is_empty() {
            let chunk = at / CHUNK;
            let len = rest.len().min((CHUNK - at % CHUNK) as usize);
            if self
                .chunk
                .as_ref()
                .is_none_or(|(current, _)| *current != chunk)
            {
                self.end_chunk();
            }
            let (_, summer) = self.chunk.get_or_insert_with(|| (chunk, Summer::new()));
            summer.update(&rest[..len]);
            rest = &rest[len..];
            at += len as u64;
        }
        self.file.write_all_at(data, offset)?;
        Ok(())
    }

    fn end_chunk(&mut self) {
        if let Some((_, summer)) = self.chunk.take() {
            self.index.sums.push(summer.sum());
        }
    }
}

/// Writes one layer of memory into a snapshot. Dropped before [`Self::finish`], it takes the
/// snapshot with it.
pub struct MemoryWriter<'a> {
    writer: &'a mut SnapshotWriter,
    builder: Option<LayerBuilder>,
}

impl<'a> MemoryWriter<'a> {
    pub(crate) fn new(writer: &'a mut SnapshotWriter, builder: LayerBuilder) -> Self {
        Self {
            writer,
            builder: Some(builder),
        }
    }

    /// Adds whole pages, `offset` bytes from the start of memory. Pages of zeroes are found here,
    /// and cost nothing on disk. Pages that are never given are as the layers below have them;
    /// where there are none below, they are zeroes.
    ///
    /// # Errors
    ///
    /// When `offset` is not behind everything given before, or the file cannot be written. The
    /// snapshot is gone then.
    pub fn write(&mut self, offset: u64, data: &[u8]) -> Result<(), WriteError> {
        let builder = self.builder.as_mut().expect("taken by finish alone");
        let result = builder.write(offset, data, &mut self.writer.meter);
        result.map_err(|err| self.writer.layer_failed(err))
    }

    /// Says that pages are zeroes, whatever the layers below have.
    ///
    /// # Errors
    ///
    /// As [`Self::write`].
    pub fn zero(&mut self, offset: u64, len: u64) -> Result<(), WriteError> {
        let builder = self.builder.as_mut().expect("taken by finish alone");
        let result = builder.zero(offset, len);
        result.map_err(|err| self.writer.layer_failed(err))
    }

    /// Ends the layer and makes it durable.
    ///
    /// # Errors
    ///
    /// When the files cannot be written. The snapshot is gone then.
    pub fn finish(mut self) -> Result<(), WriteError> {
        let builder = self.builder.take().expect("taken here alone");
        self.writer.end_memory(builder)
    }
}

impl Drop for MemoryWriter<'_> {
    fn drop(&mut self) {
        if self.builder.is_some() {
            self.writer.abandon();
        }
    }
}
