//! A process that runs in the memory of the one that makes it, which stands still meanwhile. A leaf
//! with `unsafe` in it.
//!
//! A copy of a process has a page fault for each page that it reads or writes, and takes all of it
//! down again when it becomes another program: a tenth of what a jail costs. What vfork(2) does spares
//! that, and nobody can use it but in C; so this is it with a stack of the new process's own.

use std::arch::asm;
use std::convert::Infallible;
use std::ffi::c_void;
use std::io;
use std::os::fd::BorrowedFd;

use super::{check, clone_args};

/// Bytes of stack: what is done on it opens files and formats messages.
const STACK: usize = 256 << 10;
/// Below it, where nothing is, so that a full stack ends the process.
const GUARD: usize = 4096;

/// What the new process does. It ends there.
type Work<'a> = dyn FnMut() -> Infallible + 'a;

/// Runs `work` in a new process, with `flags` (those of [`super::fork_flags`]) and from its first moment
/// in the cgroup (version 2) whose directory is `cgroup`. Returns its number when it has become another
/// program or has ended.
///
/// Both use the same memory: what `work` changes is changed here too, a descriptor excepted, since of
/// those the new process has its own. So whatever owns a descriptor that was opened or closed there is
/// not to be dropped here. This process must have a single thread, and is about to end.
pub fn run_beside(
    flags: u64,
    cgroup: Option<BorrowedFd<'_>>,
    work: &mut Work<'_>,
) -> io::Result<u32> {
    let mut args = clone_args(flags | VM_VFORK, cgroup);
    let stack = Stack::map()?;
    args.stack = stack.lowest() as u64;
    args.stack_size = STACK as u64;
    let mut work: &mut Work<'_> = work;
    let data: *mut c_void = (&raw mut work).cast();
    let mut result = libc::SYS_clone3;
    // SAFETY: the kernel reads `args`, which outlives the call, and has the new process go on behind
    // the instruction with the stack given, whose end is aligned as a call needs it. It calls `begin`
    // there and never comes back, so nothing of this function's frame is used by both; this process
    // goes on only then (CLONE_VFORK). `data` leads to `work`, which lives until then. The call
    // changes the registers named, and memory, as is assumed of all such blocks.
    unsafe {
        asm!(
            "syscall",
            "test rax, rax",
            "jnz 2f",
            // Where backtraces end.
            "xor ebp, ebp",
            "mov rdi, r12",
            "call r13",
            "ud2",
            "2:",
            inlateout("rax") result,
            in("rdi") &raw const args,
            in("rsi") size_of::<libc::clone_args>(),
            in("r12") data,
            in("r13") begin as extern "C" fn(*mut c_void) -> !,
            lateout("rcx") _,
            lateout("r11") _,
        );
    }
    match result {
        error @ ..0 => Err(io::Error::from_raw_os_error(-error as i32)),
        pid => Ok(pid as u32),
    }
}

/// Uses the memory, and lets the one that it is of wait.
const VM_VFORK: u64 = (libc::CLONE_VM | libc::CLONE_VFORK) as u64;

extern "C" fn begin(data: *mut c_void) -> ! {
    // SAFETY: it leads to what `run_beside` has put there, who waits.
    let work = unsafe { &mut *data.cast::<&mut Work<'_>>() };
    match work() {}
}

/// A stack, with a gap below it. It stays when this is dropped: to take it down costs more than all that
/// was done on it, and goes with the rest of the process.
struct Stack(*mut c_void);

impl Stack {
    fn map() -> io::Result<Self> {
        let none = libc::PROT_NONE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_STACK;
        // SAFETY: a mapping of its own, at an address that nobody has.
        let lowest = unsafe { libc::mmap(std::ptr::null_mut(), GUARD + STACK, none, flags, -1, 0) };
        if lowest == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let stack = Self(lowest);
        let both = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: the part above the gap, which nothing is in yet.
        check(unsafe { libc::mprotect(stack.lowest(), STACK, both) }.into())?;
        Ok(stack)
    }

    /// The lowest address that can be used.
    fn lowest(&self) -> *mut c_void {
        self.0.wrapping_byte_add(GUARD)
    }
}

#[cfg(test)]
mod tests {
    use rustix::process::{Pid, WaitOptions, waitpid};

    use super::super::{fork_flags, leave};
    use super::*;

    fn status(pid: u32) -> i32 {
        let pid = Pid::from_raw(pid as i32);
        let (_, status) = waitpid(pid, WaitOptions::empty()).unwrap().unwrap();
        status.as_raw()
    }

    #[test]
    fn what_it_did_is_there_when_it_has_ended() {
        let own = std::process::id();
        let mut other = 0;
        let pid = run_beside(fork_flags::NONE, None, &mut || {
            // The C library's number would be remembered from this process.
            other = rustix::process::getpid().as_raw_nonzero().get() as u32;
            leave(7)
        });
        let pid = pid.unwrap();
        assert_eq!(other, pid);
        assert_ne!(other, own);
        assert_eq!(status(pid), 7 << 8);
    }

    #[test]
    fn a_full_stack_ends_it_and_nothing_else() {
        fn deeper(depth: u64) -> u64 {
            let here = std::hint::black_box([depth; 64]);
            match depth {
                0 => 0,
                _ => deeper(depth - 1) + here[3],
            }
        }
        let pid = run_beside(fork_flags::NONE, None, &mut || {
            std::hint::black_box(deeper(1 << 20));
            leave(0)
        });
        // The test's own handler of a full stack may turn the one signal into the other.
        let signal = status(pid.unwrap()) & 0x7f;
        assert!([libc::SIGSEGV, libc::SIGABRT].contains(&signal), "{signal}");
    }
}
