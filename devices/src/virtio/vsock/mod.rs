//! The socket device (specification section 5.10): stream connections between the guest and host
//! programs, without a network.
//!
//! On the host's side every connection is a Unix stream socket. There are two ways to it:
//!
//! * in this process, through [`VsockHandle`];
//! * from other processes, when [`VsockConfig::uds_path`] is set. To reach a guest port, a client
//!   connects to that path, writes `CONNECT <port>\n` and reads `OK <host port>\n`; where the guest
//!   refuses, the socket is closed instead. A guest that connects to host port P reaches the
//!   socket `<uds_path>_P`.
//!
//! How the parts fit, outermost last:
//!
//! | module | holds |
//! |---|---|
//! | `packet` | headers, and the guest memory of a descriptor chain |
//! | `credit`, `connection` | one connection's protocol, free of sockets and memory |
//! | `buffer`, `stream`, `endpoint` | a connection joined with its host socket |
//! | `muxer` | all connections, and whose turn it is to send to the guest |
//! | `reactor` | the one epoll descriptor, deadlines, and the wake-up to ourselves |
//! | `handle`, `listener`, `clients` | where connections come from on the host |
//! | `queues` | the three queues |
//! | `device` | where all of it meets |
//!
//! # What a hostile guest can use up
//!
//! [`MAX_CONNECTIONS`] sockets with [`BUFFER_LEN`] bytes each, [`MAX_RESETS`] resets waiting for
//! receive buffers, and the share of the event loop that [`PACKETS_PER_EVENT`] leaves it. What
//! goes beyond is refused with a reset, or dropped and counted in [`VsockStats`].

mod buffer;
mod clients;
mod connection;
mod credit;
mod device;
mod endpoint;
mod handle;
mod listener;
mod muxer;
mod packet;
mod queues;
mod reactor;
mod state;
mod stats;
mod stream;
#[cfg(test)]
mod tests;

use std::io;
use std::path::PathBuf;
use std::time::Duration;

pub use device::Vsock;
pub use handle::{ListenGuard, VsockHandle, VsockListener};
pub use stats::VsockStats;

/// The host's address, for every guest.
pub const HOST_CID: u64 = 2;
/// The lowest address that a guest can have.
pub const MIN_GUEST_CID: u32 = 3;
/// Connections at a time, those included that a guest has closed and a slow host program still
/// reads from. When a new one needs room, the oldest of the latter gives way.
pub const MAX_CONNECTIONS: usize = 1024;
/// How much a guest can send on one connection before the host program has read it (the
/// `buf_alloc` that we advertise). A guest that sends more is reset.
pub const BUFFER_LEN: u32 = 256 << 10;
/// The longest payload of a packet, either way, as in Linux.
pub const MAX_PACKET_LEN: u32 = 64 << 10;
/// Resets that wait for a receive buffer; further ones are dropped, and the guest's own timeout
/// ends what they would have ended.
pub const MAX_RESETS: usize = 512;
/// Clients of the listening socket that have not sent their `CONNECT` line yet. One more closes
/// the oldest.
pub const MAX_CLIENTS: usize = 64;
/// In-process connections that the device has not taken up yet.
pub const MAX_QUEUED_CONNECTS: usize = 128;
/// Packets in each direction before other devices have their turn.
pub const PACKETS_PER_EVENT: usize = 32;

/// Limits that tests set lower.
#[derive(Debug, Clone, Copy)]
struct Limits {
    /// See [`MAX_CONNECTIONS`].
    connections: usize,
    /// How long a client may take for its `CONNECT` line.
    client: Duration,
    /// How long a guest may take to answer a connection request.
    request: Duration,
    /// How long a guest may take to confirm that a connection is over, as in Linux.
    close: Duration,
}

const LIMITS: Limits = Limits {
    connections: MAX_CONNECTIONS,
    client: Duration::from_secs(10),
    request: Duration::from_secs(10),
    close: Duration::from_secs(8),
};

/// The socket device's configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VsockConfig {
    /// The guest's address, 3 or more.
    pub guest_cid: u32,
    /// Where host programs reach the guest. Without it only this process does.
    pub uds_path: Option<PathBuf>,
}

/// Why a socket device could not be made.
#[derive(Debug, thiserror::Error)]
pub enum VsockError {
    /// The address has a meaning of its own.
    #[error("guest CID {0} is reserved; take one from 3 to 4294967294")]
    GuestCid(u32),
    /// The path does not fit into a socket address.
    #[error("socket path {path:?} has {len} bytes, the system's limit is 107; take a shorter one")]
    PathTooLong {
        /// The path.
        path: PathBuf,
        /// Its length in bytes.
        len: usize,
    },
    /// A program listens there already.
    #[error("socket {0:?} is in use by a running process; stop that one or take another path")]
    InUse(PathBuf),
    /// Something else is there.
    #[error("{0:?} exists and is not a socket; remove it or take another path")]
    NotASocket(PathBuf),
    /// The socket could not be made.
    #[error("cannot listen on socket {path:?}: {source}; check that its directory is writable")]
    Listen {
        /// The path.
        path: PathBuf,
        /// The reason.
        source: io::Error,
    },
    /// The process is out of descriptors, most likely.
    #[error(
        "cannot make the socket device's events: {0}; raise the limit of open files (ulimit -n)"
    )]
    Events(#[source] io::Error),
}
