//! Many machines in this process, by the library, restored from one snapshot.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use tine::machine::Machine;
use tine::snapshot::Loaded;

use super::herd::PATIENCE;
use super::restore::Turn;

/// How often a guest is looked at that should beat ten times a second.
const LOOK: Duration = Duration::from_millis(5);

/// Restores `count` machines from the turn's snapshot and tells how long each and all took, from just
/// before the snapshot is opened until a vCPU has been told to run. Returns when all guests have been
/// heard, and ended.
pub fn restore(turn: &Turn, count: usize) -> anyhow::Result<(Vec<Duration>, Duration)> {
    let start = Instant::now();
    let loaded = Loaded::open(turn.snapshot())?;
    let configs = vec![loaded.description.config(); count];
    let made = Machine::restore_each(
        &configs,
        &loaded.memory,
        &loaded.sections,
        |_, _| {},
        |_, machine| {
            let machine = machine?;
            machine.resume();
            anyhow::Ok((machine, start.elapsed()))
        },
    );
    let all = start.elapsed();
    let made = made.into_iter().collect::<anyhow::Result<Vec<_>>>();
    let (machines, took): (Vec<_>, Vec<_>) =
        made.context("a machine was not made")?.into_iter().unzip();
    // What a console has written is kept from the restore on.
    for machine in &machines {
        while machine.console_tail().lines(1).is_empty() {
            ensure!(start.elapsed() < PATIENCE, "a guest does not run");
            thread::sleep(LOOK);
        }
    }
    Ok((took, all))
}
