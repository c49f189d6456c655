//! KVM's virtual machine: creation, memory slots, interrupt and notification wiring.

mod state;

use std::io;
use std::os::fd::AsRawFd;
use std::sync::Arc;

use kvm_bindings::{CpuId, KVM_API_VERSION, KVM_MAX_CPUID_ENTRIES, kvm_userspace_memory_region};
use kvm_ioctls::{Cap, IoEventAddress, Kvm, VcpuFd, VmFd};
use vm_memory::{GuestMemoryBackend, GuestMemoryRegion};
use vmm_sys_util::eventfd::{EFD_CLOEXEC, EFD_NONBLOCK, EventFd};

use crate::layout;
use crate::memory::MachineMemory;
pub use state::VmState;

/// What KVM refused.
#[derive(Debug, thiserror::Error)]
pub enum KvmError {
    /// `/dev/kvm` is not there.
    #[error("/dev/kvm does not exist: load the kvm module, or enable (nested) virtualization")]
    Missing,
    /// `/dev/kvm` may not be opened.
    #[error("no permission to use /dev/kvm: run as root or as a member of its group (kvm)")]
    Permission,
    /// `/dev/kvm` cannot be opened for another reason.
    #[error("cannot open /dev/kvm: {0}")]
    Open(#[source] io::Error),
    /// Another API version than the stable one.
    #[error("/dev/kvm speaks API version {0}, not {KVM_API_VERSION}")]
    Version(i32),
    /// A capability is missing.
    #[error("the host's KVM lacks {0:?}")]
    Capability(Cap),
    /// A call failed.
    #[error("KVM cannot {action}: {source}")]
    Call {
        /// What was asked for.
        action: &'static str,
        /// What the kernel said.
        source: io::Error,
    },
    /// A saved state that a machine cannot go on from here.
    #[error("the saved state cannot be used: {0}")]
    State(String),
}

/// Names a failed call.
pub(crate) fn failed<E: Into<io::Error>>(action: &'static str) -> impl FnOnce(E) -> KvmError {
    move |source| KvmError::Call {
        action,
        source: source.into(),
    }
}

/// What a machine cannot do without.
const REQUIRED: [Cap; 7] = [
    Cap::Irqchip,
    Cap::Ioeventfd,
    Cap::Irqfd,
    Cap::UserMemory,
    Cap::ImmediateExit,
    Cap::SyncRegs,
    Cap::TscDeadlineTimer,
];

/// An open `/dev/kvm`; clones are the same one.
#[derive(Clone)]
pub struct Host {
    kvm: Arc<Kvm>,
}

impl Host {
    /// Opens `/dev/kvm` and checks that it has what a machine needs.
    pub fn open() -> Result<Self, KvmError> {
        let kvm = Kvm::new().map_err(|err| match err.errno() {
            libc::ENOENT => KvmError::Missing,
            libc::EACCES | libc::EPERM => KvmError::Permission,
            _ => KvmError::Open(err.into()),
        })?;
        match kvm.get_api_version() {
            version if version == KVM_API_VERSION as i32 => {}
            version => return Err(KvmError::Version(version)),
        }
        match REQUIRED.into_iter().find(|cap| !kvm.check_extension(*cap)) {
            None => Ok(Self { kvm: Arc::new(kvm) }),
            Some(missing) => Err(KvmError::Capability(missing)),
        }
    }

    /// The most vCPUs that a machine can have here.
    pub fn max_vcpus(&self) -> usize {
        self.kvm.get_max_vcpus()
    }

    /// The CPU features that this KVM can show to a guest. Takes KVM a good part of a
    /// millisecond: ask once.
    pub fn supported_cpuid(&self) -> Result<CpuId, KvmError> {
        self.kvm
            .get_supported_cpuid(KVM_MAX_CPUID_ENTRIES)
            .map_err(failed("tell the supported CPU features"))
    }

    /// The model-specific registers that this KVM keeps for a guest.
    pub fn msr_indices(&self) -> Result<Vec<u32>, KvmError> {
        let list = self.kvm.get_msr_index_list();
        let list = list.map_err(failed("list the model-specific registers"))?;
        Ok(list.as_slice().to_vec())
    }

    /// A virtual machine without anything.
    ///
    /// To make one, KVM has the kernel lock each mapping of this process: a microsecond for three of them
    /// or four, and a machine has some ten.
    pub fn create_vm(&self) -> Result<EmptyVm, KvmError> {
        loop {
            match self.kvm.create_vm() {
                Ok(fd) => {
                    let host = self.clone();
                    break Ok(EmptyVm { host, fd });
                }
                // Creation can be interrupted by a signal and is then simply repeated.
                Err(err) if err.errno() == libc::EINTR => {}
                Err(err) => break Err(failed("create a virtual machine")(err)),
            }
        }
    }
}

/// A virtual machine that has neither memory nor devices yet.
pub struct EmptyVm {
    host: Host,
    fd: VmFd,
}

impl EmptyVm {
    /// Where it was made.
    pub fn host(&self) -> &Host {
        &self.host
    }

    /// Gives it `memory`, and interrupt controllers, and nothing else.
    ///
    /// There is no interval timer (PIT): the local APIC's deadline timer and kvm-clock do its
    /// work, and KVM takes many milliseconds to free one when the machine ends.
    ///
    /// Memory comes first: KVM waits for readers of the slots when they change, which costs
    /// milliseconds once an interrupt controller and vCPUs are there, and nothing before.
    pub fn with_memory(self, memory: &MachineMemory) -> Result<Vm, KvmError> {
        let fd = self.fd;
        add_memory(&fd, memory)?;
        fd.set_tss_address(layout::KVM_TSS as usize)
            .map_err(failed("set the TSS address"))?;
        fd.create_irq_chip()
            .map_err(failed("create the interrupt controllers"))?;
        Ok(Vm {
            fd,
            _memory: memory.clone(),
        })
    }
}

/// Shows `memory` to the guest.
fn add_memory(vm: &VmFd, memory: &MachineMemory) -> Result<(), KvmError> {
    for (slot, region) in memory.regions.iter().enumerate() {
        let region = kvm_userspace_memory_region {
            slot: slot as u32,
            flags: 0,
            guest_phys_addr: region.start_addr().0,
            memory_size: region.len(),
            userspace_addr: region.as_ptr() as u64,
        };
        // SAFETY: the range is a mapping of its own, which the `Vm` made of it keeps alive, and
        // slots do not overlap since the regions do not.
        unsafe { vm.set_user_memory_region(region) }.map_err(failed("add guest memory"))?;
    }
    Ok(())
}

/// A virtual machine.
pub struct Vm {
    fd: VmFd,
    /// KVM uses the mappings for as long as the descriptor is open, so they are dropped after it.
    _memory: MachineMemory,
}

impl Vm {
    /// An edge-triggered interrupt line on `gsi`.
    pub fn irq_line(&self, gsi: u32) -> Result<Arc<EventFd>, KvmError> {
        let event = EventFd::new(EFD_NONBLOCK | EFD_CLOEXEC).map_err(failed("get an eventfd"))?;
        self.fd
            .register_irqfd(&event, gsi)
            .map_err(failed("register an irqfd"))?;
        Ok(Arc::new(event))
    }

    /// One interrupt on `gsi`, now. An irqfd for it alone would cost a tenth of a millisecond, and
    /// now and then some: closing it makes KVM wait for work of its own.
    pub fn pulse(&self, gsi: u32) -> Result<(), KvmError> {
        for level in [true, false] {
            self.fd
                .set_irq_line(gsi, level)
                .map_err(failed("interrupt the guest"))?;
        }
        Ok(())
    }

    /// Turns writes of the 32-bit number `value` to guest address `addr` into `event`.
    pub fn notify_on_write(&self, event: &EventFd, addr: u64, value: u32) -> Result<(), KvmError> {
        self.fd
            .register_ioevent(event, &IoEventAddress::Mmio(addr), value)
            .map_err(failed("register an ioeventfd"))
    }

    /// vCPU number `index`.
    pub fn create_vcpu(&self, index: u8) -> Result<VcpuFd, KvmError> {
        self.fd
            .create_vcpu(u64::from(index))
            .map_err(failed("create a vCPU"))
    }

    /// The descriptor, for what restricts system calls to it.
    pub fn raw_fd(&self) -> std::os::fd::RawFd {
        self.fd.as_raw_fd()
    }
}
