//! The socket device.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use tine_devices::testing::{Buffer, FakeDriver};
use tine_devices::virtio::VirtioDevice;
use tine_devices::virtio::vsock::{HOST_CID, Vsock, VsockConfig, VsockHandle};
use virtio_bindings::virtio_ring::VIRTIO_RING_F_EVENT_IDX;

use crate::suite::{Machine, NAME, Subject};

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

fn make(guest_cid: u32) -> (Box<dyn VirtioDevice>, Host) {
    let config = VsockConfig {
        guest_cid,
        uds_path: None,
    };
    let (device, handle) = Vsock::new(&config).unwrap();
    let host = Host {
        handle,
        supplied: false,
    };
    (Box::new(device), host)
}

pub struct Sockets;

impl Subject for Sockets {
    type Host = Host;
    const FEATURES: u64 = 1 << VIRTIO_RING_F_EVENT_IDX;

    fn make() -> (Box<dyn VirtioDevice>, Host) {
        make(CID as u32)
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

/// A machine with a connection, and room for packets and events.
fn connected() -> (Machine<Sockets>, UnixStream, Packet) {
    let mut machine = Machine::<Sockets>::started();
    machine.work();
    let Machine { driver, host } = &mut machine;
    let (stream, connection) = connect(driver, host, 1024);
    (machine, stream, connection)
}

#[test]
fn connections_of_the_source_go_on() {
    let (mut machine, mut stream, connection) = connected();
    for _ in 0..3 {
        machine.save();
        exchange(&mut machine.driver, &mut stream, connection);
    }
    assert!(machine.driver.used(EVENT).is_none(), "nobody is gone");
}

#[test]
fn connections_are_reset_for_a_restored_guest_and_new_ones_work() {
    let (machine, mut stream, connection) = connected();
    stream.write_all(b"not in the snapshot").unwrap();
    let mut restored = machine.restored(&machine.save());
    restored.driver.run_queue_events();
    let event = restored.driver.wait_used(EVENT);
    assert_eq!((event.len, event.data), (4, vec![0; 4]));
    // What the guest still sends is of no connection that there is.
    let Machine { driver, host } = &mut restored;
    let op = RW;
    send_now(driver, Packet { op, ..connection }, b"old");
    let _request = host.handle.connect(7).unwrap();
    while driver.run_backend(0) {}
    assert!(
        driver.used(RX).is_none(),
        "the driver has not dealt with it"
    );
    offer_events(driver);
    let (reset, _) = receive(driver, RST);
    let op = RST;
    assert_eq!(reset, Packet { op, ..connection });
    let (request, _) = receive(driver, REQUEST);
    assert_eq!(request.guest_port, 7);
    assert!(
        request.host_port > connection.host_port,
        "a port of its own"
    );
    host.supplied = true;
    restored.work();
}

#[test]
fn a_driver_without_an_event_buffer_is_told_when_it_has_one() {
    let machine = Machine::<Sockets>::started();
    let restored = machine.restored(&machine.save());
    restored.driver.run_queue_events();
    // Saved again before it could be told.
    let mut restored = restored.restored(&restored.save());
    restored.driver.run_queue_events();
    assert!(restored.driver.used(EVENT).is_none());
    assert_eq!(offer_events(&mut restored.driver), [4]);
    let mut again = restored.restored(&restored.save());
    again.driver.run_queue_events();
    assert_eq!(again.driver.wait_used(EVENT).len, 4);
    restored.work();
    again.work();
}

#[test]
fn a_guest_that_does_not_run_yet_is_waited_for() {
    let (machine, _stream, _) = connected();
    let mut restored = machine.restored(&machine.save());
    restored.driver.run_queue_events();
    let Machine { driver, host } = &mut restored;
    let _request = host.handle.connect(7).unwrap();
    while driver.run_backend(0) {}
    // The time that a driver without event buffers is given.
    assert!(driver.run_backend(5_000));
    while driver.run_backend(0) {}
    assert!(driver.used(RX).is_none());
    offer_events(driver);
    let (request, _) = receive(driver, REQUEST);
    assert_eq!(request.guest_port, 7);
}

#[test]
fn the_address_is_the_machines_and_not_the_snapshots() {
    let (machine, _stream, connection) = connected();
    let (device, host) = make(99);
    let sections = machine.save();
    let driver = machine.driver.restored(device, NAME, &sections);
    let mut other = Machine::<Sockets> {
        driver: driver.unwrap(),
        host,
    };
    assert_eq!(other.driver.config::<8>(0), 99u64.to_le_bytes());
    other.driver.run_queue_events();
    let _request = other.host.handle.connect(7).unwrap();
    offer_events(&mut other.driver);
    // Its driver does not know yet: what comes from the old address is dropped.
    let op = RW;
    send_now(&mut other.driver, Packet { op, ..connection }, b"old");
    let used = other.driver.wait_used(RX);
    assert_eq!(used.data[8..16], 99u64.to_le_bytes());
    assert_eq!(used.data[30..32], REQUEST.to_le_bytes());
}

#[test]
fn a_restored_device_whose_driver_does_not_run_tells_nobody() {
    let machine = Machine::<Sockets>::new();
    let mut restored = machine.restored(&machine.save());
    assert!(restored.host.handle.connect(1).is_err());
    restored.driver.start(Sockets::FEATURES);
    restored.driver.submit(EVENT, &[Buffer::In(4)]);
    restored.driver.kick(EVENT);
    assert!(restored.driver.used(EVENT).is_none());
}
