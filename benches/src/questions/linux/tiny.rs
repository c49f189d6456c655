//! The smallest static program there can be: it ends at once. What it takes to start it is the
//! kernel's work alone, so that nothing hides what is added to that.

/// Where it is loaded to.
const START: u64 = 0x40_0000;

#[rustfmt::skip]
const CODE: [u8; 9] = [
    0xb8, 0x3c, 0x00, 0x00, 0x00,   // mov eax, 60: exit
    0x31, 0xff,                     // xor edi, edi
    0x0f, 0x05,                     // syscall
];

/// Sizes of the file's parts, ELF specification (version 1.2 with the 64-bit layouts).
const HEADER: u64 = 64;
const SEGMENT: u64 = 56;

/// The program as an ELF file of one segment.
pub fn program() -> Vec<u8> {
    let mut file = b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0".to_vec();
    let half = |file: &mut Vec<u8>, value: u16| file.extend(value.to_le_bytes());
    let word = |file: &mut Vec<u8>, value: u32| file.extend(value.to_le_bytes());
    let long = |file: &mut Vec<u8>, value: u64| file.extend(value.to_le_bytes());
    half(&mut file, 2); // executable
    half(&mut file, 62); // x86-64
    word(&mut file, 1);
    long(&mut file, START + HEADER + SEGMENT);
    long(&mut file, HEADER); // the segment stands behind this header
    long(&mut file, 0); // no sections
    word(&mut file, 0);
    for value in [HEADER as u16, SEGMENT as u16, 1, 0, 0, 0] {
        half(&mut file, value);
    }
    let len = HEADER + SEGMENT + CODE.len() as u64;
    word(&mut file, 1); // to be loaded
    word(&mut file, 5); // read and executed
    for value in [0, START, START, len, len, 4096] {
        long(&mut file, value);
    }
    file.extend(CODE);
    file
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn it_can_be_started_and_ends_well() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("tiny");
        std::fs::write(&path, super::program()).unwrap();
        let mode = std::fs::Permissions::from_mode(0o755);
        std::fs::set_permissions(&path, mode).unwrap();
        let status = std::process::Command::new(&path).status().unwrap();
        assert!(status.success(), "{status}");
    }
}
