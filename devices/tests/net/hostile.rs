//! Drivers that lie.

use tine_devices::testing::Buffer;
use tine_devices::virtio::net::{Net, QUEUE_SIZE};
use virtio_bindings::virtio_ring::VRING_DESC_F_WRITE;

use super::driver::{Guest, MERGEABLE, RX, TX, config, framed, load, pattern};
use super::fake::Cable;

const WRITE: u16 = VRING_DESC_F_WRITE as u16;

fn assert_alive(guest: &mut Guest) {
    guest.settle();
    guest.cable.sent();
    while guest.received().is_some() {}
    guest.send(b"out");
    assert_eq!(guest.cable.sent(), [framed(b"out")]);
    guest.post(2, 2048);
    guest.cable.push_raw(framed(b"in"));
    guest.settle();
    assert_eq!(guest.received().unwrap().1, b"in");
    assert!(!guest.driver.needs_reset());
}

fn outside(flags: u16) -> Vec<Buffer<'static>> {
    let raw = |addr, len| Buffer::Raw { addr, len, flags };
    vec![
        raw(1 << 40, 100),
        raw(u64::MAX - 10, 100),
        raw((64 << 20) - 50, 100),
        raw(0, u32::MAX),
    ]
}

#[test]
fn frames_outside_of_memory_are_dropped_and_counted() {
    let mut guest = Guest::new(MERGEABLE);
    for buffer in outside(0) {
        guest.driver.submit(TX, &[Buffer::Out(&[0; 12]), buffer]);
    }
    guest
        .driver
        .submit(TX, &[Buffer::Out(&[0; 40]), Buffer::In(20)]);
    guest.driver.kick(TX);
    assert_eq!(guest.cable.sent(), Vec::<Vec<u8>>::new());
    assert_eq!(guest.tx_used(), 5);
    assert_eq!(load(&guest.handle.stats().tx_malformed), 5);
    assert_alive(&mut guest);
}

#[test]
fn buffers_outside_of_memory_come_back_unused() {
    for features in [0, MERGEABLE] {
        let mut guest = Guest::new(features);
        let bad = outside(WRITE).len() + 3;
        for buffer in outside(WRITE) {
            guest.driver.submit(RX, &[Buffer::In(20), buffer]);
        }
        guest.driver.submit(RX, &[Buffer::Out(&[0; 100])]);
        guest.driver.submit(RX, &[Buffer::In(0)]);
        guest
            .driver
            .submit(RX, &[Buffer::In(100), Buffer::Out(&[1])]);
        guest.post(1, 2048);
        guest.cable.push_raw(framed(b"frame"));
        guest.settle();
        for _ in 0..bad {
            assert_eq!(guest.driver.used(RX).unwrap().len, 0);
        }
        assert_eq!(guest.received().unwrap().1, b"frame");
        assert_eq!(load(&guest.handle.stats().rx_malformed), bad as u64);
        assert_alive(&mut guest);
    }
}

#[test]
fn chains_of_too_many_parts_are_of_no_use() {
    let mut guest = Guest::new(MERGEABLE);
    let parts: Vec<Buffer> = (0..1100).map(|_| Buffer::In(40)).collect();
    guest.driver.submit_indirect(RX, &parts);
    let parts: Vec<Buffer> = (0..1100).map(|_| Buffer::Out(&[7; 40])).collect();
    guest.driver.submit_indirect(TX, &parts);
    guest.driver.kick(TX);
    guest.cable.push_raw(framed(b"frame"));
    guest.settle();
    assert_eq!(guest.tx_used(), 1);
    assert_eq!(guest.driver.used(RX).unwrap().len, 0);
    assert_eq!(load(&guest.handle.stats().tx_malformed), 1);
    // Whatever is on its way arrives once there is room.
    guest.post(2, 2048);
    guest.settle();
    assert_eq!(guest.received().unwrap().1, b"frame");
    assert_alive(&mut guest);
}

#[test]
fn chains_that_loop_are_of_no_use() {
    let mut guest = Guest::new(MERGEABLE);
    let head = guest.driver.submit(TX, &[Buffer::Out(&[0; 60])]);
    guest
        .driver
        .set_descriptor(TX, head, 0x20_0000, 60, 1, head);
    let head = guest.driver.submit(RX, &[Buffer::In(60)]);
    guest
        .driver
        .set_descriptor(RX, head, 0x20_0000, 60, 1 | WRITE, head);
    guest.driver.kick(TX);
    guest.cable.push_raw(framed(&pattern(1, 1000)));
    guest.settle();
    assert_eq!(guest.tx_used(), 1);
    assert_eq!(guest.driver.used(RX).unwrap().len, 0);
    guest.post(1, 2048);
    guest.settle();
    assert_eq!(guest.received().unwrap().1, pattern(1, 1000));
    assert_alive(&mut guest);
}

#[test]
fn impossible_rings_make_the_device_ask_for_a_reset() {
    for queue in [RX, TX] {
        let mut guest = Guest::new(MERGEABLE);
        guest.post(4, 100);
        guest.cable.push_raw(framed(&pattern(1, 1000)));
        guest.settle();
        guest.driver.set_available_index(queue, 0x8000);
        guest.driver.kick(queue);
        guest.settle();
        assert!(guest.driver.needs_reset());
        guest.driver.kick(queue);
        guest.driver.reset();
        guest.driver.start(MERGEABLE);
        assert_alive(&mut guest);
    }
}

#[test]
fn the_same_buffer_may_be_offered_over_and_over() {
    let mut guest = Guest::new(MERGEABLE);
    let head = guest.driver.submit(RX, &[Buffer::In(40)]);
    for _ in 1..64 {
        guest.driver.make_available(RX, head);
    }
    guest.driver.kick(RX);
    for n in 0..10 {
        guest.cable.push_raw(framed(&pattern(n, 500)));
    }
    guest.settle();
    assert!(!guest.driver.needs_reset());
    // All that was offered was used.
    assert!(std::iter::from_fn(|| guest.driver.used(RX)).count() > 0);
}

#[test]
fn kicks_of_all_kinds_before_the_driver_runs_do_nothing() {
    let cable = Cable::new();
    let net = Net::with_backend(&config(), cable.clone()).unwrap();
    let guest = tine_devices::testing::FakeDriver::new(net);
    for queue in [0, 1, 2, 3, usize::from(QUEUE_SIZE)] {
        guest.kick(queue);
    }
    cable.push_raw(framed(b"early"));
    assert!(!guest.run_backend(0));
    assert_eq!(cable.receives(), 0);
}
