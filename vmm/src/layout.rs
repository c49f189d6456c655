//! The guest's physical address map: every fixed address stands here, and only here.
//!
//! ```text
//! 0x0000_0000  RAM: boot data in the first 640 KiB, see below
//! 0x0009_fc00  reserved: where firmware would keep its extended data area
//! 0x000e_0000  reserved: ACPI tables (RSDP first, so that a scan finds it), VM generation id
//! 0x0010_0000  RAM: kernel, initrd at the top
//! 0xc000_0000  gap: virtio-mmio devices, I/O APIC, local APICs, KVM's own pages
//! 0x1_0000_0000  RAM above the gap
//! ```

use std::ops::Range;

/// Where the boot GDT lies.
pub const BOOT_GDT: u64 = 0x500;
/// Where the (empty) boot IDT lies.
pub const BOOT_IDT: u64 = 0x520;
/// PVH start info, its memory map behind it.
pub const PVH_START_INFO: u64 = 0x6000;
/// PVH memory map.
pub const PVH_MEMORY_MAP: u64 = 0x6100;
/// PVH module list (the initrd).
pub const PVH_MODULES: u64 = 0x6040;
/// Linux boot parameters ("zero page").
pub const ZERO_PAGE: u64 = 0x7000;
/// Initial stack pointer for the 64-bit entry.
pub const BOOT_STACK: u64 = 0x8ff0;
/// Boot page tables: one PML4, one PDPT and one page directory, in three pages.
pub const BOOT_PAGE_TABLES: u64 = 0x9000;
/// The kernel command line.
pub const CMDLINE: u64 = 0x2_0000;
/// The longest command line that an x86 Linux takes, its NUL included (COMMAND_LINE_SIZE).
pub const CMDLINE_CAPACITY: usize = 2048;

/// End of the memory below 640 KiB that a kernel may use.
pub const LOW_MEMORY_END: u64 = 0x9_fc00;
/// ACPI tables; the RSDP is at the start, where a scan of the BIOS area finds it.
pub const ACPI_TABLES: Range<u64> = 0xe_0000..0xf_f000;
/// The 16 bytes of the VM generation id, in a page of their own.
pub const VM_GENERATION_ID: u64 = 0xf_f000;
/// Start of the memory that kernels are loaded to.
pub const HIGH_MEMORY_START: u64 = 0x10_0000;

/// The hole in RAM below 4 GiB for memory-mapped devices.
pub const MMIO_GAP: Range<u64> = 0xc000_0000..0x1_0000_0000;
/// Where a guest that has booted writes a byte, if it is asked to.
pub const BOOT_TIMER: u64 = 0xc000_0000;
/// virtio-mmio register blocks, one after another.
pub const VIRTIO_MMIO: u64 = 0xd000_0000;
/// The I/O APIC.
pub const IO_APIC: u32 = 0xfec0_0000;
/// The local APICs.
pub const LOCAL_APIC: u32 = 0xfee0_0000;
/// Three pages for KVM's real-mode task state segment (Intel without unrestricted guest).
pub const KVM_TSS: u64 = 0xfffb_d000;

/// ACPI sleep control and status registers (hardware-reduced), two ports.
pub const ACPI_SLEEP_PORT: u16 = 0x600;

/// Interrupt of COM1.
pub const COM1_GSI: u32 = 4;
/// Interrupt that announces a new VM generation id.
pub const GENERATION_GSI: u32 = 5;
/// Interrupt of the power button.
pub const POWER_BUTTON_GSI: u32 = 6;
/// Interrupts of virtio devices: what is left of KVM's 24 I/O APIC pins.
pub const VIRTIO_GSIS: Range<u32> = 7..24;

/// Smallest memory of a machine, in bytes.
pub const MIN_MEMORY: u64 = 32 << 20;
/// Largest memory of a machine, in bytes: half of what 40 physical address bits reach, which
/// every x86-64 processor with virtualization has.
pub const MAX_MEMORY: u64 = 1 << 39;

/// Most vCPUs of a machine: APIC ids of eight bits, without the broadcast id.
pub const MAX_VCPUS: u8 = 254;

/// The ranges of guest RAM for `size` bytes: one below the gap and, if need be, one above.
pub fn ram_ranges(size: u64) -> Vec<Range<u64>> {
    let below = size.min(MMIO_GAP.start);
    let mut ranges = Vec::with_capacity(2);
    ranges.push(0..below);
    if size > below {
        ranges.push(MMIO_GAP.end..MMIO_GAP.end + (size - below));
    }
    ranges
}

/// The parts of guest RAM that a kernel may use as it likes.
pub fn usable_ranges(size: u64) -> Vec<Range<u64>> {
    let mut usable = Vec::with_capacity(3);
    usable.push(0..LOW_MEMORY_END);
    for range in ram_ranges(size) {
        usable.push(range.start.max(HIGH_MEMORY_START)..range.end);
    }
    usable
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_memory_is_one_range() {
        let one = 0..MIN_MEMORY;
        assert_eq!(ram_ranges(MIN_MEMORY), std::slice::from_ref(&one));
    }

    #[test]
    fn memory_beyond_the_gap_goes_on_above_it() {
        let five = 5 << 30;
        assert_eq!(
            ram_ranges(five),
            [0..0xc000_0000, 0x1_0000_0000..0x1_8000_0000]
        );
        let full = 0..0xc000_0000;
        assert_eq!(ram_ranges(MMIO_GAP.start), std::slice::from_ref(&full));
        let total: u64 = ram_ranges(five)
            .iter()
            .map(|range| range.end - range.start)
            .sum();
        assert_eq!(total, five);
    }

    #[test]
    fn usable_memory_leaves_firmware_areas_out() {
        assert_eq!(
            usable_ranges(MIN_MEMORY),
            [0..0x9_fc00, 0x10_0000..MIN_MEMORY]
        );
        assert_eq!(usable_ranges(5 << 30).len(), 3);
    }
}
