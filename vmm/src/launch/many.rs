//! Many machines at once: a few on their way at a time, and what becomes of one is nothing to the
//! others.

use std::collections::HashSet;
use std::num::NonZero;
use std::path::Path;
use std::sync::Arc;

use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use super::{Handed, LaunchError, Launched, Launcher, NewMachine, check_room, launched};
use crate::client::Machine;

/// Machines on their way up at a time, for each processor: while one waits, another one works. More
/// would not make the last one earlier, and the first ones later.
const FOR_EACH_CPU: usize = 2;

/// Machines on their way up at a time.
pub fn at_a_time() -> usize {
    let cpus = std::thread::available_parallelism().map_or(1, NonZero::get);
    cpus * FOR_EACH_CPU
}

impl Launcher {
    /// Makes copies of a machine that runs, each in a process of its own; the machine stands still for some
    /// milliseconds and goes on. What became of each is told in the order of `copies`.
    ///
    /// Dropping the future ends those that are on their way, and those that are there already.
    ///
    /// # Errors
    ///
    /// When none was begun: an id is bad or given twice, the host has no room for so many
    /// ([`LaunchError::NoRoom`]), or the machine refuses to be forked.
    pub async fn fork(
        &self,
        machine: &Machine,
        copies: Vec<NewMachine>,
    ) -> Result<Vec<Result<Launched, LaunchError>>, LaunchError> {
        let count = self.check(&copies)?;
        let handed = Handed::out(machine, count, self.patience).await;
        let handed = handed.map_err(|err| LaunchError::Machine {
            id: machine.socket().display().to_string(),
            source: Box::new(err),
        })?;
        Ok(self.all("fork", handed.socket(), copies).await)
    }

    /// Makes as many machines of the full snapshot in the directory `snapshot`. What became of each is told
    /// in the order of `machines`.
    ///
    /// # Errors
    ///
    /// When none was begun, as for [`Self::fork`].
    pub async fn restore_all(
        &self,
        snapshot: impl AsRef<Path>,
        machines: Vec<NewMachine>,
    ) -> Result<Vec<Result<Launched, LaunchError>>, LaunchError> {
        self.check(&machines)?;
        let id = machines.first().map_or("", |machine| &machine.id);
        let snapshot = super::absolute(id, snapshot.as_ref())?;
        Ok(self.all("snapshot", &snapshot, machines).await)
    }

    fn check(&self, machines: &[NewMachine]) -> Result<u32, LaunchError> {
        let mut ids = HashSet::new();
        for NewMachine { id, .. } in machines {
            launched::check_id(id)?;
            if !ids.insert(id) {
                let (id, why) = (id.clone(), "it is given twice");
                return Err(LaunchError::Id { id, why });
            }
        }
        let count = u32::try_from(machines.len()).unwrap_or(u32::MAX);
        // Its file system is that of the nearest directory that is there.
        let there = self.dir.ancestors().find(|dir| dir.is_dir());
        check_room(count, there.unwrap_or(Path::new(".")))?;
        Ok(count)
    }

    async fn all(
        &self,
        origin: &'static str,
        path: &Path,
        machines: Vec<NewMachine>,
    ) -> Vec<Result<Launched, LaunchError>> {
        let turns = Arc::new(Semaphore::new(at_a_time()));
        let mut set = JoinSet::new();
        for (place, machine) in machines.into_iter().enumerate() {
            let (launcher, turns, path) = (self.clone(), turns.clone(), path.to_owned());
            set.spawn(async move {
                // Never closed.
                let _turn = turns.acquire().await;
                (place, launcher.bring_up(origin, &path, &machine).await)
            });
        }
        let mut all = set.join_all().await;
        all.sort_by_key(|(place, _)| *place);
        all.into_iter().map(|(_, result)| result).collect()
    }
}
