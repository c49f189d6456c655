//! The thread that all devices' events are served on.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};

use event_manager::{EventManager, EventOps, EventSet, Events, MutEventSubscriber, SubscriberOps};
use tine_jailer::seccomp::{self, Role};
use vmm_sys_util::eventfd::{EFD_CLOEXEC, EFD_NONBLOCK, EventFd};

type Subscriber = Box<dyn MutEventSubscriber + Send>;

/// The running thread.
pub(super) struct EventLoop {
    stop: EventFd,
    thread: JoinHandle<()>,
}

struct Stop {
    event: EventFd,
    stopped: Arc<AtomicBool>,
}

impl MutEventSubscriber for Stop {
    fn process(&mut self, _events: Events, _ops: &mut EventOps) {
        self.stopped.store(true, Ordering::Relaxed);
    }

    fn init(&mut self, ops: &mut EventOps) {
        ops.add(Events::new(&self.event, EventSet::IN))
            .expect("a descriptor of our own is registered once");
    }
}

impl EventLoop {
    /// Starts the thread, which serves `subscribers` until it is stopped.
    pub fn spawn(subscribers: Vec<Subscriber>) -> io::Result<Self> {
        let stop = EventFd::new(EFD_NONBLOCK | EFD_CLOEXEC)?;
        let stopped = Arc::new(AtomicBool::new(false));
        let other = io::Error::other::<event_manager::Error>;
        let mut manager = EventManager::<Subscriber>::new_with_capacity(32).map_err(other)?;
        let end = Stop {
            event: stop.try_clone()?,
            stopped: stopped.clone(),
        };
        manager.add_subscriber(Box::new(end));
        for subscriber in subscribers {
            manager.add_subscriber(subscriber);
        }
        let thread = thread::Builder::new()
            .name("devices".to_owned())
            .spawn(move || {
                seccomp::install(Role::Devices, "devices")
                    .expect("a filter that was compiled can be installed");
                while !stopped.load(Ordering::Relaxed) {
                    // Waiting on descriptors of our own cannot fail but by a bug here, and then the
                    // machine's devices are dead: better a loud end than a silent one.
                    manager
                        .run()
                        .expect("the device event loop waits for its events");
                }
            })?;
        Ok(Self { stop, thread })
    }

    /// Ends the thread and with it the devices.
    pub fn stop(self) {
        // The counter cannot be full: this is its only write.
        let _ = self.stop.write(1);
        let _ = self.thread.join();
    }
}
