//! Giving the parts of a machine under construction the state that another one had.

use kvm_ioctls::VcpuFd;
use tine_devices::state::find;
use tine_snapshot::section::Section;

use super::MachineError;
use crate::config::MachineConfig;
use crate::kvm::{Vm, VmState};
use crate::memory::Initial;
use crate::vcpu::state::VcpuState;

/// The name of vCPU `index`'s section.
pub(super) fn vcpu_section(index: u8) -> String {
    format!("vcpu{index}")
}

/// The name of the machine's own section.
pub(super) const VM_SECTION: &str = "vm";

/// The memory has to be of the size that the machine is configured with.
pub(super) fn check_memory(config: &MachineConfig, memory: &Initial) -> Result<(), MachineError> {
    match memory.size() == config.memory {
        true => Ok(()),
        false => Err(MachineError::Differs {
            saved: format!("{} bytes of memory", memory.size()),
            wanted: format!("{} bytes", config.memory),
        }),
    }
}

/// Makes the vCPUs and gives them and the interrupt controllers their state. The clock's is for
/// the moment when the guest runs.
pub(super) fn vcpus(
    vm: &Vm,
    count: u8,
    sections: &[Section],
) -> Result<(Vec<VcpuFd>, VmState), MachineError> {
    let saved = sections
        .iter()
        .filter(|section| section.name.starts_with("vcpu"));
    let saved = saved.count();
    if saved != usize::from(count) {
        return Err(MachineError::Differs {
            saved: format!("{saved} vCPUs"),
            wanted: format!("{count}"),
        });
    }
    let state: VmState = find(sections, VM_SECTION)?.decode()?;
    // All of them before the first is given its state: a local APIC is known to the others.
    let vcpus = (0..count).map(|index| vm.create_vcpu(index));
    let vcpus = vcpus.collect::<Result<Vec<_>, _>>()?;
    for (index, vcpu) in (0..).zip(&vcpus) {
        let section = find(sections, &vcpu_section(index))?;
        section.decode::<VcpuState>()?.restore(vcpu)?;
    }
    state.restore(vm)?;
    Ok((vcpus, state))
}
