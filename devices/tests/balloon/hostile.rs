//! Drivers that lie.

use proptest::prelude::*;
use tine_devices::testing::{Buffer, MEMORY_LEN};
use tine_devices::virtio::balloon::{BalloonConfig, PAGE};

use super::driver::*;

const PAGES: u64 = MEMORY_LEN as u64 / PAGE;

fn all() -> BalloonConfig {
    BalloonConfig {
        amount_mib: 1,
        deflate_on_oom: true,
        stats_polling_interval_s: 3600,
        free_page_reporting: true,
        free_page_hinting: true,
    }
}

const FEATURES: u64 = STATS_VQ | DEFLATE_ON_OOM | FREE_PAGE_HINT | REPORTING;

#[test]
fn pages_outside_of_memory_are_counted_and_left_out() {
    let mut guest = Guest::new(all(), FEATURES);
    let end = PAGES as u32;
    guest.pages(INFLATE, &[end - 1, end, end + 1, u32::MAX, 1 << 20, 3000]);
    assert_eq!(guest.host.take(), [(3000, 1), (u64::from(end) - 1, 1)]);
    assert_eq!(load(&guest.handle.counters().bad_pages), 4);
}

#[test]
fn blocks_that_are_no_pages_or_no_memory_are_cut_or_left_out() {
    let mut guest = Guest::new(all(), FEATURES);
    let raw = |addr, len| Buffer::Raw {
        addr,
        len,
        flags: 2,
    };
    guest.exchange(4, &[raw(0x200_0800, 0x2000), raw(0x300_0001, 0xfff)]);
    assert_eq!(guest.host.take(), [(0x2001, 1)]);
    guest.exchange(4, &[raw((PAGES - 2) * PAGE, 0x10_0000)]);
    assert_eq!(guest.host.take(), [(PAGES - 2, 2)]);
    guest.exchange(4, &[raw(1 << 40, 0x1000), raw(u64::MAX - 0xfff, 0x2000)]);
    guest.exchange(4, &[Buffer::Out(&[0; 4096])]);
    assert_eq!(guest.host.take(), []);
}

#[test]
fn lists_that_cannot_be_read_come_back() {
    let mut guest = Guest::new(all(), FEATURES);
    let outside = || Buffer::Raw {
        addr: 1 << 40,
        len: 400,
        flags: 0,
    };
    guest.exchange(INFLATE, &[outside()]);
    guest.exchange(INFLATE, &[Buffer::Out(&3000u32.to_le_bytes()), outside()]);
    assert_eq!(guest.host.take(), [(3000, 1)]);
    guest.exchange(INFLATE, &[Buffer::In(400)]);
    guest.exchange(DEFLATE, &[outside()]);
    guest.exchange(3, &[outside()]);
    guest.exchange(3, &[Buffer::Out(&[2])]);
    assert_eq!(guest.host.take(), []);
    assert!(!guest.driver.needs_reset());
}

#[test]
fn an_impossible_ring_makes_the_device_ask_for_a_reset() {
    for queue in 0..5 {
        let mut guest = Guest::new(all(), FEATURES);
        guest.driver.set_available_index(queue, 0x8000);
        guest.driver.kick(queue);
        assert!(guest.driver.needs_reset());
        guest.driver.reset();
        guest.driver.start(FEATURES);
        guest.pages(INFLATE, &[3000]);
        assert_eq!(guest.host.take(), [(3000, 1)]);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn exactly_the_pages_named_go_back(pages in prop::collection::vec(0..40_000u32, 0..800)) {
        let mut guest = Guest::new(all(), FEATURES);
        guest.pages(INFLATE, &pages);
        let mut given: Vec<u64> = guest
            .host
            .take()
            .into_iter()
            .flat_map(|(start, count)| start..start + count)
            .collect();
        given.sort_unstable();
        let mut named: Vec<u64> = pages.into_iter().map(u64::from).filter(|p| *p < PAGES).collect();
        named.sort_unstable();
        named.dedup();
        prop_assert_eq!(given, named);
    }

    #[test]
    fn random_chains_harm_nobody(
        chains in prop::collection::vec((0..6usize, any::<u64>(), any::<u32>(), 0..4u16), 1..40),
    ) {
        let mut guest = Guest::new(all(), FEATURES);
        guest.handle.start_hinting(true).unwrap();
        while guest.driver.run_backend(0) {}
        for (queue, addr, len, flags) in chains {
            if queue < 5 {
                let addr = addr >> (addr % 48);
                let raw = Buffer::Raw { addr, len, flags: flags & 2 };
                guest.driver.submit(queue, &[Buffer::Out(&2u32.to_le_bytes()), raw]);
            }
            guest.driver.kick(queue);
        }
        while guest.driver.run_backend(0) {}
        for (start, count) in guest.host.take() {
            prop_assert!(start + count <= PAGES);
        }
    }
}
