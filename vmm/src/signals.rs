//! Signals that end a process, as events instead of sudden death, so that a machine is ended and
//! what was made for it is removed.

use std::io;
use std::thread;

use tine_jailer::seccomp::{self, Role};
use vmm_sys_util::signal::{block_signal, create_sigset, unblock_signal};

const ENDING: [libc::c_int; 3] = [libc::SIGINT, libc::SIGTERM, libc::SIGHUP];

/// The signals wait from here on, in this thread and in those that it starts.
pub struct Blocked(());

/// Makes the signals wait. Has to be called before any other thread is started.
pub fn block() -> io::Result<Blocked> {
    for signal in ENDING {
        block_signal(signal).map_err(|err| io::Error::other(err.to_string()))?;
    }
    Ok(Blocked(()))
}

impl Blocked {
    /// Does `work` in this thread, and has the signals do meanwhile what they did before.
    ///
    /// # Errors
    ///
    /// When they cannot be let through, or made to wait again.
    pub fn lift<T>(&self, work: impl FnOnce() -> T) -> io::Result<T> {
        for signal in ENDING {
            unblock_signal(signal).map_err(|err| io::Error::other(err.to_string()))?;
        }
        let done = work();
        block().map(|Self(())| done)
    }

    /// Calls `on_signal` for each signal, from a thread of its own.
    pub fn forward(self, on_signal: impl Fn(i32) + Send + 'static) -> io::Result<()> {
        let set = create_sigset(&ENDING)?;
        let wait = move || {
            seccomp::install(Role::Worker, "signals")
                .expect("a filter that was compiled can be installed");
            loop {
                let mut signal = 0;
                // SAFETY: both pointers are to values that live through the call.
                if unsafe { libc::sigwait(&set, &mut signal) } == 0 {
                    on_signal(signal);
                }
            }
        };
        let thread = thread::Builder::new().name("signals".to_owned());
        thread.spawn(wait).map(drop)
    }
}
