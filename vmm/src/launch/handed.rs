//! Copies of a machine that are made ready for other processes: how long they are kept for those who
//! come, and that nothing is kept of those for whom nobody does.

use std::path::Path;
use std::time::Duration;

use crate::client::{Error, Forked, Machine};
use crate::snapshot::Loaded;

/// How much longer than a copy may take to be running the image waits for the next one to come; it is
/// let go of after that if this process is killed.
const MARGIN: Duration = Duration::from_secs(30);
/// The longest that a machine lets it wait.
const LONGEST: Duration = Duration::from_secs(3600);

/// Copies of a machine that other processes can take. Dropped, what nobody has taken is: the machine
/// need not keep it.
#[derive(Debug)]
pub struct Handed(Forked);

impl Handed {
    /// Has a machine make `count` copies ready, of which each may take as long as `patience` until it
    /// is running.
    ///
    /// # Errors
    ///
    /// When the machine refuses to be forked.
    pub async fn out(machine: &Machine, count: u32, patience: Duration) -> Result<Self, Error> {
        let patience = patience.saturating_add(MARGIN).min(LONGEST);
        machine.fork(count, patience).await.map(Self)
    }

    /// Where they are taken.
    pub fn socket(&self) -> &Path {
        &self.0.socket
    }

    /// Where the layers of their disks have names, if they have any.
    pub fn layers(&self) -> Option<&Path> {
        self.0.layers.as_deref()
    }
}

impl Drop for Handed {
    fn drop(&mut self) {
        let left = 0..self.0.count;
        let _ = left
            .map_while(|_| Loaded::receive(&self.0.socket).ok())
            .count();
    }
}
