//! Page numbers and ranges as the guest gives them, made sense of: within guest memory, of whole
//! pages, sorted and joined.

use vm_memory::{Bytes, GuestAddress, GuestMemoryBackend, GuestMemoryRegion};

use super::{PAGE, PAGES_PER_CHAIN};
use crate::GuestMemory;
use crate::virtio::Chain;

/// Descriptors looked at in one chain.
const MAX_DESCRIPTORS: usize = 1024;

/// A list of page numbers, reused from chain to chain.
#[derive(Default)]
pub(super) struct PageList {
    numbers: Vec<u32>,
    bytes: Vec<u8>,
}

impl PageList {
    /// Reads the page numbers of a chain, as many as are looked at. Those after a buffer that is
    /// not in memory are left out.
    pub fn load(&mut self, mem: &GuestMemory, chain: Chain) {
        self.bytes.clear();
        for descriptor in chain.take(MAX_DESCRIPTORS) {
            if descriptor.is_write_only() {
                break;
            }
            let start = self.bytes.len();
            let len = (descriptor.len() as usize).min(PAGES_PER_CHAIN * 4 - start);
            self.bytes.resize(start + len, 0);
            let read = mem.read_slice(&mut self.bytes[start..], descriptor.addr());
            if read.is_err() {
                self.bytes.truncate(start);
                break;
            }
        }
        self.numbers.clear();
        let (numbers, _) = self.bytes.as_chunks();
        self.numbers
            .extend(numbers.iter().map(|n| u32::from_le_bytes(*n)));
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.numbers.len()
    }

    /// The ranges that the pages make up, joined: start and length in bytes.
    pub fn ranges(&mut self) -> impl Iterator<Item = (u64, u64)> {
        self.numbers.sort_unstable();
        self.numbers.dedup();
        let runs = self.numbers.chunk_by(|a, b| a.checked_add(1) == Some(*b));
        runs.map(|run| (u64::from(run[0]) * PAGE, run.len() as u64 * PAGE))
    }
}

/// The ranges that a chain's buffers cover: what the guest reports as free. Adjacent ones are
/// joined where they follow one another.
pub(super) fn free_ranges(chain: Chain) -> impl Iterator<Item = (u64, u64)> {
    let mut buffers = chain
        .take(MAX_DESCRIPTORS)
        .filter(|descriptor| descriptor.is_write_only())
        .map(|descriptor| (descriptor.addr().0, u64::from(descriptor.len())))
        .peekable();
    std::iter::from_fn(move || {
        let (start, mut len) = buffers.next()?;
        while let Some((_, more)) =
            buffers.next_if(|(next, _)| start.checked_add(len) == Some(*next))
        {
            len += more;
        }
        Some((start, len))
    })
}

/// Hands every part of a range that is whole pages of guest memory to `each`, region by region;
/// gives how many whole pages of it are not guest memory.
pub(super) fn within(
    mem: &GuestMemory,
    (start, len): (u64, u64),
    mut each: impl FnMut(GuestAddress, u64),
) -> u64 {
    let end = start.saturating_add(len) / PAGE * PAGE;
    let start = start.div_ceil(PAGE).saturating_mul(PAGE);
    if start >= end {
        return 0;
    }
    let mut inside = 0;
    for region in mem.iter() {
        let region_start = region.start_addr().0.next_multiple_of(PAGE);
        let region_end = (region.start_addr().0 + region.len()) / PAGE * PAGE;
        let (from, to) = (start.max(region_start), end.min(region_end));
        if from < to {
            inside += to - from;
            each(GuestAddress(from), to - from);
        }
    }
    (end - start - inside) / PAGE
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn page_numbers_are_sorted_and_joined() {
        let mut list = PageList {
            numbers: vec![7, 3, u32::MAX, 4, 5, 9, 3, 8, u32::MAX - 1, 0],
            bytes: Vec::new(),
        };
        let ranges: Vec<_> = list
            .ranges()
            .map(|(at, len)| (at / PAGE, len / PAGE))
            .collect();
        let end = u64::from(u32::MAX) - 1;
        assert_eq!(ranges, [(0, 1), (3, 3), (7, 3), (end, 2)]);
    }

    #[test]
    fn ranges_are_cut_to_whole_pages_of_memory() {
        let regions = [
            (GuestAddress(0x1000), 0x4000),
            (GuestAddress(0x8000), 0x2000),
        ];
        let mem = GuestMemory::from_ranges(&regions).unwrap();
        let cut = |range| {
            let mut parts = Vec::new();
            let bad = within(&mem, range, |start, len| parts.push((start.0, len)));
            (parts, bad)
        };
        assert_eq!(cut((0x1000, 0x1000)), (vec![(0x1000, 0x1000)], 0));
        assert_eq!(cut((0x1001, 0x1fff)), (vec![(0x2000, 0x1000)], 0));
        assert_eq!(cut((0x1001, 0x1ffe)), (vec![], 0));
        assert_eq!(cut((0x1fff, 2)), (vec![], 0));
        assert_eq!(
            cut((0, 0x10000)),
            (vec![(0x1000, 0x4000), (0x8000, 0x2000)], 10)
        );
        assert_eq!(cut((0x5000, 0x3000)), (vec![], 3));
        assert_eq!(cut((u64::MAX - 10, 100)), (vec![], 0));
        assert!(cut((0x8000, u64::MAX)).0 == [(0x8000, 0x2000)]);
    }
}
