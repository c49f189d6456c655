//! The boot protocols, the memory map and the ends of a machine, seen by guests of a few hundred
//! bytes.

use std::io::Write;

use tempfile::NamedTempFile;
use tine_tests::{boot, finish, guest, run, succeed, text};

fn word32(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap())
}

fn word64(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap())
}

/// The bytes up to the first NUL.
fn c_string(bytes: &[u8]) -> String {
    text(bytes.split(|byte| *byte == 0).next().unwrap())
}

fn file(bytes: &[u8]) -> NamedTempFile {
    let mut file = NamedTempFile::new().unwrap();
    file.write_all(bytes).unwrap();
    file
}

#[test]
fn a_byte_on_the_serial_port_comes_out_and_a_reset_ends_well() {
    assert_eq!(succeed(boot("hello")), b"A");
}

#[test]
fn a_power_off_ends_well() {
    assert_eq!(succeed(boot("poweroff")), b"");
}

#[test]
fn a_triple_fault_is_an_error_that_says_so() {
    let output = finish(boot("triplefault"));
    assert_eq!(output.status.code(), Some(1));
    let message = text(&output.stderr);
    assert!(message.contains("triple fault"), "{message}");
}

#[test]
fn linux_64_bit_entry_gets_the_zero_page_and_the_command_line() {
    let initrd = file(&[7; 5000]);
    let mut command = boot("linux64");
    command
        .arg("--initrd")
        .arg(initrd.path())
        .args(["--cmdline", "one=1 -- two"]);
    let dump = succeed(command);
    assert_eq!(dump.len(), 16 + 4096 + 2048);
    assert_eq!(word64(&dump, 0), 0x7000, "RSI points to the zero page");
    let zero_page = &dump[16..16 + 4096];
    assert_eq!(&zero_page[0x202..0x206], b"HdrS");
    assert_eq!(word64(zero_page, 0x70), 0xe_0000, "ACPI root pointer");
    assert_eq!(word32(zero_page, 0x21c), 5000, "initrd size");
    assert_eq!(
        word32(zero_page, 0x218),
        (64 << 20) - 0x2000,
        "initrd at the top, page-aligned"
    );
    let entries = usize::from(zero_page[0x1e8]);
    let map: Vec<_> = (0..entries)
        .map(|entry| &zero_page[0x2d0 + entry * 20..][..20])
        .map(|entry| (word64(entry, 0), word64(entry, 8), word32(entry, 16)))
        .collect();
    let expected = [
        (0, 0x9_fc00, 1),
        (0x9_fc00, 0x400, 2),
        (0xe_0000, 0x2_0000, 2),
        (0x10_0000, (64 << 20) - 0x10_0000, 1),
    ];
    assert_eq!(map, expected);
    let cmdline = c_string(&dump[16 + 4096..]);
    assert!(cmdline.starts_with("console=ttyS0 "), "{cmdline}");
    assert!(cmdline.ends_with(" one=1 -- two"), "{cmdline}");
}

#[test]
fn pvh_entry_gets_the_start_info() {
    let initrd = file(&[7; 5000]);
    let mut command = boot("pvh");
    command
        .arg("--initrd")
        .arg(initrd.path())
        .args(["--cmdline", "one=1"]);
    let dump = succeed(command);
    let (ebx, info) = (word32(&dump, 0), &dump[4..60]);
    assert_eq!(ebx, 0x6000);
    assert_eq!(word32(info, 0), 0x336e_c578, "magic");
    assert_eq!(word32(info, 4), 1, "version 1: there is a memory map");
    assert_eq!(word64(info, 32), 0xe_0000, "ACPI root pointer");
    let entries = word32(info, 48) as usize;
    assert_eq!(entries, 4);
    let map = &dump[60..];
    assert_eq!(
        (word64(map, 0), word64(map, 8), word32(map, 16)),
        (0, 0x9_fc00, 1)
    );
    let last = &map[(entries - 1) * 24..];
    assert_eq!(
        (word64(last, 0), word64(last, 8)),
        (0x10_0000, (64 << 20) - 0x10_0000)
    );
    let module = &map[entries * 24..];
    assert_eq!(
        (word64(module, 0), word64(module, 8)),
        ((64 << 20) - 0x2000, 5000)
    );
    let cmdline = c_string(&module[32..]);
    assert!(cmdline.ends_with(" one=1"), "{cmdline}");
}

#[test]
fn a_bzimage_is_entered_at_its_64_bit_entry() {
    // A setup sector with the header fields that matter, then code at the 64-bit entry.
    let mut image = vec![0u8; 1024];
    image[0x1f1] = 1;
    image[0x202..0x206].copy_from_slice(b"HdrS");
    image[0x206..0x208].copy_from_slice(&0x20fu16.to_le_bytes());
    image[0x211] = 1;
    image[0x214..0x218].copy_from_slice(&0x10_0000u32.to_le_bytes());
    image[0x22c..0x230].copy_from_slice(&0x7fff_ffffu32.to_le_bytes());
    image[0x236] = 1;
    image.resize(1024 + 0x200, 0xf4);
    // mov dx, 0x3f8; mov al, 'z'; out dx, al; mov al, 0xfe; out 0x64, al; hlt
    image.extend(b"\x66\xba\xf8\x03\xb0z\xee\xb0\xfe\xe6\x64\xf4");
    let kernel = file(&image);
    let mut command = run(["--console", "stdout", "--memory", "64M", "--kernel"]);
    command.arg(kernel.path());
    assert_eq!(succeed(command), b"z");
}

#[test]
fn memory_ends_at_the_gap_and_goes_on_above_it() {
    let mut command = run(["--console", "stdout", "--memory", "3584M", "--kernel"]);
    command.arg(guest("highmem"));
    let dump = succeed(command);
    let pattern = |addr: u64| 0x1122_3344_5566_7788_u64.wrapping_add(addr);
    assert_eq!(word64(&dump, 0), pattern(0x100_0000));
    assert_eq!(
        word64(&dump, 8),
        pattern(0xbfff_fff8),
        "the last word below the gap"
    );
    assert_eq!(word64(&dump, 16), u64::MAX, "nobody is in the gap");
    assert_eq!(
        word64(&dump, 24),
        pattern(1 << 32),
        "memory goes on at 4 GiB"
    );
}

#[test]
fn the_smallest_machine_boots() {
    let mut command = run(["--console", "stdout", "--memory", "32M", "--kernel"]);
    command.arg(guest("hello"));
    assert_eq!(succeed(command), b"A");
}

#[test]
fn ports_and_addresses_without_a_device_do_no_harm() {
    assert_eq!(succeed(boot("ports")), b"\xff.");
}

#[test]
fn machines_with_several_vcpus_start() {
    for vcpus in ["2", "8"] {
        let mut command = boot("hello");
        command.args(["--vcpus", vcpus]);
        assert_eq!(succeed(command), b"A");
    }
}

/// INIT and start-up interrupts through the local APIC, as a kernel does it.
#[test]
fn a_second_vcpu_starts_when_the_first_tells_it_to() {
    let mut command = boot("apstart");
    command.args(["--vcpus", "2", "--timeout", "20s"]);
    assert_eq!(succeed(command), b"BA");
}

/// Field case 6: an initrd arrives whole, every time.
#[test]
fn thirty_boots_hash_the_initrd_to_the_same_value() {
    let bytes: Vec<u8> = (0..20_000u32).map(|n| ((n * 7919) >> 5) as u8).collect();
    let fnv = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3);
    let expected = bytes.iter().fold(0xcbf2_9ce4_8422_2325, fnv);
    let initrd = file(&bytes);
    for round in 0..30 {
        let mut command = boot("initrdhash");
        command.arg("--initrd").arg(initrd.path());
        assert_eq!(word64(&succeed(command), 0), expected, "round {round}");
    }
}

#[test]
fn the_console_goes_to_a_file_or_nowhere() {
    let console = NamedTempFile::new().unwrap();
    let mut command = run(["--memory", "64M", "--kernel"]);
    command
        .arg(guest("hello"))
        .arg("--console")
        .arg(console.path());
    assert_eq!(succeed(command), b"");
    assert_eq!(std::fs::read(console.path()).unwrap(), b"A");
    let mut command = run(["--memory", "64M", "--console", "none", "--kernel"]);
    command.arg(guest("hello"));
    assert_eq!(succeed(command), b"");
}
