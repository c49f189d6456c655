//! Exceptions that an emulated instruction raises instead of doing its work.

use kvm_bindings::{kvm_regs, kvm_sregs};
use kvm_ioctls::VcpuFd;

/// An exception, with what its handler is told (Intel SDM volume 3, 6.15).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exception {
    /// #BP. A trap: RIP is behind the instruction.
    Breakpoint,
    /// #UD
    InvalidOpcode,
    /// #NM
    DeviceNotAvailable,
    /// #SS(0)
    Stack,
    /// #GP(0)
    GeneralProtection,
    /// #PF
    Page { address: u64, code: u32 },
    /// #MF
    FloatingPoint,
}

impl Exception {
    fn vector(self) -> u8 {
        match self {
            Exception::Breakpoint => 3,
            Exception::InvalidOpcode => 6,
            Exception::DeviceNotAvailable => 7,
            Exception::Stack => 12,
            Exception::GeneralProtection => 13,
            Exception::Page { .. } => 14,
            Exception::FloatingPoint => 16,
        }
    }

    fn error_code(self) -> Option<u32> {
        match self {
            Exception::Stack | Exception::GeneralProtection => Some(0),
            Exception::Page { code, .. } => Some(code),
            _ => None,
        }
    }

    /// Has `vcpu` take the exception at `regs` before it runs on.
    pub fn raise(
        self,
        vcpu: &VcpuFd,
        regs: &kvm_regs,
        sregs: &kvm_sregs,
    ) -> Result<(), kvm_ioctls::Error> {
        if let Exception::Page { address, .. } = self {
            let mut sregs = *sregs;
            sregs.cr2 = address;
            vcpu.set_sregs(&sregs)?;
        }
        vcpu.set_regs(regs)?;
        let mut events = vcpu.get_vcpu_events()?;
        events.exception.injected = 1;
        events.exception.pending = 0;
        events.exception.nr = self.vector();
        events.exception.has_error_code = self.error_code().is_some().into();
        events.exception.error_code = self.error_code().unwrap_or(0);
        vcpu.set_vcpu_events(&events)
    }
}
