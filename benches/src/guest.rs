//! The bare-metal guests: a few instructions each in an ELF file that every monitor boots.
//!
//! The code means the same in 32-bit and in 64-bit mode, so that one file serves monitors that
//! enter through its PVH note as well as those that jump to its entry point. The files are put
//! together here: the benchmark needs no assembler and no file beside its program.

use std::io;
use std::path::{Path, PathBuf};

/// What guests write to COM1. No monitor's own messages have it in them.
pub const SIGN: u8 = 0x16;

/// How a guest ends its machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reset {
    /// Through the keyboard controller, port 0x64.
    Keyboard,
    /// By an exception that nobody handles.
    TripleFault,
}

/// A guest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Guest {
    /// Writes the sign and ends the machine.
    Hello(Reset),
    /// Writes the sign and halts for ever.
    Hang,
}

/// Where the guest is loaded to and starts.
const START: u32 = 0x10_0000;

#[rustfmt::skip]
const WRITE_SIGN: [u8; 7] = [
    0xb0, SIGN,                         // mov al, SIGN
    0x66, 0xba, 0xf8, 0x03,             // mov dx, 0x3f8
    0xee,                               // out dx, al
];
#[rustfmt::skip]
const RESET: [u8; 4] = [
    0xb0, 0xfe,                         // mov al, 0xfe
    0xe6, 0x64,                         // out 0x64, al
];
#[rustfmt::skip]
const TRIPLE_FAULT: [u8; 10] = [
    0xb8, 0x00, 0x08, 0x10, 0x00,       // mov eax, START + 0x800: zeroes behind the guest
    0x0f, 0x01, 0x18,                   // lidt [eax]: an interrupt table without entries
    0x0f, 0x0b,                         // ud2
];
#[rustfmt::skip]
const HALT: [u8; 3] = [
    0xf4,                               // hlt
    0xeb, 0xfd,                         // jmp to the hlt
];

impl Guest {
    /// Writes the guest's file to `dir`.
    pub fn write(self, dir: &Path) -> io::Result<PathBuf> {
        let (name, end) = match self {
            Guest::Hello(Reset::Keyboard) => ("hello", RESET.as_slice()),
            Guest::Hello(Reset::TripleFault) => ("hello-fault", TRIPLE_FAULT.as_slice()),
            Guest::Hang => ("hang", [].as_slice()),
        };
        let path = dir.join(name).with_extension("elf");
        std::fs::write(&path, elf(&[&WRITE_SIGN, end, &HALT].concat()))?;
        Ok(path)
    }
}

/// Sizes of the file's parts, ELF specification (version 1.2 with the 64-bit layouts).
const HEADER: u16 = 64;
const SEGMENT: u16 = 56;
const NOTE: u64 = 20;
const PT_LOAD: u32 = 1;
const PT_NOTE: u32 = 4;
/// The Xen note with the address of a PVH kernel's entry.
const XEN_ELFNOTE_PHYS32_ENTRY: u32 = 18;

/// An ELF file with one segment at [`START`], and the PVH note.
fn elf(code: &[u8]) -> Vec<u8> {
    let mut file = b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0".to_vec();
    let half = |file: &mut Vec<u8>, value: u16| file.extend(value.to_le_bytes());
    let word = |file: &mut Vec<u8>, value: u32| file.extend(value.to_le_bytes());
    let long = |file: &mut Vec<u8>, value: u64| file.extend(value.to_le_bytes());
    half(&mut file, 2); // executable
    half(&mut file, 62); // x86-64
    word(&mut file, 1);
    long(&mut file, START.into());
    long(&mut file, HEADER.into()); // the segments stand behind this header
    long(&mut file, 0); // no sections
    word(&mut file, 0);
    for value in [HEADER, SEGMENT, 2, 0, 0, 0] {
        half(&mut file, value);
    }
    let note_at = u64::from(HEADER) + 2 * u64::from(SEGMENT);
    let code_at = note_at + NOTE;
    let code_len = code.len() as u64;
    let segments = [
        (PT_LOAD, code_at, START.into(), code_len),
        (PT_NOTE, note_at, 0, NOTE),
    ];
    for (kind, offset, addr, len) in segments {
        word(&mut file, kind);
        word(&mut file, 7);
        for value in [offset, addr, addr, len, len, 4] {
            long(&mut file, value);
        }
    }
    for value in [4, 4, XEN_ELFNOTE_PHYS32_ENTRY] {
        word(&mut file, value);
    }
    file.extend(b"Xen\0");
    word(&mut file, START);
    file.extend(code);
    file
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_code_stands_where_the_segment_says() {
        let file = elf(&[1, 2, 3]);
        let long = |at: usize| u64::from_le_bytes(file[at..at + 8].try_into().unwrap()) as usize;
        let segment = usize::from(HEADER);
        let (offset, len) = (long(segment + 8), long(segment + 32));
        assert_eq!(&file[offset..offset + len], [1, 2, 3]);
        let note = long(segment + usize::from(SEGMENT) + 8);
        assert_eq!(&file[note + 12..note + 16], b"Xen\0");
    }

    #[test]
    fn each_guest_has_a_file_of_its_own() {
        let dir = tempfile::tempdir().unwrap();
        let guests = [
            Guest::Hello(Reset::Keyboard),
            Guest::Hello(Reset::TripleFault),
            Guest::Hang,
        ];
        let mut paths = guests
            .map(|guest| guest.write(dir.path()).unwrap())
            .to_vec();
        paths.dedup();
        assert_eq!(paths.len(), 3);
    }
}
