use super::super::registers::{CR0_PG, EFER_LMA};
use super::*;

const TABLES: u64 = 0x1_0000;
const NOT_PRESENT: u64 = 0;
const ALL: u64 = PRESENT | WRITABLE | USER;

/// RAM of 1 MiB, and tables that map 16 pages at `BASE`.
struct Fake {
    ram: GuestMemory,
    regs: kvm_regs,
    sregs: kvm_sregs,
}

const BASE: u64 = 0xffff_8880_0020_0000;

impl Fake {
    fn new() -> Self {
        let ram = GuestMemory::from_ranges(&[(GuestAddress(0), 1 << 20)]).unwrap();
        let sregs = kvm_sregs {
            cr0: CR0_PG | CR0_WP,
            cr3: TABLES,
            efer: EFER_LMA | EFER_NXE,
            ..Default::default()
        };
        let fake = Self {
            ram,
            regs: kvm_regs::default(),
            sregs,
        };
        for level in 1..=3u64 {
            let index = BASE >> (12 + 9 * level) & 0x1ff;
            let table = TABLES + (3 - level) * 0x1000;
            fake.put(table + index * 8, (table + 0x1000) | ALL);
        }
        fake
    }

    fn put(&self, at: u64, entry: u64) {
        self.ram.write_obj(entry, GuestAddress(at)).unwrap();
    }

    fn slot(page: u64) -> u64 {
        TABLES + 0x3000 + page * 8
    }

    fn page(&self, page: u64, entry: u64) {
        self.put(Self::slot(page), entry);
    }

    fn entry(&self, page: u64) -> u64 {
        self.ram.read_obj(GuestAddress(Self::slot(page))).unwrap()
    }

    fn memory(&self) -> Memory<'_> {
        Memory::new(&self.ram, &self.regs, &self.sregs)
    }

    fn fault(&self, address: u64, len: usize, access: Access) -> (u64, u32) {
        match self.memory().map(address, len, access).err() {
            Some(Stop::Exception(Exception::Page { address, code })) => (address, code),
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn an_operand_may_lie_in_two_pages() {
    let fake = Fake::new();
    fake.page(0, 0x5000 | ALL);
    fake.page(1, 0x3000 | ALL);
    let memory = fake.memory();
    let mapped = memory.map(BASE + 0xffc, 8, Access::Write).unwrap();
    mapped.write(0, &[1, 2, 3, 4, 5, 6, 7, 8]).unwrap();
    let word = |at| fake.ram.read_obj::<u32>(GuestAddress(at)).unwrap();
    assert_eq!((word(0x5ffc), word(0x3000)), (0x0403_0201, 0x0807_0605));
    let mut back = [0; 4];
    mapped.read(2, &mut back).unwrap();
    assert_eq!(back, [3, 4, 5, 6]);
    assert_eq!(
        mapped.read(5, &mut back),
        Err(Refused),
        "not beyond the end"
    );
}

#[test]
fn used_entries_are_marked() {
    let fake = Fake::new();
    fake.page(0, 0x5000 | ALL);
    fake.memory().map(BASE, 8, Access::Read).unwrap();
    assert_eq!(fake.entry(0), 0x5000 | ALL | ACCESSED);
    fake.memory().map(BASE, 8, Access::Write).unwrap();
    assert_eq!(fake.entry(0), 0x5000 | ALL | ACCESSED | DIRTY);
}

#[test]
fn a_missing_page_faults_at_its_first_byte() {
    let fake = Fake::new();
    fake.page(0, 0x5000 | ALL);
    fake.page(1, NOT_PRESENT);
    assert_eq!(
        fake.fault(BASE + 0xff8, 16, Access::Read),
        (BASE + 0x1000, 0)
    );
    assert_eq!(
        fake.fault(BASE + 0x1008, 16, Access::Write),
        (BASE + 0x1008, 2)
    );
    assert_eq!(
        fake.fault(BASE + (1 << 40), 1, Access::Read).1,
        0,
        "a table"
    );
}

#[test]
fn protection_is_kept() {
    let mut fake = Fake::new();
    fake.page(0, 0x5000 | PRESENT | USER);
    assert!(fake.memory().map(BASE, 8, Access::Read).is_ok());
    assert_eq!(fake.fault(BASE, 8, Access::Write), (BASE, 3));
    fake.sregs.cr0 &= !CR0_WP;
    assert!(fake.memory().map(BASE, 8, Access::Write).is_ok());
    // SMAP: user pages only with RFLAGS.AC.
    fake.sregs.cr4 |= CR4_SMAP;
    assert_eq!(fake.fault(BASE, 8, Access::Read), (BASE, 1));
    fake.regs.rflags |= AC;
    assert!(fake.memory().map(BASE, 8, Access::Read).is_ok());
    // Bit 63 is reserved where there is no no-execute.
    fake.page(0, 0x5000 | ALL | NO_EXECUTE);
    assert!(fake.memory().map(BASE, 8, Access::Read).is_ok());
    fake.sregs.efer &= !EFER_NXE;
    assert_eq!(fake.fault(BASE, 8, Access::Read), (BASE, 9));
}

#[test]
fn large_pages_are_followed() {
    let fake = Fake::new();
    let directory = TABLES + 0x2000 + (BASE >> 21 & 0x1ff) * 8;
    fake.put(directory, LARGE | ALL);
    let mapped = fake
        .memory()
        .map(BASE + 0x4_5678, 8, Access::Write)
        .unwrap();
    mapped.write(0, &[7; 8]).unwrap();
    let found: u64 = fake.ram.read_obj(GuestAddress(0x4_5678)).unwrap();
    assert_eq!(found, 0x0707_0707_0707_0707);
    // Not at the highest level: reserved there.
    fake.put(TABLES + (BASE >> 39 & 0x1ff) * 8, LARGE | ALL);
    assert_eq!(fake.fault(BASE, 8, Access::Read), (BASE, 9));
}

#[test]
fn lies_end_the_walk() {
    let mut fake = Fake::new();
    // A page, and then a table, that is not RAM.
    fake.page(0, 0x8_0000_0000 | ALL);
    let mapped = fake.memory().map(BASE, 8, Access::Write).unwrap();
    assert_eq!(mapped.write(0, &[0; 8]), Err(Refused));
    assert_eq!(mapped.compare_exchange(0, 1), Err(Refused));
    fake.sregs.cr3 = 0x8_0000_0000;
    assert_eq!(
        fake.memory().map(BASE, 8, Access::Read).err(),
        Some(Stop::Refused)
    );
    // A table that is its own every level.
    fake.sregs.cr3 = TABLES;
    fake.put(TABLES + (BASE >> 39 & 0x1ff) * 8, TABLES | ALL);
    let _ = fake.memory().map(BASE, 4096, Access::Write);
    // The end of the address space, and the edge of what is canonical.
    for address in [u64::MAX - 3, 0x0000_7fff_ffff_fffc, 0x8000_0000_0000] {
        assert!(fake.memory().map(address, 8, Access::Read).is_err());
    }
}

#[test]
fn sixteen_bytes_are_exchanged_only_if_they_are_the_same() {
    let fake = Fake::new();
    fake.page(0, 0x5000 | ALL);
    fake.ram.write_obj(7u128, GuestAddress(0x5010)).unwrap();
    let mapped = fake.memory().map(BASE + 0x10, 16, Access::Write).unwrap();
    assert_eq!(mapped.compare_exchange(8, 9), Ok(7));
    let new = 5 << 64 | 9;
    assert_eq!(mapped.compare_exchange(7, new), Ok(7));
    assert_eq!(
        fake.ram.read_obj::<u128>(GuestAddress(0x5010)).unwrap(),
        new
    );
}
