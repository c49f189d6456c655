//! Executing the program, and nothing ever after.
//!
//! The filter that forbids execveat(2) has to be there before the program is, so that the program
//! never runs without it, and yet the program is started by this very call. So the filter lets a
//! call pass whose pointers have three values out of some 2^100 that were drawn a moment ago. They
//! lie in memory that the call replaces: the program cannot find them out, and a wrong guess says
//! nothing about the right one.

use std::ffi::CString;
use std::io;
use std::os::fd::BorrowedFd;

use rustix::rand::{GetRandomFlags, getrandom};

use crate::error::{JailError, failed};
use crate::sys::{self, ExecPointers, Page};

/// The kernel's own smallest unit of a mapping.
const PAGE: usize = 4096;
/// Addresses are drawn from the lower half of what a process has, which is free but for a few
/// mappings of a small static program.
const ADDRESS_BITS: u32 = 46;
/// Draws that hit a mapping of this process, before giving up. One is unlikely.
const DRAWS: usize = 16;

/// A call that is ready to be made.
pub(crate) struct Prepared {
    pointers: ExecPointers,
}

/// Lays the arguments out at addresses that nobody knows. The environment is empty.
pub(crate) fn prepare(arguments: &[CString]) -> Result<Prepared, JailError> {
    lay_out(arguments).map_err(failed("lay the arguments out"))
}

fn lay_out(arguments: &[CString]) -> io::Result<Prepared> {
    let mut strings = Vec::new();
    let mut offsets = Vec::with_capacity(arguments.len());
    for argument in arguments {
        offsets.push(strings.len() as u64);
        strings.extend_from_slice(argument.as_bytes_with_nul());
    }
    let base = map_anywhere(strings.len())?.0.put(&strings)?;
    let mut list = Vec::with_capacity(8 * (offsets.len() + 1));
    for offset in offsets {
        list.extend_from_slice(&(base + offset).to_ne_bytes());
    }
    list.extend_from_slice(&[0; 8]);
    let arguments = put_anywhere(&list)?;
    let environment = put_anywhere(&[0; 8])?;
    let path = put_anywhere(&[0])?;
    Ok(Prepared {
        pointers: ExecPointers {
            path,
            arguments,
            environment,
        },
    })
}

/// Puts `bytes` at a random address, aligned to 8.
fn put_anywhere(bytes: &[u8]) -> io::Result<u64> {
    let (mut page, inside) = map_anywhere(bytes.len() + PAGE)?;
    page.put(&vec![0; inside])?;
    page.put(bytes)
}

/// A mapping at a random address, and a random aligned place in its first page.
fn map_anywhere(len: usize) -> io::Result<(Page, usize)> {
    let len = len.next_multiple_of(PAGE);
    for _ in 0..DRAWS {
        let mut random = [0; 8];
        getrandom(&mut random, GetRandomFlags::empty())?;
        let random = u64::from_ne_bytes(random);
        let address = (random & ((1 << ADDRESS_BITS) - 1)) as usize & !(PAGE - 1);
        let inside = ((random >> ADDRESS_BITS) as usize % PAGE) & !7;
        match Page::map(address, len) {
            Ok(page) => return Ok((page, inside)),
            Err(err) if err.kind() == io::ErrorKind::Unsupported => return Err(err),
            // Taken, or below what may be mapped.
            Err(_) => {}
        }
    }
    Err(io::ErrorKind::AddrInUse.into())
}

impl Prepared {
    /// The values that the filter lets pass.
    pub fn pointers(&self) -> &ExecPointers {
        &self.pointers
    }

    /// Makes the call. Returns only when it fails.
    pub fn execute(&self, program: BorrowedFd<'_>) -> io::Error {
        sys::execute(program, &self.pointers)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_differ_from_call_to_call() {
        let arguments = [c"/program".to_owned(), c"--id".to_owned()];
        let all: Vec<Prepared> = (0..8).map(|_| prepare(&arguments).unwrap()).collect();
        let values = |p: &Prepared| {
            [
                p.pointers.path,
                p.pointers.arguments,
                p.pointers.environment,
            ]
        };
        let mut seen: Vec<u64> = all.iter().flat_map(values).collect();
        assert!(
            seen.iter()
                .all(|value| *value != 0 && value >> ADDRESS_BITS <= 1)
        );
        seen.sort_unstable();
        seen.dedup();
        assert_eq!(seen.len(), 24);
    }
}
