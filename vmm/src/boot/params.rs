//! The two forms in which a kernel learns of its machine: Linux boot parameters for the 64-bit
//! entry (Linux, Documentation/arch/x86/boot.rst and zero-page.rst), start info for PVH (Xen,
//! public/arch-x86/hvm/start_info.h).

use std::ops::Range;

use linux_loader::configurator::linux::LinuxBootConfigurator;
use linux_loader::configurator::pvh::PvhBootConfigurator;
use linux_loader::configurator::{BootConfigurator, BootParams};
use linux_loader::loader::bootparam::{boot_params, setup_header};
use linux_loader::loader::elf::start_info::{
    hvm_memmap_table_entry, hvm_modlist_entry, hvm_start_info,
};
use tine_devices::GuestMemory;
use vm_memory::{GuestAddress, GuestMemoryError};

use super::BootSource;
use crate::layout;

const E820_RAM: u32 = 1;
const E820_RESERVED: u32 = 2;

const BOOT_FLAG: u16 = 0xaa55;
const HEADER_MAGIC: u32 = u32::from_le_bytes(*b"HdrS");
/// type_of_loader: none of the registered ones.
const LOADER_OTHER: u8 = 0xff;
const KERNEL_ALIGNMENT: u32 = 0x100_0000;
const PVH_MAGIC: u32 = 0x336e_c578;

/// What a kernel is told.
pub(super) struct Boot<'a> {
    pub source: &'a BootSource<'a>,
    /// Address and size of the initrd.
    pub initrd: Option<(u64, u64)>,
    /// A bzImage's own header.
    pub setup_header: Option<setup_header>,
}

/// The memory map: usable RAM, and what firmware would have reserved.
fn memory_map(memory: u64) -> Vec<(Range<u64>, u32)> {
    let mut map = Vec::with_capacity(5);
    for range in layout::usable_ranges(memory) {
        map.push((range, E820_RAM));
    }
    map.insert(1, (layout::LOW_MEMORY_END..0xa_0000, E820_RESERVED));
    map.insert(
        2,
        (
            layout::ACPI_TABLES.start..layout::HIGH_MEMORY_START,
            E820_RESERVED,
        ),
    );
    map
}

fn no_room(_: linux_loader::configurator::Error) -> GuestMemoryError {
    GuestMemoryError::InvalidGuestAddress(GuestAddress(layout::ZERO_PAGE))
}

/// Writes the Linux boot parameters.
pub(super) fn write_zero_page(mem: &GuestMemory, boot: &Boot) -> Result<(), GuestMemoryError> {
    let mut params = boot_params {
        hdr: boot.setup_header.unwrap_or_default(),
        ..Default::default()
    };
    params.hdr.boot_flag = BOOT_FLAG;
    params.hdr.header = HEADER_MAGIC;
    params.hdr.type_of_loader = LOADER_OTHER;
    if boot.setup_header.is_none() {
        params.hdr.kernel_alignment = KERNEL_ALIGNMENT;
    }
    params.hdr.cmd_line_ptr = layout::CMDLINE as u32;
    params.hdr.cmdline_size = boot.source.cmdline.len() as u32 + 1;
    if let Some((addr, size)) = boot.initrd {
        // Both fit in 32 bits: an initrd lies below the gap.
        params.hdr.ramdisk_image = addr as u32;
        params.hdr.ramdisk_size = size as u32;
    }
    params.acpi_rsdp_addr = boot.source.rsdp;
    let map = memory_map(boot.source.memory);
    for (slot, (range, kind)) in params.e820_table.iter_mut().zip(&map) {
        slot.addr = range.start;
        slot.size = range.end - range.start;
        slot.r#type = *kind;
    }
    params.e820_entries = map.len() as u8;
    let params = BootParams::new(&params, GuestAddress(layout::ZERO_PAGE));
    LinuxBootConfigurator::write_bootparams(&params, mem).map_err(no_room)
}

/// Writes PVH start info, with its memory map and the initrd as a module.
pub(super) fn write_start_info(mem: &GuestMemory, boot: &Boot) -> Result<(), GuestMemoryError> {
    let map: Vec<hvm_memmap_table_entry> = memory_map(boot.source.memory)
        .into_iter()
        .map(|(range, type_)| hvm_memmap_table_entry {
            addr: range.start,
            size: range.end - range.start,
            type_,
            reserved: 0,
        })
        .collect();
    let info = hvm_start_info {
        magic: PVH_MAGIC,
        version: 1,
        cmdline_paddr: layout::CMDLINE,
        rsdp_paddr: boot.source.rsdp,
        memmap_paddr: layout::PVH_MEMORY_MAP,
        memmap_entries: map.len() as u32,
        nr_modules: u32::from(boot.initrd.is_some()),
        modlist_paddr: if boot.initrd.is_some() {
            layout::PVH_MODULES
        } else {
            0
        },
        ..Default::default()
    };
    let mut params = BootParams::new(&info, GuestAddress(layout::PVH_START_INFO));
    params.set_sections(&map, GuestAddress(layout::PVH_MEMORY_MAP));
    if let Some((paddr, size)) = boot.initrd {
        let module = hvm_modlist_entry {
            paddr,
            size,
            ..Default::default()
        };
        params.set_modules(&[module], GuestAddress(layout::PVH_MODULES));
    }
    PvhBootConfigurator::write_bootparams(&params, mem).map_err(no_room)
}
