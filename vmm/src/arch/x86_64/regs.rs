//! Registers of a vCPU at its first instruction, for the two entry protocols.

use kvm_bindings::{Msrs, kvm_fpu, kvm_msr_entry, kvm_regs, kvm_segment, kvm_sregs};
use kvm_ioctls::VcpuFd;
use tine_devices::GuestMemory;
use vm_memory::{Bytes, GuestAddress};

use crate::boot::Entry;
use crate::kvm::{KvmError, failed};
use crate::layout;

const CR0_PE: u64 = 1;
const CR0_ET: u64 = 1 << 4;
const CR0_PG: u64 = 1 << 31;
const CR4_PAE: u64 = 1 << 5;
const EFER_LME: u64 = 1 << 8;
const EFER_LMA: u64 = 1 << 10;

const MSR_IA32_MISC_ENABLE: u32 = 0x1a0;
const MISC_ENABLE_FAST_STRING: u64 = 1;
const MSR_MTRR_DEF_TYPE: u32 = 0x2ff;
/// MTRRs on, default type write-back (Intel SDM volume 3, 12.11.2.1).
const MTRR_ENABLE_WRITE_BACK: u64 = 1 << 11 | 6;

/// Page table entry bits: present, writable, and (in a directory) a 2 MiB page.
const PRESENT_WRITABLE: u64 = 0b11;
const LARGE_PAGE: u64 = 1 << 7;

/// Writes the descriptor table and page tables that `entry` needs into guest memory.
pub fn write_boot_tables(mem: &GuestMemory, entry: &Entry) -> vm_memory::guest_memory::Result<()> {
    let mut gdt = Vec::with_capacity(32);
    for descriptor in gdt_table(entry) {
        gdt.extend_from_slice(&descriptor.to_le_bytes());
    }
    mem.write_slice(&gdt, GuestAddress(layout::BOOT_GDT))?;
    mem.write_obj(0u64, GuestAddress(layout::BOOT_IDT))?;
    if matches!(entry, Entry::Linux64 { .. }) {
        write_identity_map(mem)?;
    }
    Ok(())
}

/// Maps the first GiB one to one, with 2 MiB pages: what the 64-bit boot protocol asks for
/// (Linux, Documentation/arch/x86/boot.rst, "64-bit Boot Protocol").
fn write_identity_map(mem: &GuestMemory) -> vm_memory::guest_memory::Result<()> {
    let pml4 = layout::BOOT_PAGE_TABLES;
    let pdpt = pml4 + 0x1000;
    let directory = pml4 + 0x2000;
    mem.write_obj(pdpt | PRESENT_WRITABLE, GuestAddress(pml4))?;
    mem.write_obj(directory | PRESENT_WRITABLE, GuestAddress(pdpt))?;
    let mut entries = Vec::with_capacity(0x1000);
    for page in 0..512u64 {
        entries.extend_from_slice(&(page << 21 | LARGE_PAGE | PRESENT_WRITABLE).to_le_bytes());
    }
    mem.write_slice(&entries, GuestAddress(directory))
}

/// Sets the boot vCPU's registers for `entry`; the others wait for a start-up interrupt.
pub fn set_boot_registers(vcpu: &VcpuFd, entry: &Entry) -> Result<(), KvmError> {
    let regs = match *entry {
        Entry::Linux64 { rip } => kvm_regs {
            rip,
            rsi: layout::ZERO_PAGE,
            rsp: layout::BOOT_STACK,
            rbp: layout::BOOT_STACK,
            rflags: 2,
            ..Default::default()
        },
        Entry::Pvh { rip } => kvm_regs {
            rip,
            rbx: layout::PVH_START_INFO,
            rflags: 2,
            ..Default::default()
        },
    };
    vcpu.set_regs(&regs).map_err(failed("set the registers"))?;
    let mut sregs = vcpu
        .get_sregs()
        .map_err(failed("read the system registers"))?;
    set_system_registers(&mut sregs, entry);
    vcpu.set_sregs(&sregs)
        .map_err(failed("set the system registers"))
}

/// Sets what every vCPU starts with.
pub fn set_common_registers(vcpu: &VcpuFd) -> Result<(), KvmError> {
    let fpu = kvm_fpu {
        fcw: 0x37f,
        mxcsr: 0x1f80,
        ..Default::default()
    };
    vcpu.set_fpu(&fpu)
        .map_err(failed("set the floating-point registers"))?;
    let msr = |index, data| kvm_msr_entry {
        index,
        data,
        ..Default::default()
    };
    let msrs = Msrs::from_entries(&[
        msr(MSR_IA32_MISC_ENABLE, MISC_ENABLE_FAST_STRING),
        msr(MSR_MTRR_DEF_TYPE, MTRR_ENABLE_WRITE_BACK),
    ])
    .expect("two entries fit");
    vcpu.set_msrs(&msrs)
        .map_err(failed("set the model-specific registers"))?;
    set_local_interrupts(vcpu)
}

/// Wires the legacy interrupt controller and NMI to the local APIC, as firmware leaves them
/// (Intel MultiProcessor Specification 1.4, section 3.6.2.2, virtual wire mode).
fn set_local_interrupts(vcpu: &VcpuFd) -> Result<(), KvmError> {
    const LVT_LINT0: usize = 0x350;
    const LVT_LINT1: usize = 0x360;
    const MODE_EXTINT: u8 = 7;
    const MODE_NMI: u8 = 4;
    let mut lapic = vcpu.get_lapic().map_err(failed("read the local APIC"))?;
    for (register, mode) in [(LVT_LINT0, MODE_EXTINT), (LVT_LINT1, MODE_NMI)] {
        // The delivery mode is bits 8 to 10 of the entry: the low bits of its second byte.
        let byte = &mut lapic.regs[register + 1];
        *byte = (*byte as u8 & !7 | mode) as _;
    }
    vcpu.set_lapic(&lapic).map_err(failed("set the local APIC"))
}

fn set_system_registers(sregs: &mut kvm_sregs, entry: &Entry) {
    let [_, code, data, tss] = gdt_table(entry);
    let data = segment(data, 2);
    sregs.cs = segment(code, 1);
    (sregs.ds, sregs.es, sregs.fs, sregs.gs, sregs.ss) = (data, data, data, data, data);
    sregs.tr = segment(tss, 3);
    sregs.gdt.base = layout::BOOT_GDT;
    sregs.gdt.limit = 4 * 8 - 1;
    sregs.idt.base = layout::BOOT_IDT;
    sregs.idt.limit = 8 - 1;
    match entry {
        Entry::Linux64 { .. } => {
            sregs.cr0 |= CR0_PE | CR0_PG;
            sregs.cr3 = layout::BOOT_PAGE_TABLES;
            sregs.cr4 |= CR4_PAE;
            sregs.efer |= EFER_LME | EFER_LMA;
        }
        Entry::Pvh { .. } => {
            sregs.cr0 = CR0_PE | CR0_ET;
            sregs.cr4 = 0;
        }
    }
}

/// Null, code, data and task descriptors: 64-bit code for Linux, flat 32-bit for PVH (Xen,
/// docs/misc/pvh.pandoc).
fn gdt_table(entry: &Entry) -> [u64; 4] {
    let code = match entry {
        Entry::Linux64 { .. } => descriptor(0xa09b, 0xf_ffff),
        Entry::Pvh { .. } => descriptor(0xc09b, 0xf_ffff),
    };
    [
        0,
        code,
        descriptor(0xc093, 0xf_ffff),
        descriptor(0x008b, 0x67),
    ]
}

/// A segment descriptor with base 0 (Intel SDM volume 3, 3.4.5). `flags` are its bits 40 to 55,
/// with zeros where the limit goes.
fn descriptor(flags: u64, limit: u64) -> u64 {
    (flags & 0xf0ff) << 40 | (limit & 0xf_0000) << 32 | limit & 0xffff
}

/// The register form of a descriptor in GDT slot `slot`.
fn segment(descriptor: u64, slot: u16) -> kvm_segment {
    let bit = |at: u32| (descriptor >> at & 1) as u8;
    let raw_limit = (descriptor & 0xffff | descriptor >> 32 & 0xf_0000) as u32;
    let limit = if bit(55) == 1 {
        raw_limit << 12 | 0xfff
    } else {
        raw_limit
    };
    kvm_segment {
        base: 0,
        limit,
        selector: slot * 8,
        type_: (descriptor >> 40 & 0xf) as u8,
        s: bit(44),
        dpl: (descriptor >> 45 & 3) as u8,
        present: bit(47),
        avl: bit(52),
        l: bit(53),
        db: bit(54),
        g: bit(55),
        unusable: 0,
        padding: 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn descriptors_are_what_the_manuals_print() {
        let linux = gdt_table(&Entry::Linux64 { rip: 0 });
        assert_eq!(
            linux,
            [
                0,
                0x00af_9b00_0000_ffff,
                0x00cf_9300_0000_ffff,
                0x0000_8b00_0000_0067
            ]
        );
        let pvh = gdt_table(&Entry::Pvh { rip: 0 });
        assert_eq!(pvh[1], 0x00cf_9b00_0000_ffff);
    }

    #[test]
    fn segments_carry_their_descriptor() {
        let code = segment(0x00af_9b00_0000_ffff, 1);
        assert_eq!((code.selector, code.limit, code.type_), (8, u32::MAX, 0xb));
        assert_eq!(
            (code.l, code.db, code.g, code.present, code.s),
            (1, 0, 1, 1, 1)
        );
        let tss = segment(0x0000_8b00_0000_0067, 3);
        assert_eq!((tss.limit, tss.s, tss.g), (0x67, 0, 0));
    }

    #[test]
    fn the_identity_map_covers_the_first_gib() {
        let mem = GuestMemory::from_ranges(&[(GuestAddress(0), 1 << 20)]).unwrap();
        write_boot_tables(&mem, &Entry::Linux64 { rip: 0 }).unwrap();
        let at = |addr| mem.read_obj::<u64>(GuestAddress(addr)).unwrap();
        assert_eq!(at(0x9000), 0xa003);
        assert_eq!(at(0xa000), 0xb003);
        assert_eq!(at(0xb000), 0x83);
        assert_eq!(at(0xb000 + 511 * 8), 511 << 21 | 0x83);
    }
}
