//! What KVM keeps of a vCPU: read and written as a whole, in the order that KVM needs.

use std::sync::OnceLock;

use kvm_bindings::{
    CpuId, Msrs, kvm_cpuid_entry2, kvm_debugregs, kvm_lapic_state, kvm_mp_state, kvm_msr_entry,
    kvm_regs, kvm_sregs, kvm_vcpu_events, kvm_xcrs, kvm_xsave,
};
use kvm_ioctls::VcpuFd;
use serde::{Deserialize, Serialize};
use tine_snapshot::section::State;

use super::emulate::raw::set_xsave;
use crate::kvm::{KvmError, failed};

/// The deadline timer: to be set after the local APIC, which says whether it is in use, and after
/// the time stamp counter, which says when.
const MSR_TSC_DEADLINE: u32 = 0x6e0;
const MSR_TSC: u32 = 0x10;

/// A vCPU's state, in KVM's own structures.
#[derive(Debug, Serialize, Deserialize)]
pub struct VcpuState {
    /// What CPUID tells the guest.
    pub cpuid: Vec<kvm_cpuid_entry2>,
    mp_state: kvm_mp_state,
    regs: kvm_regs,
    sregs: kvm_sregs,
    xsave: Box<kvm_xsave>,
    xcrs: kvm_xcrs,
    debugregs: kvm_debugregs,
    lapic: Box<kvm_lapic_state>,
    msrs: Vec<kvm_msr_entry>,
    events: kvm_vcpu_events,
    /// Frequency of the time stamp counter, where KVM tells it.
    pub tsc_khz: Option<u32>,
}

impl State for VcpuState {
    const KIND: &'static str = "kvm-vcpu";
    const VERSION: u16 = 1;
}

impl VcpuState {
    /// Reads the state of a vCPU that is out of guest code, with no access of its guest half done.
    /// `indices` are the model-specific registers to keep.
    pub fn save(vcpu: &VcpuFd, indices: &[u32]) -> Result<Self, KvmError> {
        let cpuid = vcpu
            .get_cpuid2(kvm_bindings::KVM_MAX_CPUID_ENTRIES)
            .map_err(failed("read the CPU features"))?;
        // The first, since KVM brings pending events in order for it.
        let mp_state = vcpu
            .get_mp_state()
            .map_err(failed("read a vCPU's run state"))?;
        Ok(Self {
            cpuid: cpuid.as_slice().to_vec(),
            mp_state,
            regs: vcpu.get_regs().map_err(failed("read the registers"))?,
            sregs: vcpu
                .get_sregs()
                .map_err(failed("read the system registers"))?,
            xsave: Box::new(
                vcpu.get_xsave()
                    .map_err(failed("read the extended registers"))?,
            ),
            xcrs: vcpu
                .get_xcrs()
                .map_err(failed("read the extended control registers"))?,
            debugregs: vcpu
                .get_debug_regs()
                .map_err(failed("read the debug registers"))?,
            lapic: Box::new(vcpu.get_lapic().map_err(failed("read the local APIC"))?),
            msrs: read_msrs(vcpu, indices)?,
            events: vcpu
                .get_vcpu_events()
                .map_err(failed("read pending events"))?,
            tsc_khz: vcpu.get_tsc_khz().ok(),
        })
    }

    /// Gives the state to a vCPU that has just been made. The state may say anything: KVM checks
    /// what it takes. What such a vCPU has anyway is not set: each call loads the vCPU, which reads a
    /// register that a host which is a virtual machine itself has to be left for (11 us).
    pub fn restore(&self, vcpu: &VcpuFd) -> Result<(), KvmError> {
        self.restore_frequency(vcpu)?;
        let cpuid = CpuId::from_entries(&self.cpuid)
            .map_err(|_| KvmError::State("more CPU features than KVM takes".to_owned()))?;
        vcpu.set_cpuid2(&cpuid)
            .map_err(failed("set the CPU features"))?;
        vcpu.set_mp_state(self.mp_state)
            .map_err(failed("set a vCPU's run state"))?;
        // The kernel checks the APIC base against the features, and everything else against
        // the system registers.
        vcpu.set_sregs(&self.sregs)
            .map_err(failed("set the system registers"))?;
        vcpu.set_regs(&self.regs)
            .map_err(failed("set the registers"))?;
        if !is_reset_xcrs(&self.xcrs) {
            vcpu.set_xcrs(&self.xcrs)
                .map_err(failed("set the extended control registers"))?;
        }
        set_xsave(vcpu, &self.xsave).map_err(failed("set the extended registers"))?;
        if self.debugregs != RESET_DEBUGREGS {
            vcpu.set_debug_regs(&self.debugregs)
                .map_err(failed("set the debug registers"))?;
        }
        vcpu.set_lapic(&self.lapic)
            .map_err(failed("set the local APIC"))?;
        write_msrs(vcpu, &self.msrs)?;
        match is_no_event(&self.events) {
            true => Ok(()),
            false => vcpu
                .set_vcpu_events(&self.events)
                .map_err(failed("set pending events")),
        }
    }

    /// A counter of another frequency has to be scaled, where the host can do it.
    fn restore_frequency(&self, vcpu: &VcpuFd) -> Result<(), KvmError> {
        let Some(wanted) = self.tsc_khz else {
            return Ok(());
        };
        // That of a vCPU that has just been made is the host's, and stays so.
        static HERE: OnceLock<Option<u32>> = OnceLock::new();
        match HERE.get_or_init(|| vcpu.get_tsc_khz().ok()) {
            // KVM itself takes the difference of one part in 4000 for none (tsc_tolerance_ppm).
            Some(here) if here.abs_diff(wanted) <= wanted / 4000 => Ok(()),
            _ => vcpu.set_tsc_khz(wanted).map_err(failed(
                "give the guest a time stamp counter of another frequency",
            )),
        }
    }
}

/// The debug registers of a vCPU that has just been made (Intel SDM volume 3, "Processor State After
/// Reset": DR6 and DR7 are not zero).
const RESET_DEBUGREGS: kvm_debugregs = kvm_debugregs {
    db: [0; 4],
    dr6: 0xffff_0ff0,
    dr7: 0x400,
    flags: 0,
    reserved: [0; 9],
};

/// XCR0 alone, with the x87 registers alone, as after a reset (Intel SDM volume 1, section 13.3).
fn is_reset_xcrs(xcrs: &kvm_xcrs) -> bool {
    let [first, ..] = xcrs.xcrs;
    xcrs.nr_xcrs == 1 && xcrs.flags == 0 && (first.xcr, first.value) == (0, 1)
}

/// Whether these say nothing but which of their fields count.
fn is_no_event(events: &kvm_vcpu_events) -> bool {
    let counting = kvm_vcpu_events {
        flags: events.flags,
        ..Default::default()
    };
    *events == counting
}

/// Reads what can be read of `indices`: KVM names registers that it does not have on every host.
fn read_msrs(vcpu: &VcpuFd, indices: &[u32]) -> Result<Vec<kvm_msr_entry>, KvmError> {
    let mut kept = Vec::with_capacity(indices.len());
    let mut rest: Vec<kvm_msr_entry> = indices
        .iter()
        .map(|&index| kvm_msr_entry {
            index,
            ..Default::default()
        })
        .collect();
    while !rest.is_empty() {
        let part = &rest[..rest.len().min(kvm_bindings::KVM_MAX_MSR_ENTRIES)];
        let mut msrs = Msrs::from_entries(part).expect("no more than fit");
        let read = vcpu
            .get_msrs(&mut msrs)
            .map_err(failed("read the model-specific registers"))?;
        kept.extend_from_slice(&msrs.as_slice()[..read.min(part.len())]);
        // It stops before the one that it cannot read.
        let gone = match read < part.len() {
            true => read + 1,
            false => read,
        };
        rest.drain(..gone);
    }
    kept.sort_by_key(|entry| match entry.index {
        MSR_TSC => 1,
        MSR_TSC_DEADLINE => 2,
        _ => 0,
    });
    Ok(kept)
}

fn write_msrs(vcpu: &VcpuFd, entries: &[kvm_msr_entry]) -> Result<(), KvmError> {
    for part in entries.chunks(kvm_bindings::KVM_MAX_MSR_ENTRIES) {
        let msrs = Msrs::from_entries(part).expect("no more than fit");
        let written = vcpu
            .set_msrs(&msrs)
            .map_err(failed("set the model-specific registers"))?;
        if let Some(refused) = part.get(written) {
            return Err(KvmError::State(format!(
                "this host's KVM does not take the value {:#x} for the model-specific register {:#x}",
                refused.data, refused.index
            )));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_new_vcpu_has_what_is_not_set() {
        let kvm = kvm_ioctls::Kvm::new().expect("the tests need a usable /dev/kvm");
        let vm = kvm.create_vm().unwrap();
        vm.create_irq_chip().unwrap();
        let vcpu = vm.create_vcpu(0).unwrap();
        assert_eq!(vcpu.get_debug_regs().unwrap(), RESET_DEBUGREGS);
        assert!(is_reset_xcrs(&vcpu.get_xcrs().unwrap()));
        assert!(is_no_event(&vcpu.get_vcpu_events().unwrap()));
    }

    #[test]
    fn what_differs_is_set() {
        let mut events = kvm_vcpu_events {
            flags: 13,
            ..Default::default()
        };
        assert!(is_no_event(&events));
        events.nmi.masked = 1;
        assert!(!is_no_event(&events));
        let mut xcrs = kvm_xcrs::default();
        assert!(!is_reset_xcrs(&xcrs));
        xcrs.nr_xcrs = 1;
        xcrs.xcrs[0].value = 1;
        assert!(is_reset_xcrs(&xcrs));
        xcrs.xcrs[0].value = 7;
        assert!(!is_reset_xcrs(&xcrs));
    }
}
