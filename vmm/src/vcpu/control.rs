//! What a vCPU shall do, and whether it has come to rest.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use kvm_ioctls::VcpuFd;

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

/// Work on a vCPU that stands still.
pub(super) type Task = Box<dyn FnOnce(&mut VcpuFd) + Send>;

/// What a vCPU does next.
pub(super) enum Next {
    /// Run guest code.
    Run,
    /// Do this, standing still.
    Task(Task),
    /// End the thread.
    Stop,
}

struct State {
    wish: Wish,
    task: Option<Task>,
    /// Out of guest code: waiting, or ended.
    still: bool,
    /// The thread has ended.
    over: bool,
}

/// Shared between a vCPU's thread and the controller.
pub(super) struct Control {
    state: Mutex<State>,
    changed: Condvar,
}

impl Default for Control {
    fn default() -> Self {
        let state = State {
            wish: Wish::Pause,
            task: None,
            still: true,
            over: false,
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

    /// The controller's side: gives a vCPU that was told to pause something to do there. Dropped
    /// undone when the thread has ended, or ends.
    pub fn give(&self, task: Task) {
        let mut state = self.lock();
        if !state.over {
            state.task = Some(task);
        }
        self.changed.notify_all();
    }

    /// The vCPU's side: waits while a pause is wanted, and returns what to do then.
    /// `before_run` is called under the lock before guest code is entered: a request to leave it
    /// that comes later is not lost.
    pub fn next(&self, before_run: impl FnOnce()) -> Next {
        let mut state = self.lock();
        loop {
            match state.wish {
                Wish::Pause => {
                    state.still = true;
                    self.changed.notify_all();
                    if let Some(task) = state.task.take() {
                        return Next::Task(task);
                    }
                    state = self
                        .changed
                        .wait(state)
                        .unwrap_or_else(PoisonError::into_inner);
                }
                Wish::Run => {
                    state.still = false;
                    before_run();
                    return Next::Run;
                }
                Wish::Stop => return Next::Stop,
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
        let mut state = self.0.lock();
        state.still = true;
        state.over = true;
        state.task = None;
        self.0.changed.notify_all();
    }
}
