//! Rate limits of both directions: what goes beyond waits, and nothing is lost.

use std::time::{Duration, Instant};

use tine_devices::rate::{BucketConfig, RateLimiterConfig};
use tine_devices::virtio::net::NetConfig;

use super::driver::{Guest, MERGEABLE, config, framed, load, pattern};

const HOUR: u64 = 3_600_000;

fn bytes(size: u64, refill_time: u64) -> RateLimiterConfig {
    RateLimiterConfig {
        bandwidth: Some(BucketConfig {
            size,
            one_time_burst: None,
            refill_time,
        }),
        ops: None,
    }
}

fn frames(size: u64, refill_time: u64) -> RateLimiterConfig {
    RateLimiterConfig {
        bandwidth: None,
        ops: bytes(size, refill_time).bandwidth,
    }
}

/// Runs the device until `count` times `take` gave something.
fn wait<T>(guest: &mut Guest, count: usize, mut take: impl FnMut(&mut Guest) -> Vec<T>) -> Vec<T> {
    let mut all = take(guest);
    while all.len() < count {
        assert!(guest.driver.run_backend(5_000), "stuck at {}", all.len());
        all.extend(take(guest));
    }
    all
}

#[test]
fn what_the_guest_sends_waits_in_its_ring() {
    let limited = NetConfig {
        tx_rate_limiter: Some(bytes(1000, 50)),
        ..config()
    };
    let mut guest = Guest::configured(&limited, 0);
    let start = Instant::now();
    for n in 0..20 {
        guest.send(&pattern(n, 100));
    }
    let first = guest.cable.sent().len();
    assert!(first >= 10);
    assert_eq!(guest.tx_used(), first);
    let rest = wait(&mut guest, 20 - first, |guest| guest.cable.sent());
    assert!(start.elapsed() >= Duration::from_millis(50));
    let expected: Vec<_> = (first..20).map(|n| framed(&pattern(n, 100))).collect();
    assert_eq!(rest, expected);
    assert_eq!(guest.tx_used(), 20 - first);
    assert!(!guest.driver.run_backend(100), "quiet again");
}

#[test]
fn what_the_guest_receives_waits_on_the_cable() {
    let limited = NetConfig {
        rx_rate_limiter: Some(bytes(1000, 50)),
        ..config()
    };
    let mut guest = Guest::configured(&limited, MERGEABLE);
    guest.post(40, 2048);
    let start = Instant::now();
    for n in 0..20 {
        guest.cable.push_raw(framed(&pattern(n, 100)));
    }
    guest.driver.run_backend(0);
    // One was read before its length was known.
    assert!(guest.cable.waiting() <= 9);
    let take = |guest: &mut Guest| std::iter::from_fn(|| guest.received()).collect();
    let all: Vec<(_, Vec<u8>)> = wait(&mut guest, 20, take);
    assert!(start.elapsed() >= Duration::from_millis(50));
    for (n, (_, bytes)) in all.into_iter().enumerate() {
        assert_eq!(bytes, pattern(n, 100));
    }
    assert!(!guest.driver.run_backend(100), "quiet again");
    guest.cable.push_raw(framed(b"next"));
    let next = wait(&mut guest, 1, take);
    assert_eq!(next[0].1, b"next");
}

#[test]
fn frames_are_limited_and_limits_change_while_it_runs() {
    let limited = NetConfig {
        rx_rate_limiter: Some(frames(2, HOUR)),
        tx_rate_limiter: Some(frames(3, HOUR)),
        ..config()
    };
    let mut guest = Guest::configured(&limited, MERGEABLE);
    guest.post(10, 2048);
    for n in 0..5 {
        guest.send(&pattern(n, 60));
        guest.cable.push_raw(framed(&pattern(n, 60)));
    }
    guest.settle();
    let stats = guest.handle.stats();
    assert!(load(&stats.tx_limited) > 0 && load(&stats.rx_limited) > 0);
    assert_eq!(guest.cable.sent().len(), 3);
    assert_eq!(std::iter::from_fn(|| guest.received()).count(), 2);
    // Frames that come meanwhile do not wake anyone.
    guest.cable.edge();
    guest.settle();
    guest.cable.edge();
    assert!(!guest.driver.run_backend(20));
    guest.handle.rx_limiter().set(&frames(0, 0));
    guest.handle.tx_limiter().set(&frames(0, 0));
    guest.settle();
    assert_eq!(guest.cable.sent().len(), 2);
    assert_eq!(std::iter::from_fn(|| guest.received()).count(), 3);
    guest.handle.tx_limiter().set(&frames(1, HOUR));
    guest.send(b"one");
    guest.send(b"two");
    assert_eq!(guest.cable.sent().len(), 1);
}

#[test]
fn a_reset_forgets_who_waited() {
    let limited = NetConfig {
        rx_rate_limiter: Some(frames(1, 20)),
        tx_rate_limiter: Some(frames(1, 20)),
        ..config()
    };
    let mut guest = Guest::configured(&limited, MERGEABLE);
    guest.post(10, 2048);
    for _ in 0..3 {
        guest.send(b"out");
        guest.cable.push_raw(framed(b"in"));
    }
    guest.settle();
    guest.driver.reset();
    assert!(!guest.driver.run_backend(60));
}

#[test]
fn a_frame_that_finds_no_room_on_the_cable_is_charged_once() {
    let limited = NetConfig {
        tx_rate_limiter: Some(frames(1, HOUR)),
        ..config()
    };
    let mut guest = Guest::configured(&limited, 0);
    guest.cable.fail_send(Some(libc::EAGAIN));
    guest.send(b"only");
    assert!(guest.cable.sent().is_empty());
    guest.cable.fail_send(None);
    guest.settle();
    assert_eq!(guest.cable.sent(), [framed(b"only")]);
    guest.send(b"another");
    guest.settle();
    assert!(guest.cable.sent().is_empty());
}
