//! SIGINT, SIGTERM and SIGHUP as events instead of sudden death, so that a machine is ended and
//! what was made for it is removed.

use std::io;
use std::mem::MaybeUninit;
use std::thread;

const ENDING: [libc::c_int; 3] = [libc::SIGINT, libc::SIGTERM, libc::SIGHUP];

/// Calls `on_signal` for each of the signals, from a thread of its own. Has to be called before
/// any other thread is started: threads inherit that the signals are blocked.
pub fn forward(on_signal: impl Fn(i32) + Send + 'static) -> io::Result<()> {
    let mut set = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: sigemptyset initializes the set that it is given a valid pointer to; sigaddset and
    // pthread_sigmask get that set, and real signal numbers.
    let set = unsafe {
        libc::sigemptyset(set.as_mut_ptr());
        let mut set = set.assume_init();
        for signal in ENDING {
            libc::sigaddset(&mut set, signal);
        }
        match libc::pthread_sigmask(libc::SIG_BLOCK, &set, std::ptr::null_mut()) {
            0 => set,
            errno => return Err(io::Error::from_raw_os_error(errno)),
        }
    };
    thread::Builder::new()
        .name("signals".to_owned())
        .spawn(move || {
            loop {
                let mut signal = 0;
                // SAFETY: both pointers are to values that live through the call.
                if unsafe { libc::sigwait(&set, &mut signal) } == 0 {
                    on_signal(signal);
                }
            }
        })?;
    Ok(())
}
