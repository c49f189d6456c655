//! The driver's side of virtio-mmio, for tests: a small fake guest that sets a device up through
//! its registers, lays rings and buffers out in memory, and takes the used ones back.

use std::collections::HashMap;
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use tine_snapshot::section::Section;
use virtio_bindings::virtio_mmio::*;
use virtio_bindings::virtio_ring::{VRING_DESC_F_INDIRECT, VRING_DESC_F_NEXT, VRING_DESC_F_WRITE};
use vm_memory::{Bytes, GuestAddress};

use crate::GuestMemory;
use crate::bus::{BusDeviceMut, lock};
use crate::irq::IrqLine;
use crate::state::RestoreError;
use crate::virtio::mmio::MmioTransport;
use crate::virtio::{Interrupt, VirtioDevice};

/// Size of the fake guest's memory, which starts at address 0.
pub const MEMORY_LEN: usize = 64 << 20;
/// Entries of each ring.
pub const RING_SIZE: u16 = 64;

/// Rings lie from here on, 64 KiB for each queue.
const RINGS: u64 = 0x1_0000;
/// Buffers lie from here on.
const BUFFERS: u64 = 0x20_0000;

/// An interrupt line that counts.
#[derive(Debug, Default)]
pub struct CountingIrq(AtomicU32);

impl CountingIrq {
    /// How often the line was raised so far.
    pub fn count(&self) -> u32 {
        self.0.load(Ordering::SeqCst)
    }
}

impl IrqLine for CountingIrq {
    fn raise(&self) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

/// One buffer of a chain.
pub enum Buffer<'a> {
    /// Bytes for the device to read.
    Out(&'a [u8]),
    /// Room of this many bytes for the device to write.
    In(u32),
    /// A descriptor as it stands, to be wrong with.
    Raw {
        /// Guest address.
        addr: u64,
        /// Length in bytes.
        len: u32,
        /// VRING_DESC_F_*.
        flags: u16,
    },
}

#[derive(Clone, Default)]
struct Ring {
    next_descriptor: u16,
    available: u16,
    taken: u16,
}

/// A chain that the device has used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Used {
    /// Head of the chain, as [`FakeDriver::submit`] returned it.
    pub head: u16,
    /// How many bytes the device says it wrote.
    pub len: u32,
    /// What now stands in the chain's [`Buffer::In`] buffers, all of their room.
    pub data: Vec<u8>,
}

/// A fake guest with one device.
pub struct FakeDriver {
    /// Guest memory.
    pub mem: Arc<GuestMemory>,
    /// The device's registers.
    pub transport: Arc<Mutex<MmioTransport>>,
    /// The device's interrupt line.
    pub irq: Arc<CountingIrq>,
    rings: Vec<Ring>,
    next_buffer: u64,
    rooms: HashMap<(usize, u16), Vec<(u64, u32)>>,
}

impl FakeDriver {
    /// A guest that has found `device` and not touched it yet.
    pub fn new(device: impl VirtioDevice + 'static) -> Self {
        Self::boxed(Box::new(device))
    }

    /// The same with a device that was made somewhere else.
    pub fn boxed(device: Box<dyn VirtioDevice>) -> Self {
        Self::boxed_in(memory(), device)
    }

    /// The same in memory that holds something already.
    pub fn boxed_in(mem: Arc<GuestMemory>, device: Box<dyn VirtioDevice>) -> Self {
        let irq = Arc::new(CountingIrq::default());
        let interrupt = Arc::new(Interrupt::new(irq.clone()));
        let queues = device.queue_sizes().len();
        let transport = MmioTransport::new(device, mem.clone(), interrupt);
        Self {
            mem,
            transport: Arc::new(Mutex::new(transport.expect("transport"))),
            irq,
            rings: (0..queues).map(|_| Ring::default()).collect(),
            next_buffer: BUFFERS,
            rooms: HashMap::new(),
        }
    }

    /// The same guest in another machine, with memory of its own that holds the same bytes, and
    /// `device` restored from `sections` of the name `name`. The event loop does not run.
    pub fn restored(
        &self,
        device: Box<dyn VirtioDevice>,
        name: &str,
        sections: &[Section],
    ) -> Result<Self, RestoreError> {
        self.restored_in(copy(&self.mem), device, name, sections)
    }

    /// The same in `mem`, which [`Self::freeze`] has given.
    pub fn restored_in(
        &self,
        mem: Arc<GuestMemory>,
        device: Box<dyn VirtioDevice>,
        name: &str,
        sections: &[Section],
    ) -> Result<Self, RestoreError> {
        let restored = Self {
            rings: self.rings.clone(),
            rooms: self.rooms.clone(),
            next_buffer: self.next_buffer,
            ..Self::boxed_in(mem, device)
        };
        lock(&restored.transport).restore(name, sections)?;
        Ok(restored)
    }

    /// Saves the device and copies guest memory, as one thing: the event loop may run meanwhile.
    pub fn freeze(&self, name: &str) -> (Vec<Section>, Arc<GuestMemory>) {
        let mut transport = lock(&self.transport);
        let sections = transport.save(name).expect("a state");
        (sections, copy(&self.mem))
    }

    /// Saves the device as sections of the name `name`.
    pub fn save(&self, name: &str) -> Vec<Section> {
        lock(&self.transport).save(name).expect("a state")
    }

    /// A guest whose driver runs, with `features` and VIRTIO_F_VERSION_1 agreed on.
    pub fn started(device: impl VirtioDevice + 'static, features: u64) -> Self {
        let mut driver = Self::new(device);
        driver.start(features);
        driver
    }

    /// Reads a register.
    pub fn register(&self, offset: u32) -> u32 {
        let mut data = [0; 4];
        lock(&self.transport).read(u64::from(offset), &mut data);
        u32::from_le_bytes(data)
    }

    /// Writes a register.
    pub fn set_register(&self, offset: u32, value: u32) {
        lock(&self.transport).write(u64::from(offset), &value.to_le_bytes());
    }

    /// Reads from the configuration space.
    pub fn config<const N: usize>(&self, offset: u64) -> [u8; N] {
        let mut data = [0; N];
        lock(&self.transport).read(u64::from(VIRTIO_MMIO_CONFIG) + offset, &mut data);
        data
    }

    /// Goes through the driver's initialization (specification section 3.1.1) and panics if the
    /// device does not come up.
    pub fn start(&mut self, features: u64) {
        for status in [1, 3] {
            self.set_register(VIRTIO_MMIO_STATUS, status);
        }
        for (half, value) in [features as u32, (features >> 32) as u32 | 1]
            .into_iter()
            .enumerate()
        {
            self.set_register(VIRTIO_MMIO_DRIVER_FEATURES_SEL, half as u32);
            self.set_register(VIRTIO_MMIO_DRIVER_FEATURES, value);
        }
        self.set_register(VIRTIO_MMIO_STATUS, 11);
        assert_eq!(
            self.register(VIRTIO_MMIO_STATUS),
            11,
            "features {features:#x} refused"
        );
        for queue in 0..self.rings.len() {
            self.set_up_ring(queue);
        }
        self.set_register(VIRTIO_MMIO_STATUS, 15);
        assert_eq!(
            self.register(VIRTIO_MMIO_STATUS),
            15,
            "the device did not start"
        );
    }

    /// Resets the device and forgets all rings.
    pub fn reset(&mut self) {
        self.set_register(VIRTIO_MMIO_STATUS, 0);
        self.rings
            .iter_mut()
            .for_each(|ring| *ring = Ring::default());
        self.rooms.clear();
    }

    fn set_up_ring(&mut self, queue: usize) {
        let base = ring_base(queue);
        self.mem
            .write_slice(&[0; 0x1_0000], GuestAddress(base))
            .expect("ring memory");
        self.set_register(VIRTIO_MMIO_QUEUE_SEL, queue as u32);
        assert!(self.register(VIRTIO_MMIO_QUEUE_NUM_MAX) >= u32::from(RING_SIZE));
        self.set_register(VIRTIO_MMIO_QUEUE_NUM, u32::from(RING_SIZE));
        self.set_register(VIRTIO_MMIO_QUEUE_DESC_LOW, base as u32);
        self.set_register(VIRTIO_MMIO_QUEUE_AVAIL_LOW, avail_ring(queue) as u32);
        self.set_register(VIRTIO_MMIO_QUEUE_USED_LOW, used_ring(queue) as u32);
        self.set_register(VIRTIO_MMIO_QUEUE_READY, 1);
    }

    /// Makes a chain available and returns its head. The device is not told: see [`Self::kick`].
    pub fn submit(&mut self, queue: usize, chain: &[Buffer]) -> u16 {
        let buffers = self.lay_out(chain);
        let head = self.rings[queue].next_descriptor;
        for (at, (addr, len, flags)) in buffers.iter().copied().enumerate() {
            let index = self.take_descriptor(queue);
            let next = self.rings[queue].next_descriptor;
            let more = at + 1 < buffers.len();
            let flags = flags | if more { VRING_DESC_F_NEXT as u16 } else { 0 };
            self.set_descriptor(queue, index, addr, len, flags, next);
        }
        self.remember_rooms(queue, head, chain, &buffers);
        self.make_available(queue, head);
        head
    }

    /// The same with the chain in an indirect table, where it may be longer than the ring.
    pub fn submit_indirect(&mut self, queue: usize, chain: &[Buffer]) -> u16 {
        let buffers = self.lay_out(chain);
        let mut table = Vec::new();
        for (at, (addr, len, flags)) in buffers.iter().copied().enumerate() {
            let more = at + 1 < buffers.len();
            let flags = flags | if more { VRING_DESC_F_NEXT as u16 } else { 0 };
            table.extend(descriptor(addr, len, flags, at as u16 + 1));
        }
        let at = self.place(table.len() as u64);
        self.mem
            .write_slice(&table, GuestAddress(at))
            .expect("buffer memory");
        let head = self.take_descriptor(queue);
        let flags = VRING_DESC_F_INDIRECT as u16;
        self.set_descriptor(queue, head, at, table.len() as u32, flags, 0);
        self.remember_rooms(queue, head, chain, &buffers);
        self.make_available(queue, head);
        head
    }

    /// Puts the buffers of a chain into memory: address, length and flags of each.
    fn lay_out(&mut self, chain: &[Buffer]) -> Vec<(u64, u32, u16)> {
        let lay_out_one = |buffer: &Buffer| match *buffer {
            Buffer::Out(bytes) => {
                let addr = self.place(bytes.len() as u64);
                self.mem
                    .write_slice(bytes, GuestAddress(addr))
                    .expect("buffer memory");
                (addr, bytes.len() as u32, 0)
            }
            Buffer::In(len) => {
                let addr = self.place(u64::from(len));
                (addr, len, VRING_DESC_F_WRITE as u16)
            }
            Buffer::Raw { addr, len, flags } => (addr, len, flags),
        };
        chain.iter().map(lay_out_one).collect()
    }

    fn take_descriptor(&mut self, queue: usize) -> u16 {
        let ring = &mut self.rings[queue];
        let index = ring.next_descriptor;
        ring.next_descriptor = (index + 1) % RING_SIZE;
        index
    }

    fn remember_rooms(
        &mut self,
        queue: usize,
        head: u16,
        chain: &[Buffer],
        buffers: &[(u64, u32, u16)],
    ) {
        let rooms = std::iter::zip(chain, buffers)
            .filter(|(buffer, _)| matches!(buffer, Buffer::In(_)))
            .map(|(_, (addr, len, _))| (*addr, *len));
        self.rooms.insert((queue, head), rooms.collect());
    }

    /// Writes one descriptor as given.
    pub fn set_descriptor(
        &self,
        queue: usize,
        index: u16,
        addr: u64,
        len: u32,
        flags: u16,
        next: u16,
    ) {
        let at = GuestAddress(ring_base(queue) + u64::from(index) * 16);
        self.mem
            .write_slice(&descriptor(addr, len, flags, next), at)
            .expect("ring memory");
    }

    /// Puts `head` into the available ring.
    pub fn make_available(&mut self, queue: usize, head: u16) {
        let ring = &mut self.rings[queue];
        let slot = avail_ring(queue) + 4 + u64::from(ring.available % RING_SIZE) * 2;
        self.mem
            .write_obj(head.to_le(), GuestAddress(slot))
            .expect("ring memory");
        ring.available = ring.available.wrapping_add(1);
        let available = ring.available;
        self.set_available_index(queue, available);
    }

    /// Sets the available ring's index as given.
    pub fn set_available_index(&self, queue: usize, index: u16) {
        let at = GuestAddress(avail_ring(queue) + 2);
        self.mem.write_obj(index.to_le(), at).expect("ring memory");
    }

    /// Asks for an interrupt once the device has used the chain of this number (with event
    /// indices: VIRTIO_RING_F_EVENT_IDX).
    pub fn set_used_event(&self, queue: usize, index: u16) {
        let at = GuestAddress(avail_ring(queue) + 4 + u64::from(RING_SIZE) * 2);
        self.mem.write_obj(index.to_le(), at).expect("ring memory");
    }

    /// The chain that the device wants to be notified of (with event indices).
    pub fn avail_event(&self, queue: usize) -> u16 {
        let at = GuestAddress(used_ring(queue) + 4 + u64::from(RING_SIZE) * 8);
        u16::from_le(self.mem.read_obj(at).expect("ring"))
    }

    /// Tells the device of new chains in `queue`, and lets it work on this thread.
    pub fn kick(&self, queue: usize) {
        lock(&self.transport).process_queue(queue);
    }

    /// Lets the device work on the queues whose events are there, as the event loop does, and tells
    /// which those were.
    pub fn run_queue_events(&self) -> Vec<usize> {
        let mut transport = lock(&self.transport);
        let events = transport.queue_events().iter().enumerate();
        let due = events.filter(|(_, event)| event.read().is_ok());
        let due: Vec<_> = due.map(|(queue, _)| queue).collect();
        due.iter().for_each(|queue| transport.process_queue(*queue));
        due
    }

    /// Takes the next used chain of `queue`, if there is one.
    pub fn used(&mut self, queue: usize) -> Option<Used> {
        let index: u16 = self
            .mem
            .read_obj(GuestAddress(used_ring(queue) + 2))
            .expect("ring");
        let ring = &mut self.rings[queue];
        if u16::from_le(index) == ring.taken {
            return None;
        }
        let slot = used_ring(queue) + 4 + u64::from(ring.taken % RING_SIZE) * 8;
        ring.taken = ring.taken.wrapping_add(1);
        let head = u32::from_le(self.mem.read_obj(GuestAddress(slot)).expect("ring")) as u16;
        let len = u32::from_le(self.mem.read_obj(GuestAddress(slot + 4)).expect("ring"));
        let mut data = Vec::new();
        for (addr, len) in self.rooms.remove(&(queue, head)).unwrap_or_default() {
            let start = data.len();
            data.resize(start + len as usize, 0);
            self.mem
                .read_slice(&mut data[start..], GuestAddress(addr))
                .expect("buffer");
        }
        Some(Used { head, len, data })
    }

    /// Waits for the device to use a chain of `queue`, running its backend meanwhile.
    pub fn wait_used(&mut self, queue: usize) -> Used {
        loop {
            if let Some(used) = self.used(queue) {
                return used;
            }
            assert!(
                self.run_backend(10_000),
                "the device used nothing within ten seconds"
            );
        }
    }

    /// Waits up to `timeout_ms` for the backend's event and lets the device process it; `false`
    /// if none came.
    pub fn run_backend(&self, timeout_ms: i32) -> bool {
        let fd = lock(&self.transport)
            .backend_event()
            .expect("a device with a backend")
            .as_raw_fd();
        let mut poll = libc::pollfd {
            fd,
            events: libc::POLLIN,
            revents: 0,
        };
        // SAFETY: `poll` is one valid pollfd for the length of the call.
        if unsafe { libc::poll(&mut poll, 1, timeout_ms) } != 1 {
            return false;
        }
        lock(&self.transport).process_backend();
        true
    }

    /// Whether the device asked for a reset.
    pub fn needs_reset(&self) -> bool {
        self.register(VIRTIO_MMIO_STATUS) & 64 != 0
    }

    fn place(&mut self, len: u64) -> u64 {
        // Buffers are handed out round and round: the fake guest never has this much in flight.
        if self.next_buffer + len > MEMORY_LEN as u64 {
            self.next_buffer = BUFFERS;
        }
        let addr = self.next_buffer;
        self.next_buffer = (addr + len).next_multiple_of(16);
        addr
    }
}

fn memory() -> Arc<GuestMemory> {
    let mem = GuestMemory::from_ranges(&[(GuestAddress(0), MEMORY_LEN)]);
    Arc::new(mem.expect("test memory"))
}

/// Other memory with the same bytes in it.
fn copy(mem: &GuestMemory) -> Arc<GuestMemory> {
    let copy = memory();
    let mut page = [0; 4096];
    for at in (0..MEMORY_LEN).step_by(page.len()) {
        let at = GuestAddress(at as u64);
        mem.read_slice(&mut page, at).expect("test memory");
        if page.iter().any(|byte| *byte != 0) {
            copy.write_slice(&page, at).expect("test memory");
        }
    }
    copy
}

fn descriptor(addr: u64, len: u32, flags: u16, next: u16) -> Vec<u8> {
    let mut bytes = addr.to_le_bytes().to_vec();
    bytes.extend(len.to_le_bytes());
    bytes.extend(flags.to_le_bytes());
    bytes.extend(next.to_le_bytes());
    bytes
}

fn ring_base(queue: usize) -> u64 {
    RINGS + queue as u64 * 0x1_0000
}

fn avail_ring(queue: usize) -> u64 {
    ring_base(queue) + 0x4000
}

fn used_ring(queue: usize) -> u64 {
    ring_base(queue) + 0x8000
}
