//! A driver of the network device.

use tine_devices::testing::{Buffer, FakeDriver, Used};
use tine_devices::virtio::net::{HEADER_LEN, Net, NetConfig, NetHandle, TapSource};
use virtio_bindings::virtio_net::*;

use super::fake::Cable;

pub const RX: usize = 0;
pub const TX: usize = 1;
pub const CONTROL: usize = 2;
pub const MERGEABLE: u64 = 1 << VIRTIO_NET_F_MRG_RXBUF;
pub const ANNOUNCE: u64 =
    1 << VIRTIO_NET_F_STATUS | 1 << VIRTIO_NET_F_CTRL_VQ | 1 << VIRTIO_NET_F_GUEST_ANNOUNCE;

/// An interface that nobody limits; on a fake cable its host is not looked at.
pub fn config() -> NetConfig {
    NetConfig::new("eth0", TapSource::Name("none".into()))
}

/// A running guest on one end of a cable.
pub struct Guest {
    pub driver: FakeDriver,
    pub cable: Cable,
    pub handle: NetHandle,
}

impl Guest {
    pub fn new(features: u64) -> Self {
        Self::configured(&config(), features)
    }

    pub fn configured(config: &NetConfig, features: u64) -> Self {
        let cable = Cable::new();
        Self::with_device(
            Net::with_backend(config, cable.clone()).unwrap(),
            cable,
            features,
        )
    }

    pub fn with_device(net: Net<Cable>, cable: Cable, features: u64) -> Self {
        let handle = net.handle();
        let driver = FakeDriver::started(net, features);
        Self {
            driver,
            cable,
            handle,
        }
    }

    /// Makes buffers of `len` bytes each available for frames.
    pub fn post(&mut self, count: usize, len: u32) {
        for _ in 0..count {
            self.driver.submit(RX, &[Buffer::In(len)]);
        }
        self.driver.kick(RX);
    }

    /// Lets the device work until it is quiet.
    pub fn settle(&self) {
        let mut rounds = 0;
        while self.driver.run_backend(0) {
            rounds += 1;
            assert!(rounds < 1000, "the device does not come to rest");
        }
    }

    /// Takes the next frame out of the used ring: header and bytes.
    pub fn received(&mut self) -> Option<(Vec<u8>, Vec<u8>)> {
        let first = self.driver.used(RX)?;
        let mut frame = whole(&first);
        let count = u16::from_le_bytes([frame[10], frame[11]]);
        assert!(count >= 1);
        for _ in 1..count {
            let next = self.driver.used(RX).expect("as many buffers as announced");
            frame.extend(whole(&next));
        }
        let bytes = frame.split_off(HEADER_LEN);
        Some((frame, bytes))
    }

    /// Sends a frame behind an empty header.
    pub fn send(&mut self, bytes: &[u8]) {
        let frame = framed(bytes);
        self.driver.submit(TX, &[Buffer::Out(&frame)]);
        self.driver.kick(TX);
    }

    /// Chains that came back from the queue of frames from the guest.
    pub fn tx_used(&mut self) -> usize {
        std::iter::from_fn(|| self.driver.used(TX)).count()
    }
}

fn whole(used: &Used) -> Vec<u8> {
    used.data[..used.len as usize].to_vec()
}

/// The bytes behind an empty header.
pub fn framed(bytes: &[u8]) -> Vec<u8> {
    let mut frame = vec![0; HEADER_LEN];
    frame.extend(bytes);
    frame
}

/// `len` bytes that differ from one another and from those of other seeds.
pub fn pattern(seed: usize, len: usize) -> Vec<u8> {
    (0..len)
        .map(|at| (at * 7 + seed * 13 + at / 251) as u8)
        .collect()
}

pub fn load(counter: &std::sync::atomic::AtomicU64) -> u64 {
    counter.load(std::sync::atomic::Ordering::Relaxed)
}
