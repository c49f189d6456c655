//! Virtio devices over MMIO (Virtual I/O Device specification 1.2, sections 2 and 4.2).
//!
//! [`mmio::MmioTransport`] is the register block and the only owner of a device's life: it
//! negotiates, hands a [`Activation`] to the device when the driver is ready, and takes it back
//! on reset. A device processes its queues when told to by [`events::DeviceEvents`], on the
//! thread of the event loop; it never waits there for a slow file.

pub mod balloon;
pub mod block;
pub mod events;
pub mod interrupt;
pub mod mmio;
pub mod net;
pub mod queue;
pub mod rng;
pub mod vsock;

use std::any::Any;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

pub use interrupt::Interrupt;
pub use queue::{Chain, VirtQueue};

use crate::GuestMemory;

/// Largest number of queues that the transport serves for one device.
pub const MAX_QUEUES: usize = 16;

/// What a device gets when the driver has said DRIVER_OK.
pub struct Activation {
    /// Guest memory.
    pub mem: Arc<GuestMemory>,
    /// All the device's queues, in order; one that the driver did not set up never has a chain.
    pub queues: Vec<VirtQueue>,
    /// Features that both sides agreed on.
    pub features: u64,
    /// The device's interrupt, for configuration changes; queues carry it themselves.
    pub interrupt: Arc<Interrupt>,
}

/// Why a device could not start. The driver sees DEVICE_NEEDS_RESET.
#[derive(Debug, thiserror::Error)]
#[error("cannot start the device: {0}")]
pub struct ActivateError(pub String);

/// A virtio device behind a transport. Its own type can be asked for, by whoever changes a device
/// of a running machine.
pub trait VirtioDevice: Any + Send {
    /// The device type (specification section 5).
    fn device_type(&self) -> u32;

    /// The largest size of each queue, a power of two.
    fn queue_sizes(&self) -> &[u16];

    /// Features offered. The transport adds VIRTIO_F_VERSION_1.
    fn features(&self) -> u64;

    /// Fills `data` from the device's configuration space; bytes past its end read as zero.
    fn read_config(&self, offset: u64, data: &mut [u8]);

    /// Takes a write to the configuration space; most devices have nothing writable.
    fn write_config(&mut self, offset: u64, data: &[u8]);

    /// Starts the device.
    fn activate(&mut self, activation: Activation) -> Result<(), ActivateError>;

    /// Processes what the driver put into queue `index`. Called on the event loop's thread, also
    /// when there is nothing to do and when the device is not active.
    fn process_queue(&mut self, index: usize);

    /// A descriptor that becomes readable when the device's other side has work, if it has one.
    /// It stays the same for the device's life, and is quiet (not readable) while the device is
    /// not active.
    fn backend_event(&self) -> Option<BorrowedFd<'_>>;

    /// Does what [`Self::backend_event`] announced, and quiets it.
    fn process_backend(&mut self);

    /// Stops: no access to guest memory happens after the return, requests in flight included.
    /// The device can be activated again.
    fn reset(&mut self);
}

/// Copies the part of a configuration space that a read at `offset` covers; the rest is zero.
pub fn read_config_bytes(space: &[u8], offset: u64, data: &mut [u8]) {
    data.fill(0);
    let start = usize::try_from(offset)
        .unwrap_or(usize::MAX)
        .min(space.len());
    let len = data.len().min(space.len() - start);
    data[..len].copy_from_slice(&space[start..start + len]);
}
