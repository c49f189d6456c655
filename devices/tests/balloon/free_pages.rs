//! Free page reporting and hinting.

use tine_devices::testing::Buffer;
use tine_devices::virtio::balloon::{BalloonConfig, BalloonError};
use virtio_bindings::virtio_mmio::VIRTIO_MMIO_INTERRUPT_STATUS;

use super::driver::*;

const STOP: u32 = 0;
const DONE: u32 = 1;

fn config(stats: u16, reporting: bool, hinting: bool) -> BalloonConfig {
    BalloonConfig {
        amount_mib: 0,
        deflate_on_oom: false,
        stats_polling_interval_s: stats,
        free_page_reporting: reporting,
        free_page_hinting: hinting,
    }
}

fn answer(guest: &mut Guest, queue: usize, command: u32) {
    guest.exchange(queue, &[Buffer::Out(&command.to_le_bytes())]);
}

#[test]
fn reported_blocks_go_back_to_the_host() {
    let mut guest = Guest::new(config(0, true, false), REPORTING);
    guest.exchange(2, &[block(512, 512), block(1024, 512), block(4096, 1)]);
    assert_eq!(guest.host.take(), [(512, 1024), (4096, 1)]);
    assert_eq!(load(&guest.handle.counters().reported_bytes), 1025 * 4096);
}

#[test]
fn queues_of_features_not_agreed_on_do_not_count() {
    for features in [0, STATS_VQ, FREE_PAGE_HINT, STATS_VQ | FREE_PAGE_HINT] {
        let mut guest = Guest::new(config(1, true, true), features | REPORTING);
        let queue = 2 + features.count_ones() as usize;
        guest.exchange(queue, &[block(512, 512)]);
        assert_eq!(guest.host.take(), [(512, 512)], "{features:#x}");
        guest.driver.kick(queue + 1);
    }
}

#[test]
fn hints_are_taken_during_a_run_and_only_then() {
    let mut guest = Guest::new(config(0, false, true), FREE_PAGE_HINT);
    guest.exchange(2, &[block(512, 512)]);
    assert_eq!(guest.host.take(), []);

    guest.handle.start_hinting(false).unwrap();
    assert!(guest.driver.run_backend(1000));
    assert_eq!(guest.driver.register(VIRTIO_MMIO_INTERRUPT_STATUS) & 2, 2);
    let run = guest.word(8);
    assert!(run > DONE);
    guest.exchange(2, &[block(512, 512)]);
    assert_eq!(guest.host.take(), [], "the guest is not at this run yet");
    answer(&mut guest, 2, run);
    guest.exchange(2, &[block(1024, 1024)]);
    guest.exchange(2, &[block(4096, 1024)]);
    assert_eq!(guest.host.take(), [(1024, 1024), (4096, 1024)]);
    answer(&mut guest, 2, STOP);
    let status = guest.handle.hinting_status().unwrap();
    assert_eq!((status.host_cmd, status.guest_cmd), (run, Some(STOP)));

    guest.handle.stop_hinting().unwrap();
    assert!(guest.driver.run_backend(1000));
    assert_eq!(guest.word(8), DONE);
    answer(&mut guest, 2, run);
    guest.exchange(2, &[block(1024, 1024)]);
    assert_eq!(guest.host.take(), [], "these may be in use already");
    assert_eq!(load(&guest.handle.counters().hinted_bytes), 2048 * 4096);
}

#[test]
fn a_run_may_end_by_itself() {
    let mut guest = Guest::new(config(0, false, true), FREE_PAGE_HINT);
    let mut last = 0;
    for _ in 0..3 {
        guest.handle.start_hinting(true).unwrap();
        while guest.driver.run_backend(0) {}
        let run = guest.word(8);
        assert!(run > last && run > DONE);
        last = run;
        answer(&mut guest, 2, run);
        guest.exchange(2, &[block(1024, 1)]);
        answer(&mut guest, 2, STOP);
        assert_eq!(guest.word(8), DONE);
    }
    assert_eq!(guest.host.take(), [(1024, 1); 3]);
}

#[test]
fn hinting_that_is_not_to_be_had_is_refused_with_the_reason() {
    let guest = Guest::new(config(0, false, false), 0);
    assert!(matches!(
        guest.handle.start_hinting(true),
        Err(BalloonError::NoHinting)
    ));
    assert!(matches!(
        guest.handle.hinting_status(),
        Err(BalloonError::NoHinting)
    ));
    let mut guest = Guest::new(config(0, false, true), 0);
    let refused = guest.handle.start_hinting(true);
    assert!(matches!(refused, Err(BalloonError::HintingUnavailable)));
    guest.driver.reset();
    guest.driver.start(FREE_PAGE_HINT);
    guest.handle.start_hinting(true).unwrap();
    guest.driver.reset();
    assert!(!guest.driver.run_backend(0));
    assert!(guest.handle.stop_hinting().is_err());
    guest.driver.start(FREE_PAGE_HINT);
    assert_eq!(guest.word(8), STOP, "a new driver starts anew");
}
