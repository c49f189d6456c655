//! A cable whose other end is the test.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex};

use rustix::event::{EventfdFlags, eventfd};
use tine_devices::bus::lock;
use tine_devices::virtio::net::{Backend, Buffers, Offloads};

/// Handle to a fake cable. The clone in the device is the same cable.
#[derive(Clone)]
pub struct Cable {
    state: Arc<Mutex<State>>,
    event: Arc<OwnedFd>,
}

#[derive(Default)]
struct State {
    to_guest: VecDeque<Vec<u8>>,
    from_guest: Vec<Vec<u8>>,
    offloads: Option<Offloads>,
    receives: usize,
    receive_error: Option<i32>,
    send_error: Option<i32>,
}

impl Cable {
    pub fn new() -> Self {
        Self {
            state: Arc::default(),
            event: Arc::new(eventfd(0, EventfdFlags::NONBLOCK).unwrap()),
        }
    }

    /// Puts a frame on the cable, as it is.
    pub fn push_raw(&self, frame: Vec<u8>) {
        lock(&self.state).to_guest.push_back(frame);
        self.edge();
    }

    /// Makes the descriptor readable anew.
    pub fn edge(&self) {
        rustix::io::write(&*self.event, &1u64.to_ne_bytes()).unwrap();
    }

    /// Frames that the guest has sent since the last call.
    pub fn sent(&self) -> Vec<Vec<u8>> {
        std::mem::take(&mut lock(&self.state).from_guest)
    }

    /// Frames that the device has not taken yet.
    pub fn waiting(&self) -> usize {
        lock(&self.state).to_guest.len()
    }

    /// How often the device has looked for a frame.
    pub fn receives(&self) -> usize {
        lock(&self.state).receives
    }

    pub fn offloads(&self) -> Option<Offloads> {
        lock(&self.state).offloads
    }

    /// Lets receiving fail, or not any more.
    pub fn fail_receive(&self, errno: Option<i32>) {
        lock(&self.state).receive_error = errno;
    }

    /// Lets sending fail, or not any more.
    pub fn fail_send(&self, errno: Option<i32>) {
        lock(&self.state).send_error = errno;
    }
}

impl Backend for Cable {
    fn receive(&mut self, into: Buffers<'_>) -> io::Result<usize> {
        let mut state = lock(&self.state);
        state.receives += 1;
        if let Some(errno) = state.receive_error {
            return Err(io::Error::from_raw_os_error(errno));
        }
        let Some(frame) = state.to_guest.pop_front() else {
            let _ = rustix::io::read(&*self.event, &mut [0u8; 8]);
            return Err(io::ErrorKind::WouldBlock.into());
        };
        into.copy_from(0, &frame);
        Ok(frame.len().min(into.len()))
    }

    fn send(&mut self, frame: Buffers<'_>) -> io::Result<()> {
        let mut state = lock(&self.state);
        if let Some(errno) = state.send_error {
            return Err(io::Error::from_raw_os_error(errno));
        }
        let mut bytes = vec![0; frame.len()];
        assert_eq!(frame.copy_to(&mut bytes), bytes.len());
        state.from_guest.push(bytes);
        Ok(())
    }

    fn set_offloads(&mut self, offloads: Offloads) -> io::Result<()> {
        lock(&self.state).offloads = Some(offloads);
        Ok(())
    }

    fn event(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }
}
