//! Device models: the buses they sit on, the legacy devices, and virtio over MMIO.
//!
//! Nothing here opens `/dev/kvm` or knows of a machine. A device is driven through three small
//! seams, and a test can stand on the other side of each without KVM:
//!
//! * [`bus::BusDevice`]: register reads and writes, as a vCPU makes them;
//! * [`irq::IrqLine`]: the interrupt line towards the guest;
//! * [`virtio::VirtioDevice`]: what a virtio device offers to the MMIO transport.
//!
//! A device's state is saved and restored as sections of a snapshot ([`state`]).
//!
//! Everything that comes from a guest (addresses, lengths, indices, the order of register writes)
//! is untrusted: it may be refused or ignored, and never panics or allocates without a bound.

pub mod bus;
pub mod irq;
pub mod legacy;
pub mod mmds;
pub mod rate;
pub mod state;
pub mod virtio;

#[cfg(any(test, feature = "testing"))]
pub mod testing;

/// Guest memory as all devices see it: mapped regions, no dirty tracking.
pub type GuestMemory = vm_memory::GuestMemoryMmap<()>;
