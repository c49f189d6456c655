//! Requests as a driver makes them, and images to make them to.

use std::path::Path;

use tempfile::NamedTempFile;
use tine_devices::testing::{Buffer, FakeDriver, Used};
use tine_devices::virtio::block::{Backend, Block, BlockConfig, Engine};
use virtio_bindings::virtio_blk::*;

pub const OK: u8 = 0;
pub const IO_ERROR: u8 = 1;
pub const UNSUPPORTED: u8 = 2;

pub const FLUSH: u64 = 1 << VIRTIO_BLK_F_FLUSH;
/// Both ways of data: every test of a raw file runs on each.
pub const ENGINES: [Engine; 2] = [Engine::Auto, Engine::Thread];

/// An image of `sectors` sectors, each filled with its number.
pub fn image(sectors: usize) -> NamedTempFile {
    let file = NamedTempFile::new().unwrap();
    let content: Vec<u8> = (0..sectors).flat_map(|n| [n as u8; 512]).collect();
    std::fs::write(file.path(), content).unwrap();
    file
}

pub fn config(path: &Path, engine: Engine) -> BlockConfig {
    BlockConfig {
        engine,
        ..BlockConfig::new("root", path)
    }
}

/// A running guest with the image as its drive.
pub fn guest(config: &BlockConfig) -> FakeDriver {
    FakeDriver::started(Block::open(config).unwrap(), FLUSH)
}

/// A running guest with a drive on some backend.
pub fn guest_on(backend: impl Backend + 'static) -> FakeDriver {
    let config = BlockConfig::new("root", "/nowhere");
    FakeDriver::started(Block::with_backend(&config, backend).unwrap(), FLUSH)
}

pub fn header(kind: u32, sector: u64) -> [u8; 16] {
    let mut bytes = [0; 16];
    bytes[..4].copy_from_slice(&kind.to_le_bytes());
    bytes[8..].copy_from_slice(&sector.to_le_bytes());
    bytes
}

pub fn range(sector: u64, sectors: u32, flags: u32) -> [u8; 16] {
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&sector.to_le_bytes());
    bytes[8..12].copy_from_slice(&sectors.to_le_bytes());
    bytes[12..].copy_from_slice(&flags.to_le_bytes());
    bytes
}

/// The request's status, and what it read.
#[derive(Debug, PartialEq, Eq)]
pub struct Answer {
    pub status: u8,
    pub data: Vec<u8>,
    pub len: u32,
}

impl From<Used> for Answer {
    fn from(used: Used) -> Self {
        let mut data = used.data;
        Self {
            status: data.pop().expect("room for a status"),
            data,
            len: used.len,
        }
    }
}

/// What a driver asks of a drive.
pub trait Requests {
    fn send(&mut self, kind: u32, sector: u64, data: &[Buffer]) -> u16;
    fn request(&mut self, kind: u32, sector: u64, data: &[Buffer]) -> Answer;

    fn read(&mut self, sector: u64, len: u32) -> Answer {
        self.request(VIRTIO_BLK_T_IN, sector, &[Buffer::In(len)])
    }

    fn write(&mut self, sector: u64, data: &[u8]) -> Answer {
        self.request(VIRTIO_BLK_T_OUT, sector, &[Buffer::Out(data)])
    }

    fn flush(&mut self) -> Answer {
        self.request(VIRTIO_BLK_T_FLUSH, 0, &[])
    }

    fn discard(&mut self, sector: u64, sectors: u32) -> Answer {
        let range = range(sector, sectors, 0);
        self.request(VIRTIO_BLK_T_DISCARD, 0, &[Buffer::Out(&range)])
    }

    fn write_zeroes(&mut self, sector: u64, sectors: u32, flags: u32) -> Answer {
        let range = range(sector, sectors, flags);
        self.request(VIRTIO_BLK_T_WRITE_ZEROES, 0, &[Buffer::Out(&range)])
    }

    /// The same with the data in `segments` buffers of a sector each, and an indirect table.
    fn indirect(&mut self, kind: u32, sector: u64, segments: usize) -> Answer;

    /// Panics unless the drive still reads.
    fn assert_alive(&mut self) {
        assert_eq!(self.read(0, 512).status, OK, "the drive is dead");
    }
}

impl Requests for FakeDriver {
    fn send(&mut self, kind: u32, sector: u64, data: &[Buffer]) -> u16 {
        let header = header(kind, sector);
        let mut chain = vec![Buffer::Out(&header)];
        chain.extend(data.iter().map(|buffer| match *buffer {
            Buffer::Out(bytes) => Buffer::Out(bytes),
            Buffer::In(len) => Buffer::In(len),
            Buffer::Raw { addr, len, flags } => Buffer::Raw { addr, len, flags },
        }));
        chain.push(Buffer::In(1));
        self.submit(0, &chain)
    }

    fn indirect(&mut self, kind: u32, sector: u64, segments: usize) -> Answer {
        let header = header(kind, sector);
        let mut chain = vec![Buffer::Out(&header)];
        chain.extend((0..segments).map(|_| Buffer::In(512)));
        chain.push(Buffer::In(1));
        self.submit_indirect(0, &chain);
        self.kick(0);
        self.wait_used(0).into()
    }

    fn request(&mut self, kind: u32, sector: u64, data: &[Buffer]) -> Answer {
        let head = self.send(kind, sector, data);
        self.kick(0);
        let used = self.wait_used(0);
        assert_eq!(used.head, head);
        used.into()
    }
}
