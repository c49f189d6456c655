//! The one place where devices meet the event loop.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex};

use event_manager::{EventOps, EventSet, Events, MutEventSubscriber};
use rustix::event::epoll;
use vmm_sys_util::eventfd::EventFd;

use super::MAX_QUEUES;
use super::mmio::MmioTransport;
use crate::bus::lock;

const BACKEND: u32 = MAX_QUEUES as u32;

/// Forwards queue notifications and backend events of one device to it, on the thread of the
/// event loop that it is registered with.
pub struct DeviceEvents {
    transport: Arc<Mutex<MmioTransport>>,
    queue_events: Vec<Arc<EventFd>>,
}

impl DeviceEvents {
    /// Events of the device behind `transport`.
    pub fn new(transport: Arc<Mutex<MmioTransport>>) -> Self {
        let queue_events = lock(&transport).queue_events().to_vec();
        Self {
            transport,
            queue_events,
        }
    }
}

/// One descriptor that is readable when any of the given ones is. Which one is of no
/// interest: the device looks at both sides whenever it is called.
pub(super) fn join<const N: usize>(fds: [BorrowedFd; N]) -> io::Result<OwnedFd> {
    let joined = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    for fd in fds {
        let data = epoll::EventData::new_u64(0);
        epoll::add(&joined, fd, data, epoll::EventFlags::IN)?;
    }
    Ok(joined)
}

impl MutEventSubscriber for DeviceEvents {
    fn process(&mut self, events: Events, _ops: &mut EventOps) {
        if events.data() == BACKEND {
            lock(&self.transport).process_backend();
            return;
        }
        let queue = events.data() as usize;
        if let Some(event) = self.queue_events.get(queue) {
            // Non-blocking: the count is of no interest, only that it is zero again.
            let _ = event.read();
            lock(&self.transport).process_queue(queue);
        }
    }

    fn init(&mut self, ops: &mut EventOps) {
        for (queue, event) in self.queue_events.iter().enumerate() {
            let events = Events::with_data(event.as_ref(), queue as u32, EventSet::IN);
            ops.add(events)
                .expect("a descriptor of our own is registered once");
        }
        if let Some(fd) = lock(&self.transport).backend_event() {
            let events = Events::with_data_raw(fd.as_raw_fd(), BACKEND, EventSet::IN);
            ops.add(events)
                .expect("a descriptor of our own is registered once");
        }
    }
}
