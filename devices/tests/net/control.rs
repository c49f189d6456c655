//! Configuration, features and the control queue.

use tine_devices::testing::{Buffer, FakeDriver};
use tine_devices::virtio::net::{Net, NetConfig, NetError, Offloads};
use virtio_bindings::virtio_mmio::*;
use virtio_bindings::virtio_net::*;

use super::driver::{ANNOUNCE, CONTROL, Guest, config, framed};
use super::fake::Cable;

fn command(guest: &mut Guest, class: u8, command: u8) -> u8 {
    let header = [class, command];
    guest
        .driver
        .submit(CONTROL, &[Buffer::Out(&header), Buffer::In(1)]);
    guest.driver.kick(CONTROL);
    let used = guest.driver.used(CONTROL).unwrap();
    assert_eq!(used.len, 1);
    used.data[0]
}

fn status(guest: &Guest) -> u16 {
    u16::from_le_bytes(guest.driver.config(6))
}

#[test]
fn address_and_mtu_are_offered_where_they_are_configured() {
    let configured = NetConfig {
        guest_mac: Some("06:00:ac:10:00:02".parse().unwrap()),
        mtu: Some(9000),
        ..config()
    };
    let driver = FakeDriver::new(Net::with_backend(&configured, Cable::new()).unwrap());
    let offered = driver.register(VIRTIO_MMIO_DEVICE_FEATURES);
    let both = 1 << VIRTIO_NET_F_MAC | 1 << VIRTIO_NET_F_MTU;
    assert_eq!(offered & both, both);
    assert_eq!(driver.config(0), [6, 0, 0xac, 0x10, 0, 2]);
    assert_eq!(driver.config(10), 9000u16.to_le_bytes());
    let driver = FakeDriver::new(Net::with_backend(&config(), Cable::new()).unwrap());
    assert_eq!(driver.register(VIRTIO_MMIO_DEVICE_FEATURES) & both, 0);
    assert_eq!(driver.config(0), [0; 6]);
}

#[test]
fn an_mtu_too_small_for_ip_is_refused() {
    let small = NetConfig {
        mtu: Some(67),
        ..config()
    };
    let refused = Net::with_backend(&small, Cable::new()).err().unwrap();
    assert!(matches!(refused, NetError::Mtu { mtu: 67, .. }));
    assert_eq!(
        refused.to_string(),
        "interface \"eth0\": an MTU of 67 is less than 68"
    );
}

#[test]
fn the_host_gets_the_offloads_that_were_agreed_on() {
    let bits = |bits: &[u32]| bits.iter().fold(0, |all, bit| all | 1 << bit);
    let none = Offloads::default();
    let all = Offloads {
        checksum: true,
        tso4: true,
        tso6: true,
        ecn: true,
    };
    for (features, expected) in [
        (0, none),
        (
            bits(&[VIRTIO_NET_F_GUEST_CSUM, VIRTIO_NET_F_GUEST_TSO6]),
            Offloads {
                checksum: true,
                tso6: true,
                ..none
            },
        ),
        (
            bits(&[
                VIRTIO_NET_F_GUEST_CSUM,
                VIRTIO_NET_F_GUEST_TSO4,
                VIRTIO_NET_F_GUEST_TSO6,
                VIRTIO_NET_F_GUEST_ECN,
            ]),
            all,
        ),
        // Against the specification, and harmless: they need the first.
        (
            bits(&[VIRTIO_NET_F_GUEST_TSO4, VIRTIO_NET_F_GUEST_ECN]),
            none,
        ),
    ] {
        assert_eq!(Guest::new(features).cable.offloads(), Some(expected));
    }
}

// Like case 28: a guest that was restored elsewhere tells the network so.
#[test]
fn a_guest_is_asked_to_announce_itself_until_it_did() {
    let mut guest = Guest::new(ANNOUNCE);
    assert_eq!(status(&guest), 1);
    guest.handle.announce();
    guest.settle();
    assert_eq!(guest.driver.register(VIRTIO_MMIO_INTERRUPT_STATUS), 2);
    assert_eq!(status(&guest), 3);
    assert_eq!(command(&mut guest, 3, 0), 0);
    assert_eq!(status(&guest), 1);
    assert!(!guest.driver.run_backend(0));
}

#[test]
fn a_guest_that_cannot_announce_itself_is_not_asked() {
    let guest = Guest::new(0);
    guest.handle.announce();
    guest.settle();
    assert_eq!((status(&guest), guest.driver.irq.count()), (1, 0));
    let mut guest = Guest::new(ANNOUNCE);
    guest.driver.reset();
    guest.handle.announce();
    assert!(!guest.driver.run_backend(0));
    guest.driver.start(ANNOUNCE);
    guest.settle();
    assert_eq!(status(&guest), 1);
}

#[test]
fn a_reset_ends_the_wish_for_an_announcement() {
    let mut guest = Guest::new(ANNOUNCE);
    guest.handle.announce();
    guest.settle();
    guest.driver.reset();
    assert_eq!(status(&guest), 1);
}

#[test]
fn other_commands_are_refused() {
    let mut guest = Guest::new(ANNOUNCE);
    for (class, number) in [(0, 0), (1, 1), (3, 1), (4, 0), (255, 255)] {
        assert_eq!(command(&mut guest, class, number), 1, "{class} {number}");
    }
}

#[test]
fn commands_that_cannot_be_read_or_answered_come_back() {
    let mut guest = Guest::new(ANNOUNCE);
    let chains: [&[Buffer]; 4] = [
        &[Buffer::Out(&[3, 0])],
        &[Buffer::In(1)],
        &[Buffer::Out(&[3]), Buffer::In(1)],
        &[
            Buffer::Raw {
                addr: 1 << 40,
                len: 2,
                flags: 0,
            },
            Buffer::In(1),
        ],
    ];
    for (chain, len) in chains.into_iter().zip([0, 1, 1, 0]) {
        guest.driver.submit(CONTROL, chain);
        guest.driver.kick(CONTROL);
        assert_eq!(guest.driver.used(CONTROL).unwrap().len, len);
    }
    guest.send(b"alive");
    assert_eq!(guest.cable.sent(), [framed(b"alive")]);
}

#[test]
fn many_commands_are_answered_in_turns() {
    let mut guest = Guest::new(ANNOUNCE);
    for _ in 0..20 {
        guest
            .driver
            .submit(CONTROL, &[Buffer::Out(&[3, 0]), Buffer::In(1)]);
    }
    guest.driver.kick(CONTROL);
    guest.settle();
    let answers: Vec<_> = std::iter::from_fn(|| guest.driver.used(CONTROL)).collect();
    assert_eq!(answers.len(), 20);
    assert!(answers.iter().all(|used| used.data == [0]));
}
