//! The ACPI tables of a machine (ACPI specification 6.5): hardware-reduced, no AML beyond a list
//! of devices and the one method that tells two events apart.

use acpi_tables::fadt::{FADTBuilder, Flags, PmProfile};
use acpi_tables::gas::{AccessSize, AddressSpace, GAS};
use acpi_tables::madt::{
    EnabledStatus, IoApic, LocalInterruptController, MADT, ProcessorLocalApic,
};
use acpi_tables::rsdp::Rsdp;
use acpi_tables::sdt::Sdt;
use acpi_tables::xsdt::XSDT;
use acpi_tables::{Aml, aml};
use tine_devices::GuestMemory;
use tine_devices::legacy::i8042::{I8042_PORT, RESET_COMMAND};
use tine_devices::legacy::power::SLEEP_TYPE_S5;
use tine_devices::virtio::mmio::MMIO_LEN;
use vm_memory::{Bytes, GuestAddress};

use crate::layout;

const OEM: [u8; 6] = *b"TINE  ";
const TABLE: [u8; 8] = *b"TINEVM  ";
const REVISION: u32 = 1;

/// FADT boot architecture flags (table 5.10): no VGA, no MSI, no CMOS clock.
const NO_VGA: u16 = 1 << 2;
const NO_MSI: u16 = 1 << 3;
const NO_CMOS_RTC: u16 = 1 << 5;

/// A virtio-mmio device as the tables describe it.
#[derive(Debug, Clone, Copy)]
pub struct MmioDevice {
    /// Guest address of the register block.
    pub addr: u64,
    /// Its interrupt.
    pub gsi: u32,
}

/// The tables do not fit into the room that the address map has for them.
#[derive(Debug, thiserror::Error)]
#[error("the ACPI tables need more than the {0} bytes kept for them: use fewer devices")]
pub struct TablesTooLarge(u64);

/// Writes the tables of a machine and returns the address of the root pointer (RSDP).
pub fn write_tables(
    mem: &GuestMemory,
    vcpus: u8,
    devices: &[MmioDevice],
) -> Result<u64, TablesTooLarge> {
    let rsdp_addr = layout::ACPI_TABLES.start;
    let mut tables = Tables {
        mem,
        next: rsdp_addr + 64,
    };
    let dsdt = tables.add(&dsdt(devices))?;
    let fadt = tables.add(&fadt(dsdt))?;
    let madt = tables.add(&madt(vcpus))?;
    let mut xsdt = XSDT::new(OEM, TABLE, REVISION);
    xsdt.add_entry(fadt);
    xsdt.add_entry(madt);
    let xsdt = tables.add(&xsdt)?;
    tables.write(rsdp_addr, &Rsdp::new(OEM, xsdt))?;
    Ok(rsdp_addr)
}

struct Tables<'a> {
    mem: &'a GuestMemory,
    next: u64,
}

impl Tables<'_> {
    fn add(&mut self, table: &dyn Aml) -> Result<u64, TablesTooLarge> {
        let addr = self.next;
        let len = self.write(addr, table)?;
        self.next = (addr + len).next_multiple_of(16);
        Ok(addr)
    }

    fn write(&self, addr: u64, table: &dyn Aml) -> Result<u64, TablesTooLarge> {
        let mut bytes = Vec::new();
        table.to_aml_bytes(&mut bytes);
        let room = &layout::ACPI_TABLES;
        let len = bytes.len() as u64;
        let too_large = || TablesTooLarge(room.end - room.start);
        if addr + len > room.end {
            return Err(too_large());
        }
        self.mem
            .write_slice(&bytes, GuestAddress(addr))
            .map_err(|_| too_large())?;
        Ok(len)
    }
}

fn fadt(dsdt: u64) -> impl Aml {
    let register = |port: u64| GAS::new(AddressSpace::SystemIo, 8, 0, AccessSize::ByteAccess, port);
    let mut fadt = FADTBuilder::new(OEM, TABLE, REVISION)
        .dsdt_64(dsdt)
        .preferred_pm_profile(PmProfile::EnterpriseServer)
        .flag(Flags::HwReducedAcpi)
        // No fixed buttons: the power button is a device in the DSDT.
        .flag(Flags::PwrButton)
        .flag(Flags::SlpButton)
        .flag(Flags::ResetRegSup);
    fadt.iapc_boot_arch = (NO_VGA | NO_MSI | NO_CMOS_RTC).into();
    fadt.reset_reg = register(I8042_PORT + 4);
    fadt.reset_value = RESET_COMMAND;
    fadt.sleep_control_reg = register(u64::from(layout::ACPI_SLEEP_PORT));
    fadt.sleep_status_reg = register(u64::from(layout::ACPI_SLEEP_PORT) + 1);
    fadt.hypervisor_vendor_identity = u64::from_le_bytes(*b"TINE\0\0\0\0").into();
    fadt.finalize()
}

fn madt(vcpus: u8) -> impl Aml {
    let lapic = LocalInterruptController::Address(layout::LOCAL_APIC);
    let mut madt = MADT::new(OEM, TABLE, REVISION, lapic);
    for id in 0..vcpus {
        madt.add_structure(ProcessorLocalApic::new(id, id, EnabledStatus::Enabled));
    }
    madt.add_structure(IoApic::new(0, layout::IO_APIC, 0));
    madt
}

fn dsdt(devices: &[MmioDevice]) -> impl Aml {
    let mut body = Vec::new();
    for (number, device) in devices.iter().enumerate() {
        virtio(number, device, &mut body);
    }
    serial(&mut body);
    generation_and_power(&mut body);
    let mut dsdt = Sdt::new(*b"DSDT", 36, 6, OEM, TABLE, REVISION);
    dsdt.append_slice(&aml::Scope::raw("_SB_".into(), body));
    let mut sleep = Vec::new();
    let type_s5 = SLEEP_TYPE_S5;
    aml::Name::new(
        "_S5_".into(),
        &aml::Package::new(vec![&type_s5, &0u8, &0u8, &0u8]),
    )
    .to_aml_bytes(&mut sleep);
    dsdt.append_slice(&sleep);
    dsdt
}

/// An interrupt of a device: edge-triggered, active high, not shared.
fn interrupt(gsi: u32) -> aml::Interrupt {
    aml::Interrupt::new(true, true, false, false, gsi)
}

fn virtio(number: usize, device: &MmioDevice, body: &mut Vec<u8>) {
    // The hardware id under which Linux knows virtio-mmio (drivers/virtio/virtio_mmio.c).
    let memory = aml::Memory32Fixed::new(true, device.addr as u32, MMIO_LEN as u32);
    aml::Device::new(
        format!("V{number:03X}").as_str().into(),
        vec![
            &aml::Name::new("_HID".into(), &"LNRO0005"),
            &aml::Name::new("_UID".into(), &number),
            &aml::Name::new("_CCA".into(), &aml::ONE),
            &aml::Name::new(
                "_CRS".into(),
                &aml::ResourceTemplate::new(vec![&memory, &interrupt(device.gsi)]),
            ),
        ],
    )
    .to_aml_bytes(body);
}

fn serial(body: &mut Vec<u8>) {
    let ports = aml::IO::new(0x3f8, 0x3f8, 1, 8);
    aml::Device::new(
        "COM1".into(),
        vec![
            &aml::Name::new("_HID".into(), &aml::EISAName::new("PNP0501")),
            &aml::Name::new("_UID".into(), &aml::ZERO),
            &aml::Name::new(
                "_CRS".into(),
                &aml::ResourceTemplate::new(vec![&ports, &interrupt(layout::COM1_GSI)]),
            ),
        ],
    )
    .to_aml_bytes(body);
}

/// The VM generation id ("Virtual Machine Generation ID", Microsoft, section "Specification"),
/// the power button, and the event device that turns their interrupts into notifications.
fn generation_and_power(body: &mut Vec<u8>) {
    let low = layout::VM_GENERATION_ID as u32;
    let high = (layout::VM_GENERATION_ID >> 32) as u32;
    aml::Device::new(
        "VGEN".into(),
        vec![
            &aml::Name::new("_HID".into(), &"TINE0001"),
            &aml::Name::new("_CID".into(), &"VM_Gen_Counter"),
            &aml::Name::new("_DDN".into(), &"VM_Gen_Counter"),
            &aml::Name::new("ADDR".into(), &aml::Package::new(vec![&low, &high])),
        ],
    )
    .to_aml_bytes(body);
    aml::Device::new(
        "PWRB".into(),
        vec![
            &aml::Name::new("_HID".into(), &aml::EISAName::new("PNP0C0C")),
            &aml::Name::new("_UID".into(), &aml::ZERO),
        ],
    )
    .to_aml_bytes(body);
    let (generation, power) = (layout::GENERATION_GSI, layout::POWER_BUTTON_GSI);
    let event = aml::Arg(0);
    aml::Device::new(
        "GED_".into(),
        vec![
            &aml::Name::new("_HID".into(), &"ACPI0013"),
            &aml::Name::new("_UID".into(), &aml::ZERO),
            &aml::Name::new(
                "_CRS".into(),
                &aml::ResourceTemplate::new(vec![&interrupt(generation), &interrupt(power)]),
            ),
            &aml::Method::new(
                "_EVT".into(),
                1,
                true,
                vec![
                    &aml::If::new(
                        &aml::Equal::new(&event, &generation),
                        vec![&aml::Notify::new(&aml::Path::new("\\_SB_.VGEN"), &0x80u8)],
                    ),
                    &aml::If::new(
                        &aml::Equal::new(&event, &power),
                        vec![&aml::Notify::new(&aml::Path::new("\\_SB_.PWRB"), &0x80u8)],
                    ),
                ],
            ),
        ],
    )
    .to_aml_bytes(body);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn memory() -> GuestMemory {
        GuestMemory::from_ranges(&[(GuestAddress(0), 2 << 20)]).unwrap()
    }

    fn read(mem: &GuestMemory, addr: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        mem.read_slice(&mut bytes, GuestAddress(addr)).unwrap();
        bytes
    }

    fn sum(bytes: &[u8]) -> u8 {
        bytes.iter().fold(0, |sum, byte| sum.wrapping_add(*byte))
    }

    /// The table at `addr`, its checksum checked.
    fn table(mem: &GuestMemory, addr: u64) -> Vec<u8> {
        let len: u32 = mem.read_obj(GuestAddress(addr + 4)).unwrap();
        let bytes = read(mem, addr, len as usize);
        assert_eq!(
            sum(&bytes),
            0,
            "checksum of {:?}",
            String::from_utf8_lossy(&bytes[..4])
        );
        bytes
    }

    fn word64(bytes: &[u8], at: usize) -> u64 {
        u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap())
    }

    #[test]
    fn every_table_is_reached_from_the_root_and_sums_to_zero() {
        let mem = memory();
        let devices = [MmioDevice {
            addr: 0xd000_0000,
            gsi: 7,
        }];
        let root = write_tables(&mem, 3, &devices).unwrap();
        let rsdp = read(&mem, root, 36);
        assert_eq!(&rsdp[..8], b"RSD PTR ");
        assert_eq!((sum(&rsdp[..20]), sum(&rsdp)), (0, 0));
        let xsdt = table(&mem, word64(&rsdp, 24));
        let fadt = table(&mem, word64(&xsdt, 36));
        let madt = table(&mem, word64(&xsdt, 44));
        assert_eq!((&fadt[..4], &madt[..4]), (&b"FACP"[..], &b"APIC"[..]));
        let dsdt = table(&mem, word64(&fadt, 140));
        assert_eq!(&dsdt[..4], b"DSDT");
        assert!(dsdt.windows(8).any(|bytes| bytes == b"LNRO0005"));
        // Header and three local APICs of 8 bytes, one I/O APIC of 12.
        assert_eq!(madt.len(), 44 + 3 * 8 + 12);
    }

    #[test]
    fn tables_that_do_not_fit_are_refused() {
        let devices = vec![
            MmioDevice {
                addr: 0xd000_0000,
                gsi: 7
            };
            2000
        ];
        assert!(write_tables(&memory(), 1, &devices).is_err());
    }
}
