//! What a device has in hand goes back into its rings before their state is saved.

use tine_devices::bus::lock;
use tine_devices::rate::{BucketConfig, RateLimiterConfig};
use tine_devices::virtio::net::NetConfig;

use super::driver::{Guest, MERGEABLE, RX, config, framed, load, pattern};

fn settle(guest: &Guest) {
    lock(&guest.driver.transport).device_mut().settle();
}

#[test]
fn buffers_in_hand_are_used_once_after_they_were_put_back() {
    let mut guest = Guest::new(MERGEABLE);
    guest.post(8, 300);
    let mut heads = Vec::new();
    for n in 0..8 {
        guest.cable.push_raw(framed(&pattern(n, 100)));
        guest.settle();
        let used = guest.driver.used(RX).unwrap();
        assert_eq!(used.data[12..112], pattern(n, 100));
        heads.push(used.head);
        settle(&guest);
    }
    heads.sort_unstable();
    heads.dedup();
    assert_eq!(heads.len(), 8);
    guest.cable.push_raw(framed(b"waits"));
    guest.settle();
    assert!(guest.received().is_none());
    guest.post(1, 300);
    guest.settle();
    assert_eq!(guest.received().unwrap().1, b"waits");
    assert!(!guest.driver.needs_reset());
}

#[test]
fn a_frame_on_its_way_arrives_in_its_turn() {
    let hour = 3_600_000;
    let limits = RateLimiterConfig {
        bandwidth: None,
        ops: Some(BucketConfig {
            size: 1,
            one_time_burst: None,
            refill_time: hour,
        }),
    };
    let limited = NetConfig {
        rx_rate_limiter: Some(limits),
        ..config()
    };
    let mut guest = Guest::configured(&limited, MERGEABLE);
    guest.post(4, 300);
    for bytes in [b"first", b"waits", b"third"] {
        guest.cable.push_raw(framed(bytes));
    }
    guest.settle();
    assert_eq!(guest.received().unwrap().1, b"first");
    settle(&guest);
    settle(&guest);
    guest.handle.rx_limiter().set(&RateLimiterConfig {
        bandwidth: None,
        ops: Some(BucketConfig::default()),
    });
    guest.settle();
    assert_eq!(guest.received().unwrap().1, b"waits");
    assert_eq!(guest.received().unwrap().1, b"third");
    assert_eq!(load(&guest.handle.stats().rx_dropped), 0);
}

#[test]
fn a_frame_larger_than_the_buffers_waits_whole() {
    let mut guest = Guest::new(MERGEABLE);
    guest.post(2, 300);
    let frame = pattern(1, 1000);
    guest.cable.push_raw(framed(&frame));
    guest.settle();
    assert!(guest.received().is_none());
    settle(&guest);
    guest.post(2, 300);
    assert_eq!(guest.received().unwrap().1, frame);
    assert!(!guest.driver.needs_reset());
}
