//! The socket device.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use tine_devices::testing::{Buffer, FakeDriver};
use tine_devices::virtio::VirtioDevice;
use tine_devices::virtio::vsock::{HOST_CID, Vsock, VsockConfig, VsockHandle};
use virtio_bindings::virtio_ring::VIRTIO_RING_F_EVENT_IDX;

use crate::suite::Subject;

const RX: usize = 0;
const TX: usize = 1;
const EVENT: usize = 2;
const CID: u64 = 5;

const REQUEST: u16 = 1;
const RESPONSE: u16 = 2;
const RST: u16 = 3;
const RW: u16 = 5;

pub struct Host {
    handle: VsockHandle,
    /// Receive buffers were made available, and come back when they were used.
    supplied: bool,
}

/// What of a header matters here; the ports are the guest's and the host's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Packet {
    guest_port: u32,
    host_port: u32,
    op: u16,
}

fn send(driver: &mut FakeDriver, packet: Packet, data: &[u8]) -> u16 {
    let mut header = CID.to_le_bytes().to_vec();
    header.extend(HOST_CID.to_le_bytes());
    for word in [packet.guest_port, packet.host_port, data.len() as u32] {
        header.extend(word.to_le_bytes());
    }
    header.extend(1u16.to_le_bytes());
    header.extend(packet.op.to_le_bytes());
    for word in [0u32, 64 << 10, 0] {
        header.extend(word.to_le_bytes());
    }
    match data.is_empty() {
        true => driver.submit(TX, &[Buffer::Out(&header)]),
        false => driver.submit(TX, &[Buffer::Out(&header), Buffer::Out(data)]),
    }
}

fn send_now(driver: &mut FakeDriver, packet: Packet, data: &[u8]) {
    let head = send(driver, packet, data);
    driver.kick(TX);
    assert_eq!(driver.wait_used(TX).head, head);
}

fn supply(driver: &mut FakeDriver) {
    driver.submit(RX, &[Buffer::In(44), Buffer::In(4096)]);
    driver.kick(RX);
}

/// Waits for a packet of this kind; others are of earlier connections.
fn receive(driver: &mut FakeDriver, op: u16) -> (Packet, Vec<u8>) {
    loop {
        let used = driver.wait_used(RX);
        supply(driver);
        let word = |at: usize| u32::from_le_bytes(used.data[at..at + 4].try_into().unwrap());
        let packet = Packet {
            host_port: word(16),
            guest_port: word(20),
            op: (word(28) >> 16) as u16,
        };
        assert_eq!(used.data[8..12], (CID as u32).to_le_bytes());
        if packet.op == op {
            let data = used.data[44..44 + word(24) as usize].to_vec();
            return (packet, data);
        }
    }
}

/// Offers one more event buffer, and all those anew that the device has used: their lengths.
fn offer_events(driver: &mut FakeDriver) -> Vec<u32> {
    driver.submit(EVENT, &[Buffer::In(4)]);
    driver.kick(EVENT);
    let used: Vec<_> = std::iter::from_fn(|| driver.used(EVENT)).collect();
    for _ in &used {
        driver.submit(EVENT, &[Buffer::In(4)]);
    }
    driver.kick(EVENT);
    used.iter().map(|used| used.len).collect()
}

/// Connects from the host to a port of the guest.
fn connect(driver: &mut FakeDriver, host: &Host, port: u32) -> (UnixStream, Packet) {
    let stream = host.handle.connect(port).unwrap();
    let (request, _) = receive(driver, REQUEST);
    assert_eq!(request.guest_port, port);
    let op = RESPONSE;
    send_now(driver, Packet { op, ..request }, b"");
    let limit = Some(Duration::from_secs(10));
    stream.set_read_timeout(limit).unwrap();
    (stream, request)
}

fn exchange(driver: &mut FakeDriver, stream: &mut UnixStream, connection: Packet) {
    let op = RW;
    send_now(driver, Packet { op, ..connection }, b"ping");
    while driver.run_backend(0) {}
    let mut data = [0; 4];
    stream.read_exact(&mut data).unwrap();
    assert_eq!(&data, b"ping");
    stream.write_all(b"pong").unwrap();
    assert_eq!(
        receive(driver, RW),
        (Packet { op, ..connection }, b"pong".to_vec())
    );
}

struct Sockets;

impl Subject for Sockets {
    type Host = Host;
    const FEATURES: u64 = 1 << VIRTIO_RING_F_EVENT_IDX;

    fn make() -> (Box<dyn VirtioDevice>, Host) {
        let config = VsockConfig {
            guest_cid: CID as u32,
            uds_path: None,
        };
        let (device, handle) = Vsock::new(&config).unwrap();
        let host = Host {
            handle,
            supplied: false,
        };
        (Box::new(device), host)
    }

    fn work(driver: &mut FakeDriver, host: &mut Host) {
        if !std::mem::replace(&mut host.supplied, true) {
            (0..4).for_each(|_| supply(driver));
        }
        offer_events(driver);
        let (mut stream, connection) = connect(driver, host, 1024);
        exchange(driver, &mut stream, connection);
        let op = RST;
        send_now(driver, Packet { op, ..connection }, b"");
        while driver.run_backend(0) {}
        assert_eq!(stream.read(&mut [0; 16]).unwrap(), 0, "closed");
    }

    fn leave(driver: &mut FakeDriver, _: &mut Host) -> Vec<(usize, u16)> {
        let nobody = Packet {
            guest_port: 1,
            host_port: 2,
            op: REQUEST,
        };
        let mut left = vec![send(driver, nobody, b"")];
        driver.kick(TX);
        for op in [RST, RW, REQUEST] {
            left.push(send(driver, Packet { op, ..nobody }, b""));
        }
        left.into_iter().map(|head| (TX, head)).collect()
    }
}

crate::conforms!(Sockets);
