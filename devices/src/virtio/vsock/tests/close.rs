//! How connections end: half, whole, in order, at once, and not at all.

use super::connect::load;
use super::*;

/// Limits with a timeout that a test can wait for.
const IMPATIENT: Limits = Limits {
    client: Duration::from_millis(300),
    request: Duration::from_millis(300),
    close: Duration::from_millis(300),
    ..LIMITS
};

// Case 17: the host side shuts down its write half; the guest reads to EOF, then answers.
#[test]
fn the_host_gets_an_answer_after_it_closed_its_writing_half() {
    let mut guest = Guest::new();
    let (mut host, key) = guest.connected(1);
    host.write_all(b"question").unwrap();
    host.shutdown(std::net::Shutdown::Write).unwrap();
    assert_eq!(guest.expect(op::RW).1, b"question");
    assert_eq!(guest.expect(op::SHUTDOWN).0.flags, SHUTDOWN_SEND);
    guest.expect_quiet();
    guest.send_data(key, b"answer");
    assert_eq!(read_exactly(&mut host, 6), b"answer");
    guest.shutdown(key, SHUTDOWN_BOTH);
    guest.expect(op::RST);
    assert_ended(&mut host);
    guest.expect_quiet();
}

#[test]
fn the_guest_gets_an_answer_after_it_closed_its_writing_half() {
    let mut guest = Guest::new();
    let (mut host, key) = guest.connected(1);
    guest.send_data(key, b"question");
    guest.shutdown(key, SHUTDOWN_SEND);
    assert_eq!(read_exactly(&mut host, 8), b"question");
    assert_ended(&mut host);
    host.write_all(b"answer").unwrap();
    assert_eq!(guest.expect(op::RW).1, b"answer");
    drop(host);
    assert_eq!(guest.expect(op::SHUTDOWN).0.flags, SHUTDOWN_BOTH);
    guest.send(key, op::RST);
    guest.expect_quiet();
}

#[test]
fn the_host_cannot_write_after_the_guest_closed_its_reading_half() {
    let mut guest = Guest::new();
    let (mut host, key) = guest.connected(1);
    guest.shutdown(key, SHUTDOWN_RECEIVE);
    let refused = host.write_all(b"more").unwrap_err();
    assert_eq!(refused.kind(), io::ErrorKind::BrokenPipe);
    guest.send_data(key, b"still");
    assert_eq!(read_exactly(&mut host, 5), b"still");
    drop(host);
    assert_eq!(guest.expect(op::SHUTDOWN).0.flags, SHUTDOWN_BOTH);
}

// Case 18: the guest goes on writing after the host closed.
#[test]
fn a_guest_that_writes_on_after_the_host_closed_is_reset() {
    let mut guest = Guest::new();
    let (mut other, other_key) = guest.connected(1);
    let (host, key) = guest.connected(2);
    drop(host);
    assert_eq!(guest.expect(op::SHUTDOWN).0.flags, SHUTDOWN_BOTH);
    guest.send_data(key, b"anyone?");
    let (reset, _) = guest.expect(op::RST);
    assert_eq!(reset.key_of_reply(), key);
    guest.send_data(key, b"anyone?");
    guest.expect(op::RST);
    guest.expect_quiet();
    guest.send_data(other_key, b"here");
    assert_eq!(read_exactly(&mut other, 4), b"here");
}

// Case 18, when the guest's write comes before the device has noticed.
#[test]
fn a_write_into_a_closed_socket_raises_no_signal() {
    let mut guest = Guest::new();
    let (host, key) = guest.connected(2);
    drop(host);
    for _ in 0..3 {
        guest.send_data(key, b"anyone?");
    }
    let (mut resets, mut last) = (0, 0);
    guest.settle();
    while let Some((header, _)) = guest.poll() {
        resets += u32::from(header.op == op::RST);
        last = header.flags.max(last);
    }
    assert_eq!((resets, last), (0, SHUTDOWN_BOTH));
    guest.send_data(key, b"anyone?");
    guest.expect(op::RST);
    guest.expect_quiet();
}

#[test]
fn what_the_host_wrote_before_it_closed_arrives_first() {
    let mut guest = Guest::new();
    let (mut host, key) = guest.connected(1);
    let sent = vec![7; 100_000];
    host.write_all(&sent).unwrap();
    drop(host);
    let mut received = 0;
    loop {
        let (header, data) = guest.receive();
        match header.op {
            op::RW => received += data.len(),
            // That the host does not read any more is known before its data is.
            op::SHUTDOWN if header.flags == SHUTDOWN_RECEIVE => {}
            op::SHUTDOWN => break assert_eq!(header.flags, SHUTDOWN_BOTH),
            other => panic!("{other}"),
        }
    }
    assert_eq!(received, sent.len());
    guest.send(key, op::RST);
    guest.expect_quiet();
}

#[test]
fn a_guests_reset_ends_the_hosts_socket() {
    let mut guest = Guest::new();
    let (mut host, key) = guest.connected(1);
    guest.send_data(key, b"last words");
    guest.send(key, op::RST);
    assert_eq!(read_exactly(&mut host, 10), b"last words");
    assert_ended(&mut host);
    guest.expect_quiet();
}

/// Sends as much as the device takes, and returns it.
fn fill(guest: &mut Guest, key: Key) -> Vec<u8> {
    let mut sent = Vec::new();
    let piece: Vec<u8> = (0..60_000u32).map(|at| (at % 251) as u8).collect();
    // All of the socket's own buffer, and then some of ours.
    for _ in 0..6 {
        guest.send_data(key, &piece);
        sent.extend_from_slice(&piece);
    }
    guest.settle();
    while let Some((header, _)) = guest.poll() {
        assert_eq!(header.op, op::CREDIT_UPDATE);
    }
    sent
}

#[test]
fn a_slow_reader_gets_everything_after_the_guest_has_closed_and_reused_its_port() {
    let mut guest = Guest::new();
    let listener = guest.handle.listen(5).unwrap();
    let key = Key { host: 5, guest: 1 };
    guest.send(key, op::REQUEST);
    guest.expect(op::RESPONSE);
    let mut host = patient(listener.accept(Duration::ZERO).unwrap());
    let sent = fill(&mut guest, key);
    guest.shutdown(key, SHUTDOWN_BOTH);
    // The guest is rid of it at once.
    guest.expect(op::RST);
    guest.send(key, op::REQUEST);
    guest.expect(op::RESPONSE);
    let mut next = listener.accept(Duration::ZERO).unwrap();
    guest.send_data(key, b"new");
    assert_eq!(read_exactly(&mut next, 3), b"new");
    let mut received = Vec::new();
    while received.len() < sent.len() {
        received.extend(read_exactly(&mut host, 20_000));
        guest.settle();
    }
    assert!(received == sent);
    assert_ended(&mut host);
    guest.expect_quiet();
}

#[test]
fn a_lingering_connection_ends_when_the_host_closes() {
    let mut guest = Guest::new();
    let (host, key) = guest.connected(1);
    fill(&mut guest, key);
    guest.shutdown(key, SHUTDOWN_BOTH);
    guest.expect(op::RST);
    guest.expect_quiet();
    drop(host);
    guest.expect_quiet();
}

#[test]
fn the_oldest_lingering_connection_gives_way_to_a_new_one() {
    let few = Limits {
        connections: 8,
        ..LIMITS
    };
    let mut guest = Guest::with_limits(few);
    let mut hosts = Vec::new();
    for _ in 0..few.connections {
        let (host, key) = guest.connected(1);
        fill(&mut guest, key);
        hosts.push((host, key));
    }
    let refused = |guest: &mut Guest| {
        let host = patient(guest.handle.connect(1).unwrap());
        guest.settle();
        (&host).read(&mut [0]).unwrap() == 0
    };
    assert!(refused(&mut guest));
    for (_, key) in &hosts[2..4] {
        guest.shutdown(*key, SHUTDOWN_BOTH);
        guest.expect(op::RST);
    }
    let (_host, _) = guest.connected(1);
    assert_eq!(load(&guest.handle.stats().evicted), 1);
    let mut rest = Vec::new();
    let dropped = &mut hosts[2].0;
    let _ = dropped.read_to_end(&mut rest);
    assert!(!rest.is_empty() && rest.len() < 360_000);
}

#[test]
fn a_guest_that_confirms_no_end_is_reset_in_time() {
    let mut guest = Guest::with_limits(IMPATIENT);
    let (host, key) = guest.connected(1);
    drop(host);
    guest.expect(op::SHUTDOWN);
    assert_eq!(guest.expect(op::RST).0.key_of_reply(), key);
    assert_eq!(load(&guest.handle.stats().timeouts), 1);
    guest.expect_quiet();
}

#[test]
fn a_guest_that_answers_no_request_is_given_up() {
    let mut guest = Guest::with_limits(IMPATIENT);
    let mut host = patient(guest.handle.connect(1).unwrap());
    guest.expect(op::REQUEST);
    guest.expect(op::RST);
    assert_ended(&mut host);
    guest.expect_quiet();
}

#[test]
fn a_connection_that_was_accepted_in_time_stays() {
    let mut guest = Guest::with_limits(IMPATIENT);
    let (mut host, key) = guest.connected(1);
    std::thread::sleep(IMPATIENT.request * 2);
    guest.settle();
    guest.send_data(key, b"here");
    assert_eq!(read_exactly(&mut host, 4), b"here");
    guest.expect_quiet();
}

#[test]
fn a_silent_client_is_closed_in_time() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("v.sock");
    let guest = Guest::build(Some(path.clone()), IMPATIENT).with_buffers();
    let mut client = patient(UnixStream::connect(&path).unwrap());
    guest.settle();
    assert!(guest.driver.run_backend(1000));
    assert_ended(&mut client);
}

#[test]
fn a_guest_may_ask_anew_for_a_connection_that_the_host_has_closed() {
    let mut guest = Guest::new();
    let listener = guest.handle.listen(5).unwrap();
    let key = Key { host: 5, guest: 1 };
    guest.send(key, op::REQUEST);
    guest.expect(op::RESPONSE);
    drop(listener.accept(Duration::ZERO).unwrap());
    guest.expect(op::SHUTDOWN);
    guest.send(key, op::REQUEST);
    guest.expect(op::RESPONSE);
    assert!(listener.accept(Duration::ZERO).is_some());
}
