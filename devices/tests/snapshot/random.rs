//! The registers with any state at all.

use proptest::prelude::*;
use tine_devices::testing::MEMORY_LEN;

use crate::probe::EVENT_IDX;
use crate::registers::*;

fn ring() -> impl Strategy<Value = Ring> {
    let addr = prop_oneof![
        8 => (0..MEMORY_LEN as u64 / 0x1000).prop_map(|page| page * 0x1000),
        1 => any::<u64>(),
    ];
    let size = prop_oneof![8 => (0..9u32).prop_map(|n| 1 << n), 1 => any::<u16>()];
    let place = prop_oneof![
        8 => any::<u16>().prop_map(|n| (n, n)),
        1 => any::<(u16, u16)>(),
    ];
    let rare = prop::bool::weighted(0.1);
    let often = prop::bool::weighted(0.9);
    (size, often, [addr.clone(), addr.clone(), addr], place, rare).prop_map(
        |(size, ready, [descriptors, available, used], place, broken)| Ring {
            size,
            ready,
            descriptors,
            available,
            used,
            next_available: place.0,
            next_used: place.1,
            broken,
        },
    )
}

fn registers() -> impl Strategy<Value = Registers> {
    let status = prop_oneof![
        8 => Just(15u32), 4 => prop::sample::select(vec![0, 1, 3, 11, 143]), 1 => any::<u32>(),
    ];
    let features = prop_oneof![
        8 => Just(VERSION_1), 8 => Just(VERSION_1 | EVENT_IDX), 1 => any::<u64>(),
    ];
    let queues = prop_oneof![
        8 => prop::collection::vec(ring(), 2),
        1 => prop::collection::vec(ring(), 0..20),
    ];
    let words = any::<[u32; 4]>();
    (status, any::<bool>(), 0..5u32, words, features, queues).prop_map(
        |(status, needs_reset, causes, words, driver_features, queues)| Registers {
            device_type: 42,
            status,
            needs_reset,
            causes,
            config_generation: words[0],
            queue_select: words[1] & 3,
            device_features_select: words[2],
            driver_features_select: words[3],
            driver_features,
            queues,
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// Any state: it is taken, and is then the state; or it is refused. Either way the rings can
    /// be worked on, whatever is in memory, and the driver can start again.
    #[test]
    fn no_state_does_harm(registers in registers(), memory in any::<[u8; 32]>()) {
        let (mut guest, probe, restored) = restore(&registers);
        if restored.is_ok() {
            prop_assert_eq!(guest.save(NAME), sections(&registers));
        }
        for ring in &registers.queues {
            for at in [ring.descriptors, ring.available, ring.used] {
                use vm_memory::{Bytes, GuestAddress};
                let _ = guest.mem.write_slice(&memory, GuestAddress(at));
            }
        }
        let queues = probe.record().activation.as_ref().map_or(0, |active| active.queues.len());
        for queue in 0..queues {
            let mut record = probe.record();
            let queue = &mut record.activation.as_mut().unwrap().queues[queue];
            let mut left = 1000;
            queue.drain(|queue, chain| {
                let head = chain.head_index();
                chain.for_each(drop);
                queue.push_used(head, 0);
                queue.notify();
                left -= 1;
                left > 0
            });
        }
        guest.save(NAME);
        guest.reset();
        guest.start(0);
        prop_assert!(!guest.needs_reset());
    }
}
