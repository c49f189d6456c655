//! Operations done on the spot, for the worker thread.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use libc::{FALLOC_FL_KEEP_SIZE, FALLOC_FL_PUNCH_HOLE, FALLOC_FL_ZERO_RANGE};

use crate::virtio::block::worker::Perform;
use crate::virtio::block::{Buffers, Operation, sys};

/// Zeroes are written in pieces of this size where the file system has no better way.
const ZEROES_LEN: u64 = 256 << 10;

impl Perform for Arc<File> {
    fn perform(&mut self, operation: Operation) -> io::Result<u64> {
        perform(self, operation)
    }
}

fn perform(file: &File, operation: Operation) -> io::Result<u64> {
    match operation {
        Operation::Read { offset, buffers } => transfer(offset, buffers, |buffers, offset| {
            sys::read_vectored(file, buffers, offset)
        }),
        Operation::Write {
            offset,
            buffers,
            durable,
        } => transfer(offset, buffers, |buffers, offset| {
            sys::write_vectored(file, buffers, offset, durable)
        }),
        Operation::Flush => file.sync_data().map(|()| 0),
        Operation::Discard { offset, len } => discard(file, offset, len).map(|()| 0),
        Operation::WriteZeroes {
            offset,
            len,
            unmap,
            durable,
        } => {
            write_zeroes(file, offset, len, unmap)?;
            if durable {
                file.sync_data()?;
            }
            Ok(0)
        }
    }
}

/// Calls `once` until all is moved, or nothing more is (the end of the file).
fn transfer(
    offset: u64,
    mut buffers: Buffers,
    once: impl Fn(&Buffers, u64) -> io::Result<usize>,
) -> io::Result<u64> {
    let mut moved = 0;
    while !buffers.is_empty() {
        match once(&buffers, offset + moved) {
            Ok(0) => break,
            Ok(count) => {
                moved += count as u64;
                buffers.advance(count);
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(moved)
}

fn discard(file: &File, offset: u64, len: u64) -> io::Result<()> {
    match fallocate(file, FALLOC_FL_PUNCH_HOLE, offset, len) {
        Err(error) if is_lacking(&error) => Ok(()),
        result => result,
    }
}

fn write_zeroes(file: &File, offset: u64, len: u64, unmap: bool) -> io::Result<()> {
    let modes: &[libc::c_int] = match unmap {
        true => &[FALLOC_FL_PUNCH_HOLE, FALLOC_FL_ZERO_RANGE],
        false => &[FALLOC_FL_ZERO_RANGE],
    };
    for mode in modes {
        match fallocate(file, *mode, offset, len) {
            Err(error) if is_lacking(&error) => {}
            result => return result,
        }
    }
    let zeroes = vec![0; len.min(ZEROES_LEN) as usize];
    let mut done = 0;
    while done < len {
        let count = (len - done).min(ZEROES_LEN);
        file.write_all_at(&zeroes[..count as usize], offset + done)?;
        done += count;
    }
    Ok(())
}

/// The file keeps its size in any case: the drive's size is not the guest's to change.
fn fallocate(file: &File, mode: libc::c_int, offset: u64, len: u64) -> io::Result<()> {
    loop {
        match sys::fallocate(file, mode | FALLOC_FL_KEEP_SIZE, offset, len) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            result => return result,
        }
    }
}

/// Whether the file system (or device) cannot do this, as opposed to having failed at it.
fn is_lacking(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(libc::EOPNOTSUPP | libc::ENOSYS | libc::ENODEV)
    )
}
