//! What is known of the machines of this user, those whose process has gone included.

use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{FlockOperation, flock};
use serde::Serialize;
use tine::client::{Error, Machine, Status};
use tine_jailer::files;

use super::failure::Failure;
use super::rundir::{self, SOCKET};

/// How long a machine's process may take to say how it is.
const PATIENCE: Duration = Duration::from_secs(3);

/// One machine.
#[derive(Debug, Clone, Serialize)]
pub struct Known {
    /// Its id.
    pub id: String,
    /// What it does: the states of the API; `creating` and `silent` while its process does not
    /// answer yet or any more; `dead` when that has gone without a word.
    pub state: String,
    /// Since when, where that is known.
    pub since: Option<String>,
    /// Why, where that is known.
    pub reason: Option<String>,
    /// Its process, while there is one.
    pub pid: Option<u32>,
    /// Its directory.
    pub run_dir: PathBuf,
    /// What its process says of it.
    #[serde(skip)]
    pub status: Option<Status>,
}

impl Known {
    /// It has ended in good order, and nobody needs to look at it.
    pub fn is_over(&self) -> bool {
        matches!(self.state.as_str(), "ended" | "deleted")
    }

    /// Looks at the machine in a directory.
    pub async fn look(id: String, run_dir: PathBuf) -> Self {
        let machine = Machine::at(run_dir.join(SOCKET));
        let ask = || tokio::time::timeout(PATIENCE, machine.status());
        let mut asked = ask().await;
        if let Ok(Err(err)) = &asked
            && !err.is_gone()
            && !matches!(err, Error::Refused { .. })
        {
            // One that is just ending hangs up, and is gone at the next look.
            asked = ask().await;
        }
        let mut known = Self {
            id,
            state: "silent".to_owned(),
            since: None,
            reason: None,
            pid: None,
            run_dir,
            status: None,
        };
        match asked {
            Ok(Ok(status)) => {
                known.state.clone_from(&status.state);
                known.since.clone_from(&status.since);
                known.reason.clone_from(&status.reason);
                known.pid = status.pid;
                known.status = Some(status);
            }
            Ok(Err(err)) if err.is_gone() => known.look_back(),
            Ok(Err(Error::Refused { message, .. })) => known.reason = Some(message),
            Ok(Err(err)) => known.reason = Some(err.to_string()),
            Err(_) => known.reason = Some(format!("no answer within {PATIENCE:?}")),
        }
        known
    }

    /// What the directory says of a machine whose process has gone.
    fn look_back(&mut self) {
        if is_being_made(&self.run_dir) {
            self.state = "creating".to_owned();
            return;
        }
        self.state = "dead".to_owned();
        let last = tine::usage::last(&self.run_dir).ok().flatten();
        let Some(last) = last else { return };
        self.since = Some(last.at);
        if matches!(last.event.as_str(), "ended" | "failed" | "deleted") {
            self.state = last.event;
            self.reason = last.reason;
        }
    }
}

/// Whether a `tine run -d` is at work in the directory.
pub fn is_being_made(dir: &Path) -> bool {
    let Ok(dir) = files::open_dir(dir) else {
        return false;
    };
    flock(&dir, FlockOperation::NonBlockingLockExclusive).is_err()
}

/// All machines.
pub async fn all() -> Result<Vec<Known>, Failure> {
    let root = rundir::root()?;
    let ids = rundir::all()?;
    let looks: Vec<_> = ids
        .into_iter()
        .map(|id| tokio::spawn(Known::look(id.clone(), root.join(id))))
        .collect();
    let mut all = Vec::new();
    for look in looks {
        all.extend(look.await.ok());
    }
    Ok(all)
}
