//! Many machines of one state, in this process.

use std::num::NonZero;
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
        // All of KVM's machines first: with the mappings of those that are made it would take ever longer.
        let host = Host::open();
        let vms = by_turns(configs, |_, _| match &host {
            Ok(host) => host.create_vm(),
            // What the host refused it refuses each in words of its own.
            Err(_) => Host::open()?.create_vm(),
        });
        let on_end = Arc::new(on_end);
        by_turns(vms, |place, vm| {
            let on_end = on_end.clone();
            let on_end = move |ending| on_end(place, ending);
            let (config, memory) = (&configs[place], memory.clone());
            let machine = vm
                .map_err(MachineError::from)
                .and_then(|vm| Self::restore_with(vm, config, memory, sections, on_end));
            made(place, machine)
        })
    }
}

/// What `one` makes of each item and its place, by as many threads as there are processors. Each takes the
/// next item when it is through with one, so that none waits for a slow one.
fn by_turns<I, T>(
    items: impl IntoIterator<Item = I, IntoIter: ExactSizeIterator + Send>,
    one: impl Fn(usize, I) -> T + Sync,
) -> Vec<T>
where
    I: Send,
    T: Send,
{
    let items = items.into_iter();
    let count = items.len();
    let queue = Mutex::new(items.enumerate());
    let all = Mutex::new(Vec::with_capacity(count));
    let work = || {
        loop {
            let Some((place, item)) = lock(&queue).next() else {
                break;
            };
            let result = one(place, item);
            lock(&all).push((place, result));
        }
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
    all.sort_by_key(|(place, _)| *place);
    all.into_iter().map(|(_, result)| result).collect()
}

#[cfg(test)]
mod tests {
    use super::by_turns;

    #[test]
    fn each_item_has_its_turn_and_its_place() {
        assert!(by_turns(0..0usize, |_, n| n).is_empty());
        for count in [1, 2, 100] {
            let sums: Vec<usize> = (0..count).map(|n| n * 3).collect();
            let doubled: Vec<usize> = (0..count).map(|n| n * 2).collect();
            assert_eq!(by_turns(doubled, |place, item| place + item), sums);
        }
    }
}
