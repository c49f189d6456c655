//! Packets: the header as plain data, and a chain's guest memory as parts.
//!
//! The specification leaves the layout of a chain to the driver (section 2.7.4): Linux puts header
//! and payload into two descriptors before 6.2, into one since, and into many when it sends from
//! page fragments. So a chain here is a sequence of bytes, whatever its descriptors are. A header
//! is read from guest memory once; nothing of it is believed twice.

use std::borrow::Cow;

use vm_memory::{GuestMemory as _, Permissions, VolatileSlice};

use super::HOST_CID;
use crate::GuestMemory;
use crate::virtio::Chain;

/// Length of a header in bytes.
pub const HEADER_LEN: usize = 44;
/// Parts of guest memory that one packet may lie in. Linux uses 18, and 46 where it is built so.
pub const MAX_PARTS: usize = 64;
/// The stream type, the only one that we offer.
pub const TYPE_STREAM: u16 = 1;

/// What a packet does (the header's `op`).
pub mod op {
    /// Opens a connection.
    pub const REQUEST: u16 = 1;
    /// Accepts one.
    pub const RESPONSE: u16 = 2;
    /// Ends or refuses one at once.
    pub const RST: u16 = 3;
    /// Announces that the sender will not send, or not receive, any more.
    pub const SHUTDOWN: u16 = 4;
    /// Carries payload.
    pub const RW: u16 = 5;
    /// Tells the sender's buffer space.
    pub const CREDIT_UPDATE: u16 = 6;
    /// Asks for that.
    pub const CREDIT_REQUEST: u16 = 7;
}

/// Flag of a SHUTDOWN: its sender receives no more.
pub const SHUTDOWN_RECEIVE: u32 = 1;
/// Flag of a SHUTDOWN: its sender sends no more.
pub const SHUTDOWN_SEND: u32 = 2;
/// Both.
pub const SHUTDOWN_BOTH: u32 = SHUTDOWN_RECEIVE | SHUTDOWN_SEND;

/// A packet's header.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    /// Sender's address.
    pub src_cid: u64,
    /// Receiver's address.
    pub dst_cid: u64,
    /// Sender's port.
    pub src_port: u32,
    /// Receiver's port.
    pub dst_port: u32,
    /// Length of the payload.
    pub len: u32,
    /// Socket type.
    pub kind: u16,
    /// See [`op`].
    pub op: u16,
    /// Flags of a SHUTDOWN.
    pub flags: u32,
    /// Size of the sender's receive buffer.
    pub buf_alloc: u32,
    /// Bytes that have left that buffer so far.
    pub fwd_cnt: u32,
}

/// The two ports of a connection; the addresses are always the host's and the guest's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Key {
    /// Port on the host's side.
    pub host: u32,
    /// Port on the guest's side.
    pub guest: u32,
}

impl Header {
    /// A header without payload from the host to the guest.
    pub fn to_guest(guest_cid: u64, key: Key, op: u16) -> Self {
        Self {
            src_cid: HOST_CID,
            dst_cid: guest_cid,
            src_port: key.host,
            dst_port: key.guest,
            kind: TYPE_STREAM,
            op,
            ..Self::default()
        }
    }

    /// The connection that a packet from the guest belongs to.
    pub fn key(&self) -> Key {
        Key {
            host: self.dst_port,
            guest: self.src_port,
        }
    }

    /// Takes a header apart.
    pub fn from_bytes(bytes: &[u8; HEADER_LEN]) -> Self {
        let u16_at = |at| u16::from_le_bytes([bytes[at], bytes[at + 1]]);
        let u32_at = |at| u32::from(u16_at(at)) | u32::from(u16_at(at + 2)) << 16;
        let u64_at = |at| u64::from(u32_at(at)) | u64::from(u32_at(at + 4)) << 32;
        Self {
            src_cid: u64_at(0),
            dst_cid: u64_at(8),
            src_port: u32_at(16),
            dst_port: u32_at(20),
            len: u32_at(24),
            kind: u16_at(28),
            op: u16_at(30),
            flags: u32_at(32),
            buf_alloc: u32_at(36),
            fwd_cnt: u32_at(40),
        }
    }

    /// The header as it stands in memory.
    pub fn to_bytes(self) -> [u8; HEADER_LEN] {
        let mut bytes = [0; HEADER_LEN];
        bytes[0..8].copy_from_slice(&self.src_cid.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.dst_cid.to_le_bytes());
        bytes[16..20].copy_from_slice(&self.src_port.to_le_bytes());
        bytes[20..24].copy_from_slice(&self.dst_port.to_le_bytes());
        bytes[24..28].copy_from_slice(&self.len.to_le_bytes());
        bytes[28..30].copy_from_slice(&self.kind.to_le_bytes());
        bytes[30..32].copy_from_slice(&self.op.to_le_bytes());
        bytes[32..36].copy_from_slice(&self.flags.to_le_bytes());
        bytes[36..40].copy_from_slice(&self.buf_alloc.to_le_bytes());
        bytes[40..44].copy_from_slice(&self.fwd_cnt.to_le_bytes());
        bytes
    }
}

/// A sequence of bytes in guest memory, in up to [`MAX_PARTS`] parts, none of them empty.
#[derive(Default)]
pub struct Parts<'a>(Vec<VolatileSlice<'a>>);

impl<'a> Parts<'a> {
    /// What a chain offers to read from (`writable` false) or to write to. `None` if it reaches
    /// outside of memory or has too many parts.
    pub fn of_chain(mem: &'a GuestMemory, chain: Chain, writable: bool) -> Option<Self> {
        let access = match writable {
            true => Permissions::Write,
            false => Permissions::Read,
        };
        let mut parts = Vec::with_capacity(4);
        let mut add = |descriptor: virtio_queue::desc::split::Descriptor| {
            let len = descriptor.len() as usize;
            for part in mem.get_slices(descriptor.addr(), len, access).ok()? {
                if parts.len() == MAX_PARTS {
                    return None;
                }
                parts.push(part.ok()?);
            }
            Some(())
        };
        match writable {
            true => chain.writable().try_for_each(&mut add)?,
            false => chain.readable().try_for_each(&mut add)?,
        }
        Some(Self(parts))
    }

    /// Splits the header's bytes off the front; `None` if there are too few. The first is the
    /// header's part, the second the payload's.
    pub fn split_header(self) -> Option<(Self, Self)> {
        if self.len() < HEADER_LEN {
            return None;
        }
        let mut header = self;
        let payload = header.split_off(HEADER_LEN);
        Some((header, payload))
    }

    /// How many bytes there are.
    pub fn len(&self) -> usize {
        self.0.iter().map(VolatileSlice::len).sum()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The parts, in order.
    pub fn as_slice(&self) -> &[VolatileSlice<'a>] {
        &self.0
    }

    /// The first `len` bytes; all, if there are fewer.
    pub fn first(&self, len: usize) -> Cow<'_, [VolatileSlice<'a>]> {
        if len >= self.len() {
            return Cow::Borrowed(&self.0);
        }
        let mut parts = Self(self.0.clone());
        parts.split_off(len);
        Cow::Owned(parts.0)
    }

    /// Keeps the first `len` bytes; all, if there are fewer.
    pub fn truncate(&mut self, len: usize) {
        self.split_off(len);
    }

    fn split_off(&mut self, at: usize) -> Self {
        let mut left = at;
        for (index, part) in self.0.iter().enumerate() {
            if left < part.len() {
                let (before, after) = part.split_at(left).expect("within the part");
                let mut rest = self.0.split_off(index);
                rest[0] = after;
                if !before.is_empty() {
                    self.0.push(before);
                }
                return Self(rest);
            }
            left -= part.len();
        }
        Self::default()
    }

    /// Reads the header that these parts hold.
    pub fn read_header(&self) -> Header {
        let mut bytes = [0; HEADER_LEN];
        let mut at = 0;
        for part in &self.0 {
            at += part.copy_to(&mut bytes[at..]);
        }
        Header::from_bytes(&bytes)
    }

    /// Writes a header into these parts.
    pub fn write_header(&self, header: Header) {
        let bytes = header.to_bytes();
        let mut at = 0;
        for part in &self.0 {
            part.copy_from(&bytes[at..]);
            at += part.len().min(HEADER_LEN - at);
        }
    }
}
