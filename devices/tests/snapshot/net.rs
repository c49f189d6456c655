//! The network device.

use tine_devices::testing::{Buffer, FakeDriver};
use tine_devices::virtio::VirtioDevice;
use tine_devices::virtio::net::{HEADER_LEN, MacAddr, Net, NetConfig, NetHandle, TapSource};
use virtio_bindings::virtio_net::*;
use virtio_bindings::virtio_ring::VIRTIO_RING_F_EVENT_IDX;

use crate::cable::Cable;
use crate::suite::Subject;

const RX: usize = 0;
const TX: usize = 1;
const CONTROL: usize = 2;

pub struct Host {
    cable: Cable,
    #[allow(dead_code)]
    handle: NetHandle,
}

fn config() -> NetConfig {
    let mac = MacAddr::new([6, 0, 0, 0, 0, 1]).unwrap();
    NetConfig {
        guest_mac: Some(mac),
        mtu: Some(1400),
        ..NetConfig::new("eth0", TapSource::Name("none".into()))
    }
}

fn make(config: &NetConfig) -> (Box<dyn VirtioDevice>, Host) {
    let cable = Cable::new();
    let net = Net::with_backend(config, cable.clone()).unwrap();
    let handle = net.handle();
    (Box::new(net), Host { cable, handle })
}

fn framed(bytes: &[u8]) -> Vec<u8> {
    let mut frame = vec![0; HEADER_LEN];
    frame.extend(bytes);
    frame
}

fn receive(driver: &mut FakeDriver, host: &Host, bytes: &[u8]) {
    host.cable.push_raw(framed(bytes));
    let used = driver.wait_used(RX);
    assert_eq!(used.len as usize, HEADER_LEN + bytes.len());
    assert_eq!(&used.data[HEADER_LEN..used.len as usize], bytes);
}

struct Cabled;

impl Subject for Cabled {
    type Host = Host;
    const FEATURES: u64 = 1 << VIRTIO_RING_F_EVENT_IDX
        | 1 << VIRTIO_NET_F_MRG_RXBUF
        | 1 << VIRTIO_NET_F_MAC
        | 1 << VIRTIO_NET_F_MTU
        | 1 << VIRTIO_NET_F_GUEST_CSUM
        | 1 << VIRTIO_NET_F_GUEST_TSO4
        | 1 << VIRTIO_NET_F_STATUS
        | 1 << VIRTIO_NET_F_CTRL_VQ
        | 1 << VIRTIO_NET_F_GUEST_ANNOUNCE;

    fn make() -> (Box<dyn VirtioDevice>, Host) {
        make(&config())
    }

    fn work(driver: &mut FakeDriver, host: &mut Host) {
        driver.submit(RX, &[Buffer::In(2000)]);
        driver.kick(RX);
        receive(driver, host, b"to the guest");
        let frame = framed(b"from the guest");
        let head = driver.submit(TX, &[Buffer::Out(&frame)]);
        driver.kick(TX);
        assert_eq!(driver.wait_used(TX).head, head);
        assert_eq!(host.cable.sent().last(), Some(&frame));
        let offloads = host.cable.offloads().unwrap();
        assert!(offloads.tso4 && !offloads.tso6);
        let acknowledge = [VIRTIO_NET_CTRL_ANNOUNCE as u8, 0];
        driver.submit(CONTROL, &[Buffer::Out(&acknowledge), Buffer::In(1)]);
        driver.kick(CONTROL);
        assert_eq!(driver.wait_used(CONTROL).data, [VIRTIO_NET_OK as u8]);
    }

    fn leave(driver: &mut FakeDriver, _: &mut Host) -> Vec<(usize, u16)> {
        // The device has these in hand, for a frame that comes.
        for _ in 0..3 {
            driver.submit(RX, &[Buffer::In(2000)]);
        }
        driver.kick(RX);
        let mut left = Vec::new();
        for n in 0..5 {
            let frame = framed(&[n; 60]);
            left.push((TX, driver.submit(TX, &[Buffer::Out(&frame)])));
        }
        let command = [77, 0];
        let chain = [Buffer::Out(&command), Buffer::In(1)];
        left.push((CONTROL, driver.submit(CONTROL, &chain)));
        left
    }
}

crate::conforms!(Cabled);
