//! How bytes flow: in any amount, against slow readers, and beside one another.

use super::*;

/// The guest's view of what it may send.
struct Sender {
    sent: u32,
    buf_alloc: u32,
    fwd_cnt: u32,
}

impl Sender {
    fn new() -> Self {
        Self {
            sent: 0,
            buf_alloc: BUFFER_LEN,
            fwd_cnt: 0,
        }
    }

    fn heard(&mut self, header: &Header) {
        self.buf_alloc = header.buf_alloc;
        self.fwd_cnt = header.fwd_cnt;
    }

    fn room(&self) -> usize {
        (self.buf_alloc - self.sent.wrapping_sub(self.fwd_cnt)) as usize
    }
}

fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at * 31 % 251) as u8).collect()
}

// Case 20: the guest sends 8 MiB to a slow host reader.
#[test]
fn eight_mebibytes_reach_a_slow_reader_whole() {
    const LEN: usize = 8 << 20;
    let mut guest = Guest::new();
    let (mut host, key) = guest.connected(1);
    let reader = std::thread::spawn(move || {
        let mut received = Vec::new();
        let mut piece = vec![0; 50_000];
        while received.len() < LEN {
            let len = host.read(&mut piece).unwrap();
            assert_ne!(len, 0, "the end after {} bytes", received.len());
            received.extend_from_slice(&piece[..len]);
            std::thread::sleep(Duration::from_micros(500));
        }
        received
    });
    let data = pattern(LEN);
    let mut sender = Sender::new();
    let mut at = 0;
    while at < LEN {
        // As Linux does: send what there is room for, never ask, and wait to be told.
        let len = sender.room().min(60_000).min(LEN - at);
        if len == 0 {
            let (update, _) = guest.expect(op::CREDIT_UPDATE);
            sender.heard(&update);
            continue;
        }
        guest.send_data(key, &data[at..at + len]);
        at += len;
        sender.sent += len as u32;
        while let Some((update, _)) = guest.poll() {
            assert_eq!(update.op, op::CREDIT_UPDATE);
            sender.heard(&update);
        }
    }
    guest.shutdown(key, SHUTDOWN_SEND);
    while !reader.is_finished() {
        guest.driver.run_backend(10);
    }
    assert!(reader.join().unwrap() == data);
}

#[test]
fn eight_mebibytes_reach_a_guest_with_a_small_buffer_whole() {
    const LEN: usize = 8 << 20;
    let mut guest = Guest::new();
    guest.buf_alloc = 10_000;
    let (mut host, key) = guest.connected(1);
    let data = pattern(LEN);
    let sent = data.clone();
    let writer = std::thread::spawn(move || {
        host.write_all(&sent).unwrap();
        host
    });
    let mut received = Vec::new();
    while received.len() < LEN {
        let (header, piece) = guest.receive();
        match header.op {
            op::RW => received.extend_from_slice(&piece),
            op::CREDIT_REQUEST => {}
            other => panic!("{other}"),
        }
        let in_flight = received.len() as u32 - guest.fwd_cnt;
        assert!(in_flight <= guest.buf_alloc, "{in_flight} bytes in flight");
        if in_flight == guest.buf_alloc {
            guest.fwd_cnt = received.len() as u32;
            guest.send(key, op::CREDIT_UPDATE);
        }
    }
    assert!(received == data);
    drop(writer.join().unwrap());
}

#[test]
fn without_credit_the_device_asks_once_and_is_quiet() {
    let mut guest = Guest::new();
    guest.buf_alloc = 3;
    let (mut host, key) = guest.connected(1);
    host.write_all(b"abcdef").unwrap();
    assert_eq!(guest.expect(op::RW).1, b"abc");
    guest.expect(op::CREDIT_REQUEST);
    guest.expect_quiet();
    guest.send(key, op::CREDIT_UPDATE);
    guest.expect_quiet();
    guest.fwd_cnt = 3;
    guest.send(key, op::CREDIT_UPDATE);
    assert_eq!(guest.expect(op::RW).1, b"def");
    // It cannot know yet that this was all.
    guest.expect(op::CREDIT_REQUEST);
    guest.expect_quiet();
}

#[test]
fn without_receive_buffers_the_device_is_quiet_and_goes_on_when_there_are_some() {
    let mut guest = Guest::without_buffers();
    let mut host = guest.handle.connect(1).unwrap();
    host.write_all(b"data").unwrap();
    guest.settle();
    assert!(!guest.driver.run_backend(20));
    guest.supply();
    guest.driver.kick(RX);
    let key = guest.expect(op::REQUEST).0.key_of_reply();
    guest.send(key, op::RESPONSE);
    assert_eq!(guest.expect(op::RW).1, b"data");
}

#[test]
fn a_request_for_credit_is_answered() {
    let mut guest = Guest::new();
    let (_host, key) = guest.connected(1);
    guest.send_data(key, &[0; 1000]);
    guest.expect_quiet();
    guest.send(key, op::CREDIT_REQUEST);
    let (update, _) = guest.expect(op::CREDIT_UPDATE);
    assert_eq!((update.buf_alloc, update.fwd_cnt), (BUFFER_LEN, 1000));
}

#[test]
fn a_busy_connection_does_not_hold_up_another() {
    let mut guest = Guest::without_buffers();
    let mut hosts = Vec::new();
    for port in [1, 2] {
        let host = guest.handle.connect(port).unwrap();
        guest.settle();
        guest.supply();
        guest.driver.kick(RX);
        let key = unpack(guest.driver.wait_used(RX)).0.key_of_reply();
        guest.send(key, op::RESPONSE);
        hosts.push((host, key));
    }
    hosts[0].0.write_all(&[1; 100_000]).unwrap();
    guest.settle();
    hosts[1].0.write_all(&[2]).unwrap();
    guest.settle();
    for _ in 0..2 {
        guest.supply();
    }
    guest.driver.kick(RX);
    let senders: Vec<_> = std::iter::from_fn(|| guest.driver.used(RX))
        .map(|used| unpack(used).0.src_port)
        .collect();
    assert_eq!(senders, [hosts[0].1.host, hosts[1].1.host]);
}

#[test]
fn many_packets_make_one_interrupt() {
    let mut guest = Guest::new();
    let (mut host, _) = guest.connected(1);
    let before = guest.driver.irq.count();
    host.write_all(&[0; 10 * RX_LEN as usize]).unwrap();
    assert!(guest.driver.run_backend(1000));
    assert_eq!(guest.driver.irq.count(), before + 1);
    let packets = std::iter::from_fn(|| guest.driver.used(RX)).count();
    assert_eq!(packets, 10);
}

#[test]
fn with_event_indices_the_device_asks_to_hear_of_the_buffers_that_it_needs() {
    let (device, handle) = Vsock::new(&VsockConfig {
        guest_cid: CID as u32,
        uds_path: None,
    })
    .unwrap();
    let mut driver = FakeDriver::started(device, 1 << 29);
    for chain in 0..3 {
        let _host = handle.connect(1).unwrap();
        while driver.run_backend(0) {}
        assert_eq!(driver.avail_event(RX), chain, "not waiting for this chain");
        driver.set_used_event(RX, chain);
        let before = driver.irq.count();
        driver.submit(RX, &[Buffer::In(HEADER_LEN as u32), Buffer::In(100)]);
        driver.kick(RX);
        assert_eq!(unpack(driver.wait_used(RX)).0.op, op::REQUEST);
        assert_eq!(driver.irq.count(), before + 1);
    }
}

// Linux sends header and payload in two buffers, in one, or in many.
#[test]
fn a_packets_layout_is_the_drivers_choice() {
    let mut guest = Guest::new();
    let (mut host, key) = guest.connected(1);
    let header = Header {
        len: 6,
        ..guest.header(key, op::RW)
    };
    let header = header.to_bytes();
    let whole = [&header[..], b"abcdef"].concat();
    let layouts: &[&[&[u8]]] = &[
        &[&whole],
        &[&header, b"a", b"bcd", b"ef"],
        &[&header[..10], &header[10..], b"", b"abcdef"],
        &[&whole[..46], &whole[46..]],
        &[&header, b"abcdef and what is beyond the length"],
    ];
    for layout in layouts {
        let chain: Vec<_> = layout.iter().map(|part| Buffer::Out(part)).collect();
        guest.driver.submit(TX, &chain);
        guest.driver.kick(TX);
        assert!(guest.driver.used(TX).is_some());
        assert_eq!(read_exactly(&mut host, 6), b"abcdef");
    }
    assert_eq!(super::connect::load(&guest.handle.stats().dropped), 0);
}

#[test]
fn a_receive_buffers_layout_is_the_drivers_choice() {
    let mut guest = Guest::without_buffers();
    let layouts: &[&[u32]] = &[&[50], &[40, 10], &[44, 1, 2, 3], &[1, 0, 42, 7]];
    guest.supply();
    let mut host = guest.handle.connect(1).unwrap();
    let key = unpack(guest.driver.wait_used(RX)).0.key_of_reply();
    guest.send(key, op::RESPONSE);
    for layout in layouts {
        host.write_all(b"abcdef").unwrap();
        guest.settle();
        let chain: Vec<_> = layout.iter().map(|len| Buffer::In(*len)).collect();
        guest.driver.submit(RX, &chain);
        guest.driver.kick(RX);
        let room = layout.iter().sum::<u32>() as usize - HEADER_LEN;
        let mut data = unpack(guest.driver.wait_used(RX)).1;
        assert_eq!(data, b"abcdef"[..room.min(6)]);
        if data.len() < 6 {
            guest.supply();
            guest.driver.kick(RX);
            data.extend(unpack(guest.driver.wait_used(RX)).1);
        }
        assert_eq!(data, b"abcdef");
    }
}

#[test]
fn bytes_behind_passed_descriptors_and_before_an_end_are_not_forgotten() {
    use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
    let mut guest = Guest::new();
    let (mut host, key) = guest.connected(1);
    // A client that passes a descriptor along ends the device's read in the middle.
    let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut passed = SendAncillaryBuffer::new(&mut space);
    let descriptor = [std::os::fd::AsFd::as_fd(&host)];
    assert!(passed.push(SendAncillaryMessage::ScmRights(&descriptor)));
    let bytes = [std::io::IoSlice::new(b"with")];
    sendmsg(&host, &bytes, &mut passed, SendFlags::empty()).unwrap();
    host.write_all(b"behind").unwrap();
    let mut received = Vec::new();
    while received.len() < 10 {
        received.extend(guest.expect(op::RW).1);
    }
    assert_eq!(received, b"withbehind");
    // Data and the end at the same moment, and the guest answers after that.
    host.write_all(b"last").unwrap();
    host.shutdown(std::net::Shutdown::Write).unwrap();
    assert_eq!(guest.expect(op::RW).1, b"last");
    assert_eq!(guest.expect(op::SHUTDOWN).0.flags, SHUTDOWN_SEND);
    guest.send_data(key, b"answer");
    assert_eq!(read_exactly(&mut host, 6), b"answer");
}
