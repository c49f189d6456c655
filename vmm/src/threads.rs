//! Threads that a restricted thread has started.
//!
//! A thread is under the filters of the one that started it. The controller would have to be allowed
//! all that those need which it starts while guest code runs; so another thread starts them for it,
//! which was there before and does nothing else.

use std::io;
use std::sync::mpsc::{self, Receiver, Sender, SyncSender};
use std::thread::{self, JoinHandle};

use tine_jailer::seccomp::{self, Role};

use crate::logger::{self, Level};

type Body = Box<dyn FnOnce() + Send>;

struct Job {
    name: &'static str,
    role: Role,
    body: Body,
    started: SyncSender<io::Result<JoinHandle<()>>>,
}

/// Where threads are started.
#[derive(Debug, Default)]
pub struct Starter {
    /// To the thread that does it; none as long as the caller can.
    jobs: Option<Sender<Job>>,
}

impl Starter {
    /// Has another thread start those that are asked for from now on. It ends with this value.
    pub fn begin(&mut self) -> io::Result<()> {
        let (jobs, received) = mpsc::channel();
        let thread = thread::Builder::new().name("starter".to_owned());
        thread.spawn(move || serve(&received))?;
        self.jobs = Some(jobs);
        Ok(())
    }

    /// Starts a thread that takes on a role before it does anything.
    pub fn spawn(
        &self,
        name: &'static str,
        role: Role,
        body: impl FnOnce() + Send + 'static,
    ) -> io::Result<JoinHandle<()>> {
        let Some(jobs) = &self.jobs else {
            return spawn(name, role, Box::new(body));
        };
        let (started, starts) = mpsc::sync_channel(1);
        let job = Job {
            name,
            role,
            body: Box::new(body),
            started,
        };
        let gone = || io::Error::other("the thread that starts others is gone");
        jobs.send(job).map_err(|_| gone())?;
        starts.recv().map_err(|_| gone())?
    }
}

fn serve(jobs: &Receiver<Job>) {
    if let Err(err) = seccomp::install(Role::Starter, "starter") {
        return logger::log(Level::Error, err);
    }
    while let Ok(job) = jobs.recv() {
        // Who has asked waits for it.
        let _ = job.started.send(spawn(job.name, job.role, job.body));
    }
}

fn spawn(name: &'static str, role: Role, body: Body) -> io::Result<JoinHandle<()>> {
    let restricted = move || match seccomp::install(role, name) {
        Ok(()) => body(),
        Err(err) => logger::log(Level::Error, err),
    };
    thread::Builder::new()
        .name(name.to_owned())
        .spawn(restricted)
}
