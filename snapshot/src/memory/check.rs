//! Checking what is in a layer's file against its index, a chunk at a time or all of it.

use std::os::unix::fs::FileExt;

use super::index::Index;
use super::layer::Layer;
use super::layers::MemoryLayers;
use super::{CHUNK, PAGE};
use crate::checksum::{Checksum, Summer};
use crate::copy::{each_range, is_zero};
use crate::dir::io_error;
use crate::error::ReadError;

impl MemoryLayers {
    /// Checks what one layer stores of the chunk at `chunk` times [`CHUNK`]: that its pages are as
    /// they were written, and that where it has no page its file has zeroes.
    ///
    /// # Errors
    ///
    /// [`ReadError::Damaged`], or when the file cannot be read.
    pub fn verify_chunk(&self, layer: usize, chunk: u64) -> Result<(), ReadError> {
        let layer = &self.layers[layer];
        let (index, place) = (layer.index()?, layer.place(chunk)?);
        self.verify_stored(layer, index, chunk, place, &mut vec![0; CHUNK as usize])
    }

    /// Checks all chunks of a layer. `read` is told of each piece, and may stop it.
    pub(crate) fn verify_layer(
        &self,
        layer: usize,
        read: &mut dyn FnMut(u64) -> Result<(), ReadError>,
    ) -> Result<(), ReadError> {
        let layer = &self.layers[layer];
        let index = layer.index()?;
        let mut buffer = vec![0; CHUNK as usize];
        let mut behind = 0;
        let stored = index.stored_chunks().enumerate();
        let stored = stored.map(|(place, chunk)| (chunk, Some(place)));
        let end = (self.size.div_ceil(CHUNK), None);
        for (chunk, place) in stored.chain([end]) {
            // What the file has where the index has nothing is found here.
            for extra in self.chunks_between(layer, behind, chunk)? {
                self.verify_stored(layer, index, extra, None, &mut buffer)?;
                read(CHUNK)?;
            }
            if place.is_some() {
                self.verify_stored(layer, index, chunk, place, &mut buffer)?;
                read(CHUNK)?;
            }
            behind = chunk + 1;
        }
        Ok(())
    }

    /// The chunks from `first` to before `end` in which a layer's file is more than a hole.
    fn chunks_between(&self, layer: &Layer, first: u64, end: u64) -> Result<Vec<u64>, ReadError> {
        let mut chunks: Vec<u64> = Vec::new();
        let range = first * CHUNK..(end * CHUNK).min(self.size);
        each_range(&layer.file, range, |start, end| {
            let next = chunks.last().map_or(0, |last| last + 1);
            chunks.extend((start / CHUNK).max(next)..end.div_ceil(CHUNK));
            Ok(())
        })
        .map_err(|err| io_error(&layer.path, err.into_io()))?;
        Ok(chunks)
    }

    /// Checks a chunk that has the checksum at `place`, if it stores anything.
    fn verify_stored(
        &self,
        layer: &Layer,
        index: &Index,
        chunk: u64,
        place: Option<usize>,
        buffer: &mut [u8],
    ) -> Result<(), ReadError> {
        let Layer { path, file, .. } = layer;
        let start = chunk.checked_mul(CHUNK).filter(|start| *start < self.size);
        let damaged = |reason: &str| ReadError::Damaged {
            path: path.clone(),
            part: format!("memory at {:#x}", chunk.saturating_mul(CHUNK)),
            reason: reason.to_owned(),
        };
        let Some(start) = start else {
            return Err(damaged("beyond the end of memory"));
        };
        let bytes = &mut buffer[..(self.size - start).min(CHUNK) as usize];
        file.read_exact_at(bytes, start)
            .map_err(|source| io_error(path, source))?;
        let (sum, rest_is_zero) = sum_chunk(index, chunk, bytes);
        if place.is_some_and(|place| index.sums[place] != sum) {
            return Err(damaged("its checksum does not fit: it is damaged"));
        }
        if !rest_is_zero {
            return Err(damaged("there is something where the layer has no page"));
        }
        Ok(())
    }
}

/// The checksum of what one chunk stores, and whether everything else in it is zeroes.
fn sum_chunk(index: &Index, chunk: u64, bytes: &[u8]) -> (Checksum, bool) {
    let mut summer = Summer::new();
    let (mut at, mut rest_is_zero) = (0, true);
    let start = chunk * CHUNK;
    for extent in index.extents_in(chunk).iter().filter(|extent| !extent.zero) {
        let from = (u64::from(extent.first) * PAGE).saturating_sub(start) as usize;
        let to = ((u64::from(extent.end()) * PAGE - start) as usize).min(bytes.len());
        rest_is_zero &= is_zero(&bytes[at..from]);
        summer.update(&bytes[from..to]);
        at = to;
    }
    (summer.sum(), rest_is_zero && is_zero(&bytes[at..]))
}
