//! The program that ends with the parent of its process.

use std::io;
use std::os::fd::OwnedFd;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use super::{Jail, out_of_order};
use crate::error::{JailError, failed};
use crate::plan::{Plan, Step};

impl Jail<'_> {
    pub(super) fn end_with_parent(&self) -> Result<(), JailError> {
        let parent = self.parent.as_ref().ok_or_else(out_of_order)?;
        let kill = rustix::process::Signal::KILL;
        rustix::process::set_parent_process_death_signal(Some(kill))
            .map_err(failed("wish to end with the parent"))?;
        // It may have ended before that.
        let mut polled = [PollFd::new(parent, PollFlags::IN)];
        match poll(&mut polled, Some(&Timespec::default())) {
            Ok(0) => Ok(()),
            _ => Err(orphaned()),
        }
    }
}

/// The process that the program is to end with, which is still this one's parent.
pub(super) fn hold(plan: &Plan) -> Result<Option<OwnedFd>, JailError> {
    let wished = plan.steps.iter().find_map(|step| match step {
        Step::EndWithParent(pid) => Some(*pid),
        _ => None,
    });
    let Some(pid) = wished else { return Ok(None) };
    let pid = Pid::from_raw(pid as i32).ok_or_else(orphaned)?;
    let held = pidfd_open(pid, PidfdFlags::empty()).map_err(failed("hold the parent"))?;
    match rustix::process::getppid() == Some(pid) {
        true => Ok(Some(held)),
        false => Err(orphaned()),
    }
}

fn orphaned() -> JailError {
    failed("end with the parent: it has ended")(io::Error::from(io::ErrorKind::NotFound))
}
