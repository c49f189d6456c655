//! A thread of the drive's own that does operations one after another.

use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};

use vmm_sys_util::eventfd::EventFd;

use super::{Completion, Operation, Token};
use crate::bus::lock;

/// What can be told to do an operation on the spot.
pub(super) trait Perform: Send + 'static {
    /// Does it. The result is how many bytes were read or written.
    fn perform(&mut self, operation: Operation) -> io::Result<u64>;
}

/// The thread, which is there once there was something for it to do.
pub(super) struct Worker<P> {
    name: String,
    shared: Arc<Shared<P>>,
    thread: Option<JoinHandle<()>>,
    /// Submitted and not yet started.
    batch: Vec<(Token, Operation)>,
}

struct Shared<P> {
    /// Locked for as long as an operation takes.
    disk: Mutex<P>,
    event: Arc<EventFd>,
    state: Mutex<State>,
    wake: Condvar,
}

#[derive(Default)]
struct State {
    jobs: VecDeque<(Token, Operation)>,
    done: Vec<Completion>,
    stop: bool,
}

impl<P: Perform> Worker<P> {
    /// A worker of the drive `id` on `disk` that writes `event` after each operation.
    pub fn new(id: &str, disk: P, event: Arc<EventFd>) -> Self {
        Self {
            // A thread's name cannot hold a zero byte.
            name: format!("block-{id}").replace('\0', ""),
            shared: Arc::new(Shared {
                disk: Mutex::new(disk),
                event,
                state: Mutex::default(),
                wake: Condvar::new(),
            }),
            thread: None,
            batch: Vec::new(),
        }
    }

    /// Takes an operation.
    pub fn submit(&mut self, token: Token, operation: Operation) {
        self.batch.push((token, operation));
    }

    /// Wakes the thread for what was submitted, or makes it.
    pub fn start(&mut self) {
        if self.batch.is_empty() {
            return;
        }
        if self.thread.is_none() {
            let shared = self.shared.clone();
            let builder = thread::Builder::new().name(self.name.clone());
            match builder.spawn(move || shared.run()) {
                Ok(thread) => self.thread = Some(thread),
                Err(error) => return self.fail(&error),
            }
        }
        lock(&self.shared.state).jobs.extend(self.batch.drain(..));
        self.shared.wake.notify_one();
    }

    /// The disk, when no operation has it.
    pub fn disk(&self) -> MutexGuard<'_, P> {
        lock(&self.shared.disk)
    }

    /// Appends what ended.
    pub fn completed(&mut self, into: &mut Vec<Completion>) {
        into.append(&mut lock(&self.shared.state).done);
    }

    /// No thread is to be had: the requests fail, and the next ones try again.
    fn fail(&mut self, error: &io::Error) {
        let failed = self.batch.drain(..).map(|(token, _)| Completion {
            token,
            result: Err(error.kind().into()),
        });
        lock(&self.shared.state).done.extend(failed);
        let _ = self.shared.event.write(1);
    }
}

impl<P> Drop for Worker<P> {
    fn drop(&mut self) {
        let mut state = lock(&self.shared.state);
        state.stop = true;
        state.jobs.clear();
        drop(state);
        self.shared.wake.notify_one();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl<P: Perform> Shared<P> {
    fn run(&self) {
        while let Some((token, operation)) = self.next() {
            let result = lock(&self.disk).perform(operation);
            lock(&self.state).done.push(Completion { token, result });
            let _ = self.event.write(1);
        }
    }

    fn next(&self) -> Option<(Token, Operation)> {
        let mut state = lock(&self.state);
        loop {
            if state.stop {
                return None;
            }
            if let Some(job) = state.jobs.pop_front() {
                return Some(job);
            }
            let woken = self.wake.wait(state);
            state = woken.unwrap_or_else(PoisonError::into_inner);
        }
    }
}
