//! Snapshots of bare-metal guests, inside one process: what was taken does not change, and what is
//! made of it goes on from there.

use std::sync::mpsc;
use std::time::{Duration, Instant};

use tine::config::MachineConfig;
use tine::machine::{Capture, Machine};
use tine::vcpu::Ending;
use tine_tests::{guest, require_kvm};

/// Where the guest `counting` counts.
const COUNT: u64 = 0x30_0000;

struct Counting {
    machine: Machine,
    ended: mpsc::Receiver<Ending>,
}

fn config() -> MachineConfig {
    config_of("counting")
}

fn config_of(name: &str) -> MachineConfig {
    require_kvm();
    let mut config = MachineConfig::new(guest(name));
    config.memory = 64 << 20;
    config
}

impl Counting {
    fn boot() -> Self {
        Self::boot_of("counting")
    }

    fn boot_of(name: &str) -> Self {
        let (sender, ended) = mpsc::channel();
        let on_end = move |ending| drop(sender.send(ending));
        let machine = Machine::assemble(&config_of(name), on_end).unwrap();
        machine.resume();
        let counting = Self { machine, ended };
        counting.wait_for(1000);
        counting
    }

    fn restore(capture: &Capture) -> Self {
        let (sender, ended) = mpsc::channel();
        let on_end = move |ending| drop(sender.send(ending));
        let Capture {
            sections, memory, ..
        } = capture.clone();
        let machine = Machine::restore(&config(), memory, &sections, on_end).unwrap();
        Self { machine, ended }
    }

    fn count(&self) -> u64 {
        self.machine.read_memory(COUNT).unwrap()
    }

    /// Waits until the guest has counted so far.
    fn wait_for(&self, count: u64) {
        let start = Instant::now();
        while self.count() < count {
            assert!(self.ended.try_recv().is_err(), "the guest found a fault");
            assert!(start.elapsed() < Duration::from_secs(60), "it stands still");
            std::thread::yield_now();
        }
    }

    fn pause_and_capture(&self) -> (u64, Capture) {
        self.machine.pause();
        let count = self.count();
        let capture = self.machine.capture().unwrap();
        assert_eq!(self.count(), count, "a paused guest does not count");
        (count, capture)
    }
}

#[test]
fn the_machine_and_its_copy_both_go_on() {
    let first = Counting::boot();
    let (count, capture) = first.pause_and_capture();
    first.machine.resume();
    first.wait_for(count + 100_000);
    let second = Counting::restore(&capture);
    assert_eq!(second.count(), count);
    second.machine.resume();
    second.wait_for(count + 100_000);
    first.wait_for(count + 200_000);
}

#[test]
fn debug_registers_stay() {
    let first = Counting::boot_of("breakpoint");
    let (count, capture) = first.pause_and_capture();
    drop(first);
    let second = Counting::restore(&capture);
    second.machine.resume();
    second.wait_for(count + 1000);
    // Should the guest have found a fault, it is on its way out.
    second.machine.pause();
    assert!(second.machine.console_tail().lines(1).is_empty());
}

#[test]
fn one_capture_serves_many_machines() {
    let first = Counting::boot();
    let (count, capture) = first.pause_and_capture();
    drop(first);
    let copies: Vec<_> = (0..20).map(|_| Counting::restore(&capture)).collect();
    for copy in &copies {
        assert_eq!(copy.count(), count);
        copy.machine.resume();
    }
    for copy in &copies {
        copy.wait_for(count + 10_000);
    }
}

#[test]
fn many_are_made_at_once_and_one_that_cannot_be_is_nothing_to_the_others() {
    const BAD: usize = 17;
    let first = Counting::boot();
    let (count, capture) = first.pause_and_capture();
    drop(first);
    let mut configs = vec![config(); 64];
    configs[BAD].memory *= 2;
    let (sender, ended) = mpsc::channel();
    let on_end = move |place, ending| drop(sender.send((place, ending)));
    let memory = capture.memory.into();
    let made = Machine::restore_each(
        &configs,
        &memory,
        &capture.sections,
        on_end,
        |place, made| {
            let machine = made.map_err(|err| err.to_string())?;
            let begins = machine.read_memory(COUNT).unwrap();
            machine.resume();
            Ok((place, begins, machine))
        },
    );
    assert_eq!(made.len(), configs.len());
    for (place, made) in made.iter().enumerate() {
        match made {
            Ok((at, begins, machine)) => {
                assert_eq!((*at, *begins), (place, count));
                let start = Instant::now();
                while machine.read_memory(COUNT).unwrap() < count + 1000 {
                    assert!(
                        start.elapsed() < Duration::from_secs(60),
                        "{place} stands still"
                    );
                    std::thread::yield_now();
                }
            }
            Err::<_, String>(err) => {
                assert_eq!(place, BAD, "{err}");
                assert!(err.contains("memory"), "{err}");
            }
        }
    }
    assert!(ended.try_recv().is_err(), "a guest found a fault");
    assert_eq!(made.iter().filter(|made| made.is_err()).count(), 1);
}

#[test]
fn captures_of_captures_go_on_for_many_rounds() {
    let mut machine = Counting::boot();
    for round in 0..10 {
        let (count, capture) = machine.pause_and_capture();
        assert!(capture.memory.layers.len() <= 17, "round {round}");
        machine = Counting::restore(&capture);
        machine.machine.resume();
        machine.wait_for(count + 10_000);
    }
}

#[test]
fn a_machine_is_captured_again_and_again() {
    let machine = Counting::boot();
    let mut before = None;
    for _ in 0..10 {
        let (count, capture) = machine.pause_and_capture();
        machine.machine.resume();
        machine.wait_for(count + 10_000);
        if let Some((count, capture)) = before.replace((count, capture)) {
            let copy = Counting::restore(&capture);
            assert_eq!(copy.count(), count, "an older capture is what it was");
        }
    }
}
