//! Recording what a machine has touched of its snapshot, for others to have it read ahead.

use std::path::PathBuf;

use tine_jailer::seccomp::Role;
use tokio::sync::oneshot;

use super::command::Refusal;
use super::controller::Controller;

/// In messages.
const ACTION: &str = "record the working set";

/// A working set that is whole and durable.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Recorded {
    /// The file.
    pub path: PathBuf,
    /// The snapshot that it is of.
    pub snapshot: String,
    /// How much of memory it names.
    pub bytes: u64,
    /// In how many pieces.
    pub ranges: usize,
}

/// Where the answer goes.
pub(super) type RecordReply = oneshot::Sender<Result<Recorded, Refusal>>;

impl Controller {
    /// Looks at what has been touched; the answer comes from the thread that writes it.
    pub(super) fn record_working_set(&mut self, path: PathBuf, reply: RecordReply) {
        let set = self.started().and_then(|machine| {
            let touched = machine.memory().touched();
            let touched = touched.map_err(|err| Refusal::failed(ACTION, err))?;
            touched.ok_or_else(|| {
                Refusal::failed(ACTION, "the machine is not one of a snapshot's directory")
            })
        });
        let set = match set {
            Ok(set) => set,
            // The one who asked may have gone away.
            Err(refusal) => return drop(reply.send(Err(refusal))),
        };
        let write = move || {
            let written = set.write(&path).map(|()| Recorded {
                snapshot: set.snapshot.to_string(),
                bytes: set.bytes(),
                ranges: set.ranges.len(),
                path,
            });
            let _ = reply.send(written.map_err(|err| Refusal::failed(ACTION, err)));
        };
        // Where there can be no thread, the reply goes with the closure, which tells whoever waits.
        let _ = self.starter.spawn("working-set", Role::Writer, write);
    }
}
