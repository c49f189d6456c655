//! Frames from the guest.

use tine_devices::testing::Buffer;
use tine_devices::virtio::net::{HEADER_LEN, MAX_FRAME_LEN};

use super::driver::{Guest, TX, framed, load, pattern};

#[test]
fn a_frame_is_sent_with_its_header_however_it_is_cut() {
    let mut guest = Guest::new(0);
    let mut frame = framed(&pattern(1, 200));
    frame[..10].copy_from_slice(&[1, 1, 54, 0, 180, 5, 34, 0, 16, 0]);
    for cuts in [vec![212], vec![12, 200], vec![1, 0, 20, 191], vec![5; 42]] {
        let mut at = 0;
        let mut chain: Vec<Buffer> = Vec::new();
        for cut in cuts {
            chain.push(Buffer::Out(&frame[at..at + cut]));
            at += cut;
        }
        chain.push(Buffer::Out(&frame[at..]));
        guest.driver.submit(TX, &chain);
        guest.driver.submit_indirect(TX, &chain);
        guest.driver.kick(TX);
        assert_eq!(guest.cable.sent(), [frame.clone(), frame.clone()]);
        assert_eq!(guest.tx_used(), 2);
    }
}

// Case 24: a transmit frame shorter than the virtio-net header.
#[test]
fn a_frame_shorter_than_its_header_is_dropped_and_counted() {
    let mut guest = Guest::new(0);
    for len in 0..HEADER_LEN {
        guest.driver.submit(TX, &[Buffer::Out(&pattern(1, len))]);
    }
    guest.send(b"whole");
    assert_eq!(guest.cable.sent(), [framed(b"whole")]);
    assert_eq!(guest.tx_used(), HEADER_LEN + 1);
    let stats = guest.handle.stats();
    assert_eq!(load(&stats.tx_short), HEADER_LEN as u64);
    assert_eq!((load(&stats.tx_frames), load(&stats.tx_bytes)), (1, 5));
    assert!(!guest.driver.needs_reset());
}

#[test]
fn a_frame_longer_than_any_can_be_is_dropped_and_counted() {
    let mut guest = Guest::new(0);
    let longest = framed(&pattern(1, MAX_FRAME_LEN - HEADER_LEN));
    guest.driver.submit(TX, &[Buffer::Out(&longest)]);
    guest
        .driver
        .submit(TX, &[Buffer::Out(&longest), Buffer::Out(&[0])]);
    guest.driver.kick(TX);
    assert!(guest.cable.sent() == [longest]);
    assert_eq!(guest.tx_used(), 2);
    assert_eq!(load(&guest.handle.stats().tx_malformed), 1);
}

#[test]
fn many_frames_keep_their_order_and_make_one_interrupt() {
    let mut guest = Guest::new(0);
    for n in 0..60 {
        guest
            .driver
            .submit(TX, &[Buffer::Out(&framed(&pattern(n, 100)))]);
    }
    guest.driver.kick(TX);
    let expected: Vec<_> = (0..60).map(|n| framed(&pattern(n, 100))).collect();
    assert_eq!(guest.cable.sent(), expected);
    assert_eq!(guest.tx_used(), 60);
    assert_eq!(guest.driver.irq.count(), 1);
}

#[test]
fn frames_that_the_cable_refuses_are_dropped_and_counted() {
    let mut guest = Guest::new(0);
    for (errno, count) in [(libc::EIO, 1), (libc::EBADFD, 2), (libc::EINVAL, 3)] {
        guest.cable.fail_send(Some(errno));
        guest.send(b"lost");
        assert_eq!(guest.tx_used(), 1);
        assert_eq!(load(&guest.handle.stats().tx_errors), count);
        assert!(!guest.driver.run_backend(0));
    }
    guest.cable.fail_send(None);
    guest.send(b"found");
    assert_eq!(guest.cable.sent(), [framed(b"found")]);
}

#[test]
fn a_cable_without_room_makes_frames_wait_and_loses_none() {
    let mut guest = Guest::new(0);
    guest.cable.fail_send(Some(libc::EAGAIN));
    guest.send(b"first");
    guest.send(b"second");
    assert_eq!(guest.tx_used(), 0);
    guest.cable.fail_send(None);
    guest.settle();
    assert_eq!(guest.cable.sent(), [framed(b"first"), framed(b"second")]);
    assert_eq!(guest.tx_used(), 2);
    assert!(load(&guest.handle.stats().tx_blocked) > 0);
    assert!(!guest.driver.run_backend(0));
}

#[test]
fn the_same_chain_may_be_sent_many_times() {
    let mut guest = Guest::new(0);
    let head = guest.driver.submit(TX, &[Buffer::Out(&framed(b"again"))]);
    for _ in 1..64 {
        guest.driver.make_available(TX, head);
    }
    guest.driver.kick(TX);
    assert_eq!(guest.cable.sent().len(), 64);
    assert_eq!(guest.tx_used(), 64);
}
