//! The thread that all devices' events are served on.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, SyncSender};
use std::thread::{self, JoinHandle};

use event_manager::{EventManager, EventOps, EventSet, Events, MutEventSubscriber, SubscriberOps};
use tine_jailer::seccomp::{self, Role};
use vmm_sys_util::eventfd::{EFD_CLOEXEC, EFD_NONBLOCK, EventFd};

type Subscriber = Box<dyn MutEventSubscriber + Send>;

type Manager = EventManager<Subscriber>;

/// The thread before there are devices: it waits for them under its filter. Dropped, it ends.
pub(super) struct EventLoopAhead {
    /// Both are there until the devices come.
    give: Option<SyncSender<(Manager, Arc<AtomicBool>)>>,
    thread: Option<JoinHandle<()>>,
}

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

impl EventLoopAhead {
    /// Starts the thread.
    pub fn start() -> io::Result<Self> {
        let (give, given) = mpsc::sync_channel::<(Manager, Arc<AtomicBool>)>(1);
        let body = move || {
            seccomp::install(Role::Devices, "devices")
                .expect("a filter that was compiled can be installed");
            let Ok((mut manager, stopped)) = given.recv() else {
                return;
            };
            while !stopped.load(Ordering::Relaxed) {
                // Waiting on descriptors of our own cannot fail but by a bug here, and then the
                // machine's devices are dead: better a loud end than a silent one.
                manager
                    .run()
                    .expect("the device event loop waits for its events");
            }
        };
        let thread = thread::Builder::new().name("devices".to_owned());
        Ok(Self {
            give: Some(give),
            thread: Some(thread.spawn(body)?),
        })
    }

    /// Has it serve `subscribers` until it is stopped.
    pub fn begin(mut self, subscribers: Vec<Subscriber>) -> io::Result<EventLoop> {
        let stop = EventFd::new(EFD_NONBLOCK | EFD_CLOEXEC)?;
        let stopped = Arc::new(AtomicBool::new(false));
        let other = io::Error::other::<event_manager::Error>;
        let mut manager = Manager::new_with_capacity(32).map_err(other)?;
        let end = Stop {
            event: stop.try_clone()?,
            stopped: stopped.clone(),
        };
        manager.add_subscriber(Box::new(end));
        for subscriber in subscribers {
            manager.add_subscriber(subscriber);
        }
        // Gone only by a panic, which has been reported.
        let gone = || io::Error::from(io::ErrorKind::BrokenPipe);
        let give = self.give.take().ok_or_else(gone)?;
        give.send((manager, stopped)).map_err(|_| gone())?;
        let thread = self.thread.take().ok_or_else(gone)?;
        Ok(EventLoop { stop, thread })
    }
}

impl Drop for EventLoopAhead {
    fn drop(&mut self) {
        drop(self.give.take());
        if let Some(thread) = self.thread.take() {
            // A panic has been reported by then; there is nothing to add.
            let _ = thread.join();
        }
    }
}

impl EventLoop {
    /// Ends the thread and with it the devices.
    pub fn stop(self) {
        // The counter cannot be full: this is its only write.
        let _ = self.stop.write(1);
        let _ = self.thread.join();
    }
}
