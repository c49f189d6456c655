//! The seam between the device and the host's side of its cable.

use std::io;
use std::os::fd::BorrowedFd;

use super::Buffers;

/// What a driver lets the other side leave to it, as it was negotiated.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Offloads {
    /// Frames may come without a checksum (VIRTIO_NET_F_GUEST_CSUM).
    pub checksum: bool,
    /// TCP over IPv4 may come in frames that are not yet cut up (VIRTIO_NET_F_GUEST_TSO4).
    pub tso4: bool,
    /// The same over IPv6 (VIRTIO_NET_F_GUEST_TSO6).
    pub tso6: bool,
    /// Such frames may carry congestion marks (VIRTIO_NET_F_GUEST_ECN).
    pub ecn: bool,
}

/// The other end of a [`super::Net`]'s cable. A frame begins with the virtio header of
/// [`super::HEADER_LEN`] bytes. Nothing here waits.
pub trait Backend: Send {
    /// Takes the next frame into the buffers and gives its length; the part that has no place in
    /// them is lost. Fails with `WouldBlock` if there is none.
    fn receive(&mut self, into: Buffers<'_>) -> io::Result<usize>;

    /// Sends a frame. Fails with `WouldBlock` if there is no room for it now.
    fn send(&mut self, frame: Buffers<'_>) -> io::Result<()>;

    /// What [`Self::receive`] may give from now on.
    fn set_offloads(&mut self, offloads: Offloads) -> io::Result<()>;

    /// Readable when there is a frame, writable when there is room; the same descriptor for the
    /// backend's life. The device watches it edge-triggered.
    fn event(&self) -> BorrowedFd<'_>;
}
