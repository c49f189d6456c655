//! Kernels good and bad, without KVM (field case 4).

use std::io::Write;

use tempfile::NamedTempFile;

use super::*;

const MEMORY: u64 = 64 << 20;

fn memory() -> GuestMemory {
    GuestMemory::from_ranges(&[(GuestAddress(0), MEMORY as usize)]).unwrap()
}

/// A small ELF file with one segment of `filesz` bytes of 0x90 at `paddr`.
fn elf(paddr: u64, filesz: u64, entry: u64) -> Vec<u8> {
    let mut bytes = b"\x7fELF\x02\x01\x01".to_vec();
    bytes.resize(16, 0);
    for half in [2u16, 62] {
        bytes.extend(half.to_le_bytes());
    }
    bytes.extend(1u32.to_le_bytes());
    for word in [entry, 64, 0] {
        bytes.extend(word.to_le_bytes());
    }
    bytes.extend(0u32.to_le_bytes());
    for half in [64u16, 56, 1, 0, 0, 0] {
        bytes.extend(half.to_le_bytes());
    }
    bytes.extend(1u32.to_le_bytes());
    bytes.extend(5u32.to_le_bytes());
    for word in [120, paddr, paddr, filesz, filesz, 0x1000] {
        bytes.extend(word.to_le_bytes());
    }
    bytes.resize(120 + filesz.min(0x1000) as usize, 0x90);
    bytes
}

fn boot(kernel: &[u8], initrd_size: Option<u64>) -> Result<Entry, BootError> {
    let mut file = NamedTempFile::new().unwrap();
    file.write_all(kernel).unwrap();
    let initrd = initrd_size.map(|size| {
        let file = NamedTempFile::new().unwrap();
        file.as_file().set_len(size).unwrap();
        file
    });
    let source = BootSource {
        kernel: file.path(),
        initrd: initrd.as_ref().map(|file| file.path()),
        cmdline: "console=ttyS0",
        rsdp: layout::ACPI_TABLES.start,
        memory: MEMORY,
    };
    load(&memory(), &source)
}

fn reason(result: Result<Entry, BootError>) -> String {
    result.expect_err("this must not boot").to_string()
}

#[test]
fn an_elf_without_pvh_note_starts_at_its_entry() {
    let entry = boot(&elf(0x10_0000, 0x100, 0x10_0010), None).unwrap();
    assert_eq!(entry, Entry::Linux64 { rip: 0x10_0010 });
}

#[test]
fn what_is_no_kernel_is_refused_by_name() {
    for bytes in [&b""[..], b"#!/bin/sh\n", &[0u8; 4096], b"\x7fEL"] {
        let message = reason(boot(bytes, None));
        assert!(message.contains("neither an ELF"), "{message}");
    }
}

#[test]
fn a_truncated_elf_is_refused_at_every_length() {
    let whole = elf(0x10_0000, 0x100, 0x10_0010);
    for len in 4..whole.len() {
        let message = reason(boot(&whole[..len], None));
        assert!(message.contains("cannot boot"), "{len}: {message}");
    }
}

#[test]
fn a_segment_outside_memory_is_refused() {
    for paddr in [MEMORY, MEMORY - 0x80, 0xc000_0000, u64::MAX - 0x10, 1 << 52] {
        let message = reason(boot(&elf(paddr, 0x100, 0x10_0010), None));
        assert!(
            message.contains("outside the machine's memory (64 MiB)"),
            "{message}"
        );
    }
}

#[test]
fn an_entry_in_the_first_mib_is_refused() {
    let message = reason(boot(&elf(0x10_0000, 0x100, 0x1000), None));
    assert!(message.contains("entry point"), "{message}");
}

#[test]
fn an_initrd_that_does_not_fit_is_refused_with_the_room_there_is() {
    let kernel = elf(0x10_0000, 0x100, 0x10_0010);
    let room = MEMORY - 0x10_1000;
    assert!(boot(&kernel, Some(room)).is_ok());
    let message = reason(boot(&kernel, Some(room + 1)));
    assert!(
        message.contains(&format!("{room} bytes are free in a machine of 64 MiB")),
        "{message}"
    );
}

#[test]
fn a_bzimage_without_64_bit_entry_is_refused() {
    let mut bytes = vec![0u8; 4096];
    bytes[0x1f1] = 1;
    bytes[BZIMAGE_MAGIC_AT..][..4].copy_from_slice(BZIMAGE_MAGIC);
    bytes[0x206..][..2].copy_from_slice(&0x20fu16.to_le_bytes());
    bytes[0x211] = 1;
    bytes[0x214..][..4].copy_from_slice(&0x10_0000u32.to_le_bytes());
    let message = reason(boot(&bytes, None));
    assert!(message.contains("64-bit entry"), "{message}");
    bytes[0x236] = 1;
    assert_eq!(
        boot(&bytes, None).unwrap(),
        Entry::Linux64 { rip: 0x10_0200 }
    );
}

#[test]
fn a_fifo_is_no_kernel_and_nobody_waits_for_its_writer() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("fifo");
    rustix::fs::mkfifoat(rustix::fs::CWD, &path, rustix::fs::Mode::RUSR).unwrap();
    let source = BootSource {
        kernel: &path,
        initrd: None,
        cmdline: "",
        rsdp: 0,
        memory: MEMORY,
    };
    let message = reason(load(&memory(), &source));
    assert!(
        message.contains("a pipe or socket, not a file"),
        "{message}"
    );
}

#[test]
fn a_directory_is_no_kernel() {
    let source = BootSource {
        kernel: Path::new("/"),
        initrd: None,
        cmdline: "",
        rsdp: 0,
        memory: MEMORY,
    };
    let message = reason(load(&memory(), &source));
    assert_eq!(
        message,
        "cannot use kernel /: it is a directory, not a file"
    );
}
