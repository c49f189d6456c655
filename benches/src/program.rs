//! The smallest program there is to be jailed: it writes one byte and ends. A monitor's own start
//! is not in its time, so that what is measured is the jailer's price.

use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use crate::guest::SIGN;

/// Where it is loaded to.
const START: u64 = 0x40_0000;
/// ELF specification (version 1.2 with the 64-bit layouts): the header, and one segment's.
const HEADER: u16 = 64;
const SEGMENT: u16 = 56;

#[rustfmt::skip]
const CODE: [u8; 33] = [
    0xb8, 1, 0, 0, 0,                   // mov eax, 1: write
    0xbf, 1, 0, 0, 0,                   // mov edi, 1
    0x48, 0x8d, 0x35, 13, 0, 0, 0,      // lea rsi, [rip + 13]: behind the code
    0xba, 1, 0, 0, 0,                   // mov edx, 1
    0x0f, 0x05,                         // syscall
    0xb0, 231,                          // mov al, 231: exit_group
    0x31, 0xff,                         // xor edi, edi
    0x0f, 0x05,                         // syscall
    SIGN, 0, 0,
];

/// Writes it to `dir`, as a file of `size` bytes: what is behind the program is none of its business,
/// but of whoever copies it.
pub fn write(dir: &Path, size: u64) -> io::Result<PathBuf> {
    let path = dir.join("program");
    let mut bytes = elf();
    bytes.resize(bytes.len().max(size as usize), 1);
    std::fs::write(&path, bytes)?;
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755))?;
    Ok(path)
}

fn elf() -> Vec<u8> {
    let mut file = b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0".to_vec();
    let start = u64::from(HEADER + SEGMENT);
    let len = start + CODE.len() as u64;
    file.extend([2, 0, 62, 0, 1, 0, 0, 0]); // executable, x86-64, version 1
    for value in [START + start, HEADER.into(), 0] {
        file.extend(value.to_le_bytes()); // entry, segments, no sections
    }
    file.extend([0; 4]);
    for value in [HEADER, SEGMENT, 1, 0, 0, 0] {
        file.extend(value.to_le_bytes());
    }
    file.extend([1, 0, 0, 0, 5, 0, 0, 0]); // to be loaded, read and executed
    for value in [0, START, START, len, len, 4096] {
        file.extend(value.to_le_bytes());
    }
    file.extend(CODE);
    file
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn it_writes_the_sign_and_ends() {
        let dir = tempfile::tempdir().unwrap();
        let path = write(dir.path(), 100_000).unwrap();
        assert_eq!(path.metadata().unwrap().len(), 100_000);
        let output = Command::new(path).output().unwrap();
        assert!(output.status.success());
        assert_eq!(output.stdout, [SIGN]);
    }
}
