//! General registers by their number, and the bits of system registers that matter here.

use kvm_bindings::{kvm_regs, kvm_sregs};

/// RFLAGS (Intel SDM volume 1, 3.4.3).
pub const CF: u64 = 1;
pub const PF: u64 = 1 << 2;
pub const AF: u64 = 1 << 4;
pub const ZF: u64 = 1 << 6;
pub const SF: u64 = 1 << 7;
pub const OF: u64 = 1 << 11;
pub const RF: u64 = 1 << 16;
pub const AC: u64 = 1 << 18;

/// Control registers (Intel SDM volume 3, 2.5).
pub const CR0_MP: u64 = 1 << 1;
pub const CR0_TS: u64 = 1 << 3;
pub const CR0_WP: u64 = 1 << 16;
pub const CR0_PG: u64 = 1 << 31;
pub const CR4_LA57: u64 = 1 << 12;
pub const CR4_OSXSAVE: u64 = 1 << 18;
pub const CR4_SMAP: u64 = 1 << 21;
pub const EFER_LMA: u64 = 1 << 10;
pub const EFER_NXE: u64 = 1 << 11;

/// The register that an instruction calls `number` (0 to 15).
pub fn get(regs: &kvm_regs, number: u8) -> u64 {
    let mut copy = *regs;
    *slot(&mut copy, number)
}

/// Sets the register that an instruction calls `number`.
pub fn set(regs: &mut kvm_regs, number: u8, value: u64) {
    *slot(regs, number) = value;
}

fn slot(regs: &mut kvm_regs, number: u8) -> &mut u64 {
    match number & 15 {
        0 => &mut regs.rax,
        1 => &mut regs.rcx,
        2 => &mut regs.rdx,
        3 => &mut regs.rbx,
        4 => &mut regs.rsp,
        5 => &mut regs.rbp,
        6 => &mut regs.rsi,
        7 => &mut regs.rdi,
        8 => &mut regs.r8,
        9 => &mut regs.r9,
        10 => &mut regs.r10,
        11 => &mut regs.r11,
        12 => &mut regs.r12,
        13 => &mut regs.r13,
        14 => &mut regs.r14,
        _ => &mut regs.r15,
    }
}

/// Whether the vCPU is in ring 0 of 64-bit mode, with paging: the one mode that is emulated.
pub fn is_64_bit_kernel(sregs: &kvm_sregs) -> bool {
    let long = sregs.efer & EFER_LMA != 0 && sregs.cr0 & CR0_PG != 0 && sregs.cs.l == 1;
    long && sregs.cs.selector & 3 == 0
}
