//! The end of a pool's machines, wherever on their way they are.

use rustix::fs::{FlockOperation, flock};
use tine_jailer::files;

use super::place::{Keeping, Marker, Pool, Stage};
use crate::cli::failure::Failure;
use crate::cli::leftover::kill_process_of;
use crate::cli::{rm, rundir};

impl Pool {
    /// Ends machines that nobody has: those whose claimer was killed.
    pub async fn clear_claimed(&self) -> Result<(), Failure> {
        for marker in self.markers(Stage::Claimed)? {
            if let Some(left) = self.take_over(&marker)? {
                end(&marker).await?;
                left.done()?;
            }
        }
        Ok(())
    }

    /// Ends machines that a killed pool was about to start or end.
    pub async fn clear_making(&self, _: &Keeping) -> Result<(), Failure> {
        for marker in self.markers(Stage::Making)? {
            self.end(&marker).await?;
        }
        Ok(())
    }

    /// Ends all that wait.
    pub async fn clear_ready(&self, _: &Keeping) -> Result<(), Failure> {
        for marker in self.markers(Stage::Ready)? {
            self.take_back(&marker).await?;
        }
        Ok(())
    }

    /// Ends one that waits, if nobody is quicker.
    pub async fn take_back(&self, marker: &Marker) -> Result<(), Failure> {
        if self.shift(marker, Stage::Ready, Stage::Making)? {
            self.end(marker).await?;
        }
        Ok(())
    }

    /// Ends one of `making`.
    pub async fn end(&self, marker: &Marker) -> Result<(), Failure> {
        end(marker).await?;
        self.unmark(marker);
        Ok(())
    }
}

/// Ends a machine, whatever there is of it.
pub async fn end(marker: &Marker) -> Result<(), Failure> {
    let dir = rundir::root()?.join(&marker.id);
    if let Ok(lock) = files::open_dir(&dir) {
        // Held by who makes it, and past its end by a child that has not become a `tine-vmm` yet.
        let _ = flock(&lock, FlockOperation::LockExclusive);
    }
    let removed = match dir.is_dir() {
        true => rm::remove(&marker.id, true).await,
        false => Ok(()),
    };
    // One that had no socket yet.
    kill_process_of(&dir);
    match rundir::remove(&dir) {
        Err(err) if err.kind() != std::io::ErrorKind::NotFound => {
            removed?;
            Err(Failure::new(format!(
                "cannot remove {}: {err}",
                dir.display()
            )))
        }
        _ => {
            kill_process_of(&dir);
            Ok(())
        }
    }
}
