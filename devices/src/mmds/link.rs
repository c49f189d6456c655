//! A cable in memory, for the TCP/IP library: frames in from the guest, frames out to it.

use std::collections::VecDeque;

use smoltcp::phy::{self, Checksum, ChecksumCapabilities, DeviceCapabilities, Medium};
use smoltcp::time::Instant;

/// Frames that wait on one side at most. What goes beyond is lost, and sent again by TCP.
const MAX_WAITING: usize = 64;
/// The largest frame that is sent: Ethernet's.
const MAX_FRAME_LEN: usize = 1514;

/// The two directions.
#[derive(Default)]
pub(super) struct Link {
    from_guest: VecDeque<Vec<u8>>,
    to_guest: VecDeque<Vec<u8>>,
}

impl Link {
    /// Takes a frame from the guest.
    pub fn push(&mut self, frame: Vec<u8>) {
        if self.from_guest.len() < MAX_WAITING {
            self.from_guest.push_back(frame);
        }
    }

    /// The next frame to the guest.
    pub fn pop(&mut self) -> Option<Vec<u8>> {
        self.to_guest.pop_front()
    }

    /// Whether there is no frame to the guest.
    pub fn is_empty(&self) -> bool {
        self.to_guest.is_empty()
    }

    /// Whether the guest has to take frames before there can be others.
    pub fn is_full(&self) -> bool {
        self.to_guest.len() >= MAX_WAITING
    }
}

/// A frame that came.
pub(super) struct Received(Vec<u8>);

impl phy::RxToken for Received {
    fn consume<R, F: FnOnce(&[u8]) -> R>(self, read: F) -> R {
        read(&self.0)
    }
}

/// Room for a frame to send.
pub(super) struct Room<'a>(&'a mut VecDeque<Vec<u8>>);

impl phy::TxToken for Room<'_> {
    fn consume<R, F: FnOnce(&mut [u8]) -> R>(self, len: usize, write: F) -> R {
        let mut frame = vec![0; len];
        let result = write(&mut frame);
        self.0.push_back(frame);
        result
    }
}

impl phy::Device for Link {
    type RxToken<'a> = Received;
    type TxToken<'a> = Room<'a>;

    fn receive(&mut self, _now: Instant) -> Option<(Received, Room<'_>)> {
        if self.is_full() {
            return None;
        }
        let frame = self.from_guest.pop_front()?;
        Some((Received(frame), Room(&mut self.to_guest)))
    }

    fn transmit(&mut self, _now: Instant) -> Option<Room<'_>> {
        (!self.is_full()).then_some(Room(&mut self.to_guest))
    }

    fn capabilities(&self) -> DeviceCapabilities {
        // The guest may leave its checksums to be computed, and nothing between here and there
        // could damage a frame.
        let mut checksum = ChecksumCapabilities::default();
        checksum.ipv4 = Checksum::Tx;
        checksum.tcp = Checksum::Tx;
        checksum.icmpv4 = Checksum::Tx;
        let mut capabilities = DeviceCapabilities::default();
        capabilities.medium = Medium::Ethernet;
        capabilities.max_transmission_unit = MAX_FRAME_LEN;
        capabilities.checksum = checksum;
        capabilities
    }
}
