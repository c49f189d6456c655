//! The two steps of emulation that Rust cannot see the safety of: the 16-byte compare-and-exchange
//! on guest memory, which has no atomic type, and giving KVM an extended state.

use std::arch::asm;

use kvm_bindings::kvm_xsave;
use kvm_ioctls::VcpuFd;
use vm_memory::VolatileSlice;

use super::Refused;

/// Makes the 16 bytes at the start of `slice` `new` if they are `old`, as one step. Returns what
/// was there.
pub fn compare_exchange(slice: &VolatileSlice<'_>, old: u128, new: u128) -> Result<u128, Refused> {
    let guard = slice.ptr_guard_mut();
    let target: *mut u128 = guard.as_ptr().cast();
    let fits = slice.len() >= size_of::<u128>() && target.is_aligned();
    if !fits || !is_x86_feature_detected!("cmpxchg16b") {
        return Err(Refused);
    }
    // SAFETY: the slice is mapped, writable memory of at least 16 bytes for as long as it lives,
    // aligned to 16 (checked above); everybody else, guest or monitor, accesses it atomically or
    // volatilely; and the processor has the instruction (checked above).
    Ok(unsafe { exchange(target, old, new) })
}

/// The instruction itself: the function that Rust has for it becomes a call of a library that is
/// not there, unless the whole program is compiled for processors with it.
///
/// # Safety
///
/// `target` must be valid for atomic access, aligned to 16 bytes, and the processor must have the
/// instruction.
unsafe fn exchange(target: *mut u128, old: u128, new: u128) -> u128 {
    let (low, high): (u64, u64);
    // SAFETY: only the 16 bytes at `target` are accessed, for which the caller answers. RBX, which
    // LLVM keeps for itself, is put back.
    unsafe {
        asm!(
            "xchg rbx, rsi",
            "lock cmpxchg16b [rdi]",
            "mov rbx, rsi",
            in("rdi") target,
            inout("rsi") new as u64 => _,
            in("rcx") (new >> 64) as u64,
            inout("rax") old as u64 => low,
            inout("rdx") (old >> 64) as u64 => high,
            options(nostack),
        );
    }
    u128::from(high) << 64 | u128::from(low)
}

/// Gives `vcpu` an extended state.
pub fn set_xsave(vcpu: &VcpuFd, state: &kvm_xsave) -> Result<(), kvm_ioctls::Error> {
    // SAFETY: KVM reads more than the 4096 bytes of the structure only after dynamically enabled
    // features, such as AMX, have been asked for by arch_prctl(2), which this process never does.
    unsafe { vcpu.set_xsave(state) }
}
