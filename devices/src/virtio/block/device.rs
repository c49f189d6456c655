//! The device: from the queue to the backend and back.

use std::os::fd::BorrowedFd;
use std::sync::Arc;

use virtio_bindings::virtio_blk::*;
use virtio_bindings::virtio_ids::VIRTIO_ID_BLOCK;
use virtio_bindings::virtio_ring::{VIRTIO_RING_F_EVENT_IDX, VIRTIO_RING_F_INDIRECT_DESC};
use vm_memory::{Bytes, GuestAddress};

use super::plan::{Limits, MAX_RANGE_SECTORS, Plan, plan};
use super::request::{Request, total};
use super::stats::add;
use super::{
    Backend, BlockConfig, BlockError, BlockStats, Cache, Completion, Operation, RawFile, SECTOR,
    Token, sys,
};
use crate::virtio::{ActivateError, Activation, Chain, VirtQueue, VirtioDevice, read_config_bytes};

/// Entries of the queue, and so the most requests in flight.
pub const QUEUE_SIZE: u16 = 128;
/// Most data segments of a request: what the queue holds beside header and status.
pub const SEG_MAX: u32 = super::plan::SEG_MAX;

/// Discards that keep to this many sectors free whole pages of the image.
const DISCARD_ALIGNMENT: u32 = 8;

/// A drive.
pub struct Block<B: Backend = RawFile> {
    disk: Disk<B>,
    /// There while the device is active.
    queue: Option<VirtQueue>,
}

/// Everything but the queue.
struct Disk<B> {
    backend: B,
    read_only: bool,
    cache: Cache,
    serial: [u8; 20],
    /// The driver does not know of flushes.
    durable: bool,
    stats: Arc<BlockStats>,
    /// Requests in flight, by token.
    pending: Vec<Option<Pending>>,
    free: Vec<Token>,
    /// Completions being worked off; kept for its room.
    done: Vec<Completion>,
    /// Chains were left in the queue.
    stalled: bool,
}

/// Writes the status and gives the chain back. `written` bytes of data in were written, from the
/// start; only if that is all of them, the status follows without a gap and counts too (what the
/// driver may rely on, section 2.7.8.2).
fn answer(
    queue: &mut VirtQueue,
    head: u16,
    status_at: GuestAddress,
    status: u8,
    room: u32,
    written: u32,
) {
    let _ = queue.mem().write_obj(status, status_at);
    let len = if written == room { room + 1 } else { written };
    queue.push_used(head, len);
}

/// What is to be known of a request when it completes.
struct Pending {
    head: u16,
    status: GuestAddress,
    /// Room for data in.
    room: u32,
    /// Bytes to be moved.
    expected: u64,
    kind: Kind,
}

#[derive(Clone, Copy)]
enum Kind {
    Read,
    Write,
    Flush,
    Discard,
    WriteZeroes,
}

impl Kind {
    fn of(operation: &Operation) -> Self {
        match operation {
            Operation::Read { .. } => Self::Read,
            Operation::Write { .. } => Self::Write,
            Operation::Flush => Self::Flush,
            Operation::Discard { .. } => Self::Discard,
            Operation::WriteZeroes { .. } => Self::WriteZeroes,
        }
    }
}

impl Block<RawFile> {
    /// Opens the image and locks it: a writer excludes everyone else.
    pub fn open(config: &BlockConfig) -> Result<Self, BlockError> {
        Self::with_backend(config, RawFile::open(config)?)
    }
}

impl<B: Backend> Block<B> {
    /// A drive as configured over some backend, which has to agree with it on `read_only`.
    pub fn with_backend(config: &BlockConfig, backend: B) -> Result<Self, BlockError> {
        let disk = Disk {
            backend,
            read_only: config.read_only,
            cache: config.cache,
            serial: config.serial_bytes()?,
            durable: false,
            stats: Arc::default(),
            pending: (0..QUEUE_SIZE).map(|_| None).collect(),
            free: (0..QUEUE_SIZE).rev().collect(),
            done: Vec::new(),
            stalled: false,
        };
        Ok(Self { disk, queue: None })
    }

    /// The drive's counters.
    pub fn stats(&self) -> &Arc<BlockStats> {
        &self.disk.stats
    }

    /// What the drive is made of.
    pub fn backend(&self) -> &B {
        &self.disk.backend
    }

    /// Waits for everything in flight and hands it back to the driver; takes nothing new.
    fn settle(&mut self) {
        let Some(queue) = &mut self.queue else { return };
        loop {
            self.disk.quiet();
            self.disk.backend.start();
            self.disk.complete(queue);
            if self.disk.free.len() == usize::from(QUEUE_SIZE) {
                return;
            }
            sys::wait(self.disk.backend.event());
        }
    }

    fn config_space(&self) -> [u8; 60] {
        let mut space = [0; 60];
        let mut put = |at: usize, bytes: &[u8]| space[at..at + bytes.len()].copy_from_slice(bytes);
        put(0, &(self.disk.backend.capacity() / SECTOR).to_le_bytes());
        put(12, &SEG_MAX.to_le_bytes());
        put(20, &(SECTOR as u32).to_le_bytes());
        // Physical blocks of 2^3 sectors: what the host's page cache reads and writes at once.
        put(24, &[3, 0]);
        put(32, &[u8::from(self.disk.cache == Cache::Writeback)]);
        put(34, &1u16.to_le_bytes());
        // One range for each discard and write of zeroes, and zeroes may be unmapped.
        for at in [36, 48] {
            put(at, &MAX_RANGE_SECTORS.to_le_bytes());
            put(at + 4, &1u32.to_le_bytes());
        }
        put(44, &DISCARD_ALIGNMENT.to_le_bytes());
        put(56, &[1]);
        space
    }
}

impl<B: Backend> Disk<B> {
    fn quiet(&self) {
        // Non-blocking: the count is of no interest, only that it is zero again.
        let _ = self.backend.event().read();
    }

    /// Takes a chain: answers it, or hands it to the backend. There is a free token.
    fn begin(&mut self, queue: &mut VirtQueue, chain: Chain) {
        let head = chain.head_index();
        let Ok(request) = Request::parse(chain, queue.mem()) else {
            add(&self.stats.malformed, 1);
            return queue.push_used(head, 0);
        };
        let limits = Limits {
            capacity: self.backend.capacity(),
            read_only: self.read_only,
            flush: self.cache == Cache::Writeback,
            durable: self.durable,
            serial: &self.serial,
        };
        let room = total(&request.room) as u32;
        match plan(&request, queue.mem(), &limits) {
            Plan::Answer(status, written) => {
                if u32::from(status) != VIRTIO_BLK_S_OK {
                    add(&self.stats.errors, 1);
                }
                answer(queue, head, request.status, status, room, written);
            }
            Plan::Submit(operation, expected) => {
                let token = self.free.pop().expect("a free token");
                self.pending[usize::from(token)] = Some(Pending {
                    head,
                    status: request.status,
                    room,
                    expected,
                    kind: Kind::of(&operation),
                });
                self.backend.submit(token, operation);
            }
        }
    }

    /// Hands back what the backend has finished.
    fn complete(&mut self, queue: &mut VirtQueue) {
        loop {
            self.backend.completed(&mut self.done);
            if self.done.is_empty() {
                return queue.notify();
            }
            for completion in std::mem::take(&mut self.done) {
                self.finish(queue, completion);
            }
            // What completed up to now has been announced too: without this the event loop would
            // wake for nothing. In this order nothing is missed.
            self.quiet();
        }
    }

    fn finish(&mut self, queue: &mut VirtQueue, completion: Completion) {
        let slot = self.pending.get_mut(usize::from(completion.token));
        let Some(pending) = slot.and_then(Option::take) else {
            return;
        };
        self.free.push(completion.token);
        let whole = matches!(completion.result, Ok(moved) if moved >= pending.expected);
        let (status, written) = match (whole, pending.kind) {
            (true, Kind::Read) => (VIRTIO_BLK_S_OK, pending.room),
            (true, _) => (VIRTIO_BLK_S_OK, 0),
            (false, _) => (VIRTIO_BLK_S_IOERR, 0),
        };
        match whole {
            true => self.count(&pending),
            false => add(&self.stats.errors, 1),
        }
        let Pending {
            head,
            status: at,
            room,
            ..
        } = pending;
        answer(queue, head, at, status as u8, room, written);
    }

    fn count(&self, pending: &Pending) {
        let stats = &self.stats;
        match pending.kind {
            Kind::Read => {
                add(&stats.reads, 1);
                add(&stats.read_bytes, pending.expected);
            }
            Kind::Write => {
                add(&stats.writes, 1);
                add(&stats.written_bytes, pending.expected);
            }
            Kind::Flush => add(&stats.flushes, 1),
            Kind::Discard => add(&stats.discards, 1),
            Kind::WriteZeroes => add(&stats.write_zeroes, 1),
        }
    }
}

impl<B: Backend> VirtioDevice for Block<B> {
    fn device_type(&self) -> u32 {
        VIRTIO_ID_BLOCK
    }

    fn queue_sizes(&self) -> &[u16] {
        &[QUEUE_SIZE]
    }

    fn features(&self) -> u64 {
        let mut bits = vec![
            VIRTIO_RING_F_EVENT_IDX,
            VIRTIO_RING_F_INDIRECT_DESC,
            VIRTIO_BLK_F_SEG_MAX,
            VIRTIO_BLK_F_BLK_SIZE,
            VIRTIO_BLK_F_TOPOLOGY,
        ];
        if self.disk.cache == Cache::Writeback {
            bits.push(VIRTIO_BLK_F_FLUSH);
        }
        if self.disk.read_only {
            bits.push(VIRTIO_BLK_F_RO);
        } else {
            bits.extend([VIRTIO_BLK_F_DISCARD, VIRTIO_BLK_F_WRITE_ZEROES]);
        }
        bits.into_iter().fold(0, |all, bit| all | 1 << bit)
    }

    fn read_config(&self, offset: u64, data: &mut [u8]) {
        read_config_bytes(&self.config_space(), offset, data);
    }

    fn write_config(&mut self, _offset: u64, _data: &[u8]) {}

    fn activate(&mut self, mut activation: Activation) -> Result<(), ActivateError> {
        // To a driver that was offered flushes and did not take them, a completed write is
        // durable (section 5.2.6.2).
        let flushes = activation.features & 1 << VIRTIO_BLK_F_FLUSH != 0;
        self.disk.durable = self.disk.cache == Cache::Writeback && !flushes;
        self.queue = activation.queues.pop();
        Ok(())
    }

    fn process_queue(&mut self, index: usize) {
        let Some(queue) = self.queue.as_mut().filter(|_| index == 0) else {
            return;
        };
        let disk = &mut self.disk;
        disk.stalled = false;
        // A bound, so that a driver that goes on adding requests does not keep this thread.
        let mut left = QUEUE_SIZE;
        queue.drain(|queue, chain| {
            if left == 0 || disk.free.is_empty() {
                queue.undo_pop();
                disk.stalled = true;
                return false;
            }
            left -= 1;
            disk.begin(queue, chain);
            true
        });
        disk.backend.start();
        disk.complete(queue);
        if disk.stalled && !disk.free.is_empty() {
            let _ = disk.backend.event().write(1);
        }
    }

    fn backend_event(&self) -> Option<BorrowedFd<'_>> {
        Some(sys::borrow(self.disk.backend.event()))
    }

    fn process_backend(&mut self) {
        self.disk.quiet();
        let Some(queue) = &mut self.queue else { return };
        self.disk.backend.start();
        self.disk.complete(queue);
        if self.disk.stalled {
            self.process_queue(0);
        }
    }

    fn reset(&mut self) {
        self.settle();
        self.disk.stalled = false;
        self.disk.quiet();
        self.queue = None;
    }
}
