//! Memory as it is seen from above: for each page the topmost layer that has it.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use super::index::{Extent, Index};
use super::writer::sum_chunk;
use super::{CHUNK, PAGE};
use crate::dir::io_error;
use crate::error::ReadError;

/// Pages that follow one another and are in the same layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Run {
    /// Bytes from the start of memory, and from the start of the layer's file.
    pub offset: u64,
    /// In bytes.
    pub len: u64,
    /// Which layer.
    pub layer: usize,
}

/// Where the pages of a [`Map`] come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Source {
    /// The file of this layer, at the same offset.
    Layer(usize),
    /// Zeroes.
    Zero,
}

/// A range of memory, and where its pages come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Map {
    /// Bytes from the start of memory.
    pub offset: u64,
    /// In bytes.
    pub len: u64,
    /// Where its pages are.
    pub source: Source,
}

/// How to have memory with few mappings: all of one layer's file first, the others over it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MapPlan {
    /// The layer whose file is mapped whole.
    pub base: usize,
    /// What is mapped over it.
    pub maps: Vec<Map>,
    /// What is copied over it, as it would be too many mappings.
    pub copies: Vec<Map>,
}

/// The layers of a memory, opened.
#[derive(Debug)]
pub struct MemoryLayers {
    size: u64,
    layers: Vec<Layer>,
}

#[derive(Debug)]
struct Layer {
    path: PathBuf,
    file: File,
    index: Index,
}

/// Pages `first..end` are in `layer`, or zeroes.
#[derive(Clone, Copy)]
struct Piece {
    first: u32,
    end: u32,
    layer: Option<usize>,
}

impl MemoryLayers {
    /// The lowest layer comes first.
    pub(crate) fn new(size: u64, layers: Vec<(PathBuf, File, Index)>) -> Self {
        let layer = |(path, file, index)| Layer { path, file, index };
        Self {
            size,
            layers: layers.into_iter().map(layer).collect(),
        }
    }

    /// All of memory, in bytes.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// How many layers there are.
    pub fn count(&self) -> usize {
        self.layers.len()
    }

    /// The file of a layer. Its pages are at the offset at which they are in memory; what is in it
    /// behind [`Self::size`] is not memory.
    pub fn file(&self, layer: usize) -> &File {
        &self.layers[layer].file
    }

    /// The layers' files, the lowest first, each with what it covers, in ascending order.
    pub fn into_layers(self) -> impl Iterator<Item = (File, Vec<Map>)> {
        self.layers.into_iter().enumerate().map(|(number, layer)| {
            let extents = layer.index.extents.iter().map(|extent| Map {
                offset: u64::from(extent.first) * PAGE,
                len: u64::from(extent.count) * PAGE,
                source: match extent.zero {
                    true => Source::Zero,
                    false => Source::Layer(number),
                },
            });
            let extents = extents.collect();
            (layer.file, extents)
        })
    }

    /// The path of that file, for messages.
    pub fn path(&self, layer: usize) -> &Path {
        &self.layers[layer].path
    }

    /// Every page that is not zeroes, in ascending order, by the topmost layer that has it.
    pub fn runs(&self) -> Vec<Run> {
        let mut runs: Vec<Run> = Vec::new();
        for piece in self.view() {
            let Some(layer) = piece.layer else {
                continue;
            };
            let (offset, end) = (u64::from(piece.first) * PAGE, u64::from(piece.end) * PAGE);
            match runs.last_mut() {
                Some(last) if last.layer == layer && last.offset + last.len == offset => {
                    last.len = end - last.offset;
                }
                _ => runs.push(Run {
                    offset,
                    len: end - offset,
                    layer,
                }),
            }
        }
        runs
    }

    /// How to map memory with no more than `max_maps` mappings over the first one.
    pub fn plan(&self, max_maps: usize) -> MapPlan {
        let view = self.view();
        let over = |base: usize| overrides(&view, base, &self.layers[base].index.extents);
        let fewest = (0..self.layers.len()).min_by_key(|base| over(*base).len());
        let base = fewest.unwrap_or(0);
        let mut maps = over(base);
        let mut copies = Vec::new();
        if maps.len() > max_maps {
            // The longest are worth a mapping.
            maps.sort_unstable_by_key(|map| std::cmp::Reverse(map.len));
            copies = maps.split_off(max_maps);
            maps.sort_unstable_by_key(|map| map.offset);
            copies.sort_unstable_by_key(|map| map.offset);
        }
        MapPlan { base, maps, copies }
    }

    /// Checks what one layer stores of the chunk at `chunk` times [`CHUNK`]: that its pages are as
    /// they were written, and that where it has no page its file has zeroes.
    ///
    /// # Errors
    ///
    /// [`ReadError::Damaged`], or when the file cannot be read.
    pub fn verify_chunk(&self, layer: usize, chunk: u64) -> Result<(), ReadError> {
        let stored = self.layers[layer].index.stored_chunks();
        let place = stored.take_while(|stored| *stored <= chunk).enumerate();
        let place = place
            .filter(|(_, stored)| *stored == chunk)
            .map(|(n, _)| n)
            .last();
        self.verify_stored(layer, chunk, place, &mut vec![0; CHUNK as usize])
    }

    /// Checks all chunks of a layer. `read` is told of each piece, and may stop it.
    pub(crate) fn verify_layer(
        &self,
        layer: usize,
        read: &mut dyn FnMut(u64) -> Result<(), ReadError>,
    ) -> Result<(), ReadError> {
        let mut buffer = vec![0; CHUNK as usize];
        let mut stored = self.layers[layer]
            .index
            .stored_chunks()
            .enumerate()
            .peekable();
        let mut chunks = Vec::new();
        let Layer { path, file, .. } = &self.layers[layer];
        // What the file has besides what the index says is found here, too.
        crate::copy::each_range(file, self.size, |start, end| {
            let first = (start / CHUNK).max(chunks.last().map_or(0, |last| last + 1));
            chunks.extend(first..end.div_ceil(CHUNK));
            Ok(())
        })
        .map_err(|err| io_error(path, err.into_io()))?;
        let mut chunks = chunks.into_iter().peekable();
        loop {
            let next = match (chunks.peek(), stored.peek()) {
                (Some(chunk), Some((_, stored))) => *chunk.min(stored),
                (Some(chunk), None) => *chunk,
                (None, Some((_, stored))) => *stored,
                (None, None) => return Ok(()),
            };
            chunks.next_if_eq(&next);
            let place = stored
                .next_if(|(_, stored)| *stored == next)
                .map(|(n, _)| n);
            self.verify_stored(layer, next, place, &mut buffer)?;
            read(CHUNK)?;
        }
    }

    /// Checks a chunk that has the checksum at `place`, if it stores anything.
    fn verify_stored(
        &self,
        layer: usize,
        chunk: u64,
        place: Option<usize>,
        buffer: &mut [u8],
    ) -> Result<(), ReadError> {
        let Layer { path, file, index } = &self.layers[layer];
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

    /// What each page is, from the first to the last that any layer has, with nothing between that
    /// is in no layer.
    fn view(&self) -> Vec<Piece> {
        let mut above: Vec<Piece> = Vec::new();
        for (layer, Layer { index, .. }) in self.layers.iter().enumerate().rev() {
            above = under(above, &index.extents, layer);
        }
        above
    }
}

/// Lays a lower layer under what is seen so far.
fn under(above: Vec<Piece>, lower: &[Extent], layer: usize) -> Vec<Piece> {
    if above.is_empty() {
        let piece = |extent: &Extent| piece_of(extent, layer);
        return lower.iter().map(piece).collect();
    }
    let mut merged = Vec::with_capacity(above.len() + lower.len());
    let mut above = above.into_iter().peekable();
    let mut covered = 0;
    for extent in lower {
        let mut piece = piece_of(extent, layer);
        piece.first = piece.first.max(covered);
        while let Some(over) = above.next_if(|over| over.first < piece.end) {
            if over.first > piece.first {
                merged.push(Piece {
                    end: over.first,
                    ..piece
                });
            }
            merged.push(over);
            covered = over.end;
            piece.first = piece.first.max(covered);
        }
        if piece.first < piece.end {
            merged.push(piece);
        }
    }
    merged.extend(above);
    merged
}

fn piece_of(extent: &Extent, layer: usize) -> Piece {
    Piece {
        first: extent.first,
        end: extent.end(),
        layer: (!extent.zero).then_some(layer),
    }
}

/// What has to lie over a mapping of all of `base`'s file, so that memory is as `view` says.
fn overrides(view: &[Piece], base: usize, extents: &[Extent]) -> Vec<Map> {
    let mut maps: Vec<Map> = Vec::new();
    let mut add = |first: u32, end: u32, source: Source| {
        let (offset, end) = (u64::from(first) * PAGE, u64::from(end) * PAGE);
        match maps.last_mut() {
            Some(last) if last.source == source && last.offset + last.len == offset => {
                last.len = end - last.offset;
            }
            _ => maps.push(Map {
                offset,
                len: end - offset,
                source,
            }),
        }
    };
    let mut stored = extents.iter().filter(|extent| !extent.zero).peekable();
    for piece in view {
        match piece.layer {
            Some(layer) if layer == base => {}
            Some(layer) => add(piece.first, piece.end, Source::Layer(layer)),
            // Zeroes matter only where the base's file has something.
            None => {
                while stored
                    .next_if(|extent| extent.end() <= piece.first)
                    .is_some()
                {}
                let mut here = stored.clone();
                while let Some(extent) = here.next_if(|extent| extent.first < piece.end) {
                    let end = extent.end().min(piece.end);
                    add(extent.first.max(piece.first), end, Source::Zero);
                }
            }
        }
    }
    maps
}
