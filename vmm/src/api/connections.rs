//! Who is connected, and who has to go when there is no room or no progress.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tine_devices::bus::lock;
use tokio::sync::Notify;

use super::MAX_CONNECTIONS;
use crate::control::Handle;

/// How long a client may take for the head of a request, from its first byte on. Between
/// requests a connection may rest as long as it likes.
const HEAD_TIME: Duration = Duration::from_secs(10);

/// One connection. hyper wants what it holds to be movable between threads, hence the locks; they
/// are never waited for.
pub struct Slot {
    /// A request is being answered.
    busy: AtomicBool,
    /// Since when it is as it is.
    since: Mutex<Instant>,
    /// Bytes of a head have come, and not all.
    head: AtomicBool,
    head_began: Notify,
    /// What comes from now on is perhaps no request.
    upgrading: AtomicBool,
    /// The connection is to end.
    pub end: Notify,
}

impl Slot {
    /// Bytes have come. Says whether a request begins with them.
    pub fn received(&self) -> bool {
        let begins = !self.busy.load(Relaxed) && !self.head.swap(true, Relaxed);
        if begins {
            *lock(&self.since) = Instant::now();
            self.head_began.notify_one();
        }
        begins && !self.upgrading.load(Relaxed)
    }

    /// A head is complete. The request is being answered until the result is dropped; with
    /// `upgrade`, the connection may become something else then.
    pub fn begin(self: &Arc<Self>, upgrade: bool) -> Busy {
        self.busy.store(true, Relaxed);
        self.upgrading.fetch_or(upgrade, Relaxed);
        self.head.store(false, Relaxed);
        Busy(self.clone())
    }

    /// Returns when a client does not get on with the head of its request.
    pub async fn stalled(&self) {
        loop {
            self.head_began.notified().await;
            while self.head.load(Relaxed) {
                let left = HEAD_TIME.saturating_sub(lock(&self.since).elapsed());
                if left.is_zero() {
                    return;
                }
                tokio::time::sleep(left).await;
            }
        }
    }
}

/// A request that is being answered.
pub struct Busy(Arc<Slot>);

impl Drop for Busy {
    fn drop(&mut self) {
        self.0.busy.store(false, Relaxed);
        *lock(&self.0.since) = Instant::now();
    }
}

/// All connections.
pub struct Connections {
    slots: RefCell<HashMap<u64, Arc<Slot>>>,
    next: Cell<u64>,
    handle: Handle,
}

impl Connections {
    /// None yet.
    pub fn new(handle: Handle) -> Rc<Self> {
        Rc::new(Self {
            slots: RefCell::default(),
            next: Cell::new(0),
            handle,
        })
    }

    /// Takes a connection in. When there is no room, the one that has rested longest goes; when
    /// all are being answered, the new one is refused.
    pub fn admit(self: &Rc<Self>) -> Option<(Arc<Slot>, Admitted)> {
        if self.slots.borrow().len() >= MAX_CONNECTIONS && !self.make_room() {
            return None;
        }
        let slot = Arc::new(Slot {
            busy: AtomicBool::new(false),
            since: Mutex::new(Instant::now()),
            head: AtomicBool::new(false),
            head_began: Notify::new(),
            upgrading: AtomicBool::new(false),
            end: Notify::new(),
        });
        let number = self.next.get();
        self.next.set(number + 1);
        self.slots.borrow_mut().insert(number, slot.clone());
        self.handle.counters().connections.fetch_add(1, Relaxed);
        let admitted = Admitted {
            connections: self.clone(),
            number,
        };
        Some((slot, admitted))
    }

    /// Ends the connection that has rested longest.
    pub fn make_room(&self) -> bool {
        let mut slots = self.slots.borrow_mut();
        let resting = slots.iter().filter(|(_, slot)| !slot.busy.load(Relaxed));
        let oldest = resting.min_by_key(|(_, slot)| *lock(&slot.since));
        let Some(number) = oldest.map(|(number, _)| *number) else {
            return false;
        };
        if let Some(slot) = slots.remove(&number) {
            self.handle.counters().closed.fetch_add(1, Relaxed);
            self.handle.counters().connections.fetch_sub(1, Relaxed);
            slot.end.notify_one();
        }
        true
    }

    /// Whether any request is being answered.
    pub fn any_busy(&self) -> bool {
        self.slots
            .borrow()
            .values()
            .any(|slot| slot.busy.load(Relaxed))
    }
}

/// A place among the connections, until it is dropped.
pub struct Admitted {
    connections: Rc<Connections>,
    number: u64,
}

impl Drop for Admitted {
    fn drop(&mut self) {
        let mut slots = self.connections.slots.borrow_mut();
        if slots.remove(&self.number).is_some() {
            let counters = self.connections.handle.counters();
            counters.connections.fetch_sub(1, Relaxed);
        }
    }
}
