//! KVM's exits, as what they mean for a machine. The only file that knows KVM's list of them.

use std::ptr::NonNull;
use std::sync::atomic::{AtomicU8, Ordering};

use kvm_bindings::{
    KVM_INTERNAL_ERROR_EMULATION, KVM_SYSTEM_EVENT_CRASH, KVM_SYSTEM_EVENT_RESET,
    KVM_SYSTEM_EVENT_SHUTDOWN,
};
use kvm_ioctls::{VcpuExit, VcpuFd};

use super::emulate::Emulator;
use super::{Buses, Ending};

/// What came of running guest code once.
pub(super) enum Outcome {
    /// An access to a device, which has been served.
    Handled,
    /// The thread was signalled, or asked to leave guest code.
    Interrupted,
    /// The guest is at its end.
    Ended(Ending),
}

/// Runs guest code until it leaves it, and serves the access that it left for. With an
/// `emulator`, an instruction that KVM does not know is no end yet.
pub(super) fn run(vcpu: &mut VcpuFd, buses: &Buses, emulator: Option<&Emulator>) -> Outcome {
    match vcpu.run() {
        Ok(VcpuExit::IoOut(port, data)) => {
            buses.ports.write(u64::from(port), data);
            Outcome::Handled
        }
        Ok(VcpuExit::IoIn(port, data)) => {
            buses.ports.read(u64::from(port), data);
            Outcome::Handled
        }
        Ok(VcpuExit::MmioWrite(addr, data)) => {
            buses.mmio.write(addr, data);
            Outcome::Handled
        }
        Ok(VcpuExit::MmioRead(addr, data)) => {
            buses.mmio.read(addr, data);
            Outcome::Handled
        }
        Ok(VcpuExit::Intr | VcpuExit::IrqWindowOpen | VcpuExit::SetTpr) => Outcome::Interrupted,
        Ok(VcpuExit::Shutdown) => Outcome::Ended(Ending::TripleFault),
        Ok(VcpuExit::SystemEvent(kind, _)) => Outcome::Ended(match kind {
            KVM_SYSTEM_EVENT_SHUTDOWN => Ending::PowerOff,
            KVM_SYSTEM_EVENT_RESET => Ending::Reset,
            KVM_SYSTEM_EVENT_CRASH => Ending::Failed("the guest reported a crash".to_owned()),
            other => Ending::Failed(format!("the guest ended with system event {other}")),
        }),
        Ok(VcpuExit::FailEntry(reason, _)) => Outcome::Ended(Ending::Failed(format!(
            "the processor refused to enter the guest (reason {reason:#x})"
        ))),
        Ok(VcpuExit::InternalError) => internal_error(vcpu, emulator),
        Ok(other) => {
            let reason = format!("KVM ended the guest's run in a way not known here: {other:?}");
            Outcome::Ended(Ending::Failed(reason))
        }
        Err(err) if matches!(err.errno(), libc::EINTR | libc::EAGAIN) => Outcome::Interrupted,
        Err(err) => Outcome::Ended(Ending::Failed(format!("KVM cannot run the guest: {err}"))),
    }
}

/// What KVM could not do: an instruction that we can, or the end, with what and where in words.
fn internal_error(vcpu: &mut VcpuFd, emulator: Option<&Emulator>) -> Outcome {
    // SAFETY: after KVM_EXIT_INTERNAL_ERROR the kernel has filled the `internal` variant, and any
    // bit pattern is a value of its integers.
    let internal = unsafe { vcpu.get_kvm_run().__bindgen_anon_1.internal };
    let at = |vcpu: &VcpuFd| vcpu.get_regs().map_or(0, |regs| regs.rip);
    let reason = match internal.suberror {
        KVM_INTERNAL_ERROR_EMULATION => {
            let mut bytes = [0; 15];
            let code = instruction(&internal.data, internal.ndata, &mut bytes);
            if emulator.is_some_and(|emulator| emulator.step(vcpu, code).is_ok()) {
                return Outcome::Handled;
            }
            let code: Vec<String> = code.iter().map(|b| format!("{b:02x}")).collect();
            let code = match code.is_empty() {
                true => "unknown".to_owned(),
                false => code.join(" "),
            };
            format!(
                "the host's KVM cannot emulate an instruction of the guest kernel \
                 (at {:#x}, bytes: {code})",
                at(vcpu)
            )
        }
        other => format!(
            "KVM failed internally (suberror {other}, guest at {:#x})",
            at(vcpu)
        ),
    };
    Outcome::Ended(Ending::Failed(reason))
}

/// The bytes of an instruction that could not be emulated, as far as KVM tells them: flags, then
/// a byte count and up to 15 bytes.
fn instruction<'a>(data: &[u64; 16], words: u32, bytes: &'a mut [u8; 15]) -> &'a [u8] {
    if words < 4 || data[0] & 1 == 0 {
        return &[];
    }
    let mut told = data[1..].iter().flat_map(|word| word.to_le_bytes());
    let len = usize::from(told.next().unwrap_or(0)).min(bytes.len());
    for (byte, told) in bytes.iter_mut().zip(told) {
        *byte = told;
    }
    &bytes[..len]
}

/// The byte in a vCPU's shared page that makes KVM_RUN return at once.
pub(super) struct RunPage(NonNull<AtomicU8>);

// SAFETY: the pointer is only used for atomic stores, which any thread may do.
unsafe impl Send for RunPage {}
// SAFETY: as above.
unsafe impl Sync for RunPage {}

impl RunPage {
    /// The page of `vcpu`. Use it only while the vCPU's thread, which owns `vcpu` and hands it back
    /// in the end, has not been joined.
    pub fn of(vcpu: &mut VcpuFd) -> Self {
        let byte: *mut u8 = &raw mut vcpu.get_kvm_run().immediate_exit;
        Self(NonNull::new(byte.cast()).expect("a field of a reference is not null"))
    }

    /// Makes the next, or current, KVM_RUN return.
    pub fn request_exit(&self) {
        // SAFETY: the vCPU's thread has not been joined (see `of`), so its page is mapped;
        // an AtomicU8 has the layout of the u8 there, and the kernel reads it as a single byte.
        unsafe { self.0.as_ref() }.store(1, Ordering::SeqCst);
    }
}

/// Takes a request to leave guest code back, on the vCPU's own thread.
pub(super) fn clear_request(vcpu: &mut VcpuFd) {
    vcpu.set_kvm_immediate_exit(0);
}
