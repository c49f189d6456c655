//! Making what there is into what there should be, whenever something happens.
//!
//! A machine was claimed or has died, one got ready, another version of the template became the active
//! one: each time all of it is looked at. So nothing depends on what is remembered here.

use std::cell::RefCell;
use std::collections::HashSet;
use std::rc::Rc;
use std::time::Duration;

use rustix::fs::inotify::WatchFlags;
use serde_json::json;
use tokio::net::UnixListener;
use tokio::sync::{Notify, Semaphore};

use super::clear::end;
use super::place::{Marker, Pool, Stage};
use super::watch::Watch;
use crate::cli::copies::{self, Origin};
use crate::cli::failure::Failure;
use crate::cli::jail::Files;
use crate::cli::process::Process;
use crate::cli::restore;
use crate::cli::rundir::{self, SOCKET};
use crate::cli::session::Signals;
use crate::cli::template::{Named, Store};
use tine::launch::{self, Pidfd};

/// Between attempts when none can be made.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LAST_PAUSE: Duration = Duration::from_secs(60);

/// What the tasks share.
pub struct Supply {
    store: Store,
    pool: Pool,
    template: Named,
    /// What the machines' jails are made with, if they get any; nothing is shown so far.
    jail: Option<Files>,
    /// Machines whose end is waited for.
    alive: RefCell<HashSet<String>>,
    /// Those on their way.
    making: RefCell<HashSet<String>>,
    /// Why the last one was not made.
    failed: RefCell<Option<String>>,
    changed: Notify,
    turns: Semaphore,
}

/// Keeps `count` machines ready until the process is asked to end.
pub async fn work(
    supply: &Rc<Supply>,
    count: u32,
    watch: &Watch,
    listener: UnixListener,
    mut signals: Signals,
) -> Result<(), Failure> {
    // Whoever wants to know whether there is somebody connects, and has seen it then.
    tokio::task::spawn_local(async move { while listener.accept().await.is_ok() {} });
    let mut pause = FIRST_PAUSE;
    loop {
        if !supply.pool.dir.is_dir() {
            let name = &supply.pool.name;
            return Err(Failure::new(format!(
                "the directory of the pool {name} is gone"
            )));
        }
        // Before the look: what happens after it is an event.
        let active = supply.watch_template(watch);
        let looked = match active {
            Ok(()) => supply.look(count).await,
            Err(failure) => Err(failure),
        };
        let failed = looked.err().map(|failure| failure.words);
        let failed = failed.or(supply.failed.take());
        let again = match &failed {
            None => {
                pause = FIRST_PAUSE;
                None
            }
            Some(words) => {
                eprintln!("tine: pool {}: {words}", supply.pool.name);
                pause = (pause * 2).min(LAST_PAUSE);
                Some(pause)
            }
        };
        let retry = async {
            match again {
                Some(pause) => tokio::time::sleep(pause).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            // A failure is not tried again by what follows from it.
            changed = watch.changed(), if failed.is_none() => changed?,
            () = supply.changed.notified(), if failed.is_none() => {}
            () = retry => {}
            _ = signals.ending() => return Ok(()),
        }
    }
}

impl Supply {
    pub fn new(store: Store, pool: Pool, template: Named, jail: Option<Files>) -> Rc<Self> {
        Rc::new(Self {
            store,
            pool,
            template,
            jail,
            alive: RefCell::default(),
            making: RefCell::default(),
            failed: RefCell::default(),
            changed: Notify::new(),
            turns: Semaphore::new(launch::at_a_time()),
        })
    }

    fn watch_template(&self, watch: &Watch) -> Result<(), Failure> {
        // The same directory is watched once; a new one of the same name is another.
        watch.add(&self.store.dir(&self.template.name), WatchFlags::MOVED_TO)
    }

    /// Looks at what there is, and makes it what there should be.
    async fn look(self: &Rc<Self>, count: u32) -> Result<(), Failure> {
        self.pool.clear_claimed().await?;
        let version = self.store.version(&self.template)?;
        let mut ready = 0;
        for marker in self.pool.markers(Stage::Ready)? {
            if marker.version == version && self.is_alive(&marker).await? {
                ready += 1;
            } else {
                self.pool.take_back(&marker).await?;
            }
        }
        let making = self.making.borrow().len() as u32;
        for _ in ready + making..count {
            self.begin(version)?;
        }
        Ok(())
    }

    /// Whether a machine runs; its end is waited for from then on.
    async fn is_alive(self: &Rc<Self>, marker: &Marker) -> Result<bool, Failure> {
        if self.alive.borrow().contains(&marker.id) {
            return Ok(true);
        }
        // Of an earlier process of the pool.
        let socket = rundir::root()?.join(&marker.id).join(SOCKET);
        let Some(process) = Pidfd::serving(&socket).await else {
            return Ok(false);
        };
        self.wait_for_end(&marker.id, process, None);
        Ok(true)
    }

    fn wait_for_end(self: &Rc<Self>, id: &str, process: Pidfd, made: Option<Process>) {
        self.alive.borrow_mut().insert(id.to_owned());
        let (shared, id) = (self.clone(), id.to_owned());
        tokio::task::spawn_local(async move {
            // Where that cannot be waited for, another look is taken.
            let _ = process.ended().await;
            if let Some(made) = made {
                made.reap();
            }
            shared.alive.borrow_mut().remove(&id);
            shared.changed.notify_one();
        });
    }

    /// Begins a machine.
    fn begin(self: &Rc<Self>, version: u32) -> Result<(), Failure> {
        // An id has room for a part of a long name.
        let name: String = self.template.name.chars().take(48).collect();
        let id = format!("{name}-{}", rundir::new_id());
        let marker = Marker { id, version };
        self.pool.mark(&marker)?;
        self.making.borrow_mut().insert(marker.id.clone());
        let shared = self.clone();
        tokio::task::spawn_local(async move {
            if let Err(failure) = shared.make(&marker).await {
                *shared.failed.borrow_mut() = Some(failure.words);
                shared.pool.unmark(&marker);
            }
            shared.making.borrow_mut().remove(&marker.id);
            shared.changed.notify_one();
        });
        Ok(())
    }

    async fn make(self: &Rc<Self>, marker: &Marker) -> Result<(), Failure> {
        // Never closed.
        let _turn = self.turns.acquire().await;
        let template = Named {
            name: self.template.name.clone(),
            version: Some(marker.version),
        };
        let opened = self.store.open(&template)?;
        let mut snapshot = opened.snapshot.clone();
        let mut files = self.jail.clone();
        if let Some(files) = &mut files {
            snapshot = restore::show_snapshot(files, &snapshot, &mut None)?;
        }
        let origin = Origin {
            layers: None,
            files,
            request: json!({ "snapshot": snapshot }),
            agent: true,
            env: opened.record.environment.clone().into_iter().collect(),
        };
        let process = copies::one(&marker.id, &origin, Vec::new(), Some(None)).await?;
        match Pidfd::serving(&process.dir.join(SOCKET)).await {
            Some(pidfd) => self.wait_for_end(&marker.id, pidfd, Some(process)),
            // The next look finds it dead.
            None => process.reap(),
        }
        match self.pool.shift(marker, Stage::Making, Stage::Ready) {
            Ok(true) => Ok(()),
            // Its file is gone: nobody would know of the machine.
            lost => end(marker).await.and(lost.map(drop)),
        }
    }
}
