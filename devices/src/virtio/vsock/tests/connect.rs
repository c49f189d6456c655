//! How connections come about, from either side and by either way.

use super::*;

#[test]
fn the_device_tells_the_guest_its_address() {
    let guest = Guest::new();
    assert_eq!(u64::from_le_bytes(guest.driver.config(0)), CID);
    assert_eq!(guest.driver.config::<4>(8), [0; 4]);
}

#[test]
fn the_handle_connects_to_the_guest_and_bytes_go_both_ways() {
    let mut guest = Guest::new();
    let (mut host, key) = guest.connected(1024);
    host.write_all(b"ping").unwrap();
    let (header, data) = guest.expect(op::RW);
    assert_eq!((header.src_port, header.dst_port), (key.host, 1024));
    assert_eq!(header.buf_alloc, BUFFER_LEN);
    assert_eq!(data, b"ping");
    guest.send_data(key, b"pong");
    assert_eq!(read_exactly(&mut host, 4), b"pong");
    guest.expect_quiet();
}

#[test]
fn bytes_written_before_the_guest_accepts_arrive_after() {
    let mut guest = Guest::new();
    let mut host = guest.handle.connect(7).unwrap();
    host.write_all(b"early").unwrap();
    let key = guest.expect(op::REQUEST).0.key_of_reply();
    guest.expect_quiet();
    guest.send(key, op::RESPONSE);
    assert_eq!(guest.expect(op::RW).1, b"early");
}

#[test]
fn a_refused_connection_ends_the_hosts_socket() {
    let mut guest = Guest::new();
    let mut host = patient(guest.handle.connect(7).unwrap());
    let key = guest.expect(op::REQUEST).0.key_of_reply();
    guest.send(key, op::RST);
    assert_ended(&mut host);
    guest.expect_quiet();
    assert_eq!(load(&guest.handle.stats().refused), 1);
}

#[test]
fn the_handle_refuses_while_the_driver_is_not_up() {
    let mut guest = Guest::new();
    guest.driver.reset();
    assert!(!guest.handle.is_active());
    let refused = guest.handle.connect(7).unwrap_err();
    assert_eq!(refused.kind(), io::ErrorKind::NotConnected);
    guest.driver.start(0);
    guest.handle.connect(7).unwrap();
}

#[test]
fn the_handle_bounds_what_the_device_has_not_taken_up() {
    let guest = Guest::new();
    let streams: Vec<_> = (0..MAX_QUEUED_CONNECTS)
        .map(|_| guest.handle.connect(7).unwrap())
        .collect();
    let refused = guest.handle.connect(7).unwrap_err();
    assert_eq!(refused.kind(), io::ErrorKind::WouldBlock);
    drop(streams);
}

#[test]
fn the_guest_connects_to_a_listening_handle() {
    let mut guest = Guest::new();
    let listener = guest.handle.listen(1024).unwrap();
    let key = Key {
        host: 1024,
        guest: 5000,
    };
    guest.send(key, op::REQUEST);
    let (response, _) = guest.expect(op::RESPONSE);
    assert_eq!((response.src_port, response.dst_port), (1024, 5000));
    let mut host = listener.accept(Duration::ZERO).expect("a connection");
    guest.send_data(key, b"hello");
    assert_eq!(read_exactly(&mut host, 5), b"hello");
    host.write_all(b"welcome").unwrap();
    assert_eq!(guest.expect(op::RW).1, b"welcome");
}

#[test]
fn a_port_has_one_listener_and_is_free_after_it() {
    let mut guest = Guest::new();
    let key = Key { host: 9, guest: 1 };
    let listener = guest.handle.listen(9).unwrap();
    let taken = guest.handle.listen(9).err().expect("taken");
    assert_eq!(taken.kind(), io::ErrorKind::AddrInUse);
    drop(listener);
    guest.send(key, op::REQUEST);
    guest.expect(op::RST);
    let guard = guest.handle.listen_with(9, |_| false).unwrap();
    guest.send(key, op::REQUEST);
    guest.expect(op::RST);
    drop(guard);
    let listener = guest.handle.listen(9).unwrap();
    guest.send(key, op::REQUEST);
    guest.expect(op::RESPONSE);
    assert!(listener.accept(Duration::ZERO).is_some());
}

#[test]
fn a_client_of_the_socket_file_reaches_the_guest() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("v.sock");
    let mut guest = Guest::with_path(path.clone());
    let mut client = patient(UnixStream::connect(&path).unwrap());
    // What follows the line, in the same write, is for the guest.
    client.write_all(b"CONNECT 52\nfirst").unwrap();
    let (request, _) = guest.expect(op::REQUEST);
    assert_eq!(request.dst_port, 52);
    let key = request.key_of_reply();
    guest.send(key, op::RESPONSE);
    let ok = format!("OK {}\n", key.host);
    assert_eq!(read_exactly(&mut client, ok.len()), ok.as_bytes());
    assert_eq!(guest.expect(op::RW).1, b"first");
    guest.send_data(key, b"answer");
    assert_eq!(read_exactly(&mut client, 6), b"answer");
    guest.expect_quiet();
}

#[test]
fn a_client_whose_line_comes_in_pieces_is_served() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("v.sock");
    let mut guest = Guest::with_path(path.clone());
    let mut client = UnixStream::connect(&path).unwrap();
    for piece in ["CON", "NECT 5", "2", "\n"] {
        guest.expect_quiet();
        client.write_all(piece.as_bytes()).unwrap();
    }
    assert_eq!(guest.expect(op::REQUEST).0.dst_port, 52);
}

#[test]
fn a_refused_client_is_closed_without_a_word() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("v.sock");
    let mut guest = Guest::with_path(path.clone());
    let mut client = patient(UnixStream::connect(&path).unwrap());
    client.write_all(b"CONNECT 52\n").unwrap();
    let key = guest.expect(op::REQUEST).0.key_of_reply();
    guest.send(key, op::RST);
    assert_ended(&mut client);
}

// Case 15: a client that connects and closes at once; one that sends `CONNECT 1234` without
// newline and closes.
#[test]
fn clients_that_leave_early_end_alone() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("v.sock");
    let mut guest = Guest::with_path(path.clone());
    let (mut other, key) = guest.connected(1);
    for line in ["", "CONNECT 1234", "CONNECT", "\n", "CONNECT 1 2\n"] {
        let mut client = UnixStream::connect(&path).unwrap();
        client.write_all(line.as_bytes()).unwrap();
        drop(client);
        guest.expect_quiet();
    }
    // One that leaves when the guest was asked already.
    let mut client = UnixStream::connect(&path).unwrap();
    client.write_all(b"CONNECT 1234\n").unwrap();
    drop(client);
    let early = guest.expect(op::REQUEST).0.key_of_reply();
    guest.expect_quiet();
    guest.send(early, op::RESPONSE);
    let (header, _) = guest.expect(op::SHUTDOWN);
    guest.settle();
    let flags = match header.flags {
        SHUTDOWN_BOTH => header.flags,
        _ => guest.expect(op::SHUTDOWN).0.flags,
    };
    assert_eq!(flags, SHUTDOWN_BOTH);
    guest.send(early, op::RST);
    guest.expect_quiet();
    guest.send_data(key, b"still here");
    assert_eq!(read_exactly(&mut other, 10), b"still here");
}

#[test]
fn a_line_without_end_is_cut_off() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("v.sock");
    let mut guest = Guest::with_path(path.clone());
    let mut client = patient(UnixStream::connect(&path).unwrap());
    client.write_all(&[b'x'; 33]).unwrap();
    guest.settle();
    let ended = client.read(&mut [0; 1]);
    assert!(matches!(ended, Ok(0) | Err(_)), "{ended:?}");
    guest.expect_quiet();
}

#[test]
fn silent_clients_give_way_to_new_ones() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("v.sock");
    let mut guest = Guest::with_path(path.clone());
    let mut silent: Vec<_> = (0..MAX_CLIENTS + 1)
        .map(|_| {
            let client = UnixStream::connect(&path).unwrap();
            guest.settle();
            patient(client)
        })
        .collect();
    assert_ended(&mut silent[0]);
    let mut client = UnixStream::connect(&path).unwrap();
    client.write_all(b"CONNECT 52\n").unwrap();
    guest.expect(op::REQUEST);
}

#[test]
fn the_guest_connects_to_a_socket_file_of_the_port() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("v.sock");
    let mut guest = Guest::with_path(path.clone());
    let key = Key { host: 80, guest: 1 };
    guest.send(key, op::REQUEST);
    guest.expect(op::RST);
    let port_path = dir.path().join("v.sock_80");
    let listener = std::os::unix::net::UnixListener::bind(&port_path).unwrap();
    guest.send(key, op::REQUEST);
    guest.expect(op::RESPONSE);
    let (mut host, _) = listener.accept().unwrap();
    guest.send_data(key, b"GET /");
    assert_eq!(read_exactly(&mut host, 5), b"GET /");
    // This process goes before the file.
    let ours = guest.handle.listen(80).unwrap();
    guest.send(Key { host: 80, guest: 2 }, op::REQUEST);
    guest.expect(op::RESPONSE);
    assert!(ours.accept(Duration::ZERO).is_some());
}

#[test]
fn a_bad_configuration_is_refused() {
    for guest_cid in [0, 1, 2, u32::MAX] {
        let refused = Vsock::new(&VsockConfig {
            guest_cid,
            uds_path: None,
        });
        assert!(matches!(refused, Err(VsockError::GuestCid(_))));
    }
}

#[test]
fn the_socket_file_goes_with_the_device() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("v.sock");
    let guest = Guest::with_path(path.clone());
    assert!(path.exists());
    drop(guest);
    assert!(!path.exists());
}

pub fn load(count: &std::sync::atomic::AtomicU64) -> u64 {
    count.load(std::sync::atomic::Ordering::Relaxed)
}
