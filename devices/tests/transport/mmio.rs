//! The registers: what a driver finds, and what a hostile one cannot do with them.

use proptest::prelude::*;
use tine_devices::bus::{BusDeviceMut, lock};
use tine_devices::testing::{FakeDriver, MEMORY_LEN};
use virtio_bindings::virtio_mmio::*;

use crate::probe::*;

const RUNNING: u32 = 15;
const NEEDS_RESET: u32 = 64;
const FAILED: u32 = 128;

/// Brings the device to where its rings can be set up.
fn negotiate(guest: &FakeDriver, features: u64) {
    for status in [1, 3] {
        guest.set_register(VIRTIO_MMIO_STATUS, status);
    }
    set_features(guest, features);
    guest.set_register(VIRTIO_MMIO_STATUS, 11);
}

fn set_features(guest: &FakeDriver, features: u64) {
    for (half, value) in [(0, features as u32), (1, (features >> 32) as u32)] {
        guest.set_register(VIRTIO_MMIO_DRIVER_FEATURES_SEL, half);
        guest.set_register(VIRTIO_MMIO_DRIVER_FEATURES, value);
    }
}

const VERSION_1: u64 = 1 << 32;

#[test]
fn a_driver_finds_what_it_looks_for() {
    let (guest, _) = Probe::guest();
    assert_eq!(guest.register(VIRTIO_MMIO_MAGIC_VALUE), 0x7472_6976);
    assert_eq!(guest.register(VIRTIO_MMIO_VERSION), 2);
    assert_eq!(guest.register(VIRTIO_MMIO_DEVICE_ID), 42);
    assert_eq!(guest.register(VIRTIO_MMIO_STATUS), 0);
    let features = |half| {
        guest.set_register(VIRTIO_MMIO_DEVICE_FEATURES_SEL, half);
        guest.register(VIRTIO_MMIO_DEVICE_FEATURES)
    };
    assert_eq!(features(0), (ODD_FEATURE | EVENT_IDX) as u32);
    assert_eq!(features(1), ((HIGH_FEATURE | VERSION_1) >> 32) as u32);
    assert_eq!((features(2), features(u32::MAX)), (0, 0));
    let most = |queue| {
        guest.set_register(VIRTIO_MMIO_QUEUE_SEL, queue);
        guest.register(VIRTIO_MMIO_QUEUE_NUM_MAX)
    };
    assert_eq!([0, 1, 2, u32::MAX].map(most), [64, 256, 0, 0]);
    assert_eq!(guest.register(VIRTIO_MMIO_SHM_LEN_LOW), u32::MAX);
}

#[test]
fn the_configuration_space_reads_in_any_width_and_ends() {
    let (guest, probe) = Probe::guest();
    assert_eq!(guest.config(0), CONFIG);
    assert_eq!(guest.config(1), [b'o']);
    assert_eq!(guest.config(4), [b'i', b'g', 0, 0]);
    assert_eq!(guest.config(6), [0u8; 8]);
    assert_eq!(guest.config(0xeff), [0u8; 1]);
    lock(&guest.transport).write(0x102, &[1, 2]);
    assert_eq!(probe.record().config_writes, [(2, vec![1, 2])]);
}

#[test]
fn registers_are_accessed_whole_or_not_at_all() {
    let (guest, _) = Probe::guest();
    let mut transport = lock(&guest.transport);
    for (offset, len) in [(0, 1), (0, 2), (0, 8), (1, 4), (2, 4), (0xff, 1)] {
        let mut data = vec![0xee; len];
        transport.read(offset, &mut data);
        assert_eq!(data, vec![0; len], "{offset}+{len}");
    }
    for data in [&[1][..], &[1, 0], &[1, 0, 0, 0, 0, 0, 0, 0]] {
        transport.write(u64::from(VIRTIO_MMIO_STATUS), data);
    }
    drop(transport);
    assert_eq!(guest.register(VIRTIO_MMIO_STATUS), 0);
}

#[test]
fn a_device_starts_with_what_was_agreed_on() {
    let (mut guest, probe) = Probe::guest();
    guest.start(HIGH_FEATURE | EVENT_IDX);
    let record = probe.record();
    let activation = record.activation.as_ref().unwrap();
    assert_eq!(activation.features, HIGH_FEATURE | EVENT_IDX | VERSION_1);
    assert_eq!(activation.queues.len(), 2);
    assert_eq!(record.activations, 1);
}

#[test]
fn features_that_were_not_offered_or_are_too_few_are_refused() {
    for features in [0, ODD_FEATURE, VERSION_1 | 1, VERSION_1 | 1 << 63, u64::MAX] {
        let (guest, _) = Probe::guest();
        negotiate(&guest, features);
        assert_eq!(guest.register(VIRTIO_MMIO_STATUS), 3, "{features:#x}");
        // It may try again with less.
        set_features(&guest, VERSION_1);
        guest.set_register(VIRTIO_MMIO_STATUS, 11);
        assert_eq!(guest.register(VIRTIO_MMIO_STATUS), 11);
    }
}

#[test]
fn features_are_settled_once_agreed_on() {
    let (guest, probe) = Probe::guest();
    negotiate(&guest, VERSION_1);
    set_features(&guest, u64::MAX);
    guest.set_register(VIRTIO_MMIO_STATUS, RUNNING);
    let record = probe.record();
    assert_eq!(record.activation.as_ref().unwrap().features, VERSION_1);
}

#[test]
fn a_step_out_of_order_is_not_made() {
    for path in [
        &[2][..],
        &[3],
        &[RUNNING],
        &[11],
        &[1, RUNNING],
        &[1, 11],
        &[1, 3, 7],
        &[1, 3, 2],
        &[1, 1, u32::MAX],
    ] {
        let (guest, probe) = Probe::guest();
        set_features(&guest, VERSION_1);
        for status in path {
            guest.set_register(VIRTIO_MMIO_STATUS, *status);
        }
        assert_ne!(guest.register(VIRTIO_MMIO_STATUS) & 4, 4, "{path:?}");
        assert_eq!(probe.record().activations, 0, "{path:?}");
    }
}

#[test]
fn a_device_starts_once() {
    let (guest, probe) = Probe::started(0);
    for status in [RUNNING, 11, 3, 1, RUNNING] {
        guest.set_register(VIRTIO_MMIO_STATUS, status);
    }
    assert_eq!(guest.register(VIRTIO_MMIO_STATUS), RUNNING);
    assert_eq!(probe.record().activations, 1);
    assert_eq!(probe.record().resets, 0);
}

#[test]
fn a_driver_that_gave_up_goes_nowhere_but_to_a_reset() {
    let (mut guest, probe) = Probe::guest();
    negotiate(&guest, VERSION_1);
    guest.set_register(VIRTIO_MMIO_STATUS, FAILED);
    guest.set_register(VIRTIO_MMIO_STATUS, RUNNING);
    guest.set_register(VIRTIO_MMIO_QUEUE_SEL, 0);
    guest.set_register(VIRTIO_MMIO_QUEUE_READY, 1);
    assert_eq!(guest.register(VIRTIO_MMIO_QUEUE_READY), 0);
    assert_eq!(guest.register(VIRTIO_MMIO_STATUS), 11 | FAILED);
    assert_eq!(probe.record().activations, 0);
    guest.reset();
    guest.start(0);
}

#[test]
fn rings_are_set_up_between_agreement_and_start_only() {
    let (guest, probe) = Probe::guest();
    let ready = |guest: &FakeDriver| {
        guest.set_register(VIRTIO_MMIO_QUEUE_SEL, 0);
        guest.set_register(VIRTIO_MMIO_QUEUE_READY, 1);
        guest.register(VIRTIO_MMIO_QUEUE_READY)
    };
    assert_eq!(ready(&guest), 0);
    negotiate(&guest, VERSION_1);
    guest.set_register(VIRTIO_MMIO_STATUS, RUNNING);
    assert_eq!(ready(&guest), 0);
    // A device without a queue is of no use, and no harm.
    assert!(probe.queue(|queue| queue.pop().is_none()));
    probe.queue(|queue| queue.drain(|_, _| panic!("a chain from nowhere")));
}

#[test]
fn a_ring_that_is_ready_keeps_its_place() {
    let (guest, probe) = Probe::guest();
    negotiate(&guest, VERSION_1);
    let registers = [
        VIRTIO_MMIO_QUEUE_DESC_LOW,
        VIRTIO_MMIO_QUEUE_AVAIL_LOW,
        VIRTIO_MMIO_QUEUE_USED_LOW,
    ];
    for (at, register) in registers.into_iter().enumerate() {
        guest.set_register(register, 0x1000 * (at as u32 + 1));
    }
    guest.set_register(VIRTIO_MMIO_QUEUE_NUM, 16);
    guest.set_register(VIRTIO_MMIO_QUEUE_READY, 1);
    for register in registers {
        guest.set_register(register, 0x8000);
    }
    guest.set_register(VIRTIO_MMIO_QUEUE_NUM, 32);
    guest.set_register(VIRTIO_MMIO_STATUS, RUNNING);
    use virtio_queue::QueueT;
    let place = probe.queue(|queue| {
        let ring = queue.ring();
        (
            ring.desc_table(),
            ring.avail_ring(),
            ring.used_ring(),
            ring.size(),
        )
    });
    assert_eq!(place, (0x1000, 0x2000, 0x3000, 16));
}

#[test]
fn impossible_queue_sizes_are_not_taken() {
    for size in [0, 3, 63, 65, 128, 0x1_0000, 0x1_0040, u32::MAX] {
        let (guest, probe) = Probe::guest();
        negotiate(&guest, VERSION_1);
        guest.set_register(VIRTIO_MMIO_QUEUE_NUM, size);
        guest.set_register(VIRTIO_MMIO_STATUS, RUNNING);
        use virtio_queue::QueueT;
        assert_eq!(probe.queue(|queue| queue.ring().size()), 64, "{size}");
    }
}

#[test]
fn a_ring_outside_memory_asks_for_a_reset_and_starts_nothing() {
    let end = MEMORY_LEN as u64;
    for (low, high) in [
        (VIRTIO_MMIO_QUEUE_DESC_LOW, VIRTIO_MMIO_QUEUE_DESC_HIGH),
        (VIRTIO_MMIO_QUEUE_AVAIL_LOW, VIRTIO_MMIO_QUEUE_AVAIL_HIGH),
        (VIRTIO_MMIO_QUEUE_USED_LOW, VIRTIO_MMIO_QUEUE_USED_HIGH),
    ] {
        for addr in [end, end - 16, 1 << 32, u64::MAX << 32, u64::MAX - 15] {
            let (mut guest, probe) = Probe::guest();
            negotiate(&guest, VERSION_1);
            for other in [
                VIRTIO_MMIO_QUEUE_DESC_LOW,
                VIRTIO_MMIO_QUEUE_AVAIL_LOW,
                VIRTIO_MMIO_QUEUE_USED_LOW,
            ] {
                guest.set_register(other, 0x1_0000);
            }
            guest.set_register(low, addr as u32);
            guest.set_register(high, (addr >> 32) as u32);
            guest.set_register(VIRTIO_MMIO_QUEUE_READY, 1);
            guest.set_register(VIRTIO_MMIO_STATUS, RUNNING);
            assert!(guest.needs_reset(), "{addr:#x}");
            assert_eq!(probe.record().activations, 0);
            // The driver is told, and nothing but a reset is taken from it.
            assert_eq!(guest.irq.count(), 1);
            assert_eq!(guest.register(VIRTIO_MMIO_INTERRUPT_STATUS), 2);
            guest.set_register(VIRTIO_MMIO_STATUS, RUNNING);
            assert_eq!(probe.record().activations, 0);
            guest.reset();
            assert_eq!(guest.register(VIRTIO_MMIO_STATUS), 0);
            assert_eq!(guest.register(VIRTIO_MMIO_INTERRUPT_STATUS), 0);
            guest.start(0);
        }
    }
}

#[test]
fn a_device_that_does_not_start_asks_for_a_reset() {
    let (mut guest, probe) = Probe::guest();
    probe.record().refuses = true;
    negotiate(&guest, VERSION_1);
    guest.set_register(VIRTIO_MMIO_STATUS, RUNNING);
    assert_eq!(guest.register(VIRTIO_MMIO_STATUS), RUNNING | NEEDS_RESET);
    probe.record().refuses = false;
    guest.reset();
    guest.start(0);
    assert!(!guest.needs_reset());
}

#[test]
fn a_reset_forgets_everything_and_stops_an_active_device_once() {
    let (mut guest, probe) = Probe::started(ODD_FEATURE);
    guest.set_register(VIRTIO_MMIO_QUEUE_SEL, 1);
    guest.set_register(VIRTIO_MMIO_DEVICE_FEATURES_SEL, 1);
    guest.reset();
    guest.reset();
    assert_eq!(probe.record().resets, 1);
    assert_eq!(guest.register(VIRTIO_MMIO_STATUS), 0);
    assert_eq!(guest.register(VIRTIO_MMIO_QUEUE_NUM_MAX), 64);
    assert_eq!(guest.register(VIRTIO_MMIO_QUEUE_READY), 0);
    guest.set_register(VIRTIO_MMIO_STATUS, 1);
    guest.set_register(VIRTIO_MMIO_STATUS, 3);
    guest.set_register(VIRTIO_MMIO_STATUS, 11);
    let status = guest.register(VIRTIO_MMIO_STATUS);
    assert_eq!(status, 3, "the features agreed on before are forgotten");
    guest.reset();
    guest.start(0);
    let record = probe.record();
    assert_eq!(record.activation.as_ref().unwrap().features, VERSION_1);
    assert_eq!((record.activations, record.resets), (2, 1));
}

#[test]
fn a_notification_reaches_its_queues_event() {
    let (guest, _) = Probe::started(0);
    let events = lock(&guest.transport).queue_events().to_vec();
    for queue in [1, 1, 2, u32::MAX] {
        guest.set_register(VIRTIO_MMIO_QUEUE_NOTIFY, queue);
    }
    assert!(events[0].read().is_err());
    assert_eq!(events[1].read().unwrap(), 2);
}

#[test]
fn causes_stay_until_they_are_acknowledged() {
    let (guest, probe) = Probe::started(0);
    let interrupt = {
        let record = probe.record();
        record.activation.as_ref().unwrap().interrupt.clone()
    };
    let generation = guest.register(VIRTIO_MMIO_CONFIG_GENERATION);
    interrupt.used_buffers();
    interrupt.config_changed();
    assert_eq!(guest.irq.count(), 2);
    assert_eq!(guest.register(VIRTIO_MMIO_INTERRUPT_STATUS), 3);
    assert_ne!(guest.register(VIRTIO_MMIO_CONFIG_GENERATION), generation);
    guest.set_register(VIRTIO_MMIO_INTERRUPT_ACK, 1);
    assert_eq!(guest.register(VIRTIO_MMIO_INTERRUPT_STATUS), 2);
    guest.set_register(VIRTIO_MMIO_INTERRUPT_ACK, u32::MAX);
    assert_eq!(guest.register(VIRTIO_MMIO_INTERRUPT_STATUS), 0);
}

const WRITABLE: [u32; 11] = [
    VIRTIO_MMIO_DRIVER_FEATURES,
    VIRTIO_MMIO_DRIVER_FEATURES_SEL,
    VIRTIO_MMIO_QUEUE_SEL,
    VIRTIO_MMIO_QUEUE_NUM,
    VIRTIO_MMIO_QUEUE_READY,
    VIRTIO_MMIO_QUEUE_NOTIFY,
    VIRTIO_MMIO_STATUS,
    VIRTIO_MMIO_QUEUE_DESC_LOW,
    VIRTIO_MMIO_QUEUE_AVAIL_LOW,
    VIRTIO_MMIO_QUEUE_USED_LOW,
    VIRTIO_MMIO_QUEUE_USED_HIGH,
];

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// Any registers in any order: no panic, and a reset makes everything good.
    #[test]
    fn no_order_of_accesses_does_harm(
        accesses in prop::collection::vec(
            (
                prop_oneof![
                    6 => prop::sample::select(&WRITABLE[..]).prop_map(u64::from),
                    1 => 0..0x200u64,
                ],
                prop_oneof![
                    Just(0u64), Just(1), Just(3), Just(11), Just(15), Just(64), any::<u64>(),
                    (0..0x400u64).prop_map(|page| page << 12),
                ],
                prop_oneof![8 => Just(4usize), 1 => 0..9usize],
                any::<bool>(),
            ),
            0..200,
        ),
        negotiated in any::<bool>(),
    ) {
        let (mut guest, probe) = Probe::guest();
        if negotiated {
            negotiate(&guest, VERSION_1 | EVENT_IDX);
        }
        for (offset, value, len, write) in accesses {
            let mut data = value.to_le_bytes();
            let data = &mut data[..len.min(8)];
            let mut transport = lock(&guest.transport);
            match write {
                true => transport.write(offset, data),
                false => transport.read(offset, data),
            }
            drop(transport);
            if probe.record().activation.is_some() {
                probe.queue(|queue| queue.drain(|queue, chain| {
                    let head = chain.head_index();
                    chain.for_each(drop);
                    queue.push_used(head, 0);
                    queue.notify();
                    true
                }));
            }
        }
        guest.reset();
        guest.start(0);
        prop_assert!(!guest.needs_reset());
    }
}
