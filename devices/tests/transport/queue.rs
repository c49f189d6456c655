//! Walking a ring, also one that cannot be.

use tine_devices::testing::{Buffer, FakeDriver, MEMORY_LEN, RING_SIZE};
use virtio_bindings::virtio_ring::{
    VRING_DESC_F_INDIRECT, VRING_DESC_F_NEXT, VRING_DESC_F_WRITE, VRING_USED_F_NO_NOTIFY,
};
use vm_memory::{Bytes, GuestAddress};

use crate::probe::*;

/// Flags of the used ring of the first queue, where the fake driver puts it.
const USED_FLAGS: GuestAddress = GuestAddress(0x1_8000);
/// The available index from which the driver is to notify, behind the used ring.
const AVAIL_EVENT: GuestAddress = GuestAddress(0x1_8004 + RING_SIZE as u64 * 8);

fn word(guest: &FakeDriver, at: GuestAddress) -> u16 {
    guest.mem.read_obj(at).unwrap()
}

fn pop(probe: &Probe) -> Option<u16> {
    probe.queue(|queue| queue.pop().map(|chain| chain.head_index()))
}

/// The lengths of the next chain's descriptors.
fn lengths(probe: &Probe) -> Vec<u32> {
    probe.queue(|queue| {
        let chain = queue.pop().expect("a chain");
        chain.map(|descriptor| descriptor.len()).collect()
    })
}

fn serve(probe: &Probe) -> usize {
    let mut served = 0;
    probe.queue(|queue| {
        queue.drain(|queue, chain| {
            queue.push_used(chain.head_index(), 0);
            served += 1;
            true
        });
        queue.notify();
    });
    served
}

#[test]
fn chains_come_in_order_and_once() {
    let (mut guest, probe) = Probe::started(0);
    assert_eq!(pop(&probe), None);
    let heads = [1, 2, 3].map(|len| guest.submit(0, &[Buffer::In(len)]));
    assert_eq!([pop(&probe), pop(&probe), pop(&probe)], heads.map(Some));
    assert_eq!(pop(&probe), None);
    probe.queue(|queue| queue.push_used(heads[1], 2));
    let used = guest.used(0).unwrap();
    assert_eq!((used.head, used.len), (heads[1], 2));
    assert_eq!(guest.used(0), None);
}

#[test]
fn a_chain_put_back_comes_again() {
    let (mut guest, probe) = Probe::started(0);
    let heads = [1, 2].map(|len| guest.submit(0, &[Buffer::In(len)]));
    assert_eq!(pop(&probe), Some(heads[0]));
    probe.queue(|queue| queue.undo_pop());
    assert_eq!([pop(&probe), pop(&probe)], heads.map(Some));
}

#[test]
fn indices_wrap_around() {
    for features in [0, EVENT_IDX] {
        let (mut guest, probe) = Probe::started(features);
        let mut served = 0;
        for round in 0..3000u32 {
            let count = round % 40 + 1;
            for _ in 0..count {
                guest.submit(0, &[Buffer::In(1)]);
            }
            assert_eq!(serve(&probe), count as usize);
            for _ in 0..count {
                assert!(guest.used(0).is_some());
            }
            served += count;
        }
        assert!(served > 60_000);
        assert!(!guest.needs_reset());
    }
}

#[test]
fn an_impossible_available_index_breaks_the_queue_until_a_reset() {
    for ahead in [RING_SIZE + 1, 1000, u16::MAX] {
        let (mut guest, probe) = Probe::started(0);
        guest.submit(0, &[Buffer::In(1)]);
        assert_eq!(serve(&probe), 1);
        let interrupts = guest.irq.count();
        guest.set_available_index(0, 1u16.wrapping_add(ahead));
        assert_eq!(serve(&probe), 0);
        assert!(guest.needs_reset(), "{ahead}");
        assert_eq!(guest.irq.count(), interrupts + 1, "once");
        // Nothing more of it is looked at, nor written to.
        guest.set_available_index(0, 2);
        assert_eq!((pop(&probe), serve(&probe)), (None, 0));
        probe.queue(|queue| {
            queue.push_used(0, 1);
            queue.notify();
        });
        guest.used(0);
        assert_eq!(guest.used(0), None);
        assert_eq!(guest.irq.count(), interrupts + 1);
        guest.reset();
        guest.start(0);
        guest.submit(0, &[Buffer::In(1)]);
        assert_eq!(serve(&probe), 1);
    }
}

#[test]
fn a_full_ring_is_possible() {
    let (guest, probe) = Probe::started(0);
    guest.set_available_index(0, RING_SIZE);
    assert_eq!(serve(&probe), usize::from(RING_SIZE));
    assert!(!guest.needs_reset());
}

#[test]
fn a_head_outside_the_table_is_an_empty_chain_and_cannot_be_used() {
    for head in [RING_SIZE, u16::MAX] {
        let (mut guest, probe) = Probe::started(0);
        guest.make_available(0, head);
        assert!(lengths(&probe).is_empty());
        probe.queue(|queue| queue.push_used(head, 0));
        assert!(guest.needs_reset());
        assert_eq!(guest.used(0), None);
    }
}

#[test]
fn a_loop_ends_within_the_length_of_the_ring() {
    const FLAGS: u16 = (VRING_DESC_F_NEXT | VRING_DESC_F_WRITE) as u16;
    let (mut guest, probe) = Probe::started(0);
    for cycle in 1..4u16 {
        for index in 0..cycle {
            guest.set_descriptor(0, index, 0x1000, 1, FLAGS, (index + 1) % cycle);
        }
        guest.make_available(0, 0);
        assert_eq!(lengths(&probe).len(), usize::from(RING_SIZE));
    }
}

#[test]
fn a_chain_that_leaves_the_table_ends_there() {
    let (mut guest, probe) = Probe::started(0);
    for next in [RING_SIZE, u16::MAX] {
        guest.set_descriptor(0, 0, 0x1000, 7, VRING_DESC_F_NEXT as u16, next);
        guest.make_available(0, 0);
        assert_eq!(lengths(&probe), [7]);
    }
}

#[test]
fn an_indirect_table_is_walked_and_a_bad_one_is_not() {
    const INDIRECT: u16 = VRING_DESC_F_INDIRECT as u16;
    let (mut guest, probe) = Probe::started(0);
    let chain: Vec<_> = (1..=100).map(Buffer::In).collect();
    guest.submit_indirect(0, &chain);
    assert_eq!(lengths(&probe), (1..=100).collect::<Vec<u32>>());
    for (addr, len) in [
        (0x1000, 0),
        (0x1000, 17),
        (0x1000, 0x10_0000),
        (MEMORY_LEN as u64 - 8, 16),
        (u64::MAX - 7, 16),
        (0xffff_ffff_ffff_ff00, 512),
    ] {
        let flags = INDIRECT;
        guest.submit(0, &[Buffer::Raw { addr, len, flags }]);
        assert!(lengths(&probe).is_empty(), "{addr:#x}+{len}");
    }
    // A table in a table, and a loop in a table.
    let (addr, len, flags) = (0x1000, 16, INDIRECT);
    guest.submit_indirect(0, &[Buffer::In(5), Buffer::Raw { addr, len, flags }]);
    assert_eq!(lengths(&probe), [5]);
    let mut looping = 0x2000u64.to_le_bytes().to_vec();
    looping.extend(1u32.to_le_bytes());
    looping.extend([VRING_DESC_F_NEXT as u8, 0, 0, 0]);
    guest
        .mem
        .write_slice(&looping, GuestAddress(0x1000))
        .unwrap();
    guest.submit(0, &[Buffer::Raw { addr, len, flags }]);
    assert_eq!(lengths(&probe), [1]);
    assert!(!guest.needs_reset());
}

#[test]
fn nothing_used_is_nothing_to_interrupt_for() {
    let (mut guest, probe) = Probe::started(0);
    guest.submit(0, &[Buffer::In(1)]);
    pop(&probe);
    probe.queue(|queue| queue.notify());
    assert_eq!(guest.irq.count(), 0);
    probe.queue(|queue| {
        queue.push_used(0, 1);
        queue.notify();
        queue.notify();
    });
    assert_eq!(guest.irq.count(), 1);
}

#[test]
fn the_driver_is_not_to_notify_while_the_queue_is_drained() {
    let (mut guest, probe) = Probe::started(0);
    guest.submit(0, &[Buffer::In(1)]);
    probe.queue(|queue| {
        queue.drain(|_, _| {
            assert_eq!(word(&guest, USED_FLAGS), VRING_USED_F_NO_NOTIFY as u16);
            true
        });
    });
    assert_eq!(word(&guest, USED_FLAGS), 0);
}

#[test]
fn a_drain_that_stops_lets_the_driver_notify_again() {
    for features in [0, EVENT_IDX] {
        let (mut guest, probe) = Probe::started(features);
        for _ in 0..3 {
            guest.submit(0, &[Buffer::In(1)]);
        }
        probe.queue(|queue| {
            queue.drain(|queue, _| {
                queue.undo_pop();
                false
            });
        });
        assert_eq!(word(&guest, USED_FLAGS), 0);
        assert_eq!(word(&guest, AVAIL_EVENT), 0);
        assert_eq!(serve(&probe), 3);
        let expected = if features == EVENT_IDX { 3 } else { 0 };
        assert_eq!(word(&guest, AVAIL_EVENT), expected);
    }
}

#[test]
fn a_chain_that_comes_at_the_last_moment_is_not_missed() {
    for features in [0, EVENT_IDX] {
        let (mut guest, probe) = Probe::started(features);
        guest.submit(0, &[Buffer::In(1)]);
        let mut seen = 0;
        probe.queue(|queue| {
            queue.drain(|_, _| {
                seen += 1;
                if seen < 10 {
                    guest.submit(0, &[Buffer::In(1)]);
                }
                true
            });
        });
        assert_eq!(seen, 10);
    }
}
