//! The device: from the queue to the backend and back.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use virtio_bindings::virtio_blk::*;
use virtio_bindings::virtio_ids::VIRTIO_ID_BLOCK;
use virtio_bindings::virtio_ring::{VIRTIO_RING_F_EVENT_IDX, VIRTIO_RING_F_INDIRECT_DESC};

use tine_snapshot::section::{Section, SectionError};

use super::disk::Disk;
use super::layers::Layer;
use super::plan::MAX_RANGE_SECTORS;
use super::state::BlockState;
use super::{Backend, BlockConfig, BlockError, BlockStats, Cache, Image, SECTOR, sys};
use crate::rate::RateLimiter;
use crate::state::RestoreError;
use crate::virtio::events::join;
use crate::virtio::{
    ActivateError, Activation, QueuePlace, VirtQueue, VirtioDevice, read_config_bytes,
    start_restored,
};

/// Entries of the queue, and so the most requests in flight.
pub const QUEUE_SIZE: u16 = 128;
/// Most data segments of a request: what the queue holds beside header and status.
pub const SEG_MAX: u32 = QUEUE_SIZE as u32 - 2;

/// Discards that keep to this many sectors free whole pages of the image.
const DISCARD_ALIGNMENT: u32 = 8;

/// A drive.
pub struct Block<B: Backend = Image> {
    pub(super) disk: Disk<B>,
    /// There while the device is active.
    queue: Option<VirtQueue>,
    pub(super) limiter: RateLimiter,
    /// The limiter keeps requests back in the queue.
    limited: bool,
    /// Readable when the backend or the limiter has something to say.
    events: OwnedFd,
}

impl Block<Image> {
    /// Opens the image and locks it: a writer excludes everyone else.
    pub fn open(config: &BlockConfig) -> Result<Self, BlockError> {
        Self::with_backend(config, Image::open(config)?)
    }

    /// The same with layers that are open already, the lowest first; where the configuration says
    /// that they are is not looked at.
    pub fn open_layers(config: &BlockConfig, layers: Vec<Layer>) -> Result<Self, BlockError> {
        Self::with_backend(config, Image::of(config, layers)?)
    }
}

impl<B: Backend> Block<B> {
    /// A drive as configured over some backend, which has to agree with it on `read_only`.
    pub fn with_backend(config: &BlockConfig, backend: B) -> Result<Self, BlockError> {
        let disk = Disk::new(config, backend)?;
        let failed = |source| BlockError::Events {
            drive: config.id.clone(),
            source,
        };
        let limiter = RateLimiter::new(config.rate_limiter.as_ref()).map_err(failed)?;
        let events = join([sys::borrow(disk.backend.event()), limiter.event()]).map_err(failed)?;
        Ok(Self {
            disk,
            queue: None,
            limiter,
            limited: false,
            events,
        })
    }

    /// The drive's rate limiter; a clone of it changes the limits at run time.
    pub fn rate_limiter(&self) -> &RateLimiter {
        &self.limiter
    }

    /// The drive's counters.
    pub fn stats(&self) -> &Arc<BlockStats> {
        &self.disk.stats
    }

    /// What the drive is made of.
    pub fn backend(&self) -> &B {
        &self.disk.backend
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
        self.limited = false;
        // A bound, so that a driver that goes on adding requests does not keep this thread.
        let mut left = QUEUE_SIZE;
        queue.drain(|queue, chain| {
            if left == 0 || disk.is_full() {
                queue.undo_pop();
                disk.stalled = true;
                return false;
            }
            left -= 1;
            self.limited = !disk.begin(queue, chain, &self.limiter);
            !self.limited
        });
        disk.backend.start();
        disk.complete(queue);
        if disk.stalled && !disk.is_full() {
            let _ = disk.backend.event().write(1);
        }
    }

    fn backend_event(&self) -> Option<BorrowedFd<'_>> {
        Some(self.events.as_fd())
    }

    fn process_backend(&mut self) {
        self.disk.quiet();
        let due = self.limiter.take_due() && self.limited;
        let Some(queue) = &mut self.queue else { return };
        self.disk.backend.start();
        self.disk.complete(queue);
        if self.disk.stalled || due {
            self.process_queue(0);
        }
    }

    fn reset(&mut self) {
        self.settle();
        self.disk.stalled = false;
        self.limited = false;
        self.limiter.quiet();
        self.disk.quiet();
        self.queue = None;
    }

    /// Waits for everything in flight and hands it back to the driver; takes nothing new.
    fn settle(&mut self) {
        let Some(queue) = &mut self.queue else { return };
        loop {
            self.disk.quiet();
            self.disk.backend.start();
            self.disk.complete(queue);
            if self.disk.is_idle() {
                return;
            }
            sys::wait(self.disk.backend.event());
        }
    }

    fn queue_places(&self) -> Vec<QueuePlace> {
        self.queue.iter().map(VirtQueue::place).collect()
    }

    fn save(&self, name: &str) -> Result<Section, SectionError> {
        Section::of(name, &BlockState::of(self))
    }

    fn restore(
        &mut self,
        section: &Section,
        activation: Option<Activation>,
    ) -> Result<(), RestoreError> {
        section.decode::<BlockState>()?.restore(section, self)?;
        start_restored(self, section, activation)
    }
}
