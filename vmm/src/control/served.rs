//! Machines whose memory another process serves: they wait for it where they need all of it, and
//! fail when it ends.

use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use tine_jailer::seccomp::Role;

use super::command::{Command, Refusal};
use super::controller::Controller;
use crate::logger::{self, Level};
use crate::machine::Machine;
use crate::threads::Starter;

/// How long the controller may take to end a machine whose memory does not come any more. It cannot
/// while it waits for a vCPU that waits for a page.
const PATIENCE: Duration = Duration::from_secs(5);

impl Controller {
    /// Watches the process that serves the machine's memory, if one does.
    pub(super) fn watch_server(&self, machine: &Machine) -> Result<(), Refusal> {
        if !machine.memory().is_served() {
            return Ok(());
        }
        let Some(server) = machine.memory().server() else {
            logger::log(
                Level::Warning,
                "the process that serves the machine's memory cannot be watched: should it end, the \
                 machine stands still",
            );
            return Ok(());
        };
        let (shared, memory) = (self.shared.clone(), machine.memory().clone());
        let watch = move || {
            let mut polled = [PollFd::new(&server, PollFlags::IN)];
            while poll(&mut polled, None) == Err(Errno::INTR) {}
            if !memory.is_served() {
                return;
            }
            shared.tell(Command::PagesGone);
            let until = Instant::now() + PATIENCE;
            while let Some(left) = until.checked_duration_since(Instant::now()) {
                std::thread::park_timeout(left);
            }
            // The controller has ended the process before, if it can.
            logger::log(Level::Error, "the machine's memory is not served any more");
            std::process::exit(1);
        };
        let thread = Starter::default().spawn("pages", Role::Worker, watch);
        thread
            .map(drop)
            .map_err(|err| Refusal::failed("start a thread", err))
    }

    /// Gives a command on that can be carried out now. One that needs all of memory waits until that
    /// is here, on a thread of its own, and is then given again; the change that it is goes on.
    pub(super) fn fetched_before(&self, command: Command) -> Option<Command> {
        let needs = match &command {
            Command::Snapshot(request, ..) => !request.disks_alone,
            Command::Fork(..) => true,
            _ => false,
        };
        let memory = self.machine.as_ref().map(Machine::memory);
        let Some(memory) = memory.filter(|memory| needs && memory.is_served()) else {
            return Some(command);
        };
        let (memory, shared) = (memory.clone(), self.shared.clone());
        let fetch = move || match memory.fetch() {
            Ok(()) => shared.tell(command),
            // The reply goes with the command, which tells whoever waits.
            Err(err) => logger::log(Level::Error, err),
        };
        if let Err(err) = self.starter.spawn("fetch", Role::Worker, fetch) {
            logger::log(Level::Error, Refusal::failed("start a thread", err));
        }
        None
    }

    /// Whether the machine's memory is missing pages that nobody serves.
    pub(super) fn served_no_more(&self) -> bool {
        let machine = self.machine.as_ref();
        machine.is_some_and(|machine| machine.memory().is_served())
    }

    /// Ends the machine's threads and lets go of what is its own. Threads that may wait for a page
    /// which never comes are left to the end of the process, which follows.
    pub(super) fn drop_machine(&mut self) {
        self.folding = None;
        match self.machine.take() {
            Some(machine) if machine.memory().is_served() => std::mem::forget(machine),
            machine => drop(machine),
        }
    }
}
