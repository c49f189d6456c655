//! A real TAP device, in a network namespace of the test's own. The test stands on the host's side
//! with a packet socket, and sees frames with the virtio header that the kernel made of them.

use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use tine_devices::testing::{Buffer, FakeDriver};
use tine_devices::virtio::net::{HEADER_LEN, Net, NetConfig, NetError, NetHandle, TapSource};
use virtio_bindings::virtio_net::*;

use super::driver::{MERGEABLE, RX, TX, framed, load, pattern};
use super::host::{PacketSocket, in_namespace, ip, wait_for_carrier};

const CSUM: u64 = MERGEABLE | 1 << VIRTIO_NET_F_GUEST_CSUM | 1 << VIRTIO_NET_F_CSUM;
const TSO: u64 = CSUM | 1 << VIRTIO_NET_F_GUEST_TSO4 | 1 << VIRTIO_NET_F_HOST_TSO4;
/// Ethernet, IPv4 and TCP headers.
const HEADERS: usize = 14 + 20 + 20;
const MSS: u16 = 1448;

struct Guest {
    driver: FakeDriver,
    handle: NetHandle,
}

impl Guest {
    fn on(tap: &str, features: u64) -> Self {
        let net = Net::open(named(tap)).unwrap();
        let handle = net.handle();
        wait_for_carrier(tap);
        let mut driver = FakeDriver::started(net, features);
        for _ in 0..60 {
            driver.submit(RX, &[Buffer::In(2048)]);
        }
        driver.kick(RX);
        Self { driver, handle }
    }

    /// Waits for a frame of the test's, passing over what the host says by itself.
    fn received(&mut self) -> Vec<u8> {
        loop {
            let first = self.driver.wait_used(RX);
            let mut frame = first.data[..first.len as usize].to_vec();
            for _ in 1..frame[10] {
                let next = self.driver.used(RX).expect("as many buffers as announced");
                frame.extend(&next.data[..next.len as usize]);
            }
            for _ in 0..frame[10] {
                self.driver.submit(RX, &[Buffer::In(2048)]);
            }
            self.driver.kick(RX);
            if is_ours(&frame[HEADER_LEN..]) {
                return frame;
            }
        }
    }

    fn send(&mut self, frame: &[u8]) {
        self.driver.submit(TX, &[Buffer::Out(frame)]);
        self.driver.kick(TX);
    }
}

fn named(tap: &str) -> NetConfig {
    NetConfig::new("eth0", TapSource::Name(tap.into()))
}

fn is_ours(bytes: &[u8]) -> bool {
    bytes.len() > HEADERS && bytes[12..14] == [8, 0] && bytes[26..30] == [10, 1, 1, 1]
}

/// A TCP segment of `len` bytes from nobody to nobody; its checksum is the pseudo header's, as an
/// offload wants it.
fn segment(len: usize) -> Vec<u8> {
    let mut bytes = vec![0; HEADERS];
    bytes[..6].copy_from_slice(&[6, 0, 0, 0, 0, 2]);
    bytes[6..12].copy_from_slice(&[6, 0, 0, 0, 0, 1]);
    bytes[12..14].copy_from_slice(&[8, 0]);
    let total = (HEADERS - 14 + len) as u16;
    bytes[14..24].copy_from_slice(&[
        0x45,
        0,
        (total >> 8) as u8,
        total as u8,
        0,
        0,
        0x40,
        0,
        64,
        6,
    ]);
    bytes[26..34].copy_from_slice(&[10, 1, 1, 1, 10, 1, 1, 2]);
    let header_sum = !sum(&bytes[14..34]);
    bytes[24..26].copy_from_slice(&header_sum.to_be_bytes());
    bytes[34..38].copy_from_slice(&[0, 7, 0, 9]);
    bytes[46..50].copy_from_slice(&[0x50, 0x10, 1, 0]);
    bytes.extend(pattern(len, len));
    let pseudo = pseudo_sum(&bytes);
    bytes[50..52].copy_from_slice(&pseudo.to_be_bytes());
    bytes
}

fn pseudo_sum(frame: &[u8]) -> u16 {
    let mut pseudo = frame[26..34].to_vec();
    pseudo.extend([0, 6]);
    pseudo.extend(((frame.len() - 34) as u16).to_be_bytes());
    sum(&pseudo)
}

fn sum(bytes: &[u8]) -> u16 {
    let words = bytes.chunks(2);
    let words = words.map(|word| u32::from(word[0]) << 8 | u32::from(*word.get(1).unwrap_or(&0)));
    let mut sum: u32 = words.sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

fn is_checksum_right(frame: &[u8]) -> bool {
    let total = u32::from(pseudo_sum(frame)) + u32::from(sum(&frame[34..]));
    (total & 0xffff) + (total >> 16) == 0xffff
}

/// The header of a segment whose checksum is left to the other side; cut up if it is long.
fn header(gso: bool) -> [u8; HEADER_LEN] {
    let mut header = [0; HEADER_LEN];
    header[0] = VIRTIO_NET_HDR_F_NEEDS_CSUM as u8;
    header[6..10].copy_from_slice(&[34, 0, 16, 0]);
    if gso {
        header[1] = VIRTIO_NET_HDR_GSO_TCPV4 as u8;
        header[2..4].copy_from_slice(&(HEADERS as u16).to_le_bytes());
        header[4..6].copy_from_slice(&MSS.to_le_bytes());
    }
    header
}

#[test]
fn frames_go_both_ways_and_checksums_are_left_to_who_can() {
    in_namespace("tap0", || {
        let host = PacketSocket::on("tap0");
        let bytes = segment(1000);
        let mut guest = Guest::on("tap0", CSUM);
        host.send(&header(false), &bytes);
        let frame = guest.received();
        assert_eq!(frame[0], VIRTIO_NET_HDR_F_NEEDS_CSUM as u8);
        assert_eq!(frame[6..10], [34, 0, 16, 0]);
        assert_eq!(frame[HEADER_LEN..], bytes);

        let mut sent = header(false).to_vec();
        sent.extend(&bytes);
        guest.send(&sent);
        let (host_header, seen) = host.receive(is_ours);
        assert_eq!(host_header[0], VIRTIO_NET_HDR_F_NEEDS_CSUM as u8);
        assert_eq!(seen, bytes);
        let stats = guest.handle.stats();
        assert_eq!(load(&stats.tx_frames), 1);
        assert_eq!(load(&stats.tx_bytes), bytes.len() as u64);
    });
}

#[test]
fn a_guest_without_offloads_gets_whole_checksums_and_short_frames() {
    in_namespace("tap0", || {
        let host = PacketSocket::on("tap0");
        let mut guest = Guest::on("tap0", MERGEABLE);
        host.send(&header(false), &segment(1000));
        let frame = guest.received();
        assert_eq!(frame[..2], [0, 0]);
        assert!(is_checksum_right(&frame[HEADER_LEN..]));

        host.send(&header(true), &segment(30_000));
        let mut payload = Vec::<u8>::new();
        while payload.len() < 30_000 {
            let frame = guest.received();
            assert_eq!(frame[1], 0);
            assert!(frame.len() <= HEADER_LEN + HEADERS + usize::from(MSS));
            assert!(is_checksum_right(&frame[HEADER_LEN..]));
            payload.extend(&frame[HEADER_LEN + HEADERS..]);
        }
        assert!(payload == pattern(30_000, 30_000));
    });
}

#[test]
fn long_segments_go_both_ways_in_one_piece() {
    in_namespace("tap0", || {
        let host = PacketSocket::on("tap0");
        let bytes = segment(60_000);
        let mut guest = Guest::on("tap0", TSO);
        host.send(&header(true), &bytes);
        let frame = guest.received();
        assert_eq!(frame[1], VIRTIO_NET_HDR_GSO_TCPV4 as u8);
        assert_eq!(frame[4..6], MSS.to_le_bytes());
        assert!(frame[HEADER_LEN..] == bytes);

        let mut sent = header(true).to_vec();
        sent.extend(&bytes);
        guest.send(&sent);
        let (host_header, seen) = host.receive(is_ours);
        assert_eq!(host_header[1], VIRTIO_NET_HDR_GSO_TCPV4 as u8);
        assert!(seen == bytes);
    });
}

#[test]
fn a_header_that_makes_no_sense_is_refused_by_the_host_and_counted() {
    in_namespace("tap0", || {
        let mut guest = Guest::on("tap0", TSO);
        let mut bad = framed(&segment(100));
        bad[..10].copy_from_slice(&[1, 0x7f, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff]);
        guest.send(&bad);
        assert!(guest.driver.used(TX).is_some());
        assert_eq!(load(&guest.handle.stats().tx_errors), 1);
    });
}

#[test]
fn a_tap_that_is_down_or_gone_is_counted_and_never_spins() {
    in_namespace("tap0", || {
        let mut guest = Guest::on("tap0", MERGEABLE);
        ip("link set tap0 down");
        guest.send(&framed(&segment(100)));
        assert!(guest.driver.used(TX).is_some());
        assert_eq!(load(&guest.handle.stats().tx_errors), 1);
        ip("link set tap0 up");
        guest.send(&framed(&segment(100)));
        assert_eq!(load(&guest.handle.stats().tx_errors), 1);

        ip("link del tap0");
        let until = Instant::now() + Duration::from_millis(200);
        let mut events = 0;
        while Instant::now() < until {
            events += usize::from(guest.driver.run_backend(20));
        }
        assert!(events < 8, "{events} events of a device that is gone");
        guest.send(&framed(&segment(100)));
        assert!(guest.driver.used(TX).is_some());
        assert_eq!(load(&guest.handle.stats().tx_errors), 2);
    });
}

#[test]
fn a_descriptor_does_as_well_as_a_name() {
    in_namespace("tap0", || {
        let fd = attached("tap0", libc::IFF_TAP | libc::IFF_NO_PI | libc::IFF_VNET_HDR);
        let net = Net::open(NetConfig::new("eth0", TapSource::Fd(fd))).unwrap();
        let host = PacketSocket::on("tap0");
        let mut driver = FakeDriver::started(net, MERGEABLE);
        driver.submit(TX, &[Buffer::Out(&framed(&segment(100)))]);
        driver.kick(TX);
        assert_eq!(host.receive(is_ours).1, segment(100));
    });
}

#[test]
fn what_is_no_such_descriptor_is_refused() {
    in_namespace("tap0", || {
        let null = OwnedFd::from(std::fs::File::open("/dev/null").unwrap());
        let fds = [
            null,
            attached("tap0", libc::IFF_TAP | libc::IFF_NO_PI),
            attached("tun9", libc::IFF_TUN | libc::IFF_NO_PI | libc::IFF_VNET_HDR),
        ];
        for fd in fds {
            let refused = Net::open(NetConfig::new("eth0", TapSource::Fd(fd))).err();
            assert!(
                matches!(refused, Some(NetError::NotATapFd { .. })),
                "{refused:?}"
            );
        }
    });
}

#[test]
fn a_tap_that_cannot_be_had_is_named_with_the_next_step() {
    in_namespace("tap0", || {
        let refused = |tap: &str| Net::open(named(tap)).err().expect(tap);
        let missing = refused("tap7");
        assert!(matches!(missing, NetError::Missing { .. }), "{missing}");
        assert_eq!(
            missing.to_string(),
            "interface \"eth0\": there is no TAP device \"tap7\"; make it with: \
             ip tuntap add tap7 mode tap && ip link set tap7 up"
        );
        let _holder = Net::open(named("tap0")).unwrap();
        let busy = refused("tap0");
        assert!(matches!(busy, NetError::Busy { .. }), "{busy}");
        assert!(busy.to_string().contains("\"tap0\" is in use"), "{busy}");
        let other = refused("lo");
        assert!(matches!(other, NetError::NotATap { .. }), "{other}");
        for name in [
            "",
            ".",
            "..",
            "a/b",
            "a b",
            "%d",
            "sixteen-letters-",
            "nul\0",
        ] {
            let refused = refused(name);
            assert!(
                matches!(refused, NetError::Name { .. }),
                "{name:?}: {refused}"
            );
        }
    });
}

fn attached(name: &str, flags: libc::c_int) -> OwnedFd {
    super::host::attach(name, flags)
}
