//! Inflating and deflating.

use std::sync::Arc;

use tine_devices::testing::{Buffer, FakeDriver};
use tine_devices::virtio::balloon::{
    Balloon, BalloonConfig, BalloonError, CHAINS_PER_EVENT, PAGES_PER_CHAIN,
};
use virtio_bindings::virtio_mmio::*;

use super::driver::*;

fn config(amount_mib: u32) -> BalloonConfig {
    BalloonConfig {
        amount_mib,
        ..BalloonConfig::default()
    }
}

#[test]
fn pages_go_back_joined_where_they_are_adjacent() {
    let mut guest = Guest::new(config(0), 0);
    guest.pages(INFLATE, &[900, 17, 16, 15, 14, 100, 102, 101, 901, 15]);
    assert_eq!(guest.host.take(), [(14, 4), (100, 3), (900, 2)]);
    assert_eq!(load(&guest.handle.counters().inflated_pages), 10);
    assert_eq!(load(&guest.handle.counters().reclaims), 3);
    assert_eq!(guest.driver.irq.count(), 1);
}

#[test]
fn a_list_of_pages_may_be_cut_into_buffers_in_any_way() {
    let mut guest = Guest::new(config(0), 0);
    let bytes: Vec<u8> = (500u32..600).flat_map(u32::to_le_bytes).collect();
    let cut = [&bytes[..1], &bytes[1..6], &bytes[6..6], &bytes[6..]].map(Buffer::Out);
    guest.exchange(INFLATE, &cut);
    assert_eq!(guest.host.take(), [(500, 100)]);
}

#[test]
fn pages_taken_back_are_left_alone() {
    let mut guest = Guest::new(config(0), 0);
    guest.pages(DEFLATE, &[500, 501, 502]);
    assert_eq!(guest.host.take(), []);
    assert_eq!(load(&guest.handle.counters().deflated_pages), 3);
}

#[test]
fn the_guest_is_told_of_a_new_target_and_tells_how_far_it_is() {
    let guest = Guest::new(config(16), 0);
    assert_eq!((guest.word(0), guest.word(4)), (16 * 256, 0));
    guest.handle.set_target_mib(64).unwrap();
    assert!(guest.driver.run_backend(1000));
    assert_eq!(guest.driver.register(VIRTIO_MMIO_INTERRUPT_STATUS), 2);
    assert_eq!(guest.word(0), 64 * 256);
    assert_eq!(guest.handle.config().amount_mib, 64);
    guest.driver.set_register(VIRTIO_MMIO_CONFIG + 4, 10_000);
    assert_eq!(guest.handle.actual_pages(), 10_000);
    assert_eq!(guest.handle.actual_mib(), 39);
    assert_eq!(guest.word(4), 10_000);
    // Nothing else is the driver's to write.
    guest.driver.set_register(VIRTIO_MMIO_CONFIG, 1);
    guest.driver.set_register(VIRTIO_MMIO_CONFIG + 8, 1);
    guest.driver.set_register(VIRTIO_MMIO_CONFIG + 0x800, 1);
    assert_eq!((guest.word(0), guest.word(8)), (64 * 256, 0));
    assert!(!guest.driver.run_backend(0));
}

#[test]
fn a_target_set_before_the_driver_runs_is_there_when_it_does() {
    let balloon = Balloon::new(&config(1), Arc::new(Notes::default())).unwrap();
    let handle = balloon.handle();
    let mut driver = FakeDriver::new(balloon);
    handle.set_target_mib(2).unwrap();
    assert!(!driver.run_backend(0), "quiet while no driver runs");
    driver.start(0);
    assert_eq!(driver.config(0), 512u32.to_le_bytes());
    assert!(!driver.run_backend(0));
    assert_eq!(driver.irq.count(), 0);
}

#[test]
fn a_balloon_larger_than_any_machine_is_refused() {
    let host = Arc::new(Notes::default());
    let refused = Balloon::new(&config(1 << 24), host).err().unwrap();
    assert!(matches!(refused, BalloonError::Amount { .. }), "{refused}");
    let guest = Guest::new(config(1), 0);
    assert!(guest.handle.set_target_mib(u32::MAX).is_err());
    assert_eq!(guest.word(0), 256);
}

#[test]
fn features_are_offered_as_configured() {
    let offered = |config| {
        let balloon = Balloon::new(&config, Arc::new(Notes::default())).unwrap();
        FakeDriver::new(balloon).register(VIRTIO_MMIO_DEVICE_FEATURES) & 0x3f
    };
    assert_eq!(offered(config(0)), 0);
    let all = BalloonConfig {
        amount_mib: 0,
        deflate_on_oom: true,
        stats_polling_interval_s: 1,
        free_page_reporting: true,
        free_page_hinting: true,
    };
    let expected = STATS_VQ | DEFLATE_ON_OOM | FREE_PAGE_HINT | REPORTING;
    assert_eq!(u64::from(offered(all)), expected);
}

#[test]
fn a_host_that_cannot_take_memory_back_is_counted_and_no_harm() {
    let host = Arc::new(Notes {
        fails: true,
        ..Notes::default()
    });
    let (driver, handle) = guest(config(0), 0, host.clone());
    let mut guest = Guest {
        driver,
        handle,
        host,
    };
    guest.pages(INFLATE, &[500, 600]);
    assert_eq!(load(&guest.handle.counters().reclaim_errors), 2);
    guest.pages(INFLATE, &[700]);
    assert_eq!(guest.host.take().len(), 3);
}

#[test]
fn many_chains_are_served_in_turns() {
    let mut guest = Guest::new(config(0), 0);
    for page in 0..3 * CHAINS_PER_EVENT as u32 {
        let bytes = (1000 + 2 * page).to_le_bytes();
        guest.driver.submit(INFLATE, &[Buffer::Out(&bytes)]);
    }
    guest.driver.kick(INFLATE);
    assert_eq!(guest.host.take().len(), CHAINS_PER_EVENT);
    while guest.driver.run_backend(0) {}
    assert_eq!(guest.host.take().len(), 2 * CHAINS_PER_EVENT);
}

#[test]
fn a_long_list_is_looked_at_up_to_the_bound() {
    let mut guest = Guest::new(config(0), 0);
    let pages: Vec<u32> = (0..PAGES_PER_CHAIN as u32 + 10)
        .map(|n| 1000 + 2 * n)
        .collect();
    guest.pages(INFLATE, &pages);
    assert_eq!(guest.host.take().len(), PAGES_PER_CHAIN);
}

#[test]
fn configuration_is_that_of_the_api_and_refuses_unknown_fields() {
    let text = r#"{"amount_mib":5,"deflate_on_oom":true}"#;
    let config: BalloonConfig = serde_json::from_str(text).unwrap();
    assert_eq!((config.amount_mib, config.stats_polling_interval_s), (5, 0));
    for text in [
        r#"{"amount_mib":5}"#,
        r#"{"amount_mib":5,"deflate_on_oom":true,"x":1}"#,
    ] {
        assert!(serde_json::from_str::<BalloonConfig>(text).is_err());
    }
}
