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
        if self.head_limit == 0 {
            bytes.extend(self.ring.iter());
        }
        let more = (bytes.len() as u64) < self.total;
        (bytes, more)
    }

    /// Attaches a reader that has the bytes before `from`. Returns its handle and where it really begins.
    pub fn attach(&mut self, from: u64) -> (u32, u64) {
        let mut cursor = from.min(self.total);
        if cursor >= self.head.len() as u64 {
            cursor = cursor.max(self.ring_start());
        }
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
    ///
    /// A reader that began in the head and reaches its end goes on at the ring's start: what lies between was dropped
    /// before it attached.
    pub fn read(&mut self, reader: u32, most: usize, out: &mut Vec<u8>) -> usize {
        let start = self.ring_start();
        let Some((_, cursor)) = self.cursors.iter_mut().find(|(other, _)| *other == reader) else {
            return 0;
        };
        let head = self.head.get(*cursor as usize..).unwrap_or_default();
        let count = if head.is_empty() {
            *cursor = (*cursor).max(start);
            let skip = (*cursor - start) as usize;
            let count = most.min(self.ring.len() - skip);
            let (front, back) = self.ring.as_slices();
            let from_front = front.get(skip..).unwrap_or_default();
            let from_front = &from_front[..from_front.len().min(count)];
            out.extend_from_slice(from_front);
            let skip = skip.saturating_sub(front.len());
            out.extend_from_slice(&back[skip..skip + count - from_front.len()]);
            count
        } else {
            let count = most.min(head.len());
            out.extend_from_slice(&head[..count]);
            count
        };
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
