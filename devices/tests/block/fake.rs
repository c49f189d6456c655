//! A backend in memory, whose operations end when and how the test says.

use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Mutex};

use tine_devices::bus::lock;
use tine_devices::virtio::block::{Backend, Completion, Operation, Token};
use vmm_sys_util::eventfd::{EFD_NONBLOCK, EventFd};

/// Handle to a fake drive. The clone in the device is the same drive.
#[derive(Clone)]
pub struct FakeDisk {
    state: Arc<Mutex<State>>,
    event: Arc<EventFd>,
}

struct State {
    bytes: Vec<u8>,
    submitted: Vec<(Token, Operation)>,
    /// Begun and held.
    held: VecDeque<(Token, Operation)>,
    done: Vec<Completion>,
}

impl FakeDisk {
    /// A drive of zeroes.
    pub fn new(sectors: usize) -> Self {
        let state = State {
            bytes: vec![0; sectors * 512],
            submitted: Vec::new(),
            held: VecDeque::new(),
            done: Vec::new(),
        };
        Self {
            state: Arc::new(Mutex::new(state)),
            event: Arc::new(EventFd::new(EFD_NONBLOCK).unwrap()),
        }
    }

    /// How many operations have begun and not ended.
    pub fn held(&self) -> usize {
        lock(&self.state).held.len()
    }

    /// What they are, in the order of their coming.
    pub fn held_operations(&self) -> Vec<String> {
        let state = lock(&self.state);
        let operations = state.held.iter();
        operations.map(|(_, what)| format!("{what:?}")).collect()
    }

    /// Does the `index`th operation held, and ends it.
    pub fn finish(&self, index: usize) {
        self.finish_with(index, |state, operation| Ok(state.perform(operation)));
    }

    /// Ends it without doing it.
    pub fn fail(&self, index: usize, error: io::ErrorKind) {
        self.finish_with(index, |_, _| Err(error.into()));
    }

    /// Does it, and says that only `moved` bytes were moved.
    pub fn cut_short(&self, index: usize, moved: u64) {
        self.finish_with(index, |state, operation| {
            state.perform(operation);
            Ok(moved)
        });
    }

    fn finish_with(
        &self,
        index: usize,
        end: impl FnOnce(&mut State, Operation) -> io::Result<u64>,
    ) {
        let mut state = lock(&self.state);
        let (token, operation) = state.held.remove(index).expect("held");
        let result = end(&mut state, operation);
        state.done.push(Completion { token, result });
        drop(state);
        self.event.write(1).unwrap();
    }

    /// Says that an operation ended that was never submitted.
    pub fn invent(&self, token: Token) {
        let result = Ok(512);
        lock(&self.state).done.push(Completion { token, result });
        self.event.write(1).unwrap();
    }
}

impl State {
    fn perform(&mut self, operation: Operation) -> u64 {
        match operation {
            Operation::Read { offset, buffers } => {
                let mut at = offset as usize;
                for slice in buffers.slices() {
                    slice.copy_from(&self.bytes[at..at + slice.len()]);
                    at += slice.len();
                }
                buffers.len() as u64
            }
            Operation::Write {
                offset, buffers, ..
            } => {
                let mut at = offset as usize;
                for slice in buffers.slices() {
                    slice.copy_to(&mut self.bytes[at..at + slice.len()]);
                    at += slice.len();
                }
                buffers.len() as u64
            }
            Operation::Flush | Operation::Discard { .. } => 0,
            Operation::WriteZeroes { offset, len, .. } => {
                self.bytes[offset as usize..(offset + len) as usize].fill(0);
                0
            }
        }
    }
}

impl Backend for FakeDisk {
    fn capacity(&self) -> u64 {
        lock(&self.state).bytes.len() as u64
    }

    fn event(&self) -> &Arc<EventFd> {
        &self.event
    }

    fn submit(&mut self, token: Token, operation: Operation) {
        let mut state = lock(&self.state);
        let taken = state.held.iter().chain(&state.submitted);
        assert!(taken.into_iter().all(|(other, _)| *other != token));
        state.submitted.push((token, operation));
    }

    fn start(&mut self) {
        let mut state = lock(&self.state);
        let submitted = std::mem::take(&mut state.submitted);
        state.held.extend(submitted);
    }

    fn completed(&mut self, into: &mut Vec<Completion>) {
        into.append(&mut lock(&self.state).done);
    }
}
