//! Many machines of one state, in this process.

use std::num::NonZero;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::thread::{self, Builder};

use tine_devices::bus::lock;
use tine_snapshot::section::Section;

use super::{Machine, MachineError};
use crate::config::MachineConfig;
use crate::kvm::Host;
use crate::memory::Initial;
use crate::vcpu::Ending;

impl Machine {
    /// Makes a machine for each of `configs`, all of the same state: [`Self::restore`], by as many
    /// threads as the host has processors for this process. They share the image of `memory`, and what
    /// one writes no other one sees; drives with a layer of its own for each are the caller's to
    /// configure.
    ///
    /// `made` is given each machine, or why there is none, and its place in `configs`, as soon as it is
    /// there, by the thread that made it; what it returns comes back in the order of `configs`. So a
    /// guest that is to run at once is let go there. One that fails is nothing to the others.
    ///
    /// `on_end` is told which machine's guest has ended by itself, and how.
    ///
    /// Linux guests are told who they are before anything is done in them:
    ///
    /// ```no_run
    /// use std::time::{Duration, Instant};
    /// use tine::agent::{self, Agent};
    /// use tine::{machine::Machine, snapshot::Loaded};
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let loaded = Loaded::open("snapshot".as_ref())?;
    /// let configs = vec![loaded.description.config(); 100];
    /// let begin = |place: usize, machine: Result<Machine, _>| {
    ///     let machine = machine?;
    ///     machine.resume();
    ///     machine.vsock().transport_reset();
    ///     let mut identity = agent::new_identity(loaded.generation + 1)?;
    ///     identity.hostname = Some(format!("child-{place}"));
    ///     let until = Instant::now() + Duration::from_secs(60);
    ///     agent::refresh(machine.vsock(), &identity, until)?;
    ///     Ok((Agent::new(machine.vsock().clone()), machine))
    /// };
    /// let ended = |place, how| eprintln!("{place}: {how:?}");
    /// let (memory, sections) = (&loaded.memory, &loaded.sections);
    /// let machines = Machine::restore_each(&configs, memory, sections, ended, begin);
    /// let machines = machines.into_iter().collect::<Result<Vec<_>, Box<dyn std::error::Error + Send + Sync>>>();
    /// # drop(machines);
    /// # Ok(())
    /// # }
    /// ```
    pub fn restore_each<T: Send>(
        configs: &[MachineConfig],
        memory: &Initial,
        sections: &[Section],
        on_end: impl Fn(usize, Ending) + Send + Sync + 'static,
        made: impl Fn(usize, Result<Self, MachineError>) -> T + Sync,
    ) -> Vec<T> {
        let host = Host::open();
        let create = |_| match &host {
            Ok(host) => host.create_vm(),
            // Each fails by the same, in words of its own.
            Err(_) => Host::open()?.create_vm(),
        };
        // All of them first: with the machines' mappings it would take ever longer.
        let vms = by_turns(configs.len(), create);
        let vms: Vec<_> = vms.into_iter().map(|vm| Mutex::new(Some(vm))).collect();
        let on_end = Arc::new(on_end);
        let one = |place: usize| {
            let on_end = on_end.clone();
            let on_end = move |ending| on_end(place, ending);
            let (config, memory) = (&configs[place], memory.clone());
            let machine = match lock(&vms[place]).take() {
                Some(Ok(vm)) => Self::restore_with(vm, config, memory, sections, on_end),
                Some(Err(err)) => Err(err.into()),
                // Each place has one turn.
                None => Self::restore(config, memory, sections, on_end),
            };
            made(place, machine)
        };
        by_turns(configs.len(), one)
    }
}

/// What `one` makes of each number below `count`, by as many threads as there are processors. Each takes
/// the next number when it is through with one, so that none waits for a slow one.
fn by_turns<T: Send>(count: usize, one: impl Fn(usize) -> T + Sync) -> Vec<T> {
    let next = AtomicUsize::new(0);
    let all = Mutex::new(Vec::with_capacity(count));
    let work = || loop {
        let number = next.fetch_add(1, Relaxed);
        if number >= count {
            break;
        }
        let result = one(number);
        lock(&all).push((number, result));
    };
    let cpus = thread::available_parallelism().map_or(1, NonZero::get);
    thread::scope(|scope| {
        for _ in 1..cpus.min(count) {
            // Where the system has no more threads, those that are there do it all.
            if Builder::new().spawn_scoped(scope, work).is_err() {
                break;
            }
        }
        work();
    });
    let mut all = all
        .into_inner()
        .unwrap_or_else(|poisoned| poisoned.into_inner());
    all.sort_by_key(|(number, _)| *number);
    all.into_iter().map(|(_, result)| result).collect()
}

#[cfg(test)]
mod tests {
    use super::by_turns;

    #[test]
    fn each_number_has_its_turn_and_its_place() {
        assert!(by_turns(0, |n| n).is_empty());
        for count in [1, 2, 100] {
            let doubled: Vec<usize> = (0..count).map(|n| n * 2).collect();
            assert_eq!(by_turns(count, |n| n * 2), doubled);
        }
    }
}
