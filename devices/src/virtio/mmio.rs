//! The virtio-mmio register block, version 2 (specification section 4.2.2).

mod state;

use std::os::fd::BorrowedFd;
use std::sync::Arc;

use virtio_bindings::virtio_config::{
    VIRTIO_CONFIG_S_ACKNOWLEDGE, VIRTIO_CONFIG_S_DRIVER, VIRTIO_CONFIG_S_DRIVER_OK,
    VIRTIO_CONFIG_S_FAILED, VIRTIO_CONFIG_S_FEATURES_OK, VIRTIO_CONFIG_S_NEEDS_RESET,
    VIRTIO_F_VERSION_1,
};
use virtio_bindings::virtio_mmio::*;
use virtio_queue::{Queue, QueueT};
use vmm_sys_util::eventfd::{EFD_CLOEXEC, EFD_NONBLOCK, EventFd};

use super::{Activation, Interrupt, MAX_QUEUES, VirtQueue, VirtioDevice};
use crate::GuestMemory;
use crate::bus::BusDeviceMut;

/// Length of the register block and of the configuration space behind it, in bytes.
pub const MMIO_LEN: u64 = 0x1000;
/// Offset of the register that a driver writes a queue's number to, to announce new buffers.
pub const QUEUE_NOTIFY: u64 = VIRTIO_MMIO_QUEUE_NOTIFY as u64;

const MAGIC: u32 = u32::from_le_bytes(*b"virt");
const VERSION: u32 = 2;
/// "Tine", as the vendor of the device.
const VENDOR: u32 = u32::from_le_bytes(*b"Tine");

/// Why a transport could not be made.
#[derive(Debug, thiserror::Error)]
pub enum TransportError {
    /// The device has more queues than the transport serves, or one of an impossible size.
    #[error("a device with queues of sizes {0:?} cannot be served")]
    Queues(Vec<u16>),
    /// The event for queue notifications could not be made.
    #[error("cannot make an eventfd: {0}")]
    EventFd(#[source] std::io::Error),
}

/// The registers of one virtio device, and the device behind them.
pub struct MmioTransport {
    device: Box<dyn VirtioDevice>,
    mem: Arc<GuestMemory>,
    interrupt: Arc<Interrupt>,
    queue_events: Vec<Arc<EventFd>>,
    /// The rings as the driver sets them up; the device has its own copy once it is active.
    rings: Vec<Queue>,
    status: u32,
    active: bool,
    queue_select: u32,
    device_features_select: u32,
    driver_features_select: u32,
    driver_features: u64,
}

impl MmioTransport {
    /// Puts `device` behind a register block.
    pub fn new(
        device: Box<dyn VirtioDevice>,
        mem: Arc<GuestMemory>,
        interrupt: Arc<Interrupt>,
    ) -> Result<Self, TransportError> {
        let sizes = device.queue_sizes();
        let bad = || TransportError::Queues(sizes.to_vec());
        if sizes.len() > MAX_QUEUES {
            return Err(bad());
        }
        let rings = sizes
            .iter()
            .map(|size| Queue::new(*size).map_err(|_| bad()))
            .collect::<Result<Vec<_>, _>>()?;
        let queue_events = rings
            .iter()
            .map(|_| EventFd::new(EFD_NONBLOCK | EFD_CLOEXEC).map(Arc::new))
            .collect::<Result<_, _>>()
            .map_err(TransportError::EventFd)?;
        Ok(Self {
            device,
            mem,
            interrupt,
            queue_events,
            rings,
            status: 0,
            active: false,
            queue_select: 0,
            device_features_select: 0,
            driver_features_select: 0,
            driver_features: 0,
        })
    }

    /// An event for each queue. The machine wires it to writes of the queue's number to
    /// [`QUEUE_NOTIFY`], so that a notification does not leave the kernel.
    pub fn queue_events(&self) -> &[Arc<EventFd>] {
        &self.queue_events
    }

    /// The device's own event, see [`VirtioDevice::backend_event`].
    pub fn backend_event(&self) -> Option<BorrowedFd<'_>> {
        self.device.backend_event()
    }

    /// Lets the device process a queue.
    pub fn process_queue(&mut self, queue: usize) {
        self.device.process_queue(queue);
    }

    /// Lets the device process its backend's event.
    pub fn process_backend(&mut self) {
        self.device.process_backend();
    }

    /// Makes an active device look at all its queues, on the event loop's thread: after it was
    /// settled, or restored.
    pub fn kick(&self) {
        if self.active {
            for event in &self.queue_events {
                let _ = event.write(1);
            }
        }
    }

    /// Tells the driver that the configuration space has changed.
    pub fn config_changed(&self) {
        self.interrupt.config_changed();
    }

    /// The device, for what the machine changes at run time.
    pub fn device_mut(&mut self) -> &mut dyn VirtioDevice {
        self.device.as_mut()
    }

    fn offered_features(&self) -> u64 {
        self.device.features() | 1 << VIRTIO_F_VERSION_1
    }

    fn read_register(&self, offset: u32) -> u32 {
        match offset {
            VIRTIO_MMIO_MAGIC_VALUE => MAGIC,
            VIRTIO_MMIO_VERSION => VERSION,
            VIRTIO_MMIO_DEVICE_ID => self.device.device_type(),
            VIRTIO_MMIO_VENDOR_ID => VENDOR,
            VIRTIO_MMIO_DEVICE_FEATURES => match self.device_features_select {
                0 => self.offered_features() as u32,
                1 => (self.offered_features() >> 32) as u32,
                _ => 0,
            },
            VIRTIO_MMIO_QUEUE_NUM_MAX => {
                self.selected().map_or(0, |ring| u32::from(ring.max_size()))
            }
            VIRTIO_MMIO_QUEUE_READY => self.selected().map_or(0, |ring| u32::from(ring.ready())),
            VIRTIO_MMIO_INTERRUPT_STATUS => self.interrupt.causes(),
            VIRTIO_MMIO_STATUS => self.status(),
            // A length of all ones says that there is no such region (section 4.2.2).
            VIRTIO_MMIO_SHM_LEN_LOW | VIRTIO_MMIO_SHM_LEN_HIGH => u32::MAX,
            VIRTIO_MMIO_SHM_BASE_LOW | VIRTIO_MMIO_SHM_BASE_HIGH => u32::MAX,
            VIRTIO_MMIO_CONFIG_GENERATION => self.interrupt.config_generation(),
            _ => 0,
        }
    }

    fn write_register(&mut self, offset: u32, value: u32) {
        match offset {
            VIRTIO_MMIO_DEVICE_FEATURES_SEL => self.device_features_select = value,
            VIRTIO_MMIO_DRIVER_FEATURES_SEL => self.driver_features_select = value,
            VIRTIO_MMIO_DRIVER_FEATURES => self.set_driver_features(value),
            VIRTIO_MMIO_QUEUE_SEL => self.queue_select = value,
            // With an ioeventfd the write never comes here; without one it is the same event.
            VIRTIO_MMIO_QUEUE_NOTIFY => {
                if let Some(event) = self.queue_events.get(value as usize) {
                    let _ = event.write(1);
                }
            }
            VIRTIO_MMIO_INTERRUPT_ACK => self.interrupt.acknowledge(value),
            VIRTIO_MMIO_STATUS => self.set_status(value),
            _ => self.set_up_ring(offset, value),
        }
    }

    fn status(&self) -> u32 {
        match self.interrupt.is_reset_needed() {
            true => self.status | VIRTIO_CONFIG_S_NEEDS_RESET,
            false => self.status,
        }
    }

    fn selected(&self) -> Option<&Queue> {
        self.rings.get(self.queue_select as usize)
    }

    fn set_driver_features(&mut self, value: u32) {
        // Features are settled at FEATURES_OK (section 3.1.1).
        if self.status & VIRTIO_CONFIG_S_FEATURES_OK != 0 {
            return;
        }
        let (shift, keep) = match self.driver_features_select {
            0 => (0, !u64::from(u32::MAX)),
            1 => (32, u64::from(u32::MAX)),
            _ => return,
        };
        self.driver_features = self.driver_features & keep | u64::from(value) << shift;
    }

    fn set_up_ring(&mut self, offset: u32, value: u32) {
        // Rings are set up between FEATURES_OK and DRIVER_OK (section 3.1.1).
        let settled = VIRTIO_CONFIG_S_FEATURES_OK;
        let stage = self.status & (settled | VIRTIO_CONFIG_S_DRIVER_OK | VIRTIO_CONFIG_S_FAILED);
        if stage != settled {
            return;
        }
        let Some(ring) = self.rings.get_mut(self.queue_select as usize) else {
            return;
        };
        if ring.ready() && offset != VIRTIO_MMIO_QUEUE_READY {
            return;
        }
        match offset {
            // An impossible size leaves the old one, and the driver reads no size back: it would
            // then use a ring of another size than ours, which `pop` finds out safely.
            VIRTIO_MMIO_QUEUE_NUM => ring.set_size(u16::try_from(value).unwrap_or(0)),
            VIRTIO_MMIO_QUEUE_READY => ring.set_ready(value == 1),
            VIRTIO_MMIO_QUEUE_DESC_LOW => ring.set_desc_table_address(Some(value), None),
            VIRTIO_MMIO_QUEUE_DESC_HIGH => ring.set_desc_table_address(None, Some(value)),
            VIRTIO_MMIO_QUEUE_AVAIL_LOW => ring.set_avail_ring_address(Some(value), None),
            VIRTIO_MMIO_QUEUE_AVAIL_HIGH => ring.set_avail_ring_address(None, Some(value)),
            VIRTIO_MMIO_QUEUE_USED_LOW => ring.set_used_ring_address(Some(value), None),
            VIRTIO_MMIO_QUEUE_USED_HIGH => ring.set_used_ring_address(None, Some(value)),
            _ => {}
        }
    }

    /// Follows the driver through its initialization (section 3.1.1). A step out of order is
    /// ignored; the driver sees it when it reads the register back.
    fn set_status(&mut self, value: u32) {
        if value == 0 {
            return self.reset();
        }
        if self.status() & VIRTIO_CONFIG_S_NEEDS_RESET != 0 {
            return;
        }
        if value & VIRTIO_CONFIG_S_FAILED != 0 {
            self.status |= VIRTIO_CONFIG_S_FAILED;
            return;
        }
        const ACKNOWLEDGE: u32 = VIRTIO_CONFIG_S_ACKNOWLEDGE;
        const DRIVER: u32 = ACKNOWLEDGE | VIRTIO_CONFIG_S_DRIVER;
        const FEATURES_OK: u32 = DRIVER | VIRTIO_CONFIG_S_FEATURES_OK;
        const DRIVER_OK: u32 = FEATURES_OK | VIRTIO_CONFIG_S_DRIVER_OK;
        match (self.status, value) {
            (0, ACKNOWLEDGE) | (ACKNOWLEDGE, DRIVER) => self.status = value,
            (DRIVER, FEATURES_OK) if self.features_acceptable() => self.status = value,
            (FEATURES_OK, DRIVER_OK) => self.activate(),
            _ => {}
        }
    }

    fn features_acceptable(&self) -> bool {
        let unknown = self.driver_features & !self.offered_features();
        let modern = self.driver_features & 1 << VIRTIO_F_VERSION_1 != 0;
        unknown == 0 && modern
    }

    fn activate(&mut self) {
        let event_idx = self.driver_features & 1 << VIRTIO_RING_F_EVENT_IDX != 0;
        let mut queues = Vec::with_capacity(self.rings.len());
        for ring in &mut self.rings {
            if ring.ready() && !ring.is_valid(&*self.mem) {
                return self.interrupt.needs_reset();
            }
            ring.set_event_idx(event_idx);
            let copy = Queue::try_from(ring.state()).expect("a ring's own state is valid");
            queues.push(VirtQueue::new(
                copy,
                self.mem.clone(),
                self.interrupt.clone(),
            ));
        }
        let activation = Activation {
            mem: self.mem.clone(),
            queues,
            features: self.driver_features,
            interrupt: self.interrupt.clone(),
        };
        self.active = true;
        self.status |= VIRTIO_CONFIG_S_DRIVER_OK;
        if self.device.activate(activation).is_err() {
            self.interrupt.needs_reset();
        }
    }

    fn reset(&mut self) {
        if self.active {
            self.device.reset();
        }
        self.active = false;
        self.interrupt.clear();
        self.rings.iter_mut().for_each(QueueT::reset);
        self.status = 0;
        self.queue_select = 0;
        self.device_features_select = 0;
        self.driver_features_select = 0;
        self.driver_features = 0;
    }
}

/// The ring feature that replaces notification flags by indices (section 2.7.7).
pub const VIRTIO_RING_F_EVENT_IDX: u32 = virtio_bindings::virtio_ring::VIRTIO_RING_F_EVENT_IDX;

impl BusDeviceMut for MmioTransport {
    fn read(&mut self, offset: u64, data: &mut [u8]) {
        if offset >= u64::from(VIRTIO_MMIO_CONFIG) {
            self.device
                .read_config(offset - u64::from(VIRTIO_MMIO_CONFIG), data);
        } else if data.len() == 4 && offset.is_multiple_of(4) {
            // Registers are 32 bits wide and accessed so (section 4.2.2.2).
            data.copy_from_slice(&self.read_register(offset as u32).to_le_bytes());
        } else {
            data.fill(0);
        }
    }

    fn write(&mut self, offset: u64, data: &[u8]) {
        if offset >= u64::from(VIRTIO_MMIO_CONFIG) {
            self.device
                .write_config(offset - u64::from(VIRTIO_MMIO_CONFIG), data);
        } else if let Ok(value) = <[u8; 4]>::try_from(data)
            && offset.is_multiple_of(4)
        {
            self.write_register(offset as u32, u32::from_le_bytes(value));
        }
    }
}
