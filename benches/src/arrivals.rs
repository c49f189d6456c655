//! Waiting for files that other processes make. Looking for them again and again would be most of what
//! the machine does with a hundred processes on their way, and one inotify instance for each is more than
//! a user may have.

use std::collections::HashMap;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use anyhow::Context;
use rustix::fs::inotify::{self, CreateFlags, Reader, WatchFlags};
use rustix::io::Errno;

/// One for this process, and a thread that hands its events out.
struct Usher {
    events: OwnedFd,
    waiting: Mutex<HashMap<i32, Sender<()>>>,
}

static USHER: OnceLock<Usher> = OnceLock::new();

/// What is made in a directory from now on. A directory has one of these at a time.
pub struct Arrivals {
    watch: i32,
    made: Receiver<()>,
}

impl Arrivals {
    /// Watches `dir`.
    pub fn of(dir: &Path) -> anyhow::Result<Self> {
        let usher = usher()?;
        let (send, made) = channel();
        // Its events are not handed out before it is known.
        let mut waiting = usher.waiting();
        let watch = inotify::add_watch(&usher.events, dir, WatchFlags::CREATE)
            .with_context(|| format!("cannot watch {}", dir.display()))?;
        waiting.insert(watch, send);
        Ok(Self { watch, made })
    }

    /// Waits until something has been made; false when nothing was within `limit`.
    pub fn wait(&self, limit: Duration) -> anyhow::Result<bool> {
        match self.made.recv_timeout(limit) {
            Ok(()) => Ok(true),
            Err(RecvTimeoutError::Timeout) => Ok(false),
            Err(RecvTimeoutError::Disconnected) => anyhow::bail!("nobody watches for files"),
        }
    }
}

impl Drop for Arrivals {
    fn drop(&mut self) {
        if let Some(usher) = USHER.get() {
            usher.waiting().remove(&self.watch);
            // Fails only for a directory that is gone.
            let _ = inotify::remove_watch(&usher.events, self.watch);
        }
    }
}

impl Usher {
    fn waiting(&self) -> MutexGuard<'_, HashMap<i32, Sender<()>>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn hand_out(&self) {
        let mut buffer = [const { MaybeUninit::uninit() }; 4096];
        let mut reader = Reader::new(&self.events, &mut buffer);
        loop {
            match reader.next() {
                Ok(event) => {
                    if let Some(send) = self.waiting().get(&event.wd()) {
                        // It may be on its way out.
                        let _ = send.send(());
                    }
                }
                Err(Errno::INTR) => {}
                // Those who wait are told by the end of their channels.
                Err(_) => return self.waiting().clear(),
            }
        }
    }
}

fn usher() -> anyhow::Result<&'static Usher> {
    if let Some(usher) = USHER.get() {
        return Ok(usher);
    }
    let events = inotify::init(CreateFlags::CLOEXEC).context("cannot watch for files")?;
    let mine = Usher {
        events,
        waiting: Mutex::default(),
    };
    let mut first = false;
    let usher = USHER.get_or_init(|| {
        first = true;
        mine
    });
    if first {
        let started = std::thread::Builder::new()
            .name("usher".into())
            .spawn(|| usher.hand_out());
        started.context("cannot start a thread")?;
    }
    Ok(usher)
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use super::*;

    #[test]
    fn each_hears_of_its_own_directory() {
        let (one, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let (first, second) = (
            Arrivals::of(one.path()).unwrap(),
            Arrivals::of(other.path()).unwrap(),
        );
        File::create(other.path().join("file")).unwrap();
        assert!(second.wait(Duration::from_secs(10)).unwrap());
        assert!(!first.wait(Duration::ZERO).unwrap());
        drop(second);
        let second = Arrivals::of(other.path()).unwrap();
        assert!(!second.wait(Duration::ZERO).unwrap());
        File::create(one.path().join("file")).unwrap();
        assert!(first.wait(Duration::from_secs(10)).unwrap());
    }
}
