//! What to do about a request: every check of what the driver asked, and nothing else.

use std::sync::Arc;

use virtio_bindings::virtio_blk::*;

use super::request::{Range, Request, read_bytes, total, write_bytes};
use super::{Buffers, Operation, SECTOR, SEG_MAX};
use crate::GuestMemory;

/// Most sectors of one discard or write of zeroes: 2 GiB.
pub(super) const MAX_RANGE_SECTORS: u32 = 1 << 22;

const OK: u8 = VIRTIO_BLK_S_OK as u8;
const IO_ERROR: u8 = VIRTIO_BLK_S_IOERR as u8;
const UNSUPPORTED: u8 = VIRTIO_BLK_S_UNSUPP as u8;

/// What the drive allows.
pub(super) struct Limits<'a> {
    /// In bytes.
    pub capacity: u64,
    pub read_only: bool,
    /// A flush reaches the storage.
    pub flush: bool,
    /// Each write is durable when it completes.
    pub durable: bool,
    pub serial: &'a [u8; 20],
}

/// The way to go on with a request.
#[derive(Debug)]
pub(super) enum Plan {
    /// Answer at once: the status, and how many bytes of data in were written.
    Answer(u8, u32),
    /// Let the backend do this; it succeeds if this many bytes are moved.
    Submit(Operation, u64),
}

/// Decides. Reads and writes guest memory only for what is answered at once.
pub(super) fn plan(request: &Request, mem: &Arc<GuestMemory>, limits: &Limits) -> Plan {
    decide(request, mem, limits).unwrap_or_else(|status| Plan::Answer(status, 0))
}

fn decide(request: &Request, mem: &Arc<GuestMemory>, limits: &Limits) -> Result<Plan, u8> {
    let header = request.header.as_ref().ok_or(IO_ERROR)?;
    match header.kind {
        VIRTIO_BLK_T_IN => {
            check(request.out.is_empty())?;
            let (offset, buffers) = transfer(header.sector, &request.room, mem, limits)?;
            let len = buffers.len() as u64;
            Ok(submit(len, Operation::Read { offset, buffers }))
        }
        VIRTIO_BLK_T_OUT => {
            check(request.room.is_empty() && !limits.read_only)?;
            let (offset, buffers) = transfer(header.sector, &request.out, mem, limits)?;
            let len = buffers.len() as u64;
            let durable = limits.durable;
            let write = Operation::Write {
                offset,
                buffers,
                durable,
            };
            Ok(submit(len, write))
        }
        // Nothing was written to a read-only drive: there is nothing to make durable.
        VIRTIO_BLK_T_FLUSH if limits.read_only || !limits.flush => Ok(Plan::Answer(OK, 0)),
        VIRTIO_BLK_T_FLUSH => Ok(Plan::Submit(Operation::Flush, 0)),
        VIRTIO_BLK_T_GET_ID => {
            let written = write_bytes(&request.room, mem, limits.serial).ok_or(IO_ERROR)?;
            Ok(Plan::Answer(OK, written))
        }
        VIRTIO_BLK_T_DISCARD | VIRTIO_BLK_T_WRITE_ZEROES => {
            check(!limits.read_only)?;
            let discard = header.kind == VIRTIO_BLK_T_DISCARD;
            let (offset, len, unmap) = range_of(&request.out, mem, limits, discard)?;
            let operation = match discard {
                true => Operation::Discard { offset, len },
                false => Operation::WriteZeroes {
                    offset,
                    len,
                    unmap,
                    durable: limits.durable,
                },
            };
            Ok(if len == 0 {
                Plan::Answer(OK, 0)
            } else {
                Plan::Submit(operation, 0)
            })
        }
        _ => Err(UNSUPPORTED),
    }
}

fn check(condition: bool) -> Result<(), u8> {
    condition.then_some(()).ok_or(IO_ERROR)
}

fn submit(len: u64, operation: Operation) -> Plan {
    match len {
        0 => Plan::Answer(OK, 0),
        _ => Plan::Submit(operation, len),
    }
}

/// Where a read or write goes in the drive, and in guest memory.
fn transfer(
    sector: u64,
    ranges: &[Range],
    mem: &Arc<GuestMemory>,
    limits: &Limits,
) -> Result<(u64, Buffers), u8> {
    check(ranges.len() <= SEG_MAX as usize)?;
    let offset = offset_of(sector, total(ranges), limits)?;
    let buffers = Buffers::new(mem, ranges.iter().copied()).ok_or(IO_ERROR)?;
    Ok((offset, buffers))
}

fn offset_of(sector: u64, len: u64, limits: &Limits) -> Result<u64, u8> {
    let offset = sector.checked_mul(SECTOR).ok_or(IO_ERROR)?;
    let end = offset.checked_add(len).ok_or(IO_ERROR)?;
    check(len.is_multiple_of(SECTOR) && end <= limits.capacity)?;
    Ok(offset)
}

/// The one range of a discard or write of zeroes (`max_discard_seg` is 1): offset, length and
/// whether it may be unmapped.
fn range_of(
    out: &[Range],
    mem: &GuestMemory,
    limits: &Limits,
    discard: bool,
) -> Result<(u64, u64, bool), u8> {
    let mut bytes = [0; 16];
    check(total(out) == bytes.len() as u64 && read_bytes(out, mem, &mut bytes))?;
    let word = |at| u32::from_le_bytes(std::array::from_fn(|i| bytes[at + i]));
    let sector = u64::from(word(0)) | u64::from(word(4)) << 32;
    let (sectors, flags) = (word(8), word(12));
    // Unknown flags, and unmap in a discard, are to be refused in this way (section 5.2.6.2).
    let known = match discard {
        true => 0,
        false => VIRTIO_BLK_WRITE_ZEROES_FLAG_UNMAP,
    };
    if flags & !known != 0 {
        return Err(UNSUPPORTED);
    }
    check(sectors <= MAX_RANGE_SECTORS)?;
    let len = u64::from(sectors) * SECTOR;
    Ok((offset_of(sector, len, limits)?, len, flags != 0))
}
