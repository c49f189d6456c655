//! A machine: its parts, their threads, and their end.

mod assemble;
mod boot_timer;
mod capture;
mod disks;
mod drives;
mod event_loop;
mod fold;
mod generation;
mod many;
mod parts;
mod restore;

use std::io;
use std::path::PathBuf;
use std::sync::Mutex;

use tine_devices::bus::{BusError, lock};
use tine_devices::state::RestoreError;
use tine_devices::virtio::balloon::{BalloonError, BalloonHandle};
use tine_devices::virtio::block::BlockError;
use tine_devices::virtio::mmio::TransportError;
use tine_devices::virtio::net::{NetError, NetHandle};
use tine_devices::virtio::rng::RngError;
use tine_devices::virtio::vsock::{VsockError, VsockHandle};
use tine_snapshot::section::SectionError;
use vm_memory::{Bytes, GuestAddress};

use crate::arch::x86_64::acpi::TablesTooLarge;
use crate::boot::BootError;
use crate::boot::cmdline::CmdlineError;
use crate::config::{ConfigError, MachineConfig};
use crate::console::ConsoleTail;
use crate::kvm::{Host, KvmError, Vm, VmState};
use crate::logger::{self, Level};
use crate::memory::{MachineMemory, MemoryError};
use crate::vcpu::{VcpuThread, Wish};
pub use capture::{Capture, CaptureError};
pub use disks::{CapturedDisk, DriveFiles, Overlay, overlay_path};
use drives::Drive;
pub use drives::DriveError;
use event_loop::EventLoop;
pub use fold::{Fold, Folded, LAYERS, MOST_LAYERS};
use parts::Parts;

/// Virtio devices that every machine has: vsock and rng.
pub(crate) const BUILT_IN_DEVICES: usize = 2;

/// Why a machine could not be made.
#[derive(Debug, thiserror::Error)]
pub enum MachineError {
    /// The configuration is wrong.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// KVM refused.
    #[error(transparent)]
    Kvm(#[from] KvmError),
    /// More vCPUs than the host's KVM can do.
    #[error("a machine cannot have {wanted} vCPUs here: this host's KVM can do {most}")]
    Vcpus {
        /// How many were asked for.
        wanted: u8,
        /// How many can be had.
        most: usize,
    },
    /// Guest memory could not be made.
    #[error(transparent)]
    Memory(#[from] MemoryError),
    /// The kernel, initrd or command line cannot be booted.
    #[error(transparent)]
    Boot(#[from] BootError),
    /// The command line cannot be used.
    #[error(transparent)]
    Cmdline(#[from] CmdlineError),
    /// A drive cannot be used.
    #[error(transparent)]
    Block(#[from] BlockError),
    /// An interface cannot be used.
    #[error(transparent)]
    Net(#[from] NetError),
    /// The balloon cannot be made.
    #[error(transparent)]
    Balloon(#[from] BalloonError),
    /// The socket device cannot be made.
    #[error(transparent)]
    Vsock(#[from] VsockError),
    /// The entropy device cannot be made.
    #[error(transparent)]
    Rng(#[from] RngError),
    /// The console's file cannot be opened.
    #[error("cannot write the console to {}: {source}", path.display())]
    Console {
        /// The file.
        path: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
    /// A device's registers could not be made.
    #[error("cannot set a device up: {0}")]
    Transport(#[from] TransportError),
    /// Two devices claim one address.
    #[error("cannot place a device: {0}")]
    Bus(#[from] BusError),
    /// Too many devices for the ACPI tables.
    #[error(transparent)]
    Acpi(#[from] TablesTooLarge),
    /// A snapshot's section cannot be used.
    #[error(transparent)]
    Section(#[from] SectionError),
    /// A device cannot go on from its saved state.
    #[error(transparent)]
    Restore(#[from] RestoreError),
    /// The snapshot is of another machine than the configuration describes.
    #[error("the snapshot is of a machine with {saved}, the configuration says {wanted}")]
    Differs {
        /// What the snapshot has.
        saved: String,
        /// What the configuration says.
        wanted: String,
    },
    /// A thread or an event could not be made.
    #[error("cannot {action}: {source}")]
    Os {
        /// What was asked for.
        action: &'static str,
        /// What the kernel said.
        source: io::Error,
    },
}

/// One virtual machine, and the only owner of all its parts. Dropping it ends it: threads first,
/// then devices, KVM's machine and its memory.
pub struct Machine {
    vcpus: Vec<VcpuThread>,
    events: Option<EventLoop>,
    vsock: VsockHandle,
    console_tail: ConsoleTail,
    drives: Vec<Drive>,
    interfaces: Vec<(String, NetHandle)>,
    balloon: Option<BalloonHandle>,
    parts: Parts,
    memory: MachineMemory,
    config: MachineConfig,
    /// Where a restored guest's clock stands until it runs.
    clock: Mutex<Option<VmState>>,
    host: Host,
    vm: Vm,
}

impl Machine {
    /// Its memory.
    pub fn memory(&self) -> &MachineMemory {
        &self.memory
    }

    /// Lets the guest run.
    pub fn resume(&self) {
        if let Some(state) = lock(&self.clock).take()
            && let Err(err) = state.start_clock(&self.vm)
        {
            // The guest's time then begins anew, which its programs may find odd, and no more.
            logger::log(Level::Warning, err);
        }
        self.vcpus.iter().for_each(|vcpu| vcpu.tell(Wish::Run));
    }

    /// Takes all vCPUs out of guest code, and returns when they are.
    pub fn pause(&self) {
        self.vcpus.iter().for_each(|vcpu| vcpu.tell(Wish::Pause));
        self.vcpus.iter().for_each(VcpuThread::wait_still);
    }

    /// What it was made from.
    pub fn config(&self) -> &MachineConfig {
        &self.config
    }

    /// The 64-bit number at guest address `addr`; `None` where there is no memory.
    pub fn read_memory(&self, addr: u64) -> Option<u64> {
        self.memory.regions.read_obj(GuestAddress(addr)).ok()
    }

    /// The way to guest ports and from guest connections, inside this process.
    pub fn vsock(&self) -> &VsockHandle {
        &self.vsock
    }

    /// The network interfaces, by id.
    pub fn interfaces(&self) -> &[(String, NetHandle)] {
        &self.interfaces
    }

    /// The memory balloon.
    pub fn balloon(&self) -> Option<&BalloonHandle> {
        self.balloon.as_ref()
    }

    /// The last of what the guest wrote to its console.
    pub fn console_tail(&self) -> &ConsoleTail {
        &self.console_tail
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        self.vcpus.iter().for_each(|vcpu| vcpu.tell(Wish::Stop));
        self.vcpus.drain(..).for_each(VcpuThread::join);
        if let Some(events) = self.events.take() {
            events.stop();
        }
    }
}
