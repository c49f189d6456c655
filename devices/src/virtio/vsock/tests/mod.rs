//! Tests of the whole device: a fake driver on one side, real sockets on the other, one thread.
//! Cases are numbered as in the list of cases from the field.

mod close;
mod connect;
mod flow;
mod hostile;
mod looped;
mod model;
mod random;
mod reset;

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::Duration;

use super::packet::*;
use super::*;
use crate::testing::{Buffer, FakeDriver};

const CID: u64 = 42;
const RX: usize = 0;
const TX: usize = 1;
const EVENT: usize = 2;
/// The size of Linux's receive buffers, its header apart.
const RX_LEN: u32 = 4096;
/// How many of them there are; each takes two of the ring's descriptors.
const RX_BUFFERS: usize = 32;

/// A guest that reads and writes packets.
struct Guest {
    driver: FakeDriver,
    handle: VsockHandle,
    buf_alloc: u32,
    fwd_cnt: u32,
}

impl Guest {
    fn new() -> Self {
        Self::build(None, LIMITS).with_buffers()
    }

    fn with_path(uds_path: PathBuf) -> Self {
        Self::build(Some(uds_path), LIMITS).with_buffers()
    }

    fn with_limits(limits: Limits) -> Self {
        Self::build(None, limits).with_buffers()
    }

    fn without_buffers() -> Self {
        Self::build(None, LIMITS)
    }

    fn build(uds_path: Option<PathBuf>, limits: Limits) -> Self {
        let config = VsockConfig {
            guest_cid: CID as u32,
            uds_path,
        };
        let (device, handle) = Vsock::with_limits(&config, limits).unwrap();
        Self {
            driver: FakeDriver::started(device, 0),
            handle,
            buf_alloc: 256 << 10,
            fwd_cnt: 0,
        }
    }

    fn with_buffers(mut self) -> Self {
        for _ in 0..RX_BUFFERS {
            self.supply();
        }
        self.driver.kick(RX);
        self
    }

    /// Gives the device one receive buffer.
    fn supply(&mut self) {
        let buffer = [Buffer::In(HEADER_LEN as u32), Buffer::In(RX_LEN)];
        self.driver.submit(RX, &buffer);
    }

    fn header(&self, key: Key, op: u16) -> Header {
        Header {
            src_cid: CID,
            dst_cid: HOST_CID,
            src_port: key.guest,
            dst_port: key.host,
            kind: TYPE_STREAM,
            op,
            buf_alloc: self.buf_alloc,
            fwd_cnt: self.fwd_cnt,
            ..Header::default()
        }
    }

    fn send(&mut self, key: Key, op: u16) {
        self.send_raw(self.header(key, op), b"");
    }

    fn send_data(&mut self, key: Key, data: &[u8]) {
        let header = Header {
            len: data.len() as u32,
            ..self.header(key, op::RW)
        };
        self.send_raw(header, data);
    }

    fn shutdown(&mut self, key: Key, flags: u32) {
        let header = Header {
            flags,
            ..self.header(key, op::SHUTDOWN)
        };
        self.send_raw(header, b"");
    }

    fn send_raw(&mut self, header: Header, data: &[u8]) {
        let bytes = header.to_bytes();
        match data.is_empty() {
            true => self.driver.submit(TX, &[Buffer::Out(&bytes)]),
            false => self
                .driver
                .submit(TX, &[Buffer::Out(&bytes), Buffer::Out(data)]),
        };
        self.driver.kick(TX);
        assert_eq!(self.driver.used(TX).expect("a used chain").len, 0);
    }

    /// The next packet, if the device has sent one. Its buffer goes back to the device.
    fn poll(&mut self) -> Option<(Header, Vec<u8>)> {
        let used = self.driver.used(RX)?;
        self.supply();
        self.driver.kick(RX);
        Some(unpack(used))
    }

    /// Waits for the next packet.
    fn receive(&mut self) -> (Header, Vec<u8>) {
        loop {
            if let Some(packet) = self.poll() {
                return packet;
            }
            assert!(self.driver.run_backend(5_000), "no packet within 5 s");
        }
    }

    #[track_caller]
    fn expect(&mut self, op: u16) -> (Header, Vec<u8>) {
        let packet = self.receive();
        assert_eq!(packet.0.op, op, "{:?}", packet.0);
        packet
    }

    /// Lets the device work until it is quiet, and fails if it never is.
    #[track_caller]
    fn settle(&self) {
        for _ in 0..1000 {
            if !self.driver.run_backend(0) {
                return;
            }
        }
        panic!("the device spins");
    }

    /// Nothing happens: no packet, no event.
    #[track_caller]
    fn expect_quiet(&mut self) {
        self.settle();
        assert_eq!(self.poll(), None);
        assert!(!self.driver.run_backend(20), "an event out of nothing");
    }

    /// A connection from the host through the handle, accepted.
    fn connected(&mut self, port: u32) -> (UnixStream, Key) {
        let stream = self.handle.connect(port).unwrap();
        let (request, _) = self.expect(op::REQUEST);
        assert_eq!(request.dst_port, port);
        let key = request.key_of_reply();
        self.send(key, op::RESPONSE);
        self.settle();
        (patient(stream), key)
    }
}

impl Header {
    /// The connection of a packet to the guest.
    fn key_of_reply(&self) -> Key {
        Key {
            host: self.src_port,
            guest: self.dst_port,
        }
    }
}

fn unpack(used: crate::testing::Used) -> (Header, Vec<u8>) {
    let (header, data) = used.data.split_at(HEADER_LEN);
    let header = Header::from_bytes(header.try_into().unwrap());
    assert_eq!(used.len, HEADER_LEN as u32 + header.len);
    assert_eq!((header.src_cid, header.dst_cid), (HOST_CID, CID));
    (header, data[..header.len as usize].to_vec())
}

/// A stream whose reads fail rather than hang a test.
fn patient(stream: UnixStream) -> UnixStream {
    stream
        .set_read_timeout(Some(Duration::from_secs(5)))
        .unwrap();
    stream
}

fn read_exactly(stream: &mut UnixStream, len: usize) -> Vec<u8> {
    let mut data = vec![0; len];
    stream.read_exact(&mut data).unwrap();
    data
}

#[track_caller]
fn assert_ended(stream: &mut UnixStream) {
    assert_eq!(stream.read(&mut [0; 16]).unwrap(), 0, "not the end");
}
