//! The entropy device (specification section 5.4): random bytes for the guest's generator.
//!
//! Bytes come from the host's `getrandom`, piece by piece into guest memory, so that host memory
//! is bounded by one piece whatever a chain asks for. A request yields [`MAX_REQUEST_LEN`] bytes
//! at most, and a queue that never runs empty cannot keep the event loop's thread: the device
//! pauses after [`REQUESTS_PER_EVENT`] and lets others run. A limit can be set, too: what goes
//! beyond it waits in the queue.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Errno;
use rustix::rand::{GetRandomFlags, getrandom};
use serde::{Deserialize, Serialize};
use tine_snapshot::section::{Section, SectionError, State};
use virtio_bindings::virtio_ids::VIRTIO_ID_RNG;
use vm_memory::{Address, Bytes};

use super::events::join;
use super::mmio::VIRTIO_RING_F_EVENT_IDX;
use super::{
    ActivateError, Activation, Chain, QueuePlace, VirtQueue, VirtioDevice, start_restored,
};
use crate::GuestMemory;
use crate::rate::{RateLimiter, RateLimiterConfig};
use crate::state::RestoreError;

/// The most bytes that one request yields. A guest that wants more asks again.
pub const MAX_REQUEST_LEN: usize = 64 << 10;
/// Requests served before other devices have their turn.
pub const REQUESTS_PER_EVENT: usize = 16;

const QUEUE_SIZES: &[u16] = &[64];
/// Small enough for the stack, large enough that the system call does not dominate.
const PIECE_LEN: usize = 4096;

/// Why an entropy device could not be made.
#[derive(Debug, thiserror::Error)]
#[error("cannot make the entropy device's events: {0}; raise the limit of open files (ulimit -n)")]
pub struct RngError(#[source] std::io::Error);

/// There is nothing to keep: what a request gets does not depend on the ones before. A limit's
/// buckets are full again: a guest cannot have itself restored.
#[derive(Serialize, Deserialize)]
struct RngState {}

impl State for RngState {
    const KIND: &'static str = "virtio-rng";
    const VERSION: u16 = 1;
}

/// The entropy device.
pub struct Rng {
    queue: Option<VirtQueue>,
    /// Readable while requests wait that the last event's share did not reach.
    again: OwnedFd,
    limit: Option<Limit>,
}

/// A limit, and one descriptor for it and for `again`.
struct Limit {
    limiter: RateLimiter,
    events: OwnedFd,
}

impl Rng {
    /// An entropy device that reads the host's generator.
    pub fn new() -> Result<Self, RngError> {
        Self::with_limit(None)
    }

    /// The same with a limit of bytes and requests.
    pub fn with_limit(limit: Option<&RateLimiterConfig>) -> Result<Self, RngError> {
        let again = eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC);
        let again = again.map_err(|e| RngError(e.into()))?;
        let limit = limit.map(|config| {
            let limiter = RateLimiter::new(Some(config))?;
            let events = join([again.as_fd(), limiter.event()])?;
            Ok(Limit { limiter, events })
        });
        Ok(Self {
            queue: None,
            limit: limit.transpose().map_err(RngError)?,
            again,
        })
    }

    fn serve(&mut self) {
        let Some(queue) = &mut self.queue else {
            return;
        };
        let mut left = REQUESTS_PER_EVENT;
        let limiter = self.limit.as_ref().map(|limit| &limit.limiter);
        queue.drain(|queue, chain| {
            let limited = limiter.is_some_and(|limiter| left > 0 && !limiter.take(wanted(&chain)));
            if left == 0 || limited {
                queue.undo_pop();
                return false;
            }
            left -= 1;
            let head = chain.head_index();
            let mem = queue.mem().clone();
            queue.push_used(head, fill(&mem, chain));
            true
        });
        if left < REQUESTS_PER_EVENT {
            queue.notify();
        }
        if left == 0 {
            // The counter cannot overflow: it is read back to zero before each further write.
            let _ = rustix::io::write(&self.again, &1u64.to_ne_bytes());
        }
    }

    fn quiet(&self) {
        let _ = rustix::io::read(&self.again, &mut [0u8; 8]);
    }
}

/// How many bytes a chain is going to be given.
fn wanted(chain: &Chain) -> u64 {
    let lens = chain.clone().writable().map(|part| u64::from(part.len()));
    lens.fold(0, u64::saturating_add)
        .min(MAX_REQUEST_LEN as u64)
}

/// Fills what a chain has to be written to, up to the limit, and returns how much that was. A
/// descriptor outside of guest memory ends it early, as does a host without entropy.
fn fill(mem: &GuestMemory, chain: Chain) -> u32 {
    let mut written = 0;
    let mut piece = [0; PIECE_LEN];
    for descriptor in chain.writable() {
        let mut done = 0;
        while done < descriptor.len() as usize && written < MAX_REQUEST_LEN {
            let len = (descriptor.len() as usize - done)
                .min(MAX_REQUEST_LEN - written)
                .min(PIECE_LEN);
            let len = random(&mut piece[..len]);
            let at = descriptor.addr().checked_add(done as u64);
            let stored = at.is_some_and(|at| mem.write_slice(&piece[..len], at).is_ok());
            if len == 0 || !stored {
                return written as u32;
            }
            done += len;
            written += len;
        }
    }
    written as u32
}

/// Asks the host for random bytes without waiting and returns how many came.
fn random(into: &mut [u8]) -> usize {
    loop {
        match getrandom(&mut *into, GetRandomFlags::NONBLOCK) {
            Ok(len) => return len,
            Err(Errno::INTR) => {}
            Err(_) => return 0,
        }
    }
}

impl VirtioDevice for Rng {
    fn device_type(&self) -> u32 {
        VIRTIO_ID_RNG
    }

    fn queue_sizes(&self) -> &[u16] {
        QUEUE_SIZES
    }

    fn features(&self) -> u64 {
        1 << VIRTIO_RING_F_EVENT_IDX
    }

    fn read_config(&self, _offset: u64, data: &mut [u8]) {
        data.fill(0);
    }

    fn write_config(&mut self, _offset: u64, _data: &[u8]) {}

    fn activate(&mut self, mut activation: Activation) -> Result<(), ActivateError> {
        self.queue = activation.queues.pop();
        Ok(())
    }

    fn process_queue(&mut self, _index: usize) {
        self.serve();
    }

    fn backend_event(&self) -> Option<BorrowedFd<'_>> {
        Some(match &self.limit {
            Some(limit) => limit.events.as_fd(),
            None => self.again.as_fd(),
        })
    }

    fn process_backend(&mut self) {
        self.quiet();
        if let Some(limit) = &self.limit {
            limit.limiter.take_due();
        }
        self.serve();
    }

    fn reset(&mut self) {
        self.queue = None;
        self.quiet();
        if let Some(limit) = &self.limit {
            limit.limiter.quiet();
        }
    }

    fn settle(&mut self) {
        // Every request is answered at once.
    }

    fn queue_places(&self) -> Vec<QueuePlace> {
        self.queue.iter().map(VirtQueue::place).collect()
    }

    fn save(&self, name: &str) -> Result<Section, SectionError> {
        Section::of(name, &RngState {})
    }

    fn restore(
        &mut self,
        section: &Section,
        activation: Option<Activation>,
    ) -> Result<(), RestoreError> {
        let RngState {} = section.decode()?;
        start_restored(self, section, activation)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Buffer, FakeDriver};
    use virtio_bindings::virtio_ring::VRING_DESC_F_WRITE;

    const WRITE: u16 = VRING_DESC_F_WRITE as u16;

    fn driver() -> FakeDriver {
        FakeDriver::started(Rng::new().unwrap(), 0)
    }

    fn request(driver: &mut FakeDriver, chain: &[Buffer]) -> (u32, Vec<u8>) {
        let head = driver.submit(0, chain);
        driver.kick(0);
        let used = driver.used(0).expect("a used chain");
        assert_eq!(used.head, head);
        (used.len, used.data)
    }

    #[test]
    fn a_request_is_filled_whole_with_bytes_that_differ() {
        let mut driver = driver();
        let (len, first) = request(&mut driver, &[Buffer::In(60), Buffer::In(5000)]);
        assert_eq!((len, first.len()), (5060, 5060));
        let (_, second) = request(&mut driver, &[Buffer::In(5060)]);
        assert_ne!(first, second);
        assert!(first.chunks(20).all(|chunk| chunk.iter().any(|b| *b != 0)));
        assert_eq!(driver.irq.count(), 2);
    }

    // Case 82: a chain asking for gigabytes.
    #[test]
    fn a_request_for_gigabytes_yields_64_kib() {
        let mut driver = driver();
        let huge = |addr| Buffer::Raw {
            addr,
            len: 0x7fff_0000,
            flags: WRITE,
        };
        let chain = [huge(0x100_0000), huge(0x100_0000)];
        assert_eq!(request(&mut driver, &chain).0, 64 << 10);
        let mut behind = [0xff; 64];
        let end = vm_memory::GuestAddress(0x100_0000 + (64 << 10));
        driver.mem.read_slice(&mut behind, end).unwrap();
        assert_eq!(behind, [0; 64]);
    }

    #[test]
    fn a_chain_with_nothing_to_write_comes_back_empty() {
        let mut driver = driver();
        assert_eq!(request(&mut driver, &[Buffer::Out(b"seed")]).0, 0);
        assert_eq!(request(&mut driver, &[Buffer::In(0)]).0, 0);
        assert_eq!(request(&mut driver, &[Buffer::In(8)]).0, 8);
    }

    #[test]
    fn a_buffer_outside_of_memory_ends_the_request_and_not_the_device() {
        let mut driver = driver();
        for addr in [0xffff_ffff_ffff_ff00, 1 << 40] {
            let bad = Buffer::Raw {
                addr,
                len: 512,
                flags: WRITE,
            };
            assert_eq!(request(&mut driver, &[Buffer::In(16), bad]).0, 16);
        }
        assert_eq!(request(&mut driver, &[Buffer::In(8)]).0, 8);
        assert!(!driver.needs_reset());
    }

    #[test]
    fn a_full_queue_is_served_in_turns() {
        let mut driver = driver();
        for _ in 0..REQUESTS_PER_EVENT + 1 {
            driver.submit(0, &[Buffer::In(8)]);
        }
        driver.kick(0);
        let mut served = 0;
        while driver.used(0).is_some() {
            served += 1;
        }
        assert_eq!(served, REQUESTS_PER_EVENT);
        assert_eq!(driver.wait_used(0).len, 8);
        assert!(!driver.run_backend(0));
    }

    #[test]
    fn what_goes_beyond_the_limit_waits() {
        let bucket = |size, refill_time| {
            Some(crate::rate::BucketConfig {
                size,
                one_time_burst: None,
                refill_time,
            })
        };
        let limit = RateLimiterConfig {
            bandwidth: bucket(100, 100),
            ops: None,
        };
        let rng = Rng::with_limit(Some(&limit)).unwrap();
        let mut driver = FakeDriver::started(rng, 0);
        assert_eq!(request(&mut driver, &[Buffer::In(60)]).0, 60);
        driver.submit(0, &[Buffer::In(30), Buffer::In(30)]);
        let start = std::time::Instant::now();
        driver.kick(0);
        assert!(driver.used(0).is_none(), "20 bytes are missing");
        assert_eq!(driver.wait_used(0).len, 60);
        assert!(start.elapsed() >= std::time::Duration::from_millis(15));
        driver.reset();
        assert!(!driver.run_backend(0));
    }

    #[test]
    fn a_reset_device_is_quiet_and_starts_again() {
        let mut driver = driver();
        for _ in 0..REQUESTS_PER_EVENT {
            driver.submit(0, &[Buffer::In(8)]);
        }
        driver.kick(0);
        driver.reset();
        driver.kick(0);
        assert!(!driver.run_backend(0));
        driver.start(1 << VIRTIO_RING_F_EVENT_IDX);
        assert_eq!(request(&mut driver, &[Buffer::In(8)]).0, 8);
    }
}
