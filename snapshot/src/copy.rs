//! Files as a whole: shared by the file system where it can, copied with their holes where not,
//! and summed up without reading the holes.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;

use rustix::fs::SeekFrom;
use rustix::io::Errno;

use crate::checksum::{Checksum, Summer};
use crate::writer::StepError;

/// What is read, or copied, between two reports of progress.
const PIECE: u64 = 4 << 20;
/// The unit of a disk's checksum (`FORMAT.md`, "Disks").
pub(crate) const BLOCK: u64 = 256 << 10;

/// Bytes of a file that are not holes: what a copy of it needs.
///
/// # Errors
///
/// When the file cannot be looked at.
pub fn stored_bytes(file: &File) -> io::Result<u64> {
    let length = file.metadata()?.len();
    let mut sum = 0;
    each_range(file, 0..length, |start, end| {
        sum += end - start;
        Ok(())
    })
    .map_err(StepError::into_io)?;
    Ok(sum)
}

/// Calls `visit` with the start and end of each part of a range that is not a hole. The file's own
/// position is moved.
pub(crate) fn each_range(
    file: &File,
    range: Range<u64>,
    mut visit: impl FnMut(u64, u64) -> Result<(), StepError>,
) -> Result<(), StepError> {
    let (mut at, length) = (range.start, range.end);
    while at < length {
        let start = match rustix::fs::seek(file, SeekFrom::Data(at)) {
            Ok(start) => start,
            // Nothing but a hole up to the end.
            Err(Errno::NXIO) => return Ok(()),
            // A file system that does not say what are holes.
            Err(Errno::INVAL) => return visit(at, length),
            Err(errno) => return Err(io::Error::from(errno).into()),
        };
        if start >= length {
            return Ok(());
        }
        let end = rustix::fs::seek(file, SeekFrom::Hole(start)).map_err(io::Error::from)?;
        // One that others truncate meanwhile must not keep this loop in one place.
        let end = end.clamp(start + 1, length);
        visit(start, end)?;
        at = end;
    }
    Ok(())
}

/// Lets `to`, which is empty, share the blocks of `from`. False where the file system cannot.
pub(crate) fn reflink(from: &File, to: &File) -> io::Result<bool> {
    match rustix::fs::ioctl_ficlone(to, from) {
        Ok(()) => Ok(true),
        Err(errno @ (Errno::NOSPC | Errno::DQUOT | Errno::IO)) => Err(errno.into()),
        Err(_) => Ok(false),
    }
}

/// Copies the first `length` bytes of `from` into `to`, which is empty, leaving holes as holes.
/// `copied` is told of each piece, and may stop it.
pub(crate) fn copy(
    from: &File,
    to: &File,
    length: u64,
    mut copied: impl FnMut(u64) -> Result<(), StepError>,
) -> Result<(), StepError> {
    to.set_len(length)?;
    let mut by_kernel = true;
    let mut buffer = Vec::new();
    each_range(from, 0..length, |mut at, end| {
        while at < end {
            let piece = (end - at).min(PIECE);
            let count = if by_kernel {
                let (mut read, mut write) = (at, at);
                let (read, write) = (Some(&mut read), Some(&mut write));
                match rustix::fs::copy_file_range(from, read, to, write, piece as usize) {
                    Ok(count) => count as u64,
                    Err(Errno::INTR) => continue,
                    // Not between these two files, or not here at all.
                    Err(Errno::XDEV | Errno::INVAL | Errno::OPNOTSUPP | Errno::NOSYS) => {
                        by_kernel = false;
                        continue;
                    }
                    Err(errno) => return Err(io::Error::from(errno).into()),
                }
            } else {
                buffer.resize(PIECE as usize, 0);
                let count = from.read_at(&mut buffer[..piece as usize], at)?;
                to.write_all_at(&buffer[..count], at)?;
                count as u64
            };
            if count == 0 {
                return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
            }
            at += count;
            copied(count)?;
        }
        Ok(())
    })
}

/// The checksum of a disk's file: over its blocks that are not all zeroes, each behind its number.
/// So it is the same whether zeroes are holes or not, and holes cost nothing.
pub(crate) fn sum(
    file: &File,
    length: u64,
    mut read: impl FnMut(u64) -> Result<(), StepError>,
) -> Result<Checksum, StepError> {
    let mut summer = Summer::new();
    let mut buffer = vec![0; PIECE as usize];
    let mut next = 0;
    each_range(file, 0..length, |start, end| {
        // Blocks that two ranges share are read once, whole.
        let mut at = (start / BLOCK * BLOCK).max(next);
        while at < end {
            let piece = &mut buffer[..(length - at).min(PIECE) as usize];
            let piece_end = (end.div_ceil(BLOCK) * BLOCK).min(at + piece.len() as u64);
            let piece = &mut piece[..(piece_end - at) as usize];
            file.read_exact_at(piece, at)?;
            for (n, block) in piece.chunks(BLOCK as usize).enumerate() {
                if !is_zero(block) {
                    summer.update(&(at / BLOCK + n as u64).to_le_bytes());
                    summer.update(block);
                }
            }
            read(piece.len() as u64)?;
            at += piece.len() as u64;
        }
        next = at;
        Ok(())
    })?;
    summer.update(&length.to_le_bytes());
    Ok(summer.sum())
}

/// Whether these bytes are all zero. The first that is not ends it.
pub(crate) fn is_zero(bytes: &[u8]) -> bool {
    static ZEROES: [u8; 4096] = [0; 4096];
    bytes
        .chunks(ZEROES.len())
        .all(|piece| *piece == ZEROES[..piece.len()])
}
