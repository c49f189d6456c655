//! What the guest tells of its memory.

use std::time::{Duration, Instant};

use tine_devices::bus::lock;
use tine_devices::testing::Buffer;
use tine_devices::virtio::balloon::{BalloonConfig, BalloonError};

use super::driver::*;

const STATISTICS: usize = 2;

fn config(stats_polling_interval_s: u16) -> BalloonConfig {
    BalloonConfig {
        stats_polling_interval_s,
        ..BalloonConfig::default()
    }
}

fn entries(entries: &[(u16, u64)]) -> Vec<u8> {
    let bytes = |(tag, value): &(u16, u64)| {
        let mut bytes = tag.to_le_bytes().to_vec();
        bytes.extend(value.to_le_bytes());
        bytes
    };
    entries.iter().flat_map(bytes).collect()
}

fn tell(guest: &mut Guest, bytes: &[u8]) -> u16 {
    let head = guest.driver.submit(STATISTICS, &[Buffer::Out(bytes)]);
    guest.driver.kick(STATISTICS);
    head
}

#[test]
fn the_guest_tells_at_once_and_then_at_each_interval() {
    let mut guest = Guest::new(config(1), STATS_VQ);
    assert_eq!(guest.handle.stats(), Some(Default::default()));
    let start = Instant::now();
    let head = tell(
        &mut guest,
        &entries(&[(4, 1 << 20), (5, 1 << 30), (15, 7), (99, 1)]),
    );
    let stats = guest.handle.stats().unwrap();
    assert_eq!(stats.free_memory, Some(1 << 20));
    assert_eq!(stats.total_memory, Some(1 << 30));
    assert_eq!(stats.direct_reclaim, Some(7));
    assert_eq!(stats.swap_in, None);
    assert!(
        guest.driver.used(STATISTICS).is_none(),
        "kept until the guest is to tell anew"
    );
    assert_eq!(guest.driver.wait_used(STATISTICS).head, head);
    assert!(start.elapsed() > Duration::from_millis(500));
    tell(&mut guest, &entries(&[(4, 5)]));
    let stats = guest.handle.stats().unwrap();
    assert_eq!((stats.free_memory, stats.total_memory), (Some(5), None));
    guest.driver.wait_used(STATISTICS);
    assert_eq!(load(&guest.handle.counters().stats_updates), 2);
}

#[test]
fn the_interval_changes_while_it_runs() {
    let mut guest = Guest::new(config(3600), STATS_VQ);
    tell(&mut guest, &entries(&[(4, 5)]));
    guest.handle.set_stats_polling_interval_s(1).unwrap();
    guest.driver.wait_used(STATISTICS);
    let refused = guest.handle.set_stats_polling_interval_s(0);
    assert!(matches!(refused, Err(BalloonError::StatisticsOff)));
}

#[test]
fn a_balloon_without_statistics_says_so() {
    let guest = Guest::new(config(0), 0);
    assert_eq!(guest.handle.stats(), None);
    let refused = guest.handle.set_stats_polling_interval_s(1);
    assert!(matches!(refused, Err(BalloonError::NoStatistics)));
    guest.handle.set_stats_polling_interval_s(0).unwrap();
}

#[test]
fn a_driver_that_does_not_know_of_statistics_is_not_asked() {
    let guest = Guest::new(config(1), 0);
    guest.handle.set_stats_polling_interval_s(2).unwrap();
    while guest.driver.run_backend(0) {}
    assert!(!guest.driver.run_backend(2_100));
}

#[test]
fn nonsense_is_taken_for_what_it_can_be() {
    let mut guest = Guest::new(config(3600), STATS_VQ);
    tell(&mut guest, &[]);
    tell(&mut guest, &[4, 0, 1]);
    tell(&mut guest, &vec![0xff; 70_000]);
    assert_eq!(guest.handle.stats(), Some(Default::default()));
    // One is kept, the others came back.
    assert!(guest.driver.used(STATISTICS).is_some());
    assert!(guest.driver.used(STATISTICS).is_some());
    assert!(guest.driver.used(STATISTICS).is_none());
}

#[test]
fn a_reset_device_forgets_and_is_quiet() {
    let mut guest = Guest::new(config(1), STATS_VQ);
    tell(&mut guest, &entries(&[(4, 5)]));
    guest.driver.reset();
    assert_eq!(guest.handle.stats(), Some(Default::default()));
    assert!(!guest.driver.run_backend(1_200));
    guest.driver.start(STATS_VQ);
    tell(&mut guest, &entries(&[(4, 6)]));
    assert_eq!(guest.handle.stats().unwrap().free_memory, Some(6));
    guest.driver.wait_used(STATISTICS);
}

#[test]
fn the_chain_in_hand_goes_back_into_the_ring_before_its_state_is_saved() {
    let mut guest = Guest::new(config(1), STATS_VQ);
    let head = tell(&mut guest, &entries(&[(4, 5)]));
    lock(&guest.driver.transport).device_mut().settle();
    guest.driver.kick(STATISTICS);
    assert_eq!(load(&guest.handle.counters().stats_updates), 2);
    assert_eq!(guest.driver.wait_used(STATISTICS).head, head);
    assert!(guest.driver.used(STATISTICS).is_none());
    assert!(!guest.driver.needs_reset());
}
