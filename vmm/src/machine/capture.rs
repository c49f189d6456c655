//! Taking the state of a machine that stands still.

use tine_devices::bus::lock;
use tine_snapshot::section::{Section, SectionError};

use super::Machine;
use super::restore::{VM_SECTION, vcpu_section};
use crate::kvm::{KvmError, VmState};
use crate::memory::{Image, MemoryError};
use crate::vcpu::Gone;
use crate::vcpu::state::VcpuState;

/// Why a machine's state could not be taken. The machine goes on as it was.
#[derive(Debug, thiserror::Error)]
pub enum CaptureError {
    /// KVM does not tell its part.
    #[error(transparent)]
    Kvm(#[from] KvmError),
    /// A vCPU has ended.
    #[error(transparent)]
    Vcpu(#[from] Gone),
    /// A part's state cannot be encoded.
    #[error(transparent)]
    Section(#[from] SectionError),
    /// Memory cannot be frozen.
    #[error(transparent)]
    Memory(#[from] MemoryError),
}

/// A machine at one moment: what another one can be made of.
#[derive(Debug, Clone)]
pub struct Capture {
    /// vCPUs, interrupt controllers, clock and devices.
    pub sections: Vec<Section>,
    /// Memory.
    pub memory: Image,
}

impl Machine {
    /// Takes the state of this machine, which has been paused. It can go on at once: what was taken
    /// does not change any more.
    pub fn capture(&self) -> Result<Capture, CaptureError> {
        let mut sections = Vec::from(self.parts.save_legacy()?);
        // Locked until memory is frozen: what devices do comes before all of it or after.
        let mut transports = Vec::with_capacity(self.parts.virtio.len());
        for (name, transport) in &self.parts.virtio {
            let mut transport = lock(transport);
            sections.extend(transport.save(name)?);
            transports.push(transport);
        }
        // After the devices, which may have interrupted.
        sections.push(Section::of(VM_SECTION, &VmState::save(&self.vm)?)?);
        let indices = self.host.msr_indices()?;
        for (index, vcpu) in (0..).zip(&self.vcpus) {
            let indices = indices.clone();
            let state = vcpu.with(move |vcpu| VcpuState::save(vcpu, &indices))??;
            sections.push(Section::of(vcpu_section(index), &state)?);
        }
        let memory = self.memory.freeze()?;
        drop(transports);
        Ok(Capture { sections, memory })
    }
}
