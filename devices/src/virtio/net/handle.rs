//! What others may do to a running interface, from any thread.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::NetStats;
use crate::rate::RateLimiter;

/// A handle to a [`super::Net`] behind its transport.
#[derive(Clone)]
pub struct NetHandle {
    pub(super) stats: Arc<NetStats>,
    pub(super) rx_limiter: RateLimiter,
    pub(super) tx_limiter: RateLimiter,
    pub(super) shared: Arc<Shared>,
}

/// What the handle and the device share.
pub(super) struct Shared {
    /// The driver runs.
    pub active: AtomicBool,
    /// The guest is to announce itself.
    pub announce: AtomicBool,
    /// Gets the device's attention.
    pub wake: Arc<OwnedFd>,
}

impl NetHandle {
    /// The interface's counters.
    pub fn stats(&self) -> &Arc<NetStats> {
        &self.stats
    }

    /// The limits of what the guest receives.
    pub fn rx_limiter(&self) -> &RateLimiter {
        &self.rx_limiter
    }

    /// The limits of what the guest sends.
    pub fn tx_limiter(&self) -> &RateLimiter {
        &self.tx_limiter
    }

    /// Makes the guest tell the network where it is now (gratuitous ARP), after a restore on
    /// another tap. Nothing happens where no driver runs, or where it does not know of this.
    pub fn announce(&self) {
        if self.shared.active.load(Ordering::SeqCst) {
            self.shared.announce.store(true, Ordering::SeqCst);
            let _ = rustix::io::write(&*self.shared.wake, &1u64.to_ne_bytes());
        }
    }
}
