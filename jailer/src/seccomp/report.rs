//! The last words of a process that made a call which its filters do not allow. A leaf with
//! `unsafe` in it: a signal handler.
//!
//! The filter answers such a call with SIGSYS. The call is not made, whatever the handler does: one
//! that has been tampered with can only let the thread try something else that is not allowed.
//! What makes the handler sound: it touches its arguments, constants, and a plain array of its own
//! thread, and calls write(2), which is safe in a handler.
//!
//! It ends the process by doing it again: the signal has its default action by then, so that the
//! process dies of SIGSYS for everyone to see, and no thread needs a call to end it by.

use std::cell::Cell;
use std::io;

use super::names::name_of;

/// Longest name of a thread that is reported.
const NAME: usize = 16;
thread_local! {
    /// Constant, and nothing to drop: an access is a load.
    static THREAD: Cell<[u8; NAME]> = const { Cell::new([0; NAME]) };
}

/// What the calling thread is called from now on.
pub(super) fn name_thread(name: &str) {
    let mut bytes = [0; NAME];
    let len = name.len().min(NAME);
    bytes[..len].copy_from_slice(&name.as_bytes()[..len]);
    THREAD.set(bytes);
}

/// Takes the signal from now on.
pub(super) fn handle() -> io::Result<()> {
    // SAFETY: a zeroed action is valid; the handler has the form that SA_SIGINFO wants.
    let result = unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = on_call as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_RESETHAND;
        libc::sigaction(libc::SIGSYS, &raw const action, std::ptr::null_mut())
    };
    match result {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

extern "C" fn on_call(_: libc::c_int, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
    // SAFETY: the kernel passes a siginfo that lives through the call; for SIGSYS of a filter the
    // number stands behind an address of 8 bytes, `_sifields._sigsys` in asm-generic/siginfo.h:
    // 16 bytes of head, 8 of address. For one that somebody sent, it is some number.
    let number = unsafe { info.cast::<u8>().add(24).cast::<i32>().read_unaligned() };
    let mut line = Line::default();
    let name = THREAD.get();
    let end = name.iter().position(|byte| *byte == 0).unwrap_or(NAME);
    line.put(b"seccomp: thread ");
    line.put(if end == 0 { b"(unnamed)" } else { &name[..end] });
    line.put(b": system call ");
    line.put_number(number);
    if let Some(name) = name_of(i64::from(number)) {
        line.put(b" (");
        line.put(name.as_bytes());
        line.put(b")");
    }
    line.put(b" is not allowed\n");
    // SAFETY: the bytes are the line's own. Nobody to tell is no reason to go on. The other call has
    // no arguments, and is allowed to nobody.
    unsafe {
        libc::write(2, line.bytes.as_ptr().cast(), line.len);
        libc::syscall(libc::SYS_getppid);
    }
}

/// Text without an allocator.
struct Line {
    bytes: [u8; 128],
    len: usize,
}

impl Default for Line {
    fn default() -> Self {
        Self {
            bytes: [0; 128],
            len: 0,
        }
    }
}

impl Line {
    fn put(&mut self, bytes: &[u8]) {
        for byte in bytes {
            if let Some(place) = self.bytes.get_mut(self.len) {
                *place = *byte;
                self.len += 1;
            }
        }
    }

    fn put_number(&mut self, number: i32) {
        let mut digits = [0; 10];
        let mut rest = number.unsigned_abs();
        let mut first = digits.len();
        loop {
            first -= 1;
            digits[first] = b'0' + (rest % 10) as u8;
            rest /= 10;
            if rest == 0 {
                break;
            }
        }
        if number < 0 {
            self.put(b"-");
        }
        self.put(&digits[first..]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_long_lines_fit() {
        let mut line = Line::default();
        for number in [0, 59, -1, i32::MIN, i32::MAX] {
            line.put_number(number);
            line.put(b" ");
        }
        assert_eq!(&line.bytes[..line.len], b"0 59 -1 -2147483648 2147483647 ");
        line.put(&[b'x'; 200]);
        assert_eq!(line.len, 128);
    }
}
