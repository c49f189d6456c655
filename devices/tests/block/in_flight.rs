//! Requests that take their time: a slow drive, errors, resets, and a drive that goes away.

use std::io::ErrorKind;
use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock};
use std::thread;

use event_manager::{EventManager, SubscriberOps};
use tine_devices::GuestMemory;
use tine_devices::testing::{Buffer, FakeDriver};
use tine_devices::virtio::block::{
    Backend, Block, BlockConfig, Buffers, Completion, Operation, RawFile, Token,
};
use tine_devices::virtio::events::DeviceEvents;
use virtio_bindings::virtio_blk::*;
use virtio_bindings::virtio_mmio::{VIRTIO_MMIO_INTERRUPT_STATUS, VIRTIO_MMIO_QUEUE_NOTIFY};
use virtio_bindings::virtio_ring::VIRTIO_RING_F_EVENT_IDX;
use vm_memory::{Bytes, GuestAddress};
use vmm_sys_util::eventfd::EventFd;

use crate::driver::*;
use crate::fake::FakeDisk;

#[test]
fn a_slow_drive_keeps_nobody_waiting() {
    let disk = FakeDisk::new(8);
    let mut guest = guest_on(disk.clone());
    guest.send(VIRTIO_BLK_T_IN, 0, &[Buffer::In(512)]);
    guest.kick(0);
    assert_eq!(disk.held(), 1);
    assert_eq!(guest.used(0), None);
    assert!(!guest.run_backend(0), "the event is quiet meanwhile");
    assert_eq!(guest.irq.count(), 0);
    // What needs no drive is answered meanwhile.
    let answer = guest.request(VIRTIO_BLK_T_GET_ID, 0, &[Buffer::In(20)]);
    assert_eq!(answer.status, OK);
    disk.finish(0);
    assert_eq!(Answer::from(guest.wait_used(0)).status, OK);
    assert!(!guest.run_backend(0), "the event is quiet again");
}

#[test]
fn completions_in_another_order_reach_their_own_requests() {
    let disk = FakeDisk::new(8);
    let mut guest = guest_on(disk.clone());
    let writes = [[1; 512], [2; 512], [3; 512]];
    let heads = [0, 1, 2].map(|n| {
        let data = [Buffer::Out(&writes[n])];
        guest.send(VIRTIO_BLK_T_OUT, n as u64, &data)
    });
    guest.kick(0);
    for (held, request) in [(1, 1), (1, 2), (0, 0)] {
        disk.finish(held);
        assert_eq!(guest.wait_used(0).head, heads[request]);
    }
    let reads = [0, 1, 2].map(|n| guest.send(VIRTIO_BLK_T_IN, n, &[Buffer::In(512)]));
    guest.kick(0);
    for held in [2, 0, 0] {
        disk.finish(held);
    }
    for request in [2, 0, 1] {
        let used = guest.wait_used(0);
        assert_eq!(used.head, reads[request]);
        assert_eq!(used.data[..512], writes[request]);
    }
}

#[test]
fn errors_and_short_transfers_are_errors_to_the_guest() {
    let disk = FakeDisk::new(8);
    let device = Block::with_backend(&BlockConfig::new("root", ""), disk.clone()).unwrap();
    let stats = device.stats().clone();
    let mut guest = FakeDriver::started(device, FLUSH);
    let ways: [fn(&FakeDisk); 3] = [
        |disk| disk.fail(0, ErrorKind::Other),
        |disk| disk.fail(0, ErrorKind::StorageFull),
        |disk| disk.cut_short(0, 511),
    ];
    for way in ways {
        for (kind, data, len) in [
            (VIRTIO_BLK_T_IN, Buffer::In(512), 0),
            (VIRTIO_BLK_T_OUT, Buffer::Out(&[1; 512]), 1),
        ] {
            guest.send(kind, 0, &[data]);
            guest.kick(0);
            way(&disk);
            let answer = Answer::from(guest.wait_used(0));
            assert_eq!((answer.status, answer.len), (IO_ERROR, len));
        }
    }
    guest.send(VIRTIO_BLK_T_FLUSH, 0, &[]);
    guest.kick(0);
    disk.fail(0, ErrorKind::Other);
    assert_eq!(Answer::from(guest.wait_used(0)).status, IO_ERROR);
    assert_eq!(stats.errors.load(Ordering::Relaxed), 7);
    assert_eq!(stats.reads.load(Ordering::Relaxed), 0);
    assert_eq!(stats.flushes.load(Ordering::Relaxed), 0);
}

#[test]
fn a_completion_of_nothing_is_ignored() {
    let disk = FakeDisk::new(8);
    let mut guest = guest_on(disk.clone());
    for token in [0, 127, 128, u16::MAX] {
        disk.invent(token);
    }
    assert!(guest.run_backend(0));
    assert_eq!(guest.used(0), None);
    guest.send(VIRTIO_BLK_T_IN, 0, &[Buffer::In(512)]);
    guest.kick(0);
    disk.finish(0);
    assert_eq!(Answer::from(guest.wait_used(0)).status, OK);
}

#[test]
fn a_driver_that_reuses_a_chain_has_no_more_in_flight_than_the_queue_is_long() {
    let disk = FakeDisk::new(8);
    let mut guest = guest_on(disk.clone());
    let head = guest.send(VIRTIO_BLK_T_IN, 0, &[Buffer::In(512)]);
    let total = 128 + 50;
    for _ in 1..total {
        guest.kick(0);
        guest.make_available(0, head);
    }
    guest.kick(0);
    assert_eq!(disk.held(), 128);
    // And none is forgotten.
    for _ in 0..total {
        disk.finish(0);
        guest.wait_used(0);
        assert!(disk.held() <= 128);
    }
    assert_eq!((disk.held(), guest.used(0)), (0, None));
    assert!(!guest.needs_reset());
}

/// A backend at whose every question the driver has made another chain available.
struct Restless {
    disk: FakeDisk,
    mem: Arc<OnceLock<Arc<GuestMemory>>>,
}

const AVAILABLE_INDEX: GuestAddress = GuestAddress(0x1_4002);

impl Backend for Restless {
    fn capacity(&self) -> u64 {
        if let Some(mem) = self.mem.get() {
            let index: u16 = mem.load(AVAILABLE_INDEX, Ordering::SeqCst).unwrap();
            mem.store(index.wrapping_add(1), AVAILABLE_INDEX, Ordering::SeqCst)
                .unwrap();
        }
        self.disk.capacity()
    }

    fn event(&self) -> &Arc<EventFd> {
        self.disk.event()
    }

    fn submit(&mut self, token: Token, operation: Operation) {
        self.disk.submit(token, operation);
    }

    fn start(&mut self) {
        self.disk.start();
    }

    fn completed(&mut self, into: &mut Vec<Completion>) {
        self.disk.completed(into);
    }
}

#[test]
fn a_driver_that_goes_on_adding_requests_is_left_for_a_while() {
    let mem = Arc::new(OnceLock::new());
    let mut guest = guest_on(Restless {
        disk: FakeDisk::new(8),
        mem: mem.clone(),
    });
    // All entries of the ring are this chain, which is answered on the spot.
    let head = guest.send(VIRTIO_BLK_T_GET_ID, 0, &[Buffer::In(20)]);
    for _ in 1..32 {
        guest.make_available(0, head);
    }
    guest.kick(0);
    for _ in 0..32 {
        guest.make_available(0, head);
    }
    mem.set(guest.mem.clone()).unwrap();
    guest.kick(0);
    for _ in 0..10 {
        assert!(guest.run_backend(0), "the device does not come back");
    }
    assert!(!guest.needs_reset());
}

#[test]
fn a_reset_waits_for_what_is_in_flight() {
    let disk = FakeDisk::new(8);
    let mut guest = guest_on(disk.clone());
    for sector in 0..3 {
        guest.send(VIRTIO_BLK_T_IN, sector, &[Buffer::In(512)]);
    }
    guest.kick(0);
    assert_eq!(disk.held(), 3);
    let slow = disk.clone();
    let storage = thread::spawn(move || {
        for index in [2, 1, 0] {
            slow.finish(index);
            thread::yield_now();
        }
    });
    guest.reset();
    assert_eq!(disk.held(), 0, "the reset did not wait");
    storage.join().unwrap();
    // The event of the last one may come after the reset has seen it complete: it is no work.
    while guest.run_backend(0) {}
    guest.start(FLUSH);
    assert_eq!(guest.used(0), None);
    guest.send(VIRTIO_BLK_T_IN, 0, &[Buffer::In(512)]);
    guest.kick(0);
    disk.finish(0);
    assert_eq!(Answer::from(guest.wait_used(0)).status, OK);
}

#[test]
fn a_raw_file_is_reset_and_dropped_in_the_midst_of_requests() {
    for engine in ENGINES {
        let image = image(4096);
        let mut guest = guest(&config(image.path(), engine));
        for round in 0..20 {
            for sector in 0..16 {
                guest.send(VIRTIO_BLK_T_IN, sector, &[Buffer::In(1 << 20)]);
            }
            guest.kick(0);
            guest.reset();
            // Nobody writes here any more.
            guest
                .mem
                .write_slice(&[0x55; 4096], GuestAddress(0x20_0000))
                .unwrap();
            let mut bytes = [0; 4096];
            guest
                .mem
                .read_slice(&mut bytes, GuestAddress(0x20_0000))
                .unwrap();
            assert_eq!(bytes, [0x55; 4096], "round {round}");
            guest.start(FLUSH);
        }
        guest.send(VIRTIO_BLK_T_IN, 0, &[Buffer::In(1 << 20)]);
        guest.kick(0);
        drop(guest);
    }
}

#[test]
fn guest_memory_stays_until_the_storage_is_done_with_it() {
    for engine in ENGINES {
        let image = image(4096);
        let mut file = RawFile::open(&config(image.path(), engine)).unwrap();
        let mem = GuestMemory::from_ranges(&[(GuestAddress(0), 4 << 20)]).unwrap();
        let mem = Arc::new(mem);
        for token in 0..8 {
            let buffers = Buffers::new(&mem, [(GuestAddress(0), 2 << 20)]).unwrap();
            file.submit(token, Operation::Read { offset: 0, buffers });
        }
        file.start();
        drop(file);
        assert_eq!(Arc::strong_count(&mem), 1, "something is left in flight");
    }
}

#[test]
fn an_inactive_device_does_nothing() {
    let disk = FakeDisk::new(8);
    let device = Block::with_backend(&BlockConfig::new("root", ""), disk.clone()).unwrap();
    let mut guest = FakeDriver::new(device);
    guest.kick(0);
    guest.kick(1);
    disk.invent(0);
    assert!(guest.run_backend(0));
    guest.start(FLUSH);
    guest.send(VIRTIO_BLK_T_IN, 0, &[Buffer::In(512)]);
    guest.kick(7);
    assert_eq!(disk.held(), 0);
    guest.reset();
    guest.kick(0);
    assert_eq!(disk.held(), 0);
}

#[test]
fn writes_are_durable_one_by_one_for_a_driver_without_flushes() {
    let config = BlockConfig::new("root", "");
    for (features, durable) in [(0, "durable: true"), (FLUSH, "durable: false")] {
        let disk = FakeDisk::new(8);
        let device = Block::with_backend(&config, disk.clone()).unwrap();
        let mut guest = FakeDriver::started(device, features);
        let zeroes = range(0, 1, 0);
        guest.send(VIRTIO_BLK_T_OUT, 0, &[Buffer::Out(&[1; 512])]);
        guest.send(VIRTIO_BLK_T_WRITE_ZEROES, 0, &[Buffer::Out(&zeroes)]);
        guest.kick(0);
        let operations = disk.held_operations();
        assert!(
            operations.iter().all(|one| one.contains(durable)),
            "{operations:?}"
        );
    }
    for engine in ENGINES {
        let image = image(8);
        let device = Block::open(&self::config(image.path(), engine)).unwrap();
        let mut guest = FakeDriver::started(device, 0);
        assert_eq!(guest.write(2, &[7; 512]).status, OK);
        assert_eq!(guest.write_zeroes(3, 1, 0).status, OK);
        assert_eq!(guest.read(2, 1024).data, [[7; 512], [0; 512]].concat());
    }
}

#[test]
fn one_interrupt_announces_all_that_completed_together() {
    let disk = FakeDisk::new(8);
    let mut guest = guest_on(disk.clone());
    for sector in 0..4 {
        guest.send(VIRTIO_BLK_T_IN, sector, &[Buffer::In(512)]);
    }
    guest.kick(0);
    for _ in 0..4 {
        disk.finish(0);
    }
    assert!(guest.run_backend(0));
    assert_eq!(guest.irq.count(), 1);
    assert_eq!(guest.register(VIRTIO_MMIO_INTERRUPT_STATUS), 1);
}

#[test]
fn with_event_indices_the_driver_says_when_to_interrupt() {
    let disk = FakeDisk::new(8);
    let device = Block::with_backend(&BlockConfig::new("root", ""), disk.clone()).unwrap();
    let features = FLUSH | 1 << VIRTIO_RING_F_EVENT_IDX;
    let mut guest = FakeDriver::started(device, features);
    // Not before the third.
    guest.set_used_event(0, 2);
    for sector in 0..3 {
        guest.send(VIRTIO_BLK_T_IN, sector, &[Buffer::In(512)]);
    }
    guest.kick(0);
    for interrupts in [0, 0, 1] {
        disk.finish(0);
        assert!(guest.run_backend(0));
        assert_eq!(guest.irq.count(), interrupts);
    }
}

#[test]
fn auto_takes_io_uring_where_there_is_one_and_thread_never() {
    let available = io_uring::IoUring::new(4).is_ok();
    for engine in ENGINES {
        let image = image(8);
        let config = config(image.path(), engine);
        let mut file = RawFile::open(&config).unwrap();
        file.submit(0, Operation::Flush);
        let expected = available && engine == tine_devices::virtio::block::Engine::Auto;
        assert_eq!(file.uses_io_uring(), Some(expected));
    }
}

#[test]
fn the_event_loop_brings_requests_to_the_drive_and_back() {
    for engine in ENGINES {
        let image = image(64);
        let mut guest = guest(&config(image.path(), engine));
        let mut events = EventManager::<DeviceEvents>::new().unwrap();
        events.add_subscriber(DeviceEvents::new(guest.transport.clone()));
        for sector in 0..64 {
            guest.send(VIRTIO_BLK_T_IN, sector, &[Buffer::In(512)]);
            guest.set_register(VIRTIO_MMIO_QUEUE_NOTIFY, 0);
            let used = loop {
                events.run_with_timeout(10_000).unwrap();
                if let Some(used) = guest.used(0) {
                    break used;
                }
            };
            assert_eq!(used.data[..512], [sector as u8; 512]);
        }
        // Then there is nothing more to do.
        while events.run_with_timeout(0).unwrap() > 0 {}
    }
}
