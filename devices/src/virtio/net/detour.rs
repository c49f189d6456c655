//! The seam for a host that lives inside the device: it answers some of the guest's frames, and
//! nothing of that reaches the backend.

use std::time::Duration;

/// A host inside the device. Frames begin with the Ethernet header.
pub trait Detour: Send {
    /// Whether it takes the frame that begins so: the first bytes, at most
    /// [`PEEK_LEN`] of them.
    fn wants(&self, start: &[u8]) -> bool;

    /// Takes a frame. Its checksums may be left to be computed.
    fn take(&mut self, frame: &mut [u8]);

    /// Does what the time has come for.
    fn poll(&mut self);

    /// The next frame for the guest.
    fn next_frame(&mut self) -> Option<Vec<u8>>;

    /// Whether there is one.
    fn has_frames(&self) -> bool;

    /// When [`Self::poll`] should be called, from now on.
    fn due(&mut self) -> Option<Duration>;

    /// Forgets all conversations: the guest's driver was reset.
    fn reset(&mut self);
}

/// As many bytes of a frame as [`Detour::wants`] sees: the Ethernet header, and an ARP packet or an
/// IPv4 header.
pub const PEEK_LEN: usize = 14 + 28;
