//! Resets of the device by its driver, of the transport after a restore, and the device's end.

use super::*;

#[test]
fn a_device_reset_ends_all_connections_and_is_quiet() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("v.sock");
    let mut guest = Guest::with_path(path.clone());
    let (mut host, _) = guest.connected(1);
    let mut client = patient(UnixStream::connect(&path).unwrap());
    guest.settle();
    guest.driver.reset();
    assert_ended(&mut host);
    assert_ended(&mut client);
    // One that comes now waits until the driver is up again.
    let mut client = patient(UnixStream::connect(&path).unwrap());
    client.write_all(b"CONNECT 9\n").unwrap();
    assert!(!guest.driver.run_backend(20));
    guest.driver.start(0);
    let mut guest = guest.with_buffers();
    assert_eq!(guest.expect(op::REQUEST).0.dst_port, 9);
}

#[test]
fn a_transport_reset_drops_all_connections_and_tells_the_driver() {
    let mut guest = Guest::new();
    let event = guest.driver.submit(EVENT, &[Buffer::In(4)]);
    let (mut host, key) = guest.connected(1);
    guest.handle.transport_reset();
    let used = guest.driver.wait_used(EVENT);
    assert_eq!((used.head, used.len), (event, 4));
    assert_eq!(used.data, [0; 4]);
    assert_ended(&mut host);
    guest.expect_quiet();
    guest.driver.submit(EVENT, &[Buffer::In(4)]);
    guest.driver.kick(EVENT);
    guest.send_data(key, b"old");
    guest.expect(op::RST);
    let (mut host, key) = guest.connected(1);
    guest.send_data(key, b"new");
    assert_eq!(read_exactly(&mut host, 3), b"new");
    guest.expect_quiet();
}

#[test]
fn a_new_connection_waits_until_the_driver_has_dealt_with_a_transport_reset() {
    let mut guest = Guest::new();
    for _ in 0..8 {
        guest.driver.submit(EVENT, &[Buffer::In(4)]);
    }
    guest.handle.transport_reset();
    guest.settle();
    let lens: Vec<_> = std::iter::from_fn(|| guest.driver.used(EVENT))
        .map(|used| used.len)
        .collect();
    assert_eq!(lens, [4, 0, 0, 0, 0, 0, 0, 0]);
    let _host = guest.handle.connect(1).unwrap();
    guest.driver.kick(EVENT);
    guest.expect_quiet();
    guest.driver.submit(EVENT, &[Buffer::In(4)]);
    guest.driver.kick(EVENT);
    guest.expect(op::REQUEST);
    assert!(guest.driver.used(EVENT).is_none());
}

#[test]
fn a_driver_that_offers_no_event_buffers_is_not_waited_for_for_ever() {
    let mut guest = Guest::new();
    guest.handle.transport_reset();
    let _host = guest.handle.connect(1).unwrap();
    guest.expect_quiet();
    guest.expect(op::REQUEST);
}

#[test]
fn a_transport_reset_waits_for_a_buffer_to_tell_it_in() {
    let mut guest = Guest::new();
    guest.handle.transport_reset();
    guest.settle();
    for buffer in [Buffer::Out(b"no room"), Buffer::In(2), Buffer::In(8)] {
        guest.driver.submit(EVENT, &[buffer]);
    }
    guest.driver.kick(EVENT);
    let lens: Vec<_> = std::iter::from_fn(|| guest.driver.used(EVENT))
        .map(|used| used.len)
        .collect();
    assert_eq!(lens, [0, 0, 4]);
}

#[test]
fn a_handle_outlives_its_device() {
    let guest = Guest::new();
    let handle = guest.handle.clone();
    let mut waits = patient(handle.connect(1).unwrap());
    drop(guest);
    assert_ended(&mut waits);
    let refused = handle.connect(1).unwrap_err();
    assert_eq!(refused.kind(), io::ErrorKind::NotConnected);
}
