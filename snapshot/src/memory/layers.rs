//! Memory as it is seen from above: for each page the topmost layer that has it.

use std::fs::File;
use std::path::Path;

use super::PAGE;
use super::layer::Layer;
use super::view::{Piece, maps, piece_of, under};
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

/// How to have memory with few mappings: all of the lowest layer's file first, the others over it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MapPlan {
    /// What is mapped over it.
    pub maps: Vec<Map>,
    /// What is copied over it, as it would be too many mappings.
    pub copies: Vec<Map>,
}

/// The layers of a memory, opened. An index is read and checked when it is needed for the first
/// time; that of the lowest layer is not needed to map memory.
#[derive(Debug)]
pub struct MemoryLayers {
    pub(super) size: u64,
    pub(super) layers: Vec<Layer>,
}

impl MemoryLayers {
    /// The lowest layer comes first.
    pub(crate) fn new(size: u64, layers: Vec<Layer>) -> Self {
        Self { size, layers }
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

    /// The path of that file, for messages.
    pub fn path(&self, layer: usize) -> &Path {
        &self.layers[layer].path
    }

    /// Every page that is not zeroes, in ascending order, by the topmost layer that has it.
    ///
    /// # Errors
    ///
    /// When an index is not as it was written.
    pub fn runs(&self) -> Result<Vec<Run>, ReadError> {
        let mut runs: Vec<Run> = Vec::new();
        for piece in self.view(0)? {
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
        Ok(runs)
    }

    /// How to map memory with no more than `max_maps` mappings over that of the lowest layer. The
    /// cost does not depend on what the lowest layer has.
    ///
    /// # Errors
    ///
    /// When an index is not as it was written.
    pub fn plan(&self, max_maps: usize) -> Result<MapPlan, ReadError> {
        let mut maps = maps(&self.view(1)?);
        let mut copies = Vec::new();
        if maps.len() > max_maps {
            // The longest are worth a mapping.
            maps.sort_unstable_by_key(|map| std::cmp::Reverse(map.len));
            copies = maps.split_off(max_maps);
            maps.sort_unstable_by_key(|map| map.offset);
            copies.sort_unstable_by_key(|map| map.offset);
        }
        Ok(MapPlan { maps, copies })
    }

    /// The layers' files, the lowest first, each with what it covers, in ascending order. The
    /// lowest covers everything: what it does not have is a hole of its file.
    ///
    /// # Errors
    ///
    /// When an index is not as it was written.
    pub fn into_layers(self) -> Result<Vec<(File, Vec<Map>)>, ReadError> {
        let all = Map {
            offset: 0,
            len: self.size,
            source: Source::Layer(0),
        };
        let layers = self.layers.into_iter().enumerate();
        let covered = layers.map(|(n, layer)| match n {
            0 => Ok((layer.file, vec![all])),
            _ => {
                let pieces = layer
                    .index()?
                    .extents
                    .iter()
                    .map(|extent| piece_of(extent, n));
                let covered = maps(&pieces.collect::<Vec<_>>());
                Ok((layer.file, covered))
            }
        });
        covered.collect()
    }

    /// What each page is by the layers from `lowest` on, with nothing between that is in none.
    fn view(&self, lowest: usize) -> Result<Vec<Piece>, ReadError> {
        let mut above: Vec<Piece> = Vec::new();
        for (n, layer) in self.layers.iter().enumerate().skip(lowest).rev() {
            above = under(above, &layer.index()?.extents, n);
        }
        Ok(above)
    }
}
