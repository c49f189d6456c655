//! Frames to the guest.

use tine_devices::testing::Buffer;
use tine_devices::virtio::net::{FRAMES_PER_EVENT, HEADER_LEN, MAX_FRAME_LEN};
use virtio_bindings::virtio_ring::VIRTIO_RING_F_EVENT_IDX;

use super::driver::{Guest, MERGEABLE, RX, framed, load, pattern};

#[test]
fn a_frame_arrives_whole_with_its_header() {
    for features in [0, MERGEABLE] {
        let mut guest = Guest::new(features);
        guest.post(4, 2048);
        let bytes = pattern(1, 60);
        let mut frame = framed(&bytes);
        frame[..10].copy_from_slice(&[1, 0, 0, 0, 0, 0, 34, 0, 16, 0]);
        guest.cable.push_raw(frame.clone());
        guest.settle();
        let (header, received) = guest.received().unwrap();
        assert_eq!(received, bytes);
        assert_eq!(header[..10], frame[..10]);
        assert_eq!(header[10..], [1, 0]);
        assert_eq!(guest.driver.irq.count(), 1);
        assert!(guest.received().is_none());
    }
}

#[test]
fn a_long_frame_is_spread_over_as_many_buffers_as_it_needs() {
    let mut guest = Guest::new(MERGEABLE);
    guest.post(60, 1526);
    let bytes = pattern(2, 60_000);
    guest.cable.push_raw(framed(&bytes));
    guest.cable.push_raw(framed(b"next"));
    guest.settle();
    let (header, received) = guest.received().unwrap();
    assert_eq!(usize::from(header[10]), 60_012usize.div_ceil(1526));
    assert!(received == bytes);
    assert_eq!(guest.received().unwrap().1, b"next");
}

#[test]
fn buffers_may_be_cut_in_any_way() {
    let mut guest = Guest::new(MERGEABLE);
    let parts = [3, 5, 1, 2, 7, 0, 40].map(Buffer::In);
    guest.driver.submit(RX, &parts);
    guest
        .driver
        .submit(RX, &[Buffer::In(100), Buffer::In(2000)]);
    guest.driver.kick(RX);
    let bytes = pattern(3, 300);
    guest.cable.push_raw(framed(&bytes));
    guest.settle();
    assert_eq!(guest.received().unwrap().1, bytes);
}

#[test]
fn a_frame_that_finds_too_few_buffers_waits_for_more_and_is_not_cut() {
    for first in 1..8 {
        let mut guest = Guest::new(MERGEABLE);
        guest.post(first, 100);
        let bytes = pattern(4, 1000);
        guest.cable.push_raw(framed(&bytes));
        guest.cable.push_raw(framed(b"behind"));
        guest.settle();
        assert!(guest.received().is_none());
        for _ in first..20 {
            guest.post(1, 100);
        }
        guest.settle();
        assert!(guest.received().unwrap().1 == bytes, "{first}");
        assert_eq!(guest.received().unwrap().1, b"behind");
        assert_eq!(load(&guest.handle.stats().rx_dropped), 0);
    }
}

#[test]
fn without_buffers_frames_stay_on_the_cable_and_cost_no_wake_ups() {
    let mut guest = Guest::new(MERGEABLE);
    for n in 0..10 {
        guest.cable.push_raw(framed(&pattern(n, 100)));
        guest.settle();
    }
    // One edge is noticed; after it the device does not look any more.
    assert_eq!(guest.cable.receives(), 0);
    guest.cable.edge();
    assert!(!guest.driver.run_backend(50));
    guest.post(3, 2048);
    guest.settle();
    for n in 0..3 {
        assert_eq!(guest.received().unwrap().1, pattern(n, 100));
    }
    assert!(guest.received().is_none());
    guest.post(20, 2048);
    guest.settle();
    for n in 3..10 {
        assert_eq!(guest.received().unwrap().1, pattern(n, 100));
    }
    // Nothing was announced while it did not listen, and it listens again.
    guest.cable.push_raw(framed(b"new"));
    assert!(guest.driver.run_backend(1000));
    assert_eq!(guest.received().unwrap().1, b"new");
}

#[test]
fn many_frames_make_one_interrupt() {
    let mut guest = Guest::new(MERGEABLE);
    guest.post(32, 2048);
    for n in 0..32 {
        guest.cable.push_raw(framed(&pattern(n, 64)));
    }
    guest.settle();
    for n in 0..32 {
        assert_eq!(guest.received().unwrap().1, pattern(n, 64));
    }
    assert_eq!(guest.driver.irq.count(), 1);
    let stats = guest.handle.stats();
    assert_eq!(
        (load(&stats.rx_frames), load(&stats.rx_bytes)),
        (32, 32 * 64)
    );
}

#[test]
fn a_full_cable_leaves_others_their_turn() {
    let mut guest = Guest::new(MERGEABLE);
    for n in 0..FRAMES_PER_EVENT + 1 {
        // Too short for a header: dropped, so that no buffers are needed.
        guest.cable.push_raw(vec![n as u8; HEADER_LEN - 1]);
    }
    guest.driver.submit(RX, &[Buffer::In(2048)]);
    guest.driver.kick(RX);
    assert_eq!(guest.cable.receives(), FRAMES_PER_EVENT);
    guest.settle();
    assert_eq!(guest.cable.waiting(), 0);
    assert_eq!(
        load(&guest.handle.stats().rx_dropped),
        FRAMES_PER_EVENT as u64 + 1
    );
    assert!(guest.received().is_none());
}

#[test]
fn a_frame_longer_than_the_one_buffer_is_dropped_where_buffers_are_not_merged() {
    let mut guest = Guest::new(0);
    guest.post(3, 100);
    guest.cable.push_raw(framed(&pattern(1, 100)));
    guest.cable.push_raw(framed(&pattern(2, 88)));
    guest.settle();
    assert_eq!(guest.received().unwrap().1, pattern(2, 88));
    assert_eq!(load(&guest.handle.stats().rx_dropped), 1);
}

#[test]
fn a_frame_that_all_of_the_ring_cannot_take_is_dropped() {
    let mut guest = Guest::new(MERGEABLE);
    guest.post(64, 20);
    guest.cable.push_raw(framed(&pattern(1, 64 * 20)));
    guest
        .cable
        .push_raw(framed(&pattern(2, 64 * 20 - HEADER_LEN)));
    guest.settle();
    assert_eq!(
        guest.received().unwrap().1,
        pattern(2, 64 * 20 - HEADER_LEN)
    );
    assert_eq!(load(&guest.handle.stats().rx_dropped), 1);
}

#[test]
fn the_longest_frame_there_can_be_arrives() {
    let mut guest = Guest::new(MERGEABLE);
    guest.post(2, 40_000);
    let bytes = pattern(9, MAX_FRAME_LEN - HEADER_LEN);
    guest.cable.push_raw(framed(&bytes));
    guest.settle();
    assert!(guest.received().unwrap().1 == bytes);
}

#[test]
fn a_cable_that_fails_is_counted_and_not_asked_again_until_it_speaks() {
    let mut guest = Guest::new(MERGEABLE);
    guest.post(4, 2048);
    guest.settle();
    for (errno, count) in [(libc::EIO, 1), (libc::EBADFD, 2)] {
        guest.cable.fail_receive(Some(errno));
        guest.cable.push_raw(framed(b"lost"));
        let before = guest.cable.receives();
        guest.settle();
        assert!(guest.cable.receives() <= before + 1);
        assert_eq!(load(&guest.handle.stats().rx_errors), count);
    }
    guest.cable.fail_receive(None);
    guest.cable.push_raw(framed(b"found"));
    guest.settle();
    assert_eq!(guest.received().unwrap().1, b"lost");
    assert_eq!(guest.received().unwrap().1, b"lost");
    assert_eq!(guest.received().unwrap().1, b"found");
}

#[test]
fn a_reset_device_is_quiet_and_starts_again_with_what_waits() {
    let mut guest = Guest::new(MERGEABLE);
    guest.post(1, 50);
    guest.cable.push_raw(framed(&pattern(1, 100)));
    guest.settle();
    guest.driver.reset();
    guest.cable.push_raw(framed(b"early"));
    assert!(!guest.driver.run_backend(20));
    guest.driver.start(MERGEABLE);
    guest.post(4, 2048);
    guest.settle();
    assert_eq!(guest.received().unwrap().1, b"early");
}

#[test]
fn a_driver_is_asked_to_tell_of_new_buffers_only_when_they_are_needed() {
    let mut guest = Guest::new(MERGEABLE | 1 << VIRTIO_RING_F_EVENT_IDX);
    guest.post(60, 2048);
    guest.cable.push_raw(framed(b"first"));
    guest.settle();
    // More than one frame can need is there: no wish was written.
    assert_eq!(guest.driver.avail_event(RX), 0);
    for _ in 0..60 {
        guest.cable.push_raw(framed(b"next"));
    }
    guest.settle();
    assert_eq!(guest.driver.avail_event(RX), 60);
    assert_eq!(std::iter::from_fn(|| guest.received()).count(), 60);
}
