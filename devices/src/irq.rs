//! Interrupt lines, seen from a device.

use vmm_sys_util::eventfd::EventFd;

/// An edge-triggered interrupt line: each call makes one interrupt pending in the guest.
pub trait IrqLine: Send + Sync {
    /// Makes the interrupt pending. Raising it again before the guest has taken it has no effect.
    fn raise(&self);
}

/// The write end of an irqfd: KVM injects the interrupt in the kernel.
impl IrqLine for EventFd {
    fn raise(&self) {
        // A write fails only when the counter is at its maximum, and then the line is pending
        // already, which is all that this call promises.
        let _ = self.write(1);
    }
}

/// A line that goes nowhere, for a device that works without interrupts.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoIrq;

impl IrqLine for NoIrq {
    fn raise(&self) {}
}
