//! What each thread of a monitor may ask the kernel for.
//!
//! The rules are text (`rules/`), compiled to filters when this crate is. A thread takes on its
//! role with [`install`], for good. A call that its role does not allow ends the process, with a
//! line on standard error that says which thread and which call (`report`).
//!
//! Filters add up: a thread has that of the thread that started it too. In a jail the whole process is
//! under [`Role::Process`] from its first instruction on, which allows what any of them needs, and
//! each thread narrows it down. Without one, threads are restricted when they begin, and the first one
//! before guest code can run: until then nothing but the caller's own words has come in, and that
//! filter, the longest, takes as long to install (0.4 ms) as all else until the first answer.

#[allow(dead_code, reason = "compiling the rules uses more of it")]
mod code;
mod filters;
pub mod names;
mod once;
mod report;
mod supervisor;
pub mod table;
mod trace;

use std::io;
use std::sync::atomic::{AtomicU8, Ordering};

use seccompiler::apply_filter;

pub use filters::{ROLES, Role};
pub(crate) use once::restrict_process;
pub(crate) use supervisor::{supervise, watch};
pub use trace::{Call, From, Trace, trace_to};

/// What [`install`] does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Mode {
    /// Nothing.
    #[default]
    Off,
    /// It restricts the thread.
    Filter,
    /// It tells a supervisor, who notes down what the thread calls from then on.
    Trace,
}

static MODE: AtomicU8 = AtomicU8::new(Mode::Off as u8);

/// Why a thread could not be restricted.
#[derive(Debug, thiserror::Error)]
#[error("cannot restrict the thread {thread:?} to its system calls: {reason}")]
pub struct InstallError {
    thread: String,
    reason: String,
}

/// What the calling thread is called when it makes a call that is not allowed.
pub fn name_thread(name: &str) {
    report::name_thread(name);
}

/// Decides for the whole process what [`install`] does, before any thread calls it. With
/// [`Mode::Filter`], a call that is not allowed is reported from now on, also one that the jail's
/// own filter does not allow.
pub fn set_mode(mode: Mode) -> io::Result<()> {
    // A library looks the process's auxiliary vector up once, by a call that no role has.
    rustix::param::page_size();
    if mode == Mode::Filter {
        report::handle()?;
    }
    MODE.store(mode as u8, Ordering::Relaxed);
    Ok(())
}

/// Restricts the calling thread, and those that it starts later, to what `role` needs. There is no
/// way back. `thread` is what the thread is called when it has to be reported.
pub fn install(role: Role, thread: &str) -> Result<(), InstallError> {
    match MODE.load(Ordering::Relaxed) {
        mode if mode == Mode::Filter as u8 => {
            report::name_thread(thread);
            apply_filter(role.filter()).map_err(|err| InstallError {
                thread: thread.to_owned(),
                reason: err.to_string(),
            })
        }
        mode if mode == Mode::Trace as u8 => {
            supervisor::mark(role);
            Ok(())
        }
        _ => Ok(()),
    }
}

/// What [`install`] does.
pub fn mode() -> Mode {
    let modes = [Mode::Off, Mode::Filter, Mode::Trace];
    let now = MODE.load(Ordering::Relaxed);
    let mode = modes.into_iter().find(|mode| *mode as u8 == now);
    mode.unwrap_or_default()
}

#[cfg(test)]
mod tests;
