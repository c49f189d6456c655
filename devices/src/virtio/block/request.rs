//! Reading a request out of a descriptor chain.
//!
//! A chain is two streams of bytes (the specification allows any cut into descriptors, section
//! 2.7.4): what the device reads is the header of 16 bytes and the data out; what it writes is the
//! data in and, as the very last byte, the status.

use std::sync::Arc;

use virtio_bindings::virtio_blk::{VIRTIO_BLK_T_IN, VIRTIO_BLK_T_OUT};
use vm_memory::{Bytes, GuestAddress, GuestMemoryBackend};

use crate::GuestMemory;
use crate::virtio::Chain;

/// Descriptors looked at in one chain. More than a chain may have; but so many that a driver with
/// a merely too long chain is told so, in its status.
const MAX_DESCRIPTORS: usize = 1024;
const HEADER_LEN: u32 = 16;

/// A part of guest memory, not yet checked to be there.
pub(super) type Range = (GuestAddress, u32);

/// The chain has no place for a status: it cannot be answered.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct NoStatus;

/// What every request begins with.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Header {
    /// VIRTIO_BLK_T_*.
    pub kind: u32,
    /// Where, in sectors of 512 bytes; meaningless for most kinds.
    pub sector: u64,
}

/// A request, its data not checked yet.
#[derive(Debug)]
pub(super) struct Request {
    /// Where the status goes; it is in memory.
    pub status: GuestAddress,
    /// `None` if it is short, not in memory, or comes after what the device writes.
    pub header: Option<Header>,
    /// Data out.
    pub out: Vec<Range>,
    /// Room for data in.
    pub room: Vec<Range>,
}

impl Request {
    /// Walks the chain once.
    pub fn parse(chain: Chain, mem: &Arc<GuestMemory>) -> Result<Self, NoStatus> {
        let (mut out, mut room) = (Vec::new(), Vec::new());
        let mut in_order = true;
        let mut ended = false;
        for descriptor in chain.take(MAX_DESCRIPTORS) {
            ended = !descriptor.has_next();
            if descriptor.len() == 0 {
                continue;
            }
            let range = (descriptor.addr(), descriptor.len());
            if descriptor.is_write_only() {
                room.push(range);
            } else {
                in_order &= room.is_empty();
                out.push(range);
            }
        }
        // A loop, an index out of the table or a table out of memory cut the chain off. Its last
        // byte, where the status would be, is then not known.
        if !ended {
            return Err(NoStatus);
        }
        let status = take_last_byte(&mut room).ok_or(NoStatus)?;
        if !mem.address_in_range(status) {
            return Err(NoStatus);
        }
        let header = read_header(&mut out, mem).filter(|_| in_order);
        Ok(Self {
            status,
            header,
            out,
            room,
        })
    }

    /// How many bytes of data it moves, as it claims.
    pub fn data_len(&self) -> u64 {
        match self.header.as_ref().map(|header| header.kind) {
            Some(VIRTIO_BLK_T_IN) => total(&self.room),
            Some(VIRTIO_BLK_T_OUT) => total(&self.out),
            _ => 0,
        }
    }
}

/// How many bytes there are in the ranges.
pub(super) fn total(ranges: &[Range]) -> u64 {
    ranges.iter().map(|(_, len)| u64::from(*len)).sum()
}

/// Copies the ranges' first bytes; `false` if they are not in memory, or too few.
pub(super) fn read_bytes(ranges: &[Range], mem: &GuestMemory, into: &mut [u8]) -> bool {
    let mut filled = 0;
    for (addr, len) in ranges {
        let count = (*len as usize).min(into.len() - filled);
        let part = &mut into[filled..filled + count];
        if mem.read_slice(part, *addr).is_err() {
            return false;
        }
        filled += count;
    }
    filled == into.len()
}

/// Copies bytes to the start of the ranges; gives how many there was room for, or `None` if the
/// room is not in memory.
pub(super) fn write_bytes(ranges: &[Range], mem: &GuestMemory, bytes: &[u8]) -> Option<u32> {
    let mut written = 0;
    for (addr, len) in ranges {
        let count = (*len as usize).min(bytes.len() - written);
        mem.write_slice(&bytes[written..written + count], *addr)
            .ok()?;
        written += count;
    }
    Some(written as u32)
}

fn take_last_byte(room: &mut Vec<Range>) -> Option<GuestAddress> {
    let (addr, len) = room.last_mut()?;
    *len -= 1;
    let last = addr.0.checked_add(u64::from(*len))?;
    if *len == 0 {
        room.pop();
    }
    Some(GuestAddress(last))
}

fn read_header(out: &mut Vec<Range>, mem: &GuestMemory) -> Option<Header> {
    let mut bytes = [0; HEADER_LEN as usize];
    if !read_bytes(out, mem, &mut bytes) {
        return None;
    }
    let mut rest = HEADER_LEN;
    out.retain_mut(|(addr, len)| {
        let used = rest.min(*len);
        rest -= used;
        *len -= used;
        // No overflow: this many bytes were read from there.
        addr.0 = addr.0.wrapping_add(u64::from(used));
        *len > 0
    });
    let (kind, sector) = (&bytes[..4], &bytes[8..]);
    Some(Header {
        kind: u32::from_le_bytes(kind.try_into().ok()?),
        sector: u64::from_le_bytes(sector.try_into().ok()?),
    })
}
