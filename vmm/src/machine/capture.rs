//! Taking the state of a machine that stands still.

use std::sync::Arc;

use tine_devices::bus::lock;
use tine_snapshot::section::{Section, SectionError};

use super::disks::{self, CapturedDisk, Locked, Overlay};
use super::restore::{VM_SECTION, vcpu_section};
use super::{DriveError, Machine};
use crate::kvm::{KvmError, VmState};
use crate::memory::{Image, MemoryError, Moved};
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
    /// A disk cannot be frozen.
    #[error(transparent)]
    Disk(#[from] DriveError),
}

/// A machine at one moment: what another one can be made of.
#[derive(Debug, Clone)]
pub struct Capture {
    /// vCPUs, interrupt controllers, clock and devices.
    pub sections: Vec<Section>,
    /// Memory.
    pub memory: Image,
    /// Drives, if they were asked for.
    pub disks: Arc<Vec<CapturedDisk>>,
    /// Goes with the last copy: at leisure, after the machine stood still.
    _replaced: Arc<Vec<Moved>>,
}

impl Machine {
    /// Takes the state of this machine, which has been paused, without its disks. It can go on at
    /// once: what was taken does not change any more.
    pub fn capture(&self) -> Result<Capture, CaptureError> {
        self.take(|_| Ok(Vec::new()))
    }

    /// The same with its disks. Drives that can be written to go on in `overlays`, which
    /// [`Machine::new_overlays`] made; those that are not used are removed.
    pub fn capture_with(&self, overlays: Vec<Overlay>) -> Result<Capture, CaptureError> {
        let mut overlays = Some(overlays);
        let taken =
            self.take(|locked| self.freeze_disks(overlays.take().unwrap_or_default(), locked));
        disks::discard(overlays.unwrap_or_default());
        taken
    }

    /// The same with disks that stay where they are: the capture names their files, which have all
    /// that was written so far. The machine writes to them when it goes on.
    pub fn capture_beside_disks(&self) -> Result<Capture, CaptureError> {
        self.take(|locked| self.name_disks(locked))
    }

    /// Takes the disks alone of this machine, which has been paused.
    pub fn capture_disks(&self, overlays: Vec<Overlay>) -> Result<Vec<CapturedDisk>, CaptureError> {
        let mut overlays = Some(overlays);
        let taken = self.settled().and_then(|(_, mut locked)| {
            let overlays = overlays.take().unwrap_or_default();
            Ok(self.freeze_disks(overlays, &mut locked)?)
        });
        disks::discard(overlays.unwrap_or_default());
        taken
    }

    /// The virtio devices, settled and locked, and their state.
    fn settled(&self) -> Result<(Vec<Section>, Locked<'_>), CaptureError> {
        let mut sections = Vec::new();
        let mut locked = Vec::with_capacity(self.parts.virtio.len());
        for (name, transport) in &self.parts.virtio {
            let mut transport = lock(transport);
            sections.extend(transport.save(name)?);
            locked.push((name.as_str(), transport));
        }
        Ok((sections, locked))
    }

    /// `disks` is called when all the rest has been taken.
    fn take(
        &self,
        disks: impl FnOnce(&mut Locked<'_>) -> Result<Vec<CapturedDisk>, DriveError>,
    ) -> Result<Capture, CaptureError> {
        let mut sections = Vec::from(self.parts.save_legacy()?);
        // Locked until memory and disks are frozen: what devices do comes before all of it or after.
        let (devices, mut transports) = self.settled()?;
        sections.extend(devices);
        // After the devices, which may have interrupted.
        sections.push(Section::of(VM_SECTION, &VmState::save(&self.vm)?)?);
        let indices = self.host.msr_indices()?;
        for (index, vcpu) in (0..).zip(&self.vcpus) {
            let indices = indices.clone();
            let state = vcpu.with(move |vcpu| VcpuState::save(vcpu, &indices))??;
            sections.push(Section::of(vcpu_section(index), &state)?);
        }
        let memory = self.memory.freeze()?;
        let disks = disks(&mut transports)?;
        Ok(Capture {
            sections,
            memory,
            disks: Arc::new(disks),
            _replaced: Arc::new(self.memory.take_replaced()),
        })
    }
}
