//! What is kept of one output stream, and what attached readers have not had yet.
//!
//! The first `head_limit` bytes are kept for the record; behind them a ring holds the latest bytes for readers. A
//! command that was started to be collected keeps a head, one that was started as a stream keeps a tail. With a reader
//! attached the ring grows to [`WINDOW`] and nothing that the reader lacks is dropped: the command has to wait instead.

use std::collections::VecDeque;

/// Unread bytes at which a command has to wait for its slowest attached reader.
pub const WINDOW: usize = 64 * 1024;

/// One output stream.
#[derive(Debug, Default)]
pub struct Log {
    head: Vec<u8>,
    head_limit: usize,
    ring: VecDeque<u8>,
    ring_limit: usize,
    /// The ring's bytes are for the record too.
    keeps_tail: bool,
    total: u64,
    closed: bool,
    /// Attached readers and how far each has come.
    cursors: Vec<(u32, u64)>,
    next_reader: u32,
}

impl Log {
    /// Keeps the first `limit` bytes.
    pub fn head(limit: usize) -> Self {
        Self {
            head_limit: limit,
            ..Self::default()
        }
    }

    /// Keeps the last `limit` bytes.
    pub fn tail(limit: usize) -> Self {
        Self {
            ring_limit: limit,
            keeps_tail: true,
            ..Self::default()
        }
    }

    /// Bytes that may be read from the command now.
    pub fn room(&self) -> usize {
        match self.cursors.iter().map(|(_, cursor)| *cursor).min() {
            None => usize::MAX,
            Some(slowest) => WINDOW.saturating_sub((self.total - slowest) as usize),
        }
    }

    /// Adds output.
    pub fn append(&mut self, mut bytes: &[u8]) {
        self.total += bytes.len() as u64;
        if self.ring.is_empty() && self.total - bytes.len() as u64 == self.head.len() as u64 {
            let fits = bytes
                .len()
                .min(self.head_limit.saturating_sub(self.head.len()));
            self.head.extend_from_slice(&bytes[..fits]);
            bytes = &bytes[fits..];
        }
        self.ring.extend(bytes);
        self.trim();
    }

    /// Keeps no more than there is, because memory is short.
    pub fn stop_growing(&mut self) {
        self.head_limit = self.head.len();
        self.ring_limit = self.ring_limit.min(WINDOW / 8);
    }

    /// Bytes held.
    pub fn held(&self) -> usize {
        self.head.len() + self.ring.len()
    }

    /// Nothing more will come.
    pub fn close(&mut self) {
        self.closed = true;
    }

    pub fn is_closed(&self) -> bool {
        self.closed
    }

    /// The bytes for the record, and whether there were more.
    pub fn kept(&self) -> (Vec<u8>, bool) {
        let mut bytes = self.head.clone();
        if self.keeps_tail {
            bytes.extend(self.ring.iter());
        }
        let more = (bytes.len() as u64) < self.total;
        (bytes, more)
    }

    /// Attaches a reader that has the bytes before `from`. Returns its handle and where it really begins: not before
    /// a gap, as what a reader gets is whole from its beginning on.
    pub fn attach(&mut self, from: u64) -> (u32, u64) {
        let head = self.head.len() as u64;
        let first = if self.ring_start() > head {
            self.ring_start()
        } else {
            0
        };
        let cursor = from.clamp(first, self.total);
        let reader = self.next_reader;
        self.next_reader = self.next_reader.wrapping_add(1);
        self.cursors.push((reader, cursor));
        (reader, cursor)
    }

    /// Detaches a reader.
    pub fn detach(&mut self, reader: u32) {
        self.cursors.retain(|(other, _)| *other != reader);
        self.trim();
    }

    /// Copies up to `most` bytes that the reader has not had to `out`, which counts as having had them.
    pub fn read(&mut self, reader: u32, most: usize, out: &mut Vec<u8>) -> usize {
        let start = self.ring_start();
        let Some((_, cursor)) = self.cursors.iter_mut().find(|(other, _)| *other == reader) else {
            return 0;
        };
        let before = out.len();
        let head = self.head.get(*cursor as usize..).unwrap_or_default();
        if head.is_empty() {
            // Nothing that an attached reader lacks is ever dropped, so the cursor is not before the ring.
            let skip = cursor.saturating_sub(start) as usize;
            let (front, back) = self.ring.as_slices();
            let front = front.get(skip..).unwrap_or_default();
            let back = back.get(skip.saturating_sub(self.ring.len() - back.len())..);
            out.extend_from_slice(&front[..front.len().min(most)]);
            let left = most - (out.len() - before);
            let back = back.unwrap_or_default();
            out.extend_from_slice(&back[..back.len().min(left)]);
        } else {
            out.extend_from_slice(&head[..head.len().min(most)]);
        }
        let count = out.len() - before;
        *cursor += count as u64;
        self.trim();
        count
    }

    /// Whether the reader has had everything so far.
    pub fn is_read(&self, reader: u32) -> bool {
        self.cursors
            .iter()
            .all(|(other, cursor)| *other != reader || *cursor >= self.total)
    }

    fn ring_start(&self) -> u64 {
        self.total - self.ring.len() as u64
    }

    /// Drops from the ring what nobody may want any more.
    fn trim(&mut self) {
        let mut keep = self.ring_limit as u64;
        if let Some(slowest) = self.cursors.iter().map(|(_, cursor)| *cursor).min() {
            keep = keep.max(self.total - slowest);
        }
        let surplus = (self.ring.len() as u64).saturating_sub(keep) as usize;
        self.ring.drain(..surplus);
        if self.ring.is_empty() && self.ring.capacity() > 4096 {
            self.ring = VecDeque::new();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The byte at a position of the whole output.
    fn byte(position: u64) -> u8 {
        (position ^ (position >> 8)) as u8
    }

    #[derive(Debug, Clone)]
    enum Step {
        Append(usize),
        Attach(u64),
        Read(usize, usize),
        Detach(usize),
        StopGrowing,
    }

    fn any_step() -> impl Strategy<Value = Step> {
        prop_oneof![
            4 => (0..40_000usize).prop_map(Step::Append),
            2 => (0..200_000u64).prop_map(Step::Attach),
            4 => (0..4usize, 0..50_000usize).prop_map(|(which, most)| Step::Read(which, most)),
            1 => (0..4usize).prop_map(Step::Detach),
            1 => Just(Step::StopGrowing),
        ]
    }

    proptest! {
        #[test]
        fn readers_get_everything_and_memory_is_bounded(
            head in any::<bool>(),
            limit in 0..100_000usize,
            steps in prop::collection::vec(any_step(), 0..60),
        ) {
            let mut log = if head { Log::head(limit) } else { Log::tail(limit) };
            let mut total = 0u64;
            let mut readers: Vec<(u32, u64)> = Vec::new();
            for step in steps {
                match step {
                    Step::Append(count) => {
                        let count = count.min(log.room());
                        let bytes: Vec<u8> = (total..total + count as u64).map(byte).collect();
                        log.append(&bytes);
                        total += count as u64;
                    }
                    Step::Attach(from) => {
                        let (reader, at) = log.attach(from);
                        prop_assert!(at <= total && (at >= from.min(total)));
                        readers.push((reader, at));
                    }
                    Step::Read(which, most) => {
                        let Some((reader, at)) = readers.get_mut(which) else { continue };
                        let mut out = Vec::new();
                        let count = log.read(*reader, most, &mut out);
                        prop_assert_eq!(count, out.len());
                        prop_assert!(count <= most);
                        prop_assert!(count > 0 || most == 0 || *at == total);
                        for byte_read in out {
                            prop_assert_eq!(byte_read, byte(*at));
                            *at += 1;
                        }
                        prop_assert_eq!(log.is_read(*reader), *at == total);
                    }
                    Step::Detach(which) if which < readers.len() => {
                        log.detach(readers.swap_remove(which).0);
                    }
                    Step::Detach(_) => {}
                    Step::StopGrowing => log.stop_growing(),
                }
                let lag = readers.iter().map(|(_, at)| total - at).max().unwrap_or_default();
                prop_assert!(log.held() as u64 <= limit as u64 + lag);
                let (kept, more) = log.kept();
                prop_assert_eq!(more, (kept.len() as u64) < total);
                let from = if head { 0 } else { total - kept.len() as u64 };
                for (position, kept) in (from..).zip(kept) {
                    prop_assert_eq!(kept, byte(position));
                }
            }
        }
    }
}
