//! The registers: what comes back, and what no snapshot can make of them.

use tine_devices::bus::lock;
use tine_devices::testing::MEMORY_LEN;
use virtio_bindings::virtio_mmio::*;
use virtio_queue::QueueT;

use crate::probe::{EVENT_IDX, HIGH_FEATURE, Probe};
use crate::registers::*;

fn refused(change: impl FnOnce(&mut Registers)) -> String {
    let mut registers = running();
    change(&mut registers);
    let (mut guest, probe, restored) = restore(&registers);
    assert_eq!(guest.register(VIRTIO_MMIO_STATUS), 0);
    assert!(probe.record().activation.is_none());
    guest.start(0);
    restored.unwrap_err().to_string()
}

#[test]
fn a_device_goes_on_with_the_features_and_the_places_that_it_had() {
    let (guest, probe, restored) = restore(&running());
    restored.unwrap();
    {
        let record = probe.record();
        let activation = record.activation.as_ref().unwrap();
        assert_eq!(activation.features, running().driver_features);
        for (queue, saved) in activation.queues.iter().zip(running().queues) {
            let ring = queue.ring();
            assert_eq!((ring.next_avail(), ring.next_used()), (3, 3));
            assert_eq!(ring.desc_table(), saved.descriptors);
            assert!(ring.event_idx_enabled());
        }
    }
    assert_eq!(guest.register(VIRTIO_MMIO_STATUS), 15);
    assert_eq!(guest.register(VIRTIO_MMIO_CONFIG_GENERATION), 7);
    assert_eq!(guest.register(VIRTIO_MMIO_QUEUE_NUM_MAX), 256);
    assert_eq!(guest.register(VIRTIO_MMIO_DEVICE_FEATURES), 0x101);
    assert_eq!(guest.save(NAME), sections(&running()));
}

#[test]
fn every_queue_is_looked_at_after_a_restore_and_after_a_save() {
    let (guest, probe, restored) = restore(&running());
    restored.unwrap();
    assert_eq!(guest.run_queue_events(), [0, 1]);
    guest.save(NAME);
    assert_eq!(probe.record().settled, 1);
    assert_eq!(guest.run_queue_events(), [0, 1]);
    assert_eq!(probe.record().processed, [0, 1, 0, 1]);
    let (guest, _) = Probe::guest();
    guest.save(NAME);
    assert!(guest.run_queue_events().is_empty(), "it is not active");
}

#[test]
fn an_interrupt_that_was_not_acknowledged_comes_again() {
    for (causes, raised) in [(0, 0), (1, 1), (2, 1), (3, 1)] {
        let registers = Registers {
            causes,
            ..running()
        };
        let (guest, _, restored) = restore(&registers);
        restored.unwrap();
        assert_eq!(guest.irq.count(), raised);
        assert_eq!(guest.register(VIRTIO_MMIO_INTERRUPT_STATUS), causes);
    }
}

#[test]
fn a_device_that_asked_for_a_reset_still_asks() {
    let registers = Registers {
        needs_reset: true,
        causes: 2,
        ..running()
    };
    let (mut guest, _, restored) = restore(&registers);
    restored.unwrap();
    assert!(guest.needs_reset());
    assert_eq!(guest.irq.count(), 1);
    guest.reset();
    guest.start(0);
    assert!(!guest.needs_reset());
}

#[test]
fn a_device_with_a_past_forgets_it() {
    let (guest, probe) = Probe::started(HIGH_FEATURE);
    lock(&guest.transport)
        .restore(NAME, &sections(&running()))
        .unwrap();
    let record = probe.record();
    assert_eq!((record.resets, record.activations), (1, 2));
}

#[test]
fn a_device_that_does_not_start_is_an_error() {
    let (guest, probe) = Probe::guest();
    probe.record().refuses = true;
    let restored = lock(&guest.transport).restore(NAME, &sections(&running()));
    let error = restored.unwrap_err().to_string();
    assert!(error.starts_with("section probe: "), "{error}");
    assert!(error.contains("it does not want to"), "{error}");
    assert_eq!(guest.register(VIRTIO_MMIO_STATUS), 0);
}

#[test]
fn a_section_that_is_not_there_is_named() {
    for (left, missing) in [(0, "probe/transport"), (1, "probe")] {
        let (guest, _) = Probe::guest();
        let only = [sections(&running()).remove(left)];
        let error = lock(&guest.transport).restore(NAME, &only).unwrap_err();
        let wanted = format!("no section {missing}:");
        assert!(error.to_string().contains(&wanted), "{error}");
    }
}

#[test]
fn what_no_driver_can_have_done_is_refused_by_name() {
    let end = MEMORY_LEN as u64;
    type Change = fn(&mut Registers);
    let changes: [(&str, Change); 18] = [
        ("type", |r| r.device_type = 1),
        ("status", |r| r.status = 2),
        ("status", |r| r.status = 15 | 64),
        ("status", |r| r.status = u32::MAX),
        ("causes", |r| r.causes = 4),
        ("driver_features", |r| r.driver_features = EVENT_IDX),
        ("features", |r| r.driver_features |= 1 << 7),
        ("number of queues", |r| r.queues.truncate(1)),
        ("number of queues", |r| r.queues.push(r.queues[0].clone())),
        ("queues[1].size", |r| r.queues[1].size = 512),
        ("queues[0].size", |r| r.queues[0].size = 48),
        ("queues[0].descriptors", |r| r.queues[0].descriptors += 8),
        ("queues[0].available", |r| r.queues[0].available += 1),
        ("queues[1].used", |r| r.queues[1].used += 2),
        ("queues[1].next_used", |r| r.queues[1].next_used += 1),
        ("queues[0].broken", |r| r.queues[0].broken = true),
        ("queues[0].ready", |r| r.status = 3),
        ("queues[0].next_available", |r| r.status = 11),
    ];
    for (field, change) in changes {
        let error = refused(change);
        assert!(error.starts_with("section probe/transport: "), "{error}");
        assert!(error.contains(field), "{field}: {error}");
    }
    for outside in [end, end - 16, 1 << 40, !0xfff] {
        let error = refused(|r| r.queues[1].descriptors = outside);
        assert!(error.contains("queues[1].ring"), "{error}");
        refused(|r| r.queues[1].available = outside);
        refused(|r| r.queues[1].used = outside);
    }
}

#[test]
fn what_a_driver_uses_and_the_device_lacks_is_named() {
    let error = refused(|r| r.driver_features |= 1 << 7 | 1 << 41);
    assert!(error.contains("without 0x20000000080"), "{error}");
    let before = Registers {
        status: 3,
        driver_features: u64::MAX,
        queues: running()
            .queues
            .into_iter()
            .map(|ring| Ring {
                ready: false,
                next_available: 0,
                next_used: 0,
                ..ring
            })
            .collect(),
        ..running()
    };
    let (guest, _, restored) = restore(&before);
    restored.unwrap();
    guest.set_register(VIRTIO_MMIO_STATUS, 11);
    let status = guest.register(VIRTIO_MMIO_STATUS);
    assert_eq!(status, 3, "they are refused when it is done asking");
}
