//! The thread that touches files for those who must not wait for a disk.

use std::sync::mpsc::{self, Receiver, Sender};

use tokio::sync::oneshot;

use super::command::Refusal;

type Job = Box<dyn FnOnce() + Send>;

/// What the thread is given; it waits here until the thread is there.
pub(super) type Jobs = Receiver<Job>;

/// The way to the thread.
#[derive(Debug, Clone)]
pub(super) struct Files(Sender<Job>);

impl Files {
    /// The way, and what is to be passed to [`serve`].
    pub fn new() -> (Self, Jobs) {
        let (jobs, given) = mpsc::channel();
        (Self(jobs), given)
    }

    /// Has the thread do `work`. It is done also when nobody waits for the answer any more.
    pub async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, Refusal> {
        let (done, answer) = oneshot::channel();
        let job = move || drop(done.send(work()));
        self.0.send(Box::new(job)).map_err(|_| Refusal::Gone)?;
        answer.await.map_err(|_| Refusal::Gone)
    }
}

/// Works until nobody can give it more.
pub(super) fn serve(jobs: &Jobs) {
    while let Ok(job) = jobs.recv() {
        job();
    }
}
