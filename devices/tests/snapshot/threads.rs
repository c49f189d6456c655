//! Snapshots while the event loop's thread is at work, as a machine takes them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};

use event_manager::{EventManager, MutEventSubscriber, SubscriberOps};
use tine_devices::testing::{FakeDriver, Used};
use tine_devices::virtio::block::Engine;
use tine_devices::virtio::events::DeviceEvents;
use virtio_bindings::virtio_mmio::VIRTIO_MMIO_QUEUE_NOTIFY;

use crate::block::{make, read, sector};
use crate::suite::NAME;

/// The event loop, until it is dropped.
struct EventLoop {
    ends: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl EventLoop {
    fn of(driver: &FakeDriver) -> Self {
        let ends = Arc::new(AtomicBool::new(false));
        let (until, transport) = (ends.clone(), driver.transport.clone());
        let thread = thread::spawn(move || {
            let mut manager = EventManager::<Box<dyn MutEventSubscriber + Send>>::new().unwrap();
            manager.add_subscriber(Box::new(DeviceEvents::new(transport)));
            while !until.load(Ordering::SeqCst) {
                manager.run_with_timeout(10).unwrap();
            }
        });
        Self {
            ends,
            thread: Some(thread),
        }
    }
}

impl Drop for EventLoop {
    fn drop(&mut self) {
        self.ends.store(true, Ordering::SeqCst);
        let ended = self.thread.take().unwrap().join();
        if !thread::panicking() {
            ended.unwrap();
        }
    }
}

/// A request by its head, and the sector that it reads.
type Request = (u16, u64);

/// Takes used chains until nothing is left of `requests`: each is answered once, and rightly.
fn answered(driver: &mut FakeDriver, requests: &[Request]) {
    let mut left = requests.to_vec();
    while !left.is_empty() {
        let Some(Used { head, data, .. }) = driver.used(0) else {
            thread::yield_now();
            continue;
        };
        let at = left.iter().position(|(request, _)| *request == head);
        let (_, number) = left.swap_remove(at.expect("used once"));
        assert_eq!(data[..512], sector(number));
        assert_eq!(data[512], 0);
    }
    assert!(driver.used(0).is_none());
}

fn work_and_freeze(engine: Engine) {
    let (device, _dir) = make(engine);
    let mut driver = FakeDriver::boxed(device);
    driver.start(0);
    let _loop = EventLoop::of(&driver);
    for round in 0..30 {
        let mut requests = Vec::new();
        for n in 0..12 {
            let number = (round * 7 + n) % 200;
            requests.push((read(&mut driver, number), number));
            if n % 4 == 3 {
                driver.set_register(VIRTIO_MMIO_QUEUE_NOTIFY, 0);
            }
        }
        let (sections, mem) = driver.freeze(NAME);
        let (device, _dir) = make(engine);
        let restored = driver.restored_in(mem, device, NAME, &sections);
        let mut restored = restored.unwrap();
        let _loop = EventLoop::of(&restored);
        answered(&mut restored, &requests);
        answered(&mut driver, &requests);
        assert!(!driver.needs_reset() && !restored.needs_reset());
    }
}

#[test]
fn requests_are_answered_once_on_both_sides_with_io_uring() {
    work_and_freeze(Engine::Auto);
}

#[test]
fn requests_are_answered_once_on_both_sides_with_a_thread() {
    work_and_freeze(Engine::Thread);
}
