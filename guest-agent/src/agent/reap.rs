//! Taking the status of every child that ends: the agent's own commands, and as PID 1 every orphan of the guest.
//!
//! There is one place that waits, so no status can be lost: a child is known either by its number once its start has
//! returned, or by the slot of a start under way, which the kernel fills before the child runs. All else is an orphan.

use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};

use tokio::sync::{Notify, oneshot};

use super::sys::{self, Exit};

/// Receives the number of a child before it runs.
pub type Slot = Arc<AtomicI32>;

/// Who waits for which child.
#[derive(Default)]
pub struct Reaper {
    table: RefCell<Table>,
    /// Some child, anybody's, has been reaped.
    pub reaped: Notify,
}

#[derive(Default)]
struct Table {
    waiting: HashMap<i32, oneshot::Sender<Exit>>,
    starting: Vec<Slot>,
    /// Children that ended before their start had returned to the loop.
    early: HashMap<i32, Exit>,
}

impl Reaper {
    /// Announces a start; to be followed by [`Reaper::started`] or [`Reaper::failed`].
    pub fn starting(&self) -> Slot {
        let slot = Slot::default();
        self.table.borrow_mut().starting.push(slot.clone());
        slot
    }

    /// The start has returned a child: its exit can be awaited.
    pub fn started(&self, slot: &Slot, pid: i32) -> oneshot::Receiver<Exit> {
        let (sender, receiver) = oneshot::channel();
        let mut table = self.table.borrow_mut();
        table.starting.retain(|other| !Arc::ptr_eq(other, slot));
        match table.early.remove(&pid) {
            Some(exit) => drop(sender.send(exit)),
            None => drop(table.waiting.insert(pid, sender)),
        }
        receiver
    }

    /// The start has failed; a child that there was for a moment is nobody's.
    pub fn failed(&self, slot: &Slot) {
        let mut table = self.table.borrow_mut();
        table.starting.retain(|other| !Arc::ptr_eq(other, slot));
        table.early.remove(&slot.load(Ordering::Relaxed));
    }

    /// Takes every status that is there. Called when SIGCHLD has come, which may stand for many.
    pub fn collect(&self) {
        let mut any = false;
        while let Some(exit) = sys::wait_any() {
            any = true;
            let mut table = self.table.borrow_mut();
            if let Some(sender) = table.waiting.remove(&exit.pid) {
                let _ = sender.send(exit);
            } else if table
                .starting
                .iter()
                .any(|slot| slot.load(Ordering::Relaxed) == exit.pid)
            {
                table.early.insert(exit.pid, exit);
            }
        }
        if any {
            self.reaped.notify_waiters();
        }
    }
}
