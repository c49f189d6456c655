//! Changes of files as they happen, from inotify.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use hyper::body::Bytes;
use rustix::fs::inotify::{self, CreateFlags, ReadFlags, Reader, WatchFlags};
use tine_guest_agent::files::{Change, WatchEvent};
use tokio::io::Interest;
use tokio::sync::mpsc;

use super::params::{Params, octets};
use super::tree::failed;
use crate::agent::fault::Fault;
use crate::agent::http::{self, Reply};
use crate::agent::sys::{self, Watched};
use crate::agent::{Either, race};

/// Most directories watched below one path.
const MAX_WATCHES: usize = 8192;

/// Between signs of life: only by writing is it noticed that a client has gone.
const SIGN_OF_LIFE: Duration = Duration::from_secs(15);

/// Lines gathered before they are handed over.
const FULL: usize = 16 * 1024;

/// `GET watch`. It stands when the answer's head is out: what is changed from then on is told.
pub fn watch(params: &Params) -> Reply {
    let path = &params.path;
    let events = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK)
        .map_err(|errno| failed(&errno.into(), path))?;
    let mut watches = Watches {
        recursive: params.recursive,
        paths: HashMap::new(),
    };
    watches.add(events.as_fd(), path)?;
    let events = sys::watch(events, Interest::READABLE).map_err(|error| failed(&error, path))?;
    let (sender, receiver) = mpsc::channel(2);
    tokio::task::spawn_local(follow(events, watches, sender));
    Ok(http::pieces(receiver, "application/x-ndjson"))
}

/// Which path each watch is of.
struct Watches {
    recursive: bool,
    paths: HashMap<i32, PathBuf>,
}

impl Watches {
    fn add(&mut self, events: BorrowedFd<'_>, path: &Path) -> Result<(), Fault> {
        let flags = WatchFlags::CREATE
            | WatchFlags::CLOSE_WRITE
            | WatchFlags::ATTRIB
            | WatchFlags::DELETE
            | WatchFlags::DELETE_SELF
            | WatchFlags::MOVE_SELF
            | WatchFlags::MOVED_FROM
            | WatchFlags::MOVED_TO;
        if self.paths.len() >= MAX_WATCHES {
            let message = format_args!("more than {MAX_WATCHES} directories to watch");
            return Err(Fault::new(507, "too_many", message));
        }
        let number =
            inotify::add_watch(events, path, flags).map_err(|errno| failed(&errno.into(), path))?;
        self.paths.insert(number, path.to_owned());
        if self.recursive
            && path
                .symlink_metadata()
                .is_ok_and(|metadata| metadata.is_dir())
        {
            for entry in path.read_dir().into_iter().flatten().flatten() {
                if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                    self.add(events, &entry.path())?;
                }
            }
        }
        Ok(())
    }
}

async fn follow(events: Watched, mut watches: Watches, sender: mpsc::Sender<io::Result<Bytes>>) {
    loop {
        let ready = race(events.readable(), tokio::time::sleep(SIGN_OF_LIFE)).await;
        let mut lines = Vec::new();
        match ready {
            Either::Left(Err(_)) => return,
            Either::Left(Ok(mut guard)) => {
                if take(events.as_fd(), &mut watches, &mut lines) {
                    guard.clear_ready();
                }
            }
            Either::Right(()) => lines.push(b'\n'),
        }
        if !lines.is_empty() && sender.send(Ok(lines.into())).await.is_err() {
            return;
        }
    }
}

/// Turns what has happened into lines. True when there is no more for now.
fn take(events: BorrowedFd<'_>, watches: &mut Watches, lines: &mut Vec<u8>) -> bool {
    let mut buffer = [MaybeUninit::uninit(); 4096];
    let mut reader = Reader::new(events, &mut buffer);
    while lines.len() < FULL {
        let Ok(event) = reader.next() else {
            return true;
        };
        let flags = event.events();
        if flags.contains(ReadFlags::QUEUE_OVERFLOW) {
            tell(Change::Overflow, Path::new(""), lines);
            continue;
        }
        if flags.contains(ReadFlags::IGNORED) {
            watches.paths.remove(&event.wd());
            continue;
        }
        let Some(base) = watches.paths.get(&event.wd()) else {
            continue;
        };
        let path = match event.file_name() {
            Some(name) => base.join(OsStr::from_bytes(name.to_bytes())),
            None => base.clone(),
        };
        let appeared = flags.intersects(ReadFlags::CREATE | ReadFlags::MOVED_TO);
        let gone = ReadFlags::DELETE
            | ReadFlags::DELETE_SELF
            | ReadFlags::MOVED_FROM
            | ReadFlags::MOVE_SELF;
        let change = match () {
            () if appeared => Change::Created,
            () if flags.contains(ReadFlags::CLOSE_WRITE) => Change::Modified,
            () if flags.contains(ReadFlags::ATTRIB) => Change::Attributes,
            () if flags.intersects(gone) => Change::Removed,
            () => continue,
        };
        tell(change, &path, lines);
        if appeared && watches.recursive && flags.contains(ReadFlags::ISDIR) {
            // What was made in it before the watch stood is told here.
            if watches.add(events, &path).is_err() {
                tell(Change::Overflow, Path::new(""), lines);
            }
            tell_below(&path, lines);
        }
    }
    false
}

fn tell_below(path: &Path, lines: &mut Vec<u8>) {
    for entry in path.read_dir().into_iter().flatten().flatten() {
        tell(Change::Created, &entry.path(), lines);
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            tell_below(&entry.path(), lines);
        }
    }
}

fn tell(change: Change, path: &Path, lines: &mut Vec<u8>) {
    let event = WatchEvent {
        change,
        path: octets(path),
    };
    // Plain data always serialises.
    lines.extend(serde_json::to_vec(&event).unwrap_or_default());
    lines.push(b'\n');
}
