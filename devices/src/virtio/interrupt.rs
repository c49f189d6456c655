//! A virtio device's interrupt: the cause register beside the line.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use virtio_bindings::virtio_mmio::{VIRTIO_MMIO_INT_CONFIG, VIRTIO_MMIO_INT_VRING};

use crate::irq::IrqLine;

/// Why a device interrupts, and the line that it does it by. Shared between the device's queues
/// and its transport, where the guest reads and acknowledges the causes.
pub struct Interrupt {
    causes: AtomicU32,
    needs_reset: AtomicBool,
    config_generation: AtomicU32,
    line: Arc<dyn IrqLine>,
}

impl Interrupt {
    /// An idle interrupt on `line`.
    pub fn new(line: Arc<dyn IrqLine>) -> Self {
        Self {
            causes: AtomicU32::new(0),
            needs_reset: AtomicBool::new(false),
            config_generation: AtomicU32::new(0),
            line,
        }
    }

    /// Tells the driver that a queue has used buffers.
    pub fn used_buffers(&self) {
        self.raise(VIRTIO_MMIO_INT_VRING);
    }

    /// Tells the driver that the configuration space changed.
    pub fn config_changed(&self) {
        self.config_generation.fetch_add(1, Ordering::SeqCst);
        self.raise(VIRTIO_MMIO_INT_CONFIG);
    }

    /// Tells the driver that the device cannot go on until it is reset (DEVICE_NEEDS_RESET).
    pub fn needs_reset(&self) {
        self.needs_reset.store(true, Ordering::SeqCst);
        self.config_changed();
    }

    /// Whether the device asked for a reset.
    pub fn is_reset_needed(&self) -> bool {
        self.needs_reset.load(Ordering::SeqCst)
    }

    /// How often the configuration space changed (the ConfigGeneration register): a driver that
    /// reads several fields compares it before and after.
    pub fn config_generation(&self) -> u32 {
        self.config_generation.load(Ordering::SeqCst)
    }

    /// Causes not yet acknowledged (the InterruptStatus register).
    pub fn causes(&self) -> u32 {
        self.causes.load(Ordering::SeqCst)
    }

    /// Acknowledges `causes` (the InterruptACK register).
    pub fn acknowledge(&self, causes: u32) {
        self.causes.fetch_and(!causes, Ordering::SeqCst);
    }

    /// Forgets everything, at a device reset.
    pub fn clear(&self) {
        self.causes.store(0, Ordering::SeqCst);
        self.needs_reset.store(false, Ordering::SeqCst);
    }

    /// Takes over what was saved of another one.
    pub(super) fn restore(&self, causes: u32, needs_reset: bool, config_generation: u32) {
        self.causes.store(causes, Ordering::SeqCst);
        self.needs_reset.store(needs_reset, Ordering::SeqCst);
        self.config_generation
            .store(config_generation, Ordering::SeqCst);
    }

    /// Raises the line if there is a cause that was not acknowledged. One interrupt too many does
    /// no harm, one that got lost stops the driver.
    pub(super) fn raise_again(&self) {
        if self.causes() != 0 {
            self.line.raise();
        }
    }

    fn raise(&self, cause: u32) {
        self.causes.fetch_or(cause, Ordering::SeqCst);
        self.line.raise();
    }
}
