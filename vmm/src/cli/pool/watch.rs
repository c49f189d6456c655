//! Waiting for files to come and go.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::inotify::{self, CreateFlags, Reader, WatchFlags};
use rustix::io::Errno;
use tokio::io::unix::AsyncFd;

use crate::cli::failure::Failure;
use crate::cli::template::store::failed;
use tine::launch::watched;

/// What happens in directories.
pub struct Watch(AsyncFd<OwnedFd>);

impl Watch {
    pub fn new() -> Result<Self, Failure> {
        let cannot = |err: io::Error| Failure::new(format!("cannot watch for files: {err}"));
        let events = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK);
        let events = events.map_err(|err| cannot(err.into()))?;
        watched(events).map(Self).map_err(cannot)
    }

    /// Watches a directory from here on.
    pub fn add(&self, dir: &Path, what: WatchFlags) -> Result<(), Failure> {
        let added = inotify::add_watch(self.0.get_ref(), dir, what);
        let added = added.map_err(|err| failed("watch", dir, &err.into()));
        added.map(drop)
    }

    /// Waits until something has happened since the last call.
    pub async fn changed(&self) -> Result<(), Failure> {
        let cannot = |err: io::Error| Failure::new(format!("cannot watch for files: {err}"));
        loop {
            let mut ready = self.0.readable().await.map_err(cannot)?;
            let mut buffer = [const { MaybeUninit::uninit() }; 4096];
            let mut reader = Reader::new(self.0.get_ref(), &mut buffer);
            let mut any = false;
            loop {
                match reader.next() {
                    Ok(_) => any = true,
                    Err(Errno::INTR) => {}
                    Err(Errno::AGAIN) => break,
                    Err(err) => return Err(cannot(err.into())),
                }
            }
            ready.clear_ready();
            if any {
                return Ok(());
            }
        }
    }
}
