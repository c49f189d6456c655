//! What KVM keeps of a machine beside its vCPUs: interrupt controllers and the clock.

use kvm_bindings::{
    KVM_IRQCHIP_IOAPIC, KVM_IRQCHIP_PIC_MASTER, KVM_IRQCHIP_PIC_SLAVE, kvm_clock_data, kvm_irqchip,
};
use serde::{Deserialize, Serialize};
use tine_snapshot::section::State;

use super::{KvmError, Vm, failed};

/// The state of a machine's interrupt controllers and of its clock, in KVM's own structures.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct VmState {
    chips: Vec<kvm_irqchip>,
    /// The guest's monotonic time, in nanoseconds since it started.
    clock: u64,
}

impl State for VmState {
    const KIND: &'static str = "kvm-vm";
    const VERSION: u16 = 1;
}

const CHIPS: [u32; 3] = [
    KVM_IRQCHIP_PIC_MASTER,
    KVM_IRQCHIP_PIC_SLAVE,
    KVM_IRQCHIP_IOAPIC,
];

impl VmState {
    /// Reads the state; vCPUs stand still.
    pub fn save(vm: &Vm) -> Result<Self, KvmError> {
        let chips = CHIPS.into_iter().map(|chip_id| {
            let mut chip = kvm_irqchip {
                chip_id,
                ..Default::default()
            };
            vm.fd
                .get_irqchip(&mut chip)
                .map_err(failed("read an interrupt controller"))?;
            Ok(chip)
        });
        let chips = chips.collect::<Result<_, KvmError>>()?;
        let clock = vm.fd.get_clock().map_err(failed("read the clock"))?;
        Ok(Self {
            chips,
            clock: clock.clock,
        })
    }

    /// Gives the interrupt controllers to a machine that has been made of the same kind. The clock
    /// follows when it starts, see [`Self::start_clock`].
    pub fn restore(&self, vm: &Vm) -> Result<(), KvmError> {
        let known = self.chips.iter().map(|chip| chip.chip_id);
        if !known.eq(CHIPS) {
            return Err(KvmError::State(
                "the interrupt controllers are not the three of a machine".to_owned(),
            ));
        }
        for chip in &self.chips {
            vm.fd
                .set_irqchip(chip)
                .map_err(failed("set an interrupt controller"))?;
        }
        Ok(())
    }

    /// Lets the guest's monotonic time go on from where it stood, whatever time has passed outside:
    /// timers of its programs do not all fire at once. What day it is the agent is told.
    pub fn start_clock(&self, vm: &Vm) -> Result<(), KvmError> {
        let clock = kvm_clock_data {
            clock: self.clock,
            ..Default::default()
        };
        vm.fd.set_clock(&clock).map_err(failed("set the clock"))
    }
}
