//! The device on a real event loop, in a thread of its own.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use event_manager::{EventManager, MutEventSubscriber, SubscriberOps};

use super::*;
use crate::bus::lock;
use crate::virtio::events::DeviceEvents;

/// Counts how often the event loop wakes.
struct Counted(DeviceEvents, Arc<AtomicU64>);

impl MutEventSubscriber for Counted {
    fn process(&mut self, events: event_manager::Events, ops: &mut event_manager::EventOps) {
        self.1.fetch_add(1, Ordering::SeqCst);
        self.0.process(events, ops);
    }

    fn init(&mut self, ops: &mut event_manager::EventOps) {
        self.0.init(ops);
    }
}

/// Waits for a packet that the other thread sends.
fn wait(guest: &mut Guest) -> (Header, Vec<u8>) {
    for _ in 0..5000 {
        if let Some(used) = guest.driver.used(RX) {
            guest.supply();
            lock(&guest.driver.transport).queue_events()[RX]
                .write(1)
                .unwrap();
            return unpack(used);
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    panic!("no packet within 5 s");
}

#[test]
fn an_event_loop_serves_the_device_and_sleeps_otherwise() {
    let mut guest = Guest::new();
    let wakes = Arc::new(AtomicU64::new(0));
    let stop = Arc::new(AtomicBool::new(false));
    let events = Counted(
        DeviceEvents::new(guest.driver.transport.clone()),
        wakes.clone(),
    );
    let stopped = stop.clone();
    let thread = std::thread::spawn(move || {
        let mut manager = EventManager::new().unwrap();
        manager.add_subscriber(events);
        while !stopped.load(Ordering::SeqCst) {
            manager.run_with_timeout(10).unwrap();
        }
    });
    let mut host = patient(guest.handle.connect(1).unwrap());
    let key = wait(&mut guest).0.key_of_reply();
    guest.send(key, op::RESPONSE);
    for round in 0..20u8 {
        host.write_all(&[round; 1000]).unwrap();
        assert_eq!(wait(&mut guest).1, [round; 1000]);
        guest.send_data(key, &[round]);
        assert_eq!(read_exactly(&mut host, 1), [round]);
    }
    let sleeps = (0..100).any(|_| {
        let before = wakes.load(Ordering::SeqCst);
        std::thread::sleep(Duration::from_millis(50));
        wakes.load(Ordering::SeqCst) == before
    });
    assert!(sleeps, "wakes for nothing");
    drop(host);
    assert_eq!(wait(&mut guest).0.flags, SHUTDOWN_BOTH);
    stop.store(true, Ordering::SeqCst);
    thread.join().unwrap();
    // Each round: one wake for the host's bytes, one for the receive buffer given back.
    assert!(wakes.load(Ordering::SeqCst) < 100);
}
