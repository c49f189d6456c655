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
pub use queue::{Chain, QueuePlace, VirtQueue};
use tine_snapshot::section::{Section, SectionError};

use crate::GuestMemory;
use crate::state::RestoreError;

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

    /// Comes to rest: returns when no request is in flight, every chain that was taken is in its
    /// used ring or back in the available one, and the driver has been told. From then on guest
    /// memory is left alone, until the device is next told to process something; it must be told
    /// so ([`mmio::MmioTransport::kick`]), as it may have put back what nobody announces again.
    ///
    /// May wait for a drive's requests in flight, and for nothing else.
    fn settle(&mut self);

    /// Where the active, settled device is in its queues, in their order from the first on. Those
    /// at the end that it has no use for may be missing.
    fn queue_places(&self) -> Vec<QueuePlace>;

    /// The settled device's state, as the section `name`: all of it but the registers and the
    /// places in the queues, which the transport keeps. Changes nothing.
    fn save(&self, name: &str) -> Result<Section, SectionError>;

    /// Gives a fresh device the state that [`Self::save`] gave. `activation` is there if the
    /// device was active, with its queues where they were; it starts with it.
    ///
    /// Guest memory is not touched yet. What the device has to tell its driver of, because it is
    /// another one now, it does when it is next told to process a queue or its backend.
    fn restore(
        &mut self,
        section: &Section,
        activation: Option<Activation>,
    ) -> Result<(), RestoreError>;
}

/// Starts a device that is being restored, if it was active.
pub(crate) fn start_restored(
    device: &mut impl VirtioDevice,
    section: &Section,
    activation: Option<Activation>,
) -> Result<(), RestoreError> {
    activation.map_or(Ok(()), |activation| {
        let started = device.activate(activation);
        started.map_err(|error| RestoreError::activate(&section.name, error))
    })
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
