//! Memory as it is seen from above: for each page the topmost layer that has it.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use super::PAGE;
use super::index::Index;
use super::view::{Piece, overrides, under};

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
    pub(super) size: u64,
    pub(super) layers: Vec<Layer>,
}

#[derive(Debug)]
pub(super) struct Layer {
    pub(super) path: PathBuf,
    pub(super) file: File,
    pub(super) index: Index,
    /// The numbers of the chunks that the index has checksums of, once somebody asks for one.
    pub(super) stored: OnceLock<Vec<u64>>,
}

impl MemoryLayers {
    /// The lowest layer comes first.
    pub(crate) fn new(size: u64, layers: Vec<(PathBuf, File, Index)>) -> Self {
        let layer = |(path, file, index)| Layer {
            path,
            file,
            index,
            stored: OnceLock::new(),
        };
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
