//! The queue of frames from the guest.

use std::io::ErrorKind;

use super::buffers::TxFrame;
use super::rx::Pause;
use super::stats::Count;
use super::{Backend, Detour, FRAMES_PER_EVENT, HEADER_LEN, MAX_FRAME_LEN, NetStats, PEEK_LEN};
use crate::rate::RateLimiter;
use crate::virtio::{Activation, VirtQueue};

/// The longest frame that goes to the detour. More than it ever offers to take.
const MAX_DETOUR_LEN: usize = 16 << 10;

/// The queue, and the frame at hand.
pub(super) struct Tx {
    queue: VirtQueue,
    frame: TxFrame,
    /// The limiter has let the next frame pass, and the backend has not.
    pub paid: bool,
    /// The detour has taken a frame, see [`Self::take_detoured`].
    detoured: bool,
}

impl Tx {
    pub fn new(queue: VirtQueue, activation: &Activation) -> Self {
        Self {
            queue,
            frame: TxFrame::new(activation.mem.clone()),
            paid: false,
            detoured: false,
        }
    }

    /// The queue itself.
    pub fn queue(&self) -> &VirtQueue {
        &self.queue
    }

    /// Whether the detour has taken frames since the last call.
    pub fn take_detoured(&mut self) -> bool {
        std::mem::take(&mut self.detoured)
    }

    /// Sends frames until something keeps it from that. Every chain goes back to the driver once:
    /// sent, or dropped and counted.
    pub fn run<B: Backend>(
        &mut self,
        backend: &mut B,
        mut detour: Option<&mut (dyn Detour + 'static)>,
        limiter: &RateLimiter,
        stats: &NetStats,
    ) -> Pause {
        let mut left = FRAMES_PER_EVENT;
        let mut pause = Pause::Empty;
        let Self {
            queue,
            frame,
            paid,
            detoured,
        } = self;
        queue.drain(|queue, chain| {
            if left == 0 {
                pause = Pause::Share;
                queue.undo_pop();
                return false;
            }
            left -= 1;
            let head = chain.head_index();
            match frame.load(chain) {
                Ok(len) if len < HEADER_LEN => stats.tx_short.add(1),
                Ok(len) if len > MAX_FRAME_LEN => stats.tx_malformed.add(1),
                Err(_) => stats.tx_malformed.add(1),
                Ok(len) => {
                    let bytes = (len - HEADER_LEN) as u64;
                    let taken = detour
                        .as_deref_mut()
                        .is_some_and(|to| offer(to, frame, len));
                    if taken {
                        *detoured = true;
                        stats.detour_tx_frames.add(1);
                    } else if !*paid && !limiter.take(bytes) {
                        stats.tx_limited.add(1);
                        pause = Pause::Limited;
                        queue.undo_pop();
                        return false;
                    } else if is_blocked(backend, frame, bytes, stats) {
                        *paid = true;
                        pause = Pause::Blocked;
                        queue.undo_pop();
                        return false;
                    } else {
                        *paid = false;
                    }
                }
            }
            queue.push_used(head, 0);
            true
        });
        queue.notify();
        pause
    }
}

/// Sends the frame; `true` if there is no room for it now.
fn is_blocked<B: Backend>(backend: &mut B, frame: &TxFrame, bytes: u64, stats: &NetStats) -> bool {
    loop {
        match backend.send(frame.buffers()) {
            Ok(()) => {
                stats.tx_frames.add(1);
                stats.tx_bytes.add(bytes);
                return false;
            }
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                stats.tx_blocked.add(1);
                return true;
            }
            // The interface is down or gone, or the header made no sense.
            Err(_) => {
                stats.tx_errors.add(1);
                return false;
            }
        }
    }
}

/// Gives the frame to the detour if that wants it.
fn offer(detour: &mut dyn Detour, frame: &TxFrame, len: usize) -> bool {
    if len > MAX_DETOUR_LEN {
        return false;
    }
    let mut start = [0; HEADER_LEN + PEEK_LEN];
    let peeked = frame.buffers().copy_to(&mut start);
    if !detour.wants(&start[HEADER_LEN..peeked]) {
        return false;
    }
    let mut bytes = vec![0; len];
    frame.buffers().copy_to(&mut bytes);
    detour.take(&mut bytes[HEADER_LEN..]);
    true
}
