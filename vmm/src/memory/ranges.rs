//! Sorted ranges of memory: laid over one another, joined, and those for which a file has data.

use std::fs::File;
use std::io;
use std::ops::Range;

use rustix::fs::SeekFrom;
use rustix::io::Errno;

use super::sys;

/// Lays `over` (runs, each followed by what it has of data) over `under`.
pub(super) fn overlay(
    under: Vec<(Range<u64>, usize)>,
    over: Vec<(Range<u64>, Option<usize>)>,
) -> Vec<(Range<u64>, usize)> {
    let mut result = Vec::with_capacity(under.len() + over.len());
    let covered = over.iter().filter(|(_, layer)| layer.is_none());
    let mut covered = covered.map(|(range, _)| range.clone()).peekable();
    for (range, layer) in under {
        let mut at = range.start;
        while covered.peek().is_some_and(|cover| cover.end <= at) {
            covered.next();
        }
        let mut ahead = covered.clone();
        while let Some(cover) = ahead.next_if(|cover| cover.start < range.end) {
            if cover.start > at {
                result.push((at..cover.start, layer));
            }
            at = at.max(cover.end);
        }
        if at < range.end {
            result.push((at..range.end, layer));
        }
    }
    result.extend(over.into_iter().filter_map(|(r, layer)| Some((r, layer?))));
    result.sort_by_key(|(range, _)| range.start);
    result
}

/// Joins sorted ranges that lie no more than `gap` bytes apart.
pub(super) fn join(ranges: Vec<Range<u64>>, gap: u64) -> Vec<Range<u64>> {
    let mut joined: Vec<Range<u64>> = Vec::with_capacity(ranges.len());
    for range in ranges {
        match joined.last_mut() {
            Some(last) if range.start <= last.end + gap => last.end = last.end.max(range.end),
            _ => joined.push(range),
        }
    }
    joined
}

/// The parts of `range` that `file` has data for, as its file system tells it.
pub(super) fn data_of(file: &File, range: &Range<u64>) -> io::Result<Vec<Range<u64>>> {
    // The files of images are read at given offsets: their own position matters to nobody.
    let seek = |to: SeekFrom| match rustix::fs::seek(file, to) {
        Ok(at) => Ok(Some(at)),
        Err(Errno::NXIO) => Ok(None),
        Err(err) => Err(io::Error::from(err)),
    };
    let mut parts = Vec::new();
    let mut at = range.start;
    while at < range.end {
        let Some(start) = seek(SeekFrom::Data(at))? else {
            break;
        };
        if start >= range.end {
            break;
        }
        let end = seek(SeekFrom::Hole(start))?.unwrap_or(range.end);
        let end = end.next_multiple_of(sys::PAGE).min(range.end);
        parts.push(start / sys::PAGE * sys::PAGE..end);
        at = end;
    }
    Ok(parts)
}
