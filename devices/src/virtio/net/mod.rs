//! The network device (specification section 5.1): an interface of the guest.
//!
//! [`Net`] is the device. The host's side of its cable is a [`Backend`], which knows nothing of
//! virtio but the header in front of each frame: [`Tap`] is a TAP device of the host. Frames go
//! straight between it and guest memory, both ways, and only when there is something to do: a tap
//! without frames, a guest without buffers and a limit that is used up cost no wake-ups.
//!
//! | module | holds |
//! |---|---|
//! | `config` | what an interface is to be, and why it could not be had |
//! | `backend`, `tap` | the host's side |
//! | `buffers` | guest memory as the kernel takes it |
//! | `rx`, `tx`, `control` | the three queues |
//! | `events` | everything the device waits for, behind one descriptor |
//! | `detour` | the seam for a host that lives inside the device (the metadata store) |
//! | `device`, `handle` | where all of it meets, and what others may change at run time |
//!
//! What holds true:
//!
//! * a frame is delivered whole or not at all; what does not fit is dropped and counted;
//! * nothing is dropped for a rate limit or for want of buffers: it waits in the ring or the tap;
//! * [`FRAMES_PER_EVENT`] frames are moved at most before other devices have their turn;
//! * chains in hand are given back to the ring when the device comes to rest, none is lost.

mod backend;
mod buffers;
mod config;
mod control;
mod detour;
mod device;
mod events;
mod handle;
mod rx;
mod state;
mod stats;
mod tap;
mod tx;

pub use backend::{Backend, Offloads};
pub use buffers::Buffers;
pub use config::{MacAddr, MacAddrError, NetConfig, NetError, TapSource};
pub use detour::{Detour, PEEK_LEN};
pub use device::{Net, QUEUE_SIZE};
pub use handle::NetHandle;
pub use stats::NetStats;
pub use tap::Tap;

/// Length of the header in front of each frame (`virtio_net_hdr_v1`), in bytes.
pub const HEADER_LEN: usize = 12;
/// The longest frame with its header: a packet of 64 KiB, an Ethernet header, a VLAN tag.
pub const MAX_FRAME_LEN: usize = HEADER_LEN + 14 + 4 + 65535;
/// Frames moved in one direction before other devices have their turn.
pub const FRAMES_PER_EVENT: usize = 256;
