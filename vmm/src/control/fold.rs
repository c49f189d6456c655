//! Folding the layers of disks that have become deep: by a thread of its own after a snapshot or a
//! fork, which the next one does not wait for, unless a disk has too many layers by then.

use std::fs;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use tine_jailer::seccomp::Role;

use super::command::{Command, Refusal};
use super::controller::Controller;
use crate::logger::{self, Level};
use crate::machine::{Fold, Folded, MOST_LAYERS};

/// What has been made and not been taken into use; none until the thread is done.
type Made = Arc<Mutex<Option<Vec<Folded>>>>;

/// The thread that folds. Dropped, it ends, and what it has made is removed.
pub(super) struct Folding {
    thread: Option<JoinHandle<()>>,
    /// Nobody wants it any more.
    cancelled: Arc<AtomicBool>,
    made: Made,
}

impl Folding {
    fn is_done(&self) -> bool {
        let made = self.made.lock().unwrap_or_else(PoisonError::into_inner);
        made.is_some()
    }

    /// All that has been made; waits for the end.
    fn finish(mut self) -> Vec<Folded> {
        self.join();
        let mut made = self.made.lock().unwrap_or_else(PoisonError::into_inner);
        made.take().unwrap_or_default()
    }

    fn join(&mut self) {
        if let Some(thread) = self.thread.take() {
            // A panic has been reported by then.
            let _ = thread.join();
        }
    }
}

impl Drop for Folding {
    fn drop(&mut self) {
        self.cancelled.store(true, Ordering::Relaxed);
        self.join();
    }
}

impl Controller {
    /// Begins to fold disks that have become deep. A disk that cannot be folded goes on as it is.
    pub(super) fn begin_folding(&mut self) {
        if self.folding.is_some() {
            return;
        }
        let Some(machine) = &self.machine else { return };
        let run_dir = self.shared.identity.run_dir.as_deref();
        let folds = match machine.folds(run_dir) {
            Ok(folds) if folds.is_empty() => return,
            Ok(folds) => folds,
            Err(err) => return logger::log(Level::Error, err),
        };
        let (cancelled, made) = (Arc::<AtomicBool>::default(), Made::default());
        let (shared, stop, put) = (self.shared.clone(), cancelled.clone(), made.clone());
        let work = move || {
            let folded = fold(folds, &stop);
            *put.lock().unwrap_or_else(PoisonError::into_inner) = Some(folded);
            shared.tell(Command::Folded);
        };
        match self.starter.spawn("fold", Role::Writer, work) {
            Ok(thread) => {
                self.folding = Some(Folding {
                    thread: Some(thread),
                    cancelled,
                    made,
                });
            }
            Err(err) => logger::log(Level::Error, Refusal::failed("start a thread", err)),
        }
    }

    /// A thread has told that it is done; its like may have been waited for, and another one begun.
    pub(super) fn folded(&mut self) {
        if self.folding.as_ref().is_some_and(Folding::is_done) {
            self.finish_folding();
        }
    }

    /// Before disks are frozen: nothing is being folded any more, and no disk is so deep that it must
    /// not become deeper. For those this waits.
    pub(super) fn settle_folding(&mut self) {
        let deepest = self.machine.as_ref().map(|machine| machine.deepest());
        let too_deep = match deepest.transpose() {
            Ok(deepest) => deepest.is_some_and(|layers| layers >= MOST_LAYERS),
            Err(err) => return logger::log(Level::Error, err),
        };
        if too_deep {
            self.begin_folding();
        } else if let Some(folding) = &self.folding {
            folding.cancelled.store(true, Ordering::Relaxed);
        }
        self.finish_folding();
    }

    fn finish_folding(&mut self) {
        let Some(folding) = self.folding.take() else {
            return;
        };
        let made = folding.finish();
        let Some(machine) = &self.machine else { return };
        let run_dir = self.shared.identity.run_dir.clone();
        let mut unused = Vec::new();
        for folded in made {
            match machine.use_folded(folded, run_dir.as_deref()) {
                Ok(files) => unused.extend(files),
                // It goes on with the layers that it has.
                Err(err) => logger::log(Level::Error, err),
            }
        }
        // What the machine would be started with again must not name them any more.
        if self.note_drives() {
            unused.iter().for_each(|path| drop(fs::remove_file(path)));
        }
    }
}

fn fold(folds: Vec<Fold>, cancelled: &AtomicBool) -> Vec<Folded> {
    let mut made = Vec::with_capacity(folds.len());
    for fold in folds {
        match fold.merge(|| !cancelled.load(Ordering::Relaxed)) {
            Ok(folded) => made.push(folded),
            Err(_) if cancelled.load(Ordering::Relaxed) => break,
            Err(err) => logger::log(Level::Error, err),
        }
    }
    made
}
