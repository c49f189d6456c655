//! An image of guest memory: files that nobody writes to any more, one layer over another.
//!
//! Offsets are those of the machine's memory without its gap. A layer covers some of it, the lowest
//! all of it; the topmost layer that covers a page has the page.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use tine_snapshot::Id;

use super::ranges::{data_of, join, overlay};

/// Most layers of an image; the next one makes one file of all of them.
pub const MAX_LAYERS: usize = 16;
/// Most ranges of an image's layers together: each becomes a mapping, of which a process can have
/// some 65,000.
pub const MAX_RUNS: usize = 8192;

/// A snapshot that has a layer and all layers below it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stored {
    /// Its directory.
    pub dir: PathBuf,
    /// Its id.
    pub snapshot: Id,
}

/// One file of an image.
#[derive(Debug)]
pub struct Layer {
    /// The file; a page lies at its own offset.
    pub file: File,
    /// What it covers, in order, in whole pages.
    pub runs: Vec<Run>,
    /// The snapshot that has it and what is below, once there is one.
    stored: Mutex<Option<Stored>>,
}

/// A part of memory that a layer has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Run {
    /// Where.
    pub range: Range<u64>,
    /// It is all zero, whatever the file has there.
    pub zero: bool,
}

impl Layer {
    /// A layer that has `runs` in `file`.
    pub fn new(file: File, runs: Vec<Run>, stored: Option<Stored>) -> Self {
        let stored = Mutex::new(stored);
        Self { file, runs, stored }
    }

    /// The snapshot that has this layer and those below it.
    pub fn stored(&self) -> Option<Stored> {
        let stored = self.stored.lock().unwrap_or_else(PoisonError::into_inner);
        stored.clone()
    }

    /// Notes that a snapshot has this layer and those below it.
    pub fn set_stored(&self, at: Stored) {
        *self.stored.lock().unwrap_or_else(PoisonError::into_inner) = Some(at);
    }
}

/// All of a machine's memory at one moment.
#[derive(Debug, Clone)]
pub struct Image {
    /// In bytes.
    pub size: u64,
    /// From the lowest to the topmost.
    pub layers: Vec<Arc<Layer>>,
}

/// A part of an image that is mapped in one piece.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Piece {
    /// Where.
    pub range: Range<u64>,
    /// The layer that has it; `None` for zeros.
    pub layer: Option<usize>,
}

impl Image {
    /// An image of one file that covers everything.
    pub fn of(file: File, size: u64) -> Self {
        let whole = Run {
            range: 0..size,
            zero: false,
        };
        Self {
            size,
            layers: vec![Arc::new(Layer::new(file, vec![whole], None))],
        }
    }

    /// This image with another layer on top.
    pub fn with(&self, layer: Layer) -> Self {
        let mut next = self.clone();
        next.layers.push(Arc::new(layer));
        next
    }

    /// Whether another layer of `runs` ranges would make it too fragmented.
    pub fn is_full(&self, runs: usize) -> bool {
        let all: usize = self.layers.iter().map(|layer| layer.runs.len()).sum();
        self.layers.len() >= MAX_LAYERS || all + runs > MAX_RUNS
    }

    /// Whether the lowest layer has all of memory.
    pub fn is_whole(&self) -> bool {
        let lowest = self.layers.first().map(|layer| &layer.runs[..]);
        let mut at = 0;
        for run in lowest.unwrap_or_default() {
            if run.range.start != at {
                return false;
            }
            at = run.range.end;
        }
        at == self.size
    }

    /// What to map where: the lowest layer first, and what lies over it after. Of two pieces that
    /// overlap, the later one counts.
    pub fn pieces(&self) -> impl Iterator<Item = Piece> + '_ {
        self.layers.iter().enumerate().flat_map(|(index, layer)| {
            layer.runs.iter().map(move |run| Piece {
                range: run.range.clone(),
                layer: (!run.zero).then_some(index),
            })
        })
    }

    /// Which layer's file has what of `ranges`, which are sorted. What is zeros is in none.
    pub fn files_of(&self, ranges: &[Range<u64>]) -> Vec<(Range<u64>, usize)> {
        let mut whole: Vec<(Range<u64>, usize)> = Vec::new();
        for (index, layer) in self.layers.iter().enumerate() {
            let mut over = Vec::new();
            for run in &layer.runs {
                over.push((run.range.clone(), None));
                if run.zero {
                    continue;
                }
                let from = ranges.partition_point(|range| range.end <= run.range.start);
                let within = ranges[from..]
                    .iter()
                    .take_while(|r| r.start < run.range.end);
                for range in within {
                    let start = range.start.max(run.range.start);
                    over.push((start..range.end.min(run.range.end), Some(index)));
                }
            }
            whole = overlay(whole, over);
        }
        whole
    }

    /// The image of the layers from `depth` on: only what they cover of memory is right in it.
    pub fn above(&self, depth: usize) -> Self {
        Self {
            size: self.size,
            layers: self.layers[depth..].to_vec(),
        }
    }

    /// The parts that are covered by any layer, in order.
    pub fn covered(&self) -> Vec<Range<u64>> {
        let runs = self.layers.iter().flat_map(|layer| &layer.runs);
        let mut ranges: Vec<_> = runs.map(|run| run.range.clone()).collect();
        ranges.sort_by_key(|range| range.start);
        join(ranges, 0)
    }

    /// The parts that are not holes, in order, with the layer that has each.
    pub fn data(&self) -> io::Result<Vec<(Range<u64>, usize)>> {
        let mut whole: Vec<(Range<u64>, usize)> = Vec::new();
        for (index, layer) in self.layers.iter().enumerate() {
            let mut over = Vec::new();
            for run in &layer.runs {
                match run.zero {
                    true => over.push((run.range.clone(), None)),
                    false => {
                        // What the file has no data for is zero, and covers what is below.
                        over.push((run.range.clone(), None));
                        for part in data_of(&layer.file, &run.range)? {
                            over.push((part, Some(index)));
                        }
                    }
                }
            }
            whole = overlay(whole, over);
        }
        Ok(whole)
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;

    use super::super::PAGE;
    use super::*;

    fn file(pages: u64, data: &[u64]) -> File {
        let file = tempfile::tempfile().unwrap();
        file.set_len(pages * PAGE).unwrap();
        for page in data {
            file.write_all_at(&[1; PAGE as usize], page * PAGE).unwrap();
        }
        file
    }

    fn run(pages: Range<u64>, zero: bool) -> Run {
        Run {
            range: pages.start * PAGE..pages.end * PAGE,
            zero,
        }
    }

    fn pages(image: &Image) -> Vec<(Range<u64>, usize)> {
        let data = image.data().unwrap().into_iter();
        data.map(|(range, layer)| (range.start / PAGE..range.end / PAGE, layer))
            .collect()
    }

    #[test]
    fn holes_are_not_data() {
        let image = Image::of(file(16, &[0, 1, 8]), 16 * PAGE);
        assert_eq!(pages(&image), [(0..2, 0), (8..9, 0)]);
    }

    #[test]
    fn upper_layers_cover_lower_ones() {
        let image = Image::of(file(16, &(0..10).collect::<Vec<_>>()), 16 * PAGE);
        let image = image.with(Layer::new(
            file(16, &[2, 3, 12]),
            vec![run(2..5, false), run(7..8, true), run(12..13, false)],
            None,
        ));
        assert_eq!(
            pages(&image),
            [(0..2, 0), (2..4, 1), (5..7, 0), (8..10, 0), (12..13, 1)]
        );
        let image = image.with(Layer::new(file(16, &[0]), vec![run(0..16, false)], None));
        assert_eq!(pages(&image), [(0..1, 2)]);
    }

    #[test]
    fn what_is_asked_for_is_found_in_the_file_that_has_it() {
        let image = Image::of(file(16, &[]), 16 * PAGE);
        let runs = vec![run(2..5, false), run(7..8, true), run(12..13, false)];
        let image = image.with(Layer::new(file(16, &[]), runs, None));
        let asked = [1..3, 4..9, 12..16].map(|pages: Range<u64>| run(pages, false).range);
        let found = image.files_of(&asked).into_iter();
        let found: Vec<_> = found
            .map(|(r, n)| (r.start / PAGE..r.end / PAGE, n))
            .collect();
        let wanted = [
            (1..2, 0),
            (2..3, 1),
            (4..5, 1),
            (5..7, 0),
            (8..9, 0),
            (12..13, 1),
            (13..16, 0),
        ];
        assert_eq!(found, wanted);
    }

    #[test]
    fn an_image_takes_so_many_layers_and_no_more() {
        let mut image = Image::of(file(1, &[]), PAGE);
        while !image.is_full(1) {
            image = image.with(Layer::new(file(1, &[]), vec![run(0..1, true)], None));
        }
        assert_eq!(image.layers.len(), MAX_LAYERS);
        assert!(Image::of(file(1, &[]), PAGE).is_full(MAX_RUNS));
    }
}
