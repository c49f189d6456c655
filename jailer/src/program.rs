//! Whether a program can run in a jail at all: an ELF file for this processor that needs no other
//! file. What is wrong is better told now than by a call that fails where nothing can be told.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

use rustix::fs::OFlags;

use crate::error::{JailError, failed};
use crate::paths;

/// System V ABI, chapter 4 (object files): sizes and places in a 64-bit file.
const HEADER: usize = 64;
const PROGRAM_HEADER: usize = 56;
/// `e_machine` of x86-64.
const X86_64: u16 = 62;
/// `p_type` of the path of a loader.
const PT_INTERP: u32 = 3;

/// Checks the file behind `path`.
pub(crate) fn check(path: &Path) -> Result<(), JailError> {
    let file = File::from(paths::open(path, OFlags::RDONLY)?);
    let mut bytes = [0; 4096];
    let read = file.read_at(&mut bytes, 0);
    let read = read.map_err(failed(format!("read {}", path.display())))?;
    match unusable(&bytes[..read]) {
        None => Ok(()),
        Some(reason) => Err(paths::refuse(path, reason)),
    }
}

/// Why a file that begins like this cannot run.
fn unusable(bytes: &[u8]) -> Option<&'static str> {
    let half = |at: usize| {
        bytes
            .get(at..at + 2)
            .map(|b| u16::from_le_bytes([b[0], b[1]]))
    };
    if bytes.len() < HEADER || !bytes.starts_with(b"\x7fELF\x02\x01") || half(18) != Some(X86_64) {
        return Some("no program for this processor (64-bit ELF)");
    }
    let place = bytes[32..40].try_into().map_or(0, u64::from_le_bytes);
    let (size, count) = (half(54).unwrap_or(0), half(56).unwrap_or(0));
    if usize::from(size) != PROGRAM_HEADER {
        return Some("no program: its headers have a size of their own");
    }
    let kinds = (0..usize::from(count)).filter_map(|index| {
        let at = usize::try_from(place)
            .ok()?
            .checked_add(index * PROGRAM_HEADER)?;
        let kind = bytes.get(at..at.checked_add(4)?)?;
        Some(u32::from_le_bytes(kind.try_into().ok()?))
    });
    if kinds.into_iter().any(|kind| kind == PT_INTERP) {
        return Some("needs a loader and libraries, and a jail has none: link it statically");
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_test_is_static_and_a_shell_is_not() {
        check(&std::env::current_exe().unwrap()).unwrap();
        let shell = std::fs::canonicalize("/bin/sh").unwrap();
        let text = check(&shell).unwrap_err().to_string();
        assert!(text.contains("statically"), "{text}");
    }

    #[test]
    fn no_beginning_of_a_file_is_too_strange() {
        let bytes = std::fs::read(std::env::current_exe().unwrap()).unwrap();
        for len in 0..HEADER {
            assert!(unusable(&bytes[..len]).is_some());
        }
        let mut strange = bytes[..4096].to_vec();
        for place in 0..HEADER {
            strange[place] = !strange[place];
            unusable(&strange);
        }
        assert!(unusable(b"#!/bin/sh\n").is_some());
    }
}
