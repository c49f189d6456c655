//! What a vCPU shall do, and whether it has come to rest.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// What a vCPU is wanted to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wish {
    /// Wait outside guest code.
    Pause,
    /// Run guest code.
    Run,
    /// End the thread.
    Stop,
}

#[derive(Debug)]
struct State {
    wish: Wish,
    /// Out of guest code: waiting, or ended.
    still: bool,
}

/// Shared between a vCPU's thread and the controller.
#[derive(Debug)]
pub(super) struct Control {
    state: Mutex<State>,
    changed: Condvar,
}

impl Default for Control {
    fn default() -> Self {
        let state = State {
            wish: Wish::Pause,
            still: true,
        };
        Self {
            state: Mutex::new(state),
            changed: Condvar::new(),
        }
    }
}

impl Control {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The controller's side: sets what is wanted. A stop is final.
    pub fn set(&self, wish: Wish) {
        let mut state = self.lock();
        if state.wish != Wish::Stop {
            state.wish = wish;
        }
        self.changed.notify_all();
    }

    /// The controller's side: waits until the vCPU is out of guest code.
    pub fn wait_still(&self) {
        let mut state = self.lock();
        while !state.still {
            state = self
                .changed
                .wait(state)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// The vCPU's side: waits while a pause is wanted, and returns what to do then.
    /// `before_run` is called under the lock before guest code is entered: a request to leave it
    /// that comes later is not lost.
    pub fn next(&self, before_run: impl FnOnce()) -> Wish {
        let mut state = self.lock();
        loop {
            match state.wish {
                Wish::Pause => {
                    state.still = true;
                    self.changed.notify_all();
                    state = self
                        .changed
                        .wait(state)
                        .unwrap_or_else(PoisonError::into_inner);
                }
                Wish::Run => {
                    state.still = false;
                    before_run();
                    return Wish::Run;
                }
                Wish::Stop => return Wish::Stop,
            }
        }
    }

    /// The vCPU's side: marks the vCPU as still when its thread ends, however it ends.
    pub fn still_on_drop(&self) -> impl Drop {
        StillOnDrop(self)
    }
}

struct StillOnDrop<'a>(&'a Control);

impl Drop for StillOnDrop<'_> {
    fn drop(&mut self) {
        self.0.lock().still = true;
        self.0.changed.notify_all();
    }
}
