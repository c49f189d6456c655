//! One virtqueue as a device uses it: the ring, the memory it lies in, and its interrupt.
//!
//! The ring itself is `virtio-queue`'s; this type is the one way in which our devices walk it, so
//! that the rules for notifications and for broken rings stand in one place.

use std::sync::Arc;

use virtio_queue::{DescriptorChain, Queue, QueueOwnedT, QueueT};

use super::Interrupt;
use crate::GuestMemory;

/// A descriptor chain taken from a queue.
pub type Chain = DescriptorChain<Arc<GuestMemory>>;

/// How far a settled device has come in a queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct QueuePlace {
    /// Chains taken since the driver set the ring up, modulo 2^16.
    pub next_available: u16,
    /// Chains used since then.
    pub next_used: u16,
    /// The driver wrote an impossible ring.
    pub broken: bool,
}

impl QueuePlace {
    /// A settled device has no chain in hand.
    pub(super) fn is_possible(&self) -> bool {
        self.broken || self.next_available == self.next_used
    }
}

/// A queue of an active device.
pub struct VirtQueue {
    ring: Queue,
    mem: Arc<GuestMemory>,
    interrupt: Arc<Interrupt>,
    /// The driver wrote an impossible ring; nothing is read from it until the device is reset.
    broken: bool,
    /// Chains were used since the driver was last told, or decided not to be told.
    unannounced: bool,
}

impl VirtQueue {
    /// A queue over a ring that the driver has set up (or not: then it is always empty).
    pub fn new(ring: Queue, mem: Arc<GuestMemory>, interrupt: Arc<Interrupt>) -> Self {
        Self {
            ring,
            mem,
            interrupt,
            broken: false,
            unannounced: false,
        }
    }

    /// The same with a device that has come this far.
    pub(super) fn at(mut self, place: QueuePlace) -> Self {
        self.ring.set_next_avail(place.next_available);
        self.ring.set_next_used(place.next_used);
        self.broken = place.broken;
        self
    }

    /// Where a settled device is in the queue.
    pub fn place(&self) -> QueuePlace {
        let place = QueuePlace {
            next_available: self.ring.next_avail(),
            next_used: self.ring.next_used(),
            broken: self.broken,
        };
        debug_assert!(self.broken || !self.unannounced, "not settled: {place:?}");
        debug_assert!(place.is_possible(), "not settled: {place:?}");
        place
    }

    /// Guest memory.
    pub fn mem(&self) -> &Arc<GuestMemory> {
        &self.mem
    }

    /// The ring, for its state.
    pub fn ring(&self) -> &Queue {
        &self.ring
    }

    /// Takes the next chain that the driver made available.
    ///
    /// A ring whose available index is impossible (specification 2.7.13.3) makes the device ask
    /// for a reset, and this return `None` from then on.
    pub fn pop(&mut self) -> Option<Chain> {
        if self.broken || !self.ring.ready() {
            return None;
        }
        match self.ring.iter(self.mem.clone()) {
            Ok(mut chains) => chains.next(),
            Err(_) => {
                self.fail();
                None
            }
        }
    }

    /// Puts the chain popped last back, as if it had not been taken.
    pub fn undo_pop(&mut self) {
        self.ring.go_to_previous_position();
    }

    /// Gives a chain back to the driver; `written` is how many bytes the device wrote into it.
    /// The driver learns of it by [`Self::notify`].
    pub fn push_used(&mut self, head: u16, written: u32) {
        if self.broken {
            return;
        }
        match self.ring.add_used(&*self.mem, head, written) {
            Ok(()) => self.unannounced = true,
            Err(_) => self.fail(),
        }
    }

    /// Interrupts the driver if it wants to know of the buffers used since the last call, and
    /// there are any.
    pub fn notify(&mut self) {
        if self.broken || !std::mem::take(&mut self.unannounced) {
            return;
        }
        match self.ring.needs_notification(&*self.mem) {
            Ok(true) => self.interrupt.used_buffers(),
            Ok(false) => {}
            Err(_) => self.fail(),
        }
    }

    /// Hands every available chain to `each`, with the driver's notifications off meanwhile, until
    /// the queue is empty or `each` returns `false` (it then has put the chain back, or kept it).
    pub fn drain(&mut self, mut each: impl FnMut(&mut Self, Chain) -> bool) {
        loop {
            if self.broken || !self.ring.ready() {
                return;
            }
            if self.ring.disable_notification(&*self.mem).is_err() {
                return self.fail();
            }
            while let Some(chain) = self.pop() {
                if !each(self, chain) {
                    // The device comes back by itself when it can go on; a notification then
                    // would only wake it in vain, but switching them on again is the safe side.
                    let _ = self.enable_notification();
                    return;
                }
            }
            if !self.enable_notification() {
                return;
            }
        }
    }

    /// Asks the driver to notify of new chains; `true` if some came in meanwhile.
    pub fn enable_notification(&mut self) -> bool {
        if self.broken || !self.ring.ready() {
            return false;
        }
        match self.ring.enable_notification(&*self.mem) {
            Ok(more) => more,
            Err(_) => {
                self.fail();
                false
            }
        }
    }

    fn fail(&mut self) {
        self.broken = true;
        self.interrupt.needs_reset();
    }
}
