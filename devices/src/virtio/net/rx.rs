//! The queue of frames to the guest.
//!
//! A frame is read straight into the chains in hand, before its length is known. What does not fit
//! into them lands in an overflow and follows when the driver has made more buffers available; a
//! frame that the limiter holds up stays where it was read to. So there is one frame at most that
//! has left the host's side and not reached the driver.

use std::io::ErrorKind;

use virtio_queue::QueueT;

use super::buffers::{MAX_PARTS, RxRoom};
use super::stats::Count;
use super::{Backend, Detour, FRAMES_PER_EVENT, HEADER_LEN, MAX_FRAME_LEN, NetStats};
use crate::rate::RateLimiter;
use crate::virtio::{Activation, VirtQueue};

/// Where `num_buffers` is in the header.
const NUM_BUFFERS: usize = 10;
/// Chains taken in hand before other devices have their turn: more than a ring has, so that only a
/// driver with bad ones meets it.
const CHAINS_PER_EVENT: usize = 1024;

/// Why no more frames are moved for now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Pause {
    /// There are none.
    Empty,
    /// The driver has no buffers, or the backend has no room.
    Blocked,
    /// The limit is used up.
    Limited,
    /// Others have their turn.
    Share,
}

/// Whether there is room for a frame.
enum Fill {
    Enough,
    /// When the driver adds buffers.
    Wait,
    /// The driver cannot add more.
    Never,
    Share,
}

struct Frame {
    len: usize,
    /// Bytes of it that are in guest memory.
    covered: usize,
    /// The limiter has no say.
    free: bool,
}

/// The queue, and what is in hand of it.
pub(super) struct Rx {
    queue: VirtQueue,
    room: RxRoom,
    mergeable: bool,
    frame: Option<Frame>,
    /// The bytes of a frame whose chains were given back, and whether the limiter has no say.
    kept: Option<(Vec<u8>, bool)>,
    /// The backend may have frames.
    pub ready: bool,
    /// Frames of the detour's were taken, see [`Self::take_detoured`].
    detoured: bool,
}

impl Rx {
    pub fn new(queue: VirtQueue, activation: &Activation, mergeable: bool) -> Self {
        Self {
            queue,
            room: RxRoom::new(activation.mem.clone()),
            mergeable,
            frame: None,
            kept: None,
            // What the tap has from before the driver came makes no edge.
            ready: true,
            detoured: false,
        }
    }

    /// The queue itself.
    pub fn queue(&self) -> &VirtQueue {
        &self.queue
    }

    /// Whether frames of the detour's were taken since the last call.
    pub fn take_detoured(&mut self) -> bool {
        std::mem::take(&mut self.detoured)
    }

    /// Moves frames until something keeps it from that.
    pub fn run<B: Backend>(
        &mut self,
        backend: &mut B,
        detour: Option<&mut (dyn Detour + 'static)>,
        limiter: &RateLimiter,
        stats: &NetStats,
    ) -> Pause {
        let pause = self.pump(backend, detour, limiter, stats);
        self.queue.notify();
        pause
    }

    /// Puts everything in hand back into the ring. A frame that was on its way is the next one that
    /// the driver gets.
    pub fn give_back(&mut self) {
        if let Some(frame) = self.frame.take() {
            let mut bytes = vec![0; frame.len];
            let (buffers, _) = self.room.buffers();
            buffers.copy_to(&mut bytes);
            self.kept = Some((bytes, frame.free));
        }
        while self.room.pop().is_some() {
            self.queue.undo_pop();
        }
    }

    fn pump<B: Backend>(
        &mut self,
        backend: &mut B,
        mut detour: Option<&mut (dyn Detour + 'static)>,
        limiter: &RateLimiter,
        stats: &NetStats,
    ) -> Pause {
        let mut chains = CHAINS_PER_EVENT;
        for _ in 0..FRAMES_PER_EVENT {
            let frame = match self.frame.take() {
                Some(frame) => frame,
                None => match self.read(backend, detour.as_deref_mut(), &mut chains, stats) {
                    Ok(frame) => frame,
                    Err(pause) => return pause,
                },
            };
            if !(HEADER_LEN..=MAX_FRAME_LEN).contains(&frame.len) {
                stats.rx_dropped.add(1);
                continue;
            }
            match self.fill(frame.len, &mut chains, stats) {
                Fill::Enough => {}
                Fill::Never => {
                    stats.rx_dropped.add(1);
                    continue;
                }
                Fill::Wait => {
                    stats.rx_no_buffers.add(1);
                    self.frame = Some(frame);
                    return Pause::Blocked;
                }
                Fill::Share => {
                    self.frame = Some(frame);
                    return Pause::Share;
                }
            }
            if !frame.free && !limiter.take((frame.len - HEADER_LEN) as u64) {
                stats.rx_limited.add(1);
                self.frame = Some(frame);
                return Pause::Limited;
            }
            self.deliver(&frame, stats);
        }
        Pause::Share
    }

    /// Takes the next frame into the chains in hand.
    fn read<B: Backend>(
        &mut self,
        backend: &mut B,
        detour: Option<&mut (dyn Detour + 'static)>,
        chains: &mut usize,
        stats: &NetStats,
    ) -> Result<Frame, Pause> {
        if let Some((bytes, free)) = self.kept.take() {
            return Ok(self.place(&[], &bytes, free, chains, stats));
        }
        if let Some(bytes) = detour.and_then(Detour::next_frame) {
            stats.detour_rx_frames.add(1);
            self.detoured = true;
            return Ok(self.place(&[0; HEADER_LEN], &bytes, true, chains, stats));
        }
        if !self.ready {
            return Err(Pause::Empty);
        }
        match self.fill(1, chains, stats) {
            Fill::Enough => {}
            Fill::Share => return Err(Pause::Share),
            Fill::Wait | Fill::Never => {
                stats.rx_no_buffers.add(1);
                return Err(Pause::Blocked);
            }
        }
        let (buffers, covered) = self.room.buffers();
        match backend.receive(buffers) {
            Ok(len) => Ok(Frame {
                len,
                covered,
                free: false,
            }),
            Err(error) => {
                // The device is down or gone, say. The next event tells when to look again.
                self.ready = error.kind() == ErrorKind::Interrupted;
                if !matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) {
                    stats.rx_errors.add(1);
                }
                match self.ready {
                    true => Err(Pause::Share),
                    false => Err(Pause::Empty),
                }
            }
        }
    }

    /// Puts a frame of our own, in two parts, into the chains in hand.
    fn place(
        &mut self,
        start: &[u8],
        rest: &[u8],
        free: bool,
        chains: &mut usize,
        stats: &NetStats,
    ) -> Frame {
        let len = start.len() + rest.len();
        let _ = self.fill(len, chains, stats);
        let (buffers, covered) = self.room.buffers();
        buffers.copy_from(0, start);
        buffers.copy_from(start.len(), rest);
        Frame { len, covered, free }
    }

    /// Takes chains in hand, ahead for the longest frame; tells whether `want` bytes are there.
    fn fill(&mut self, want: usize, chains: &mut usize, stats: &NetStats) -> Fill {
        loop {
            while self.room.len() < MAX_FRAME_LEN && !self.is_full() && *chains > 0 {
                let Some(chain) = self.queue.pop() else { break };
                *chains -= 1;
                let head = chain.head_index();
                if self.room.add(chain).is_err() {
                    stats.rx_malformed.add(1);
                    self.queue.push_used(head, 0);
                }
            }
            return match () {
                () if self.room.len() >= want => Fill::Enough,
                () if self.is_full() => Fill::Never,
                () if *chains == 0 => Fill::Share,
                () if self.queue.enable_notification() => continue,
                () => Fill::Wait,
            };
        }
    }

    /// Whether all that the driver can offer for one frame is in hand.
    fn is_full(&self) -> bool {
        let descriptors = usize::from(self.queue.ring().size()).min(MAX_PARTS);
        match self.mergeable {
            true => self.room.parts() >= descriptors,
            false => self.room.chains() > 0,
        }
    }

    /// Gives a frame to the driver, for which there is room.
    fn deliver(&mut self, frame: &Frame, stats: &NetStats) {
        if frame.len > frame.covered {
            self.room.spill(frame.covered, frame.len - frame.covered);
        }
        let count = self.room.needed(frame.len) as u16;
        self.room.write(NUM_BUFFERS, &count.to_le_bytes());
        let mut left = frame.len;
        for _ in 0..count {
            let Some((head, room)) = self.room.pop() else {
                break;
            };
            let used = left.min(room);
            left -= used;
            self.queue.push_used(head, used as u32);
        }
        stats.rx_frames.add(1);
        stats.rx_bytes.add((frame.len - HEADER_LEN) as u64);
    }
}
