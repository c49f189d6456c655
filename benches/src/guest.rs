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
    /// Writes the sign over and over.
    Speak,
    /// Sleeps, but for ten times a second: it writes the sign then. Needs a monitor that enters in
    /// 64-bit mode, and an x2APIC.
    Beat,
    /// Writes to each of so many pages from [`TOUCHED_FROM`] on, from ring 3, and then the sign
    /// again and again, from there too. Needs a monitor that enters in 64-bit mode (the 64-bit boot
    /// protocol of Linux): its file has no PVH note.
    Touch {
        /// Pages of 4 KiB, up to 1 GiB of them.
        pages: u64,
    },
    /// Writes to the same pages again and again, and the sign each time it is through.
    Passes {
        /// As of [`Guest::Touch`].
        pages: u64,
    },
}

/// Where [`Guest::Touch`] begins to write, in MiB.
pub const TOUCHED_FROM: u64 = 16;

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

const SPEAK_ON: [u8; 2] = [0xeb, 0xf7]; // jmp to WRITE_SIGN before it
#[rustfmt::skip]
const RING_3: [u8; 217] = [
    0x48, 0xc7, 0xc4, 0x00, 0x00, 0x09, 0x00,       // mov rsp, 0x90000
    // 2 MiB pages for the second GiB, which the boot page tables do not have
    0xbf, 0x00, 0x00, 0x30, 0x00,                   // mov edi, 0x300000
    0xb8, 0x87, 0x00, 0x00, 0x40,                   // mov eax, 0x40000087
    0xb9, 0x00, 0x02, 0x00, 0x00,                   // mov ecx, 512
    0x48, 0x89, 0x07,                               // mov [rdi], rax
    0x48, 0x83, 0xc7, 0x08,                         // add rdi, 8
    0x05, 0x00, 0x00, 0x20, 0x00,                   // add eax, 0x200000
    0xff, 0xc9,                                     // dec ecx
    0x75, 0xf0,                                     // jnz to the mov
    // ring 3 may use all of them
    0x0f, 0x20, 0xdb,                               // mov rbx, cr3
    0x48, 0x83, 0x0b, 0x04,                         // or qword [rbx], 4
    0x48, 0x8b, 0x1b,                               // mov rbx, [rbx]
    0x48, 0x81, 0xe3, 0x00, 0xf0, 0xff, 0xff,       // and rbx, -4096
    0x48, 0x83, 0x0b, 0x04,                         // or qword [rbx], 4
    0x48, 0xc7, 0x43, 0x08, 0x07, 0x00, 0x30, 0x00, // mov qword [rbx + 8], 0x300007
    0x48, 0x8b, 0x1b,                               // mov rbx, [rbx]
    0x48, 0x81, 0xe3, 0x00, 0xf0, 0xff, 0xff,       // and rbx, -4096
    0xb9, 0x00, 0x02, 0x00, 0x00,                   // mov ecx, 512
    0x48, 0x83, 0x0b, 0x04,                         // or qword [rbx], 4
    0x48, 0x83, 0xc3, 0x08,                         // add rbx, 8
    0xff, 0xc9,                                     // dec ecx
    0x75, 0xf4,                                     // jnz to the or
    0x0f, 0x20, 0xd8,                               // mov rax, cr3
    0x0f, 0x22, 0xd8,                               // mov cr3, rax
    // a task whose map of ports, the zeroes behind it, lets ring 3 use them
    0x0f, 0x01, 0x15, 0x27, 0x00, 0x00, 0x00,       // lgdt [rip + 39]
    0x66, 0xc7, 0x04, 0x25, 0x66, 0x10, 0x20, 0x00, 0x68, 0x00,// mov word [0x201066], 104
    0x66, 0xb8, 0x28, 0x00,                         // mov ax, 0x28
    0x0f, 0x00, 0xd8,                               // ltr ax
    // to ring 3
    0x6a, 0x1b,                                     // push 0x1b
    0xb8, 0x00, 0x00, 0x08, 0x00,                   // mov eax, 0x80000
    0x50,                                           // push rax
    0x6a, 0x02,                                     // push 2
    0x6a, 0x23,                                     // push 0x23
    0x48, 0x8d, 0x05, 0x45, 0x00, 0x00, 0x00,       // lea rax, [rip + 69]
    0x50,                                           // push rax
    0x48, 0xcf,                                     // iretq
    // the descriptor table: its limit and address; null, ring 0 code and data, ring 3 data and code,
    // the task
    0x37, 0x00, 0x9c, 0x00, 0x10, 0x00, 0x00, 0x00, 0x00, 0x00,
    0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,
    0xff, 0xff, 0x00, 0x00, 0x00, 0x9b, 0xaf, 0x00,
    0xff, 0xff, 0x00, 0x00, 0x00, 0x93, 0xcf, 0x00,
    0xff, 0xff, 0x00, 0x00, 0x00, 0xf3, 0xcf, 0x00,
    0xff, 0xff, 0x00, 0x00, 0x00, 0xfb, 0xaf, 0x00,
    0xff, 0x0f, 0x00, 0x10, 0x20, 0x89, 0x00, 0x00,
    0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,
    0xbf, 0x00, 0x00, 0x00, (TOUCHED_FROM >> 4) as u8, // mov edi, TOUCHED_FROM
];
#[rustfmt::skip]
const TOUCH: [u8; 14] = [
    0x48, 0x89, 0x3f,                               // mov [rdi], rdi
    0x48, 0x81, 0xc7, 0x00, 0x10, 0x00, 0x00,       // add rdi, 4096
    0xff, 0xc9,                                     // dec ecx
    0x75, 0xf2,                                     // jnz to the mov
];
#[rustfmt::skip]
const TIMER: [u8; 156] = [
    0x48, 0xc7, 0xc4, 0x00, 0x00, 0x09, 0x00,       // mov rsp, 0x90000
    // the gate of vector 0x20, in a table at 2 MiB that is zeroes else
    0x48, 0x8d, 0x05, 0x71, 0x00, 0x00, 0x00,       // lea rax, [rip + 0x71]: the handler below
    0xbf, 0x00, 0x02, 0x20, 0x00,                   // mov edi, 0x200200
    0x66, 0x89, 0x07,                               // mov [rdi], ax
    0x66, 0x8c, 0xc9,                               // mov cx, cs
    0x66, 0x89, 0x4f, 0x02,                         // mov [rdi + 2], cx
    0x66, 0xc7, 0x47, 0x04, 0x00, 0x8e,             // mov word [rdi + 4], 0x8e00
    0xc1, 0xe8, 0x10,                               // shr eax, 16
    0x66, 0x89, 0x47, 0x06,                         // mov [rdi + 6], ax
    0x0f, 0x01, 0x1d, 0x61, 0x00, 0x00, 0x00,       // lidt [rip + 0x61]: behind the handler
    // IA32_APIC_BASE: on, x2APIC; Intel SDM volume 3A, chapter 12, for it and the rest
    0xb9, 0x1b, 0x00, 0x00, 0x00, 0x0f, 0x32,       // mov ecx, 0x1b; rdmsr
    0x0d, 0x00, 0x0c, 0x00, 0x00, 0x0f, 0x30,       // or eax, 0xc00; wrmsr
    0x31, 0xd2,                                     // xor edx, edx
    // spurious vector 0xff, enabled
    0xb9, 0x0f, 0x08, 0x00, 0x00, 0xb8, 0xff, 0x01, 0x00, 0x00, 0x0f, 0x30,
    // nothing of the old interrupt controller, whose vectors have no gates
    0xb9, 0x35, 0x08, 0x00, 0x00, 0xb8, 0x00, 0x00, 0x01, 0x00, 0x0f, 0x30,
    // timer: periodic, vector 0x20; divided by 1; 100 million periods of KVM's 1 GHz
    0xb9, 0x32, 0x08, 0x00, 0x00, 0xb8, 0x20, 0x00, 0x02, 0x00, 0x0f, 0x30,
    0xb9, 0x3e, 0x08, 0x00, 0x00, 0xb8, 0x0b, 0x00, 0x00, 0x00, 0x0f, 0x30,
    0xb9, 0x38, 0x08, 0x00, 0x00, 0xb8, 0x00, 0xe1, 0xf5, 0x05, 0x0f, 0x30,
    0xeb, 0x1d,                                     // jmp behind all of this
    // the handler: end of interrupt
    0x50, 0x51, 0x52,                               // push rax, rcx, rdx
    0xb9, 0x0b, 0x08, 0x00, 0x00,                   // mov ecx, 0x80b
    0x31, 0xc0, 0x31, 0xd2, 0x0f, 0x30,             // xor eax, eax; xor edx, edx; wrmsr
    0x5a, 0x59, 0x58, 0x48, 0xcf,                   // pop rdx, rcx, rax; iretq
    0x0f, 0x02, 0x00, 0x00, 0x20, 0x00, 0x00, 0x00, 0x00, 0x00,// the table's limit and address
];
const SLEEP: [u8; 4] = [0xfb, 0xf4, 0xeb, 0xf5]; // sti; hlt; jmp to WRITE_SIGN before it
const AND_AGAIN: [u8; 2] = [0xeb, 0xdf]; // jmp to `mov edi` at the end of RING_3
#[rustfmt::skip]
const TICK: [u8; 11] = [
    0xb9, 0xa0, 0x86, 0x01, 0x00,                   // mov ecx, 100000
    0xff, 0xc9,                                     // dec ecx
    0x75, 0xfc,                                     // jnz to the dec
    0xeb, 0xee,                                     // jmp to WRITE_SIGN before it
];

impl Guest {
    /// Writes the guest's file to `dir`.
    pub fn write(self, dir: &Path) -> io::Result<PathBuf> {
        let long_mode = matches!(
            self,
            Guest::Beat | Guest::Touch { .. } | Guest::Passes { .. }
        );
        let count = |pages| {
            let pages = u32::try_from(pages).unwrap_or(u32::MAX).to_le_bytes();
            [&[0xb9], &pages[..]].concat() // mov ecx, pages
        };
        let (name, code) = match self {
            Guest::Hello(Reset::Keyboard) => ("hello", [&WRITE_SIGN, &RESET[..], &HALT].concat()),
            Guest::Hello(Reset::TripleFault) => {
                let code = [&WRITE_SIGN, &TRIPLE_FAULT[..], &HALT].concat();
                ("hello-fault", code)
            }
            Guest::Hang => ("hang", [&WRITE_SIGN[..], &HALT].concat()),
            Guest::Speak => ("speak", [&WRITE_SIGN[..], &SPEAK_ON].concat()),
            Guest::Beat => ("beat", [&TIMER[..], &WRITE_SIGN, &SLEEP].concat()),
            Guest::Touch { pages } => {
                let parts = [&RING_3[..], &count(pages), &TOUCH, &WRITE_SIGN, &TICK];
                ("touch", parts.concat())
            }
            Guest::Passes { pages } => {
                let parts = [&RING_3[..], &count(pages), &TOUCH, &WRITE_SIGN, &AND_AGAIN];
                ("passes", parts.concat())
            }
        };
        let path = dir.join(name).with_extension("elf");
        std::fs::write(&path, elf(&code, !long_mode))?;
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

/// An ELF file with one segment at [`START`], and with `pvh` the note that says so.
fn elf(code: &[u8], pvh: bool) -> Vec<u8> {
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
    for value in [HEADER, SEGMENT, 1 + u16::from(pvh), 0, 0, 0] {
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
        let file = elf(&[1, 2, 3], true);
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
            Guest::Speak,
            Guest::Beat,
            Guest::Touch { pages: 1 },
            Guest::Passes { pages: 1 },
        ];
        let mut paths = guests
            .map(|guest| guest.write(dir.path()).unwrap())
            .to_vec();
        paths.dedup();
        assert_eq!(paths.len(), 7);
    }
}
