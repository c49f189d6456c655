//! Extents of several layers as one list: for each page who has it.

use super::PAGE;
use super::index::Extent;
use super::layers::{Map, Source};

/// Pages `first..end` are in `layer`, or zeroes.
#[derive(Clone, Copy)]
pub(super) struct Piece {
    pub(super) first: u32,
    pub(super) end: u32,
    pub(super) layer: Option<usize>,
}

/// Lays a lower layer under what is seen so far.
pub(super) fn under(above: Vec<Piece>, lower: &[Extent], layer: usize) -> Vec<Piece> {
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

/// An extent of a layer.
pub(super) fn piece_of(extent: &Extent, layer: usize) -> Piece {
    Piece {
        first: extent.first,
        end: extent.end(),
        layer: (!extent.zero).then_some(layer),
    }
}

/// The same as ranges of bytes, as few as can be.
pub(super) fn maps(view: &[Piece]) -> Vec<Map> {
    let mut maps: Vec<Map> = Vec::new();
    for piece in view {
        let (offset, end) = (u64::from(piece.first) * PAGE, u64::from(piece.end) * PAGE);
        let source = piece.layer.map_or(Source::Zero, Source::Layer);
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
    }
    maps
}
