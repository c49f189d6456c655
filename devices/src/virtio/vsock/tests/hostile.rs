//! Guests that lie, flood, or make no sense: one connection ends or one packet is dropped, the
//! device and all else go on.

use super::connect::load;
use super::*;
use virtio_bindings::virtio_ring::VRING_DESC_F_WRITE;

const KEY: Key = Key { host: 5, guest: 1 };

/// The device still serves.
#[track_caller]
pub fn assert_alive(guest: &mut Guest) {
    assert!(!guest.driver.needs_reset());
    guest.settle();
    while guest.poll().is_some() {}
    let (mut host, key) = guest.connected(77);
    guest.send_data(key, b"alive");
    assert_eq!(read_exactly(&mut host, 5), b"alive");
}

fn dropped(guest: &Guest) -> u64 {
    load(&guest.handle.stats().dropped)
}

#[test]
fn packets_with_wrong_addresses_are_dropped() {
    let mut guest = Guest::new();
    for (src_cid, dst_cid) in [(CID + 1, 2), (CID, 1), (CID, u64::MAX), (CID | 1 << 32, 2)] {
        let header = guest.header(KEY, op::REQUEST);
        let header = Header {
            src_cid,
            dst_cid,
            ..header
        };
        guest.send_raw(header, b"");
    }
    guest.expect_quiet();
    assert_eq!(dropped(&guest), 4);
    assert_alive(&mut guest);
}

#[test]
fn another_socket_type_is_refused_by_its_type() {
    let mut guest = Guest::new();
    let _listener = guest.handle.listen(5).unwrap();
    for kind in [0, 2, u16::MAX] {
        let header = guest.header(KEY, op::REQUEST);
        guest.send_raw(Header { kind, ..header }, b"");
        assert_eq!(guest.expect(op::RST).0.kind, kind);
    }
    assert_alive(&mut guest);
}

#[test]
fn packets_of_no_connection_are_reset_and_resets_are_not() {
    let mut guest = Guest::new();
    for op in [0, op::RESPONSE, op::SHUTDOWN, op::CREDIT_UPDATE, 8, 9999] {
        guest.send(KEY, op);
        assert_eq!(guest.expect(op::RST).0.key_of_reply(), KEY);
    }
    guest.send_data(KEY, b"data");
    guest.expect(op::RST);
    guest.send(KEY, op::RST);
    guest.expect_quiet();
}

#[test]
fn impossible_packets_end_their_connection_alone() {
    let mut guest = Guest::new();
    for op in [0, op::REQUEST, op::RESPONSE, 8, u16::MAX] {
        let (mut host, key) = guest.connected(1);
        guest.send(key, op);
        guest.expect(op::RST);
        assert_ended(&mut host);
    }
    assert_alive(&mut guest);
}

#[test]
fn a_connection_does_not_begin_before_both_sides_said_so() {
    let mut guest = Guest::without_buffers();
    // Answers to a request that the device could not send yet.
    let mut host = patient(guest.handle.connect(1).unwrap());
    guest.settle();
    let key = Key {
        host: (1 << 30) + 1,
        guest: 1,
    };
    guest.send(key, op::RESPONSE);
    assert_ended(&mut host);
    // Data before the response to the guest's request.
    let listener = guest.handle.listen(5).unwrap();
    guest.send(KEY, op::REQUEST);
    let mut host = patient(listener.accept(Duration::ZERO).unwrap());
    guest.send_data(KEY, b"early");
    assert_ended(&mut host);
    let mut guest = guest.with_buffers();
    assert_alive(&mut guest);
}

#[test]
fn a_guest_that_overruns_its_credit_is_reset() {
    let mut guest = Guest::new();
    let (_host, key) = guest.connected(1);
    let piece = vec![0; MAX_PACKET_LEN as usize];
    for _ in 0..100 {
        guest.send_data(key, &piece);
        guest.settle();
        while let Some((header, _)) = guest.poll() {
            if header.op == op::RST {
                return assert_alive(&mut guest);
            }
        }
    }
    panic!("6 MiB that nobody read were taken");
}

#[test]
fn a_guest_that_writes_after_it_said_it_would_not_is_reset() {
    let mut guest = Guest::new();
    let (_host, key) = guest.connected(1);
    guest.shutdown(key, SHUTDOWN_SEND);
    guest.send_data(key, b"more");
    guest.expect(op::RST);
    assert_alive(&mut guest);
}

#[test]
fn packets_that_their_chain_does_not_hold_are_dropped() {
    let mut guest = Guest::new();
    let (mut host, key) = guest.connected(1);
    let header = |len| {
        let header = guest.header(key, op::RW);
        Header { len, ..header }.to_bytes()
    };
    let (short, long, huge) = (header(5), header(MAX_PACKET_LEN + 1), header(u32::MAX));
    let large = vec![0; MAX_PACKET_LEN as usize + 1];
    let beyond = |addr| Buffer::Raw {
        addr,
        len: 512,
        flags: 0,
    };
    let chains: &[&[Buffer]] = &[
        &[Buffer::Out(&short[..43])],
        &[Buffer::Out(b"")],
        &[Buffer::Out(&short), Buffer::Out(b"four")],
        &[Buffer::Out(&short)],
        &[Buffer::Out(&long), Buffer::Out(&large)],
        &[Buffer::Out(&huge), Buffer::Out(b"x")],
        &[Buffer::In(44), Buffer::In(5)],
        &[Buffer::Out(&short), Buffer::In(5)],
        &[beyond(0xffff_ffff_ffff_ff00)],
        &[beyond(crate::testing::MEMORY_LEN as u64 - 10)],
        &[Buffer::Out(&short), beyond(1 << 40)],
    ];
    for (at, chain) in chains.iter().enumerate() {
        guest.driver.submit(TX, chain);
        guest.driver.kick(TX);
        assert_eq!(guest.driver.used(TX).expect("used").len, 0);
        assert_eq!(load(&guest.handle.stats().dropped), at as u64 + 1);
    }
    guest.send_data(key, b"fine");
    assert_eq!(read_exactly(&mut host, 4), b"fine");
}

#[test]
fn a_chain_that_loops_is_dropped() {
    let mut guest = Guest::new();
    let next = virtio_bindings::virtio_ring::VRING_DESC_F_NEXT as u16;
    guest.driver.set_descriptor(TX, 0, 0x20_0000, 8, next, 1);
    guest.driver.set_descriptor(TX, 1, 0x20_0000, 8, next, 0);
    guest.driver.make_available(TX, 0);
    guest.driver.kick(TX);
    assert!(guest.driver.used(TX).is_some());
    assert_alive(&mut guest);
}

#[test]
fn useless_receive_buffers_come_back_empty() {
    let mut guest = Guest::without_buffers();
    guest.handle.connect(1).unwrap();
    guest.settle();
    let outside = Buffer::Raw {
        addr: 1 << 40,
        len: 4096,
        flags: VRING_DESC_F_WRITE as u16,
    };
    guest.driver.submit(RX, &[Buffer::In(43)]);
    guest.driver.submit(RX, &[Buffer::In(44)]);
    guest.driver.submit(RX, &[Buffer::Out(&[0; 100])]);
    guest.driver.submit(RX, &[outside]);
    guest.driver.kick(RX);
    for _ in 0..4 {
        assert_eq!(guest.driver.used(RX).expect("used").len, 0);
    }
    guest.supply();
    guest.driver.kick(RX);
    guest.expect(op::REQUEST);
}

#[test]
fn a_flood_of_connections_is_bounded() {
    let limits = Limits {
        connections: 10,
        ..LIMITS
    };
    let mut guest = Guest::with_limits(limits);
    let taken = std::sync::Arc::new(std::sync::Mutex::new(Vec::new()));
    let keep = taken.clone();
    let accept = move |stream| {
        keep.lock().unwrap().push(stream);
        true
    };
    let _guard = guest.handle.listen_with(5, accept).unwrap();
    for at in 0..100 {
        guest.send(Key { host: 5, guest: at }, op::REQUEST);
        guest.expect(if at < 10 { op::RESPONSE } else { op::RST });
    }
    assert_eq!(taken.lock().unwrap().len(), 10);
    taken.lock().unwrap().clear();
    for _ in 0..10 {
        let key = guest.expect(op::SHUTDOWN).0.key_of_reply();
        guest.send(key, op::RST);
    }
    assert_alive(&mut guest);
}

#[test]
fn a_listener_that_accepts_nothing_is_not_flooded() {
    let mut guest = Guest::new();
    let listener = guest.handle.listen(5).unwrap();
    let mut accepted = 0;
    for at in 0..200 {
        guest.send(Key { host: 5, guest: at }, op::REQUEST);
        accepted += u32::from(guest.receive().0.op == op::RESPONSE);
    }
    assert_eq!(accepted, 64);
    drop(listener);
}

#[test]
fn a_flood_of_resets_is_bounded_without_receive_buffers() {
    let mut guest = Guest::without_buffers();
    for at in 0..MAX_RESETS as u32 + 100 {
        guest.send(Key { host: 5, guest: at }, op::REQUEST);
    }
    assert_eq!(dropped(&guest), 100);
    let mut guest = guest.with_buffers();
    for _ in 0..MAX_RESETS {
        guest.expect(op::RST);
    }
    guest.expect_quiet();
}

#[test]
fn a_queue_that_never_runs_empty_is_served_in_turns() {
    let mut guest = Guest::new();
    let header = guest.header(KEY, op::RST).to_bytes();
    for _ in 0..PACKETS_PER_EVENT + 8 {
        guest.driver.submit(TX, &[Buffer::Out(&header)]);
    }
    guest.driver.kick(TX);
    let used = std::iter::from_fn(|| guest.driver.used(TX)).count();
    assert_eq!(used, PACKETS_PER_EVENT);
    assert!(guest.driver.run_backend(1000));
    let used = std::iter::from_fn(|| guest.driver.used(TX)).count();
    assert_eq!(used, 8);
    guest.expect_quiet();
}
