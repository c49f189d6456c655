//! The network device.

use tine_devices::rate::{BucketConfig, RateLimiterConfig};
use tine_devices::testing::{Buffer, FakeDriver};
use tine_devices::virtio::VirtioDevice;
use tine_devices::virtio::net::{HEADER_LEN, MacAddr, Net, NetConfig, NetHandle, TapSource};
use virtio_bindings::virtio_net::*;
use virtio_bindings::virtio_ring::VIRTIO_RING_F_EVENT_IDX;

use crate::cable::Cable;
use crate::suite::{Machine, NAME, Subject};

const RX: usize = 0;
const TX: usize = 1;
const CONTROL: usize = 2;

pub struct Host {
    cable: Cable,
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

const LINK_UP: u16 = VIRTIO_NET_S_LINK_UP as u16;
const ANNOUNCE: u16 = VIRTIO_NET_S_ANNOUNCE as u16;

fn status(driver: &FakeDriver) -> u16 {
    u16::from_le_bytes(driver.config(6))
}

fn acknowledge(driver: &mut FakeDriver) {
    let command = [VIRTIO_NET_CTRL_ANNOUNCE as u8, 0];
    driver.submit(CONTROL, &[Buffer::Out(&command), Buffer::In(1)]);
    driver.kick(CONTROL);
}

#[test]
fn a_restored_guest_announces_itself() {
    let machine = Machine::<Cabled>::started();
    let mut restored = machine.restored(&machine.save());
    assert_eq!(restored.driver.irq.count(), 0);
    while restored.driver.run_backend(0) {}
    assert_eq!(status(&restored.driver), LINK_UP | ANNOUNCE);
    assert_eq!(restored.driver.irq.count(), 1);
    // Before it has: it is still to be done, and not twice.
    let mut again = restored.restored(&restored.save());
    assert_eq!(status(&again.driver), LINK_UP | ANNOUNCE);
    for machine in [&mut restored, &mut again] {
        acknowledge(&mut machine.driver);
        assert_eq!(status(&machine.driver), LINK_UP);
    }
    while machine.driver.run_backend(0) {}
    assert_eq!(
        status(&machine.driver),
        LINK_UP,
        "the source stays where it is"
    );
    assert_eq!(machine.driver.irq.count(), 0);
}

#[test]
fn a_driver_that_cannot_announce_itself_is_not_asked() {
    let mut machine = Machine::<Cabled>::new();
    machine.driver.start(1 << VIRTIO_NET_F_MRG_RXBUF);
    let restored = machine.restored(&machine.save());
    while restored.driver.run_backend(0) {}
    assert_eq!(status(&restored.driver), LINK_UP);
    assert_eq!(restored.driver.irq.count(), 0);
}

#[test]
fn the_new_cable_carries_what_the_driver_agreed_to() {
    let machine = Machine::<Cabled>::started();
    let restored = machine.restored(&machine.save());
    let offloads = restored.host.cable.offloads();
    assert!(offloads.is_some());
    assert_eq!(offloads, machine.host.cable.offloads());
    let inactive = Machine::<Cabled>::new();
    let restored = inactive.restored(&inactive.save());
    assert_eq!(restored.host.cable.offloads(), None);
}

#[test]
fn another_interface_in_its_place_is_refused() {
    let machine = Machine::<Cabled>::started();
    let sections = machine.save();
    let nameless = NetConfig {
        guest_mac: None,
        ..config()
    };
    let smaller = NetConfig {
        mtu: Some(1300),
        ..config()
    };
    for (config, what) in [
        (&nameless, "the set of features in use"),
        (&smaller, "MTU was 1400 in the snapshot and is 1300"),
    ] {
        let (device, _) = make(config);
        let restored = machine.driver.restored(device, NAME, &sections);
        let error = restored.err().unwrap().to_string();
        assert!(error.contains(what), "{error}");
    }
    // Another address is told to the guest by who gives it.
    let other = NetConfig {
        guest_mac: Some(MacAddr::new([6, 0, 0, 0, 0, 2]).unwrap()),
        ..config()
    };
    let (device, _) = make(&other);
    assert!(machine.driver.restored(device, NAME, &sections).is_ok());
}

#[test]
fn a_frame_that_was_paid_for_is_not_paid_for_again() {
    let ops = Some(BucketConfig {
        size: 1,
        one_time_burst: None,
        refill_time: 3_600_000,
    });
    let limits = Some(RateLimiterConfig {
        bandwidth: None,
        ops,
    });
    let config = NetConfig {
        tx_rate_limiter: limits,
        ..config()
    };
    let (device, host) = make(&config);
    let mut driver = FakeDriver::boxed(device);
    driver.start(0);
    host.cable.fail_send(Some(libc::EAGAIN));
    let heads = [b"first", b"waits"].map(|bytes| {
        let frame = framed(bytes);
        driver.submit(TX, &[Buffer::Out(&frame)])
    });
    driver.kick(TX);
    let sections = driver.save(NAME);
    let (device, other) = make(&config);
    let mut restored = driver.restored(device, NAME, &sections).unwrap();
    restored.run_queue_events();
    assert_eq!(other.cable.sent(), [framed(b"first")]);
    assert_eq!(restored.used(TX).unwrap().head, heads[0]);
    assert!(restored.used(TX).is_none(), "the limit is used up");
    let unlimited = BucketConfig::default();
    other.handle.tx_limiter().set(&RateLimiterConfig {
        bandwidth: None,
        ops: Some(unlimited),
    });
    assert_eq!(restored.wait_used(TX).head, heads[1]);
    assert_eq!(other.cable.sent(), [framed(b"waits")]);
}

#[test]
fn a_frame_in_hand_reaches_the_source_and_not_the_restored_guest() {
    let mut machine = Machine::<Cabled>::started();
    let frame: Vec<u8> = (0..1000).map(|at| at as u8).collect();
    machine.driver.submit(RX, &[Buffer::In(300)]);
    machine.driver.kick(RX);
    machine.host.cable.push_raw(framed(&frame));
    while machine.driver.run_backend(0) {}
    assert_eq!(machine.host.cable.waiting(), 0, "it is in hand");
    let sections = machine.save();
    let mut restored = machine.restored(&sections);
    for machine in [&mut machine, &mut restored] {
        machine.driver.submit(RX, &[Buffer::In(2000)]);
        machine.driver.run_queue_events();
        while machine.driver.run_backend(0) {}
    }
    let parts = [0, 1].map(|_| machine.driver.used(RX).unwrap());
    let mut bytes = parts[0].data[..parts[0].len as usize].to_vec();
    bytes.extend(&parts[1].data[..parts[1].len as usize]);
    assert_eq!(bytes[HEADER_LEN..], frame);
    assert!(restored.driver.used(RX).is_none());
    restored.host.cable.push_raw(framed(b"new"));
    assert_eq!(
        restored.driver.wait_used(RX).data[HEADER_LEN..][..3],
        *b"new"
    );
}
