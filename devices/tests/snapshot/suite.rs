//! The suite. A device takes part in it by [`Subject`], and by `conforms!`.

use proptest::prelude::*;
use tine_devices::bus::lock;
use tine_devices::testing::{FakeDriver, MEMORY_LEN, Used};
use tine_devices::virtio::VirtioDevice;
use tine_snapshot::section::Section;
use virtio_bindings::virtio_mmio::*;
use vm_memory::{Bytes, GuestAddress};

use crate::hostile::{change, config, damaged, made_up};

/// What the device is called in its snapshots.
pub const NAME: &str = "device/0";

/// A kind of device.
pub trait Subject {
    /// What is on the device's other side. Each machine has one of its own.
    type Host;
    /// What the driver asks for.
    const FEATURES: u64;
    /// The same request gets the same answer.
    const REPEATS: bool = true;

    /// A device, always made in the same way.
    fn make() -> (Box<dyn VirtioDevice>, Self::Host);

    /// Uses a running device as its guests do and checks that it does what it is for. Whatever
    /// is in its queues from before is no obstacle.
    fn work(driver: &mut FakeDriver, host: &mut Self::Host);

    /// Leaves requests in the queues, some of them begun, and tells which of them will be used
    /// without more ado: queue and head. In their queues there is nothing else.
    fn leave(driver: &mut FakeDriver, host: &mut Self::Host) -> Vec<(usize, u16)>;
}

/// A machine with the device.
pub struct Machine<S: Subject> {
    pub driver: FakeDriver,
    pub host: S::Host,
}

impl<S: Subject> Machine<S> {
    /// The driver has not touched it yet.
    pub fn new() -> Self {
        let (device, host) = S::make();
        let driver = FakeDriver::boxed(device);
        Self { driver, host }
    }

    pub fn started() -> Self {
        let mut machine = Self::new();
        machine.driver.start(S::FEATURES);
        machine
    }

    pub fn work(&mut self) {
        S::work(&mut self.driver, &mut self.host);
    }

    pub fn leave(&mut self) -> Vec<(usize, u16)> {
        S::leave(&mut self.driver, &mut self.host)
    }

    pub fn save(&self) -> Vec<Section> {
        self.driver.save(NAME)
    }

    /// Another machine that goes on from here.
    pub fn restored(&self, sections: &[Section]) -> Self {
        let (device, host) = S::make();
        let driver = self.driver.restored(device, NAME, sections);
        let driver = driver.expect("a snapshot of our own");
        Self { driver, host }
    }

    /// Waits until the chains of `expected` are used, and checks that no other is. Gives what they
    /// came back with.
    fn check_used(&mut self, expected: &[(usize, u16)]) -> Vec<(usize, Used)> {
        let mut missing = expected.to_vec();
        let mut all = Vec::new();
        while !missing.is_empty() {
            let kicked = !self.driver.run_queue_events().is_empty();
            let mut progress = self.take_used(&mut missing, &mut all) || kicked;
            while !missing.is_empty() && self.driver.run_backend(0) {
                progress |= self.take_used(&mut missing, &mut all);
            }
            if !progress && !missing.is_empty() {
                assert!(self.driver.run_backend(10_000), "not used: {missing:?}");
            }
        }
        for _ in 0..100 {
            self.driver.run_queue_events();
            let more = self.driver.run_backend(0);
            assert!(!self.used_twice(expected));
            if !more {
                break;
            }
        }
        all.sort_by_key(|(queue, used)| (*queue, used.head));
        all
    }

    fn take_used(&mut self, missing: &mut Vec<(usize, u16)>, all: &mut Vec<(usize, Used)>) -> bool {
        let before = missing.len();
        let mut queues: Vec<_> = missing.iter().map(|(queue, _)| *queue).collect();
        queues.dedup();
        for queue in queues {
            while let Some(used) = self.driver.used(queue) {
                let at = missing.iter().position(|one| *one == (queue, used.head));
                missing.remove(at.expect("used once, and only what was left"));
                all.push((queue, used));
            }
        }
        missing.len() < before
    }

    fn used_twice(&mut self, expected: &[(usize, u16)]) -> bool {
        let mut queues = expected.iter().map(|(queue, _)| *queue);
        queues.any(|queue| self.driver.used(queue).is_some())
    }
}

/// Whether two machines have the same in memory.
fn same_memory(one: &FakeDriver, other: &FakeDriver) -> bool {
    let (mut a, mut b) = ([0; 0x1_0000], [0; 0x1_0000]);
    (0..MEMORY_LEN).step_by(a.len()).all(|at| {
        let at = GuestAddress(at as u64);
        one.mem.read_slice(&mut a, at).unwrap();
        other.mem.read_slice(&mut b, at).unwrap();
        a == b
    })
}

pub fn a_restored_device_is_the_same<S: Subject>() {
    let mut machine = Machine::<S>::started();
    machine.work();
    machine.leave();
    let first = machine.save();
    let restored = machine.restored(&first);
    assert!(same_memory(&machine.driver, &restored.driver));
    assert_eq!(restored.save(), first);
    assert!(same_memory(&machine.driver, &restored.driver));
}

pub fn requests_from_before_complete_once_on_each_side<S: Subject>() {
    let mut machine = Machine::<S>::started();
    machine.work();
    let left = machine.leave();
    assert!(!left.is_empty());
    let sections = machine.save();
    let mut restored = machine.restored(&sections);
    let there = restored.check_used(&left);
    restored.work();
    let here = machine.check_used(&left);
    machine.work();
    assert!(!S::REPEATS || here == there);
    assert!(!machine.driver.needs_reset() && !restored.driver.needs_reset());
}

pub fn the_source_goes_on_between_saves<S: Subject>() {
    let mut machine = Machine::<S>::started();
    for _ in 0..3 {
        let first = machine.save();
        assert_eq!(machine.save(), first);
        machine.work();
        let left = machine.leave();
        machine.save();
        machine.check_used(&left);
    }
    let mut restored = machine.restored(&machine.save());
    restored.work();
    machine.work();
}

pub fn a_generation_of_restores_goes_on<S: Subject>() {
    let mut machine = Machine::<S>::started();
    for _ in 0..4 {
        machine.work();
        let left = machine.leave();
        machine = machine.restored(&machine.save());
        machine.check_used(&left);
    }
}

/// The ways to go on from a half-negotiated device: as the driver would have, or anew.
pub fn a_device_is_restored_at_every_step_of_negotiation<S: Subject>() {
    let steps: [fn(&FakeDriver, u64); 8] = [
        |_, _| {},
        |driver, _| driver.set_register(VIRTIO_MMIO_STATUS, 1),
        |driver, _| driver.set_register(VIRTIO_MMIO_STATUS, 3),
        |driver, features| {
            driver.set_register(VIRTIO_MMIO_DEVICE_FEATURES_SEL, 1);
            driver.set_register(VIRTIO_MMIO_DRIVER_FEATURES, features as u32);
        },
        |driver, features| {
            driver.set_register(VIRTIO_MMIO_DRIVER_FEATURES_SEL, 1);
            driver.set_register(VIRTIO_MMIO_DRIVER_FEATURES, (features >> 32) as u32 | 1);
        },
        |driver, _| driver.set_register(VIRTIO_MMIO_STATUS, 11),
        |driver, _| {
            driver.set_register(VIRTIO_MMIO_QUEUE_SEL, 0);
            driver.set_register(VIRTIO_MMIO_QUEUE_NUM, 16);
            driver.set_register(VIRTIO_MMIO_QUEUE_USED_LOW, 0x3000);
        },
        |driver, _| driver.set_register(VIRTIO_MMIO_STATUS, 15),
    ];
    for end in 0..=steps.len() {
        let machine = Machine::<S>::new();
        for step in &steps[..end] {
            step(&machine.driver, S::FEATURES);
        }
        let sections = machine.save();
        for reset in [false, true] {
            let mut restored = machine.restored(&sections);
            assert_eq!(restored.save(), sections, "after step {end}");
            for register in [
                VIRTIO_MMIO_STATUS,
                VIRTIO_MMIO_DEVICE_FEATURES,
                VIRTIO_MMIO_QUEUE_NUM_MAX,
                VIRTIO_MMIO_QUEUE_READY,
                VIRTIO_MMIO_INTERRUPT_STATUS,
                VIRTIO_MMIO_CONFIG_GENERATION,
            ] {
                let (was, is) = (&machine.driver, &restored.driver);
                assert_eq!(is.register(register), was.register(register));
            }
            if end == steps.len() || reset {
                restored.driver.reset();
            }
            restored.driver.start(S::FEATURES);
            restored.work();
        }
    }
}

pub fn a_driver_that_failed_is_restored_and_starts_again<S: Subject>() {
    let mut machine = Machine::<S>::started();
    machine.work();
    machine.driver.set_register(VIRTIO_MMIO_STATUS, 128);
    let mut restored = machine.restored(&machine.save());
    assert_eq!(restored.driver.register(VIRTIO_MMIO_STATUS), 15 | 128);
    restored.driver.reset();
    restored.driver.start(S::FEATURES);
    restored.work();
}

pub fn a_broken_queue_is_broken_after_a_restore_until_the_device_is_reset<S: Subject>() {
    let mut machine = Machine::<S>::started();
    machine.work();
    let queues = lock(&machine.driver.transport).queue_events().len();
    for queue in 0..queues {
        machine.driver.set_available_index(queue, 0x7fff);
        machine.driver.kick(queue);
    }
    while machine.driver.run_backend(0) {}
    assert!(machine.driver.needs_reset());
    let sections = machine.save();
    let mut restored = machine.restored(&sections);
    assert!(restored.driver.needs_reset());
    restored.driver.run_queue_events();
    assert!(same_memory(&machine.driver, &restored.driver));
    assert_eq!(restored.save(), sections);
    restored.driver.reset();
    restored.driver.start(S::FEATURES);
    restored.work();
}

/// Nothing that a snapshot says does harm: the device is restored or refused, and after a reset it
/// is as good as new.
pub fn no_damaged_snapshot_does_harm<S: Subject>() {
    let mut machine = Machine::<S>::started();
    machine.work();
    machine.leave();
    let sections = machine.save();
    let mut refused = 0;
    for sections in damaged(&sections) {
        refused += usize::from(!use_restored(&machine, &sections));
    }
    assert!(refused > 0);
}

/// Restores another device in the same memory and uses it as it is, and then after a reset; `false`
/// if the snapshot was refused.
fn use_restored<S: Subject>(machine: &Machine<S>, sections: &[Section]) -> bool {
    let (device, host) = S::make();
    let driver = FakeDriver::boxed_in(machine.driver.mem.clone(), device);
    let mut machine = Machine::<S> { driver, host };
    let restored = lock(&machine.driver.transport).restore(NAME, sections);
    match &restored {
        Ok(()) => {
            for _ in 0..8 {
                machine.driver.run_queue_events();
                machine.driver.run_backend(0);
            }
            machine.driver.config::<64>(0);
            machine.save();
        }
        Err(error) => {
            let error = error.to_string();
            assert!(error.starts_with(&format!("section {NAME}")), "{error}");
            assert_eq!(machine.driver.register(VIRTIO_MMIO_STATUS), 0);
        }
    }
    machine.driver.reset();
    machine.driver.start(S::FEATURES);
    machine.work();
    restored.is_ok()
}

/// The same with several changes at once, so that what belongs together may still agree.
pub fn no_made_up_snapshot_does_harm<S: Subject>() {
    let mut machine = Machine::<S>::started();
    machine.work();
    machine.leave();
    let sections = machine.save();
    proptest!(config(), |(changes in made_up())| {
        use_restored::<S>(&machine, &change(&sections, &changes));
    });
}

/// Each of the suite's cases as a test of its own.
#[macro_export]
macro_rules! conforms {
    ($subject:ty: $($case:ident)*) => {
        $(
            #[test]
            fn $case() {
                $crate::suite::$case::<$subject>();
            }
        )*
    };
    ($subject:ty) => {
        $crate::conforms! { $subject:
            a_restored_device_is_the_same
            requests_from_before_complete_once_on_each_side
            the_source_goes_on_between_saves
            a_generation_of_restores_goes_on
            a_device_is_restored_at_every_step_of_negotiation
            a_driver_that_failed_is_restored_and_starts_again
            a_broken_queue_is_broken_after_a_restore_until_the_device_is_reset
            no_damaged_snapshot_does_harm
            no_made_up_snapshot_does_harm
        }
    };
}
