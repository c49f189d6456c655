//! System calls that no library wraps. A leaf with `unsafe` in it, as `notify` is.
//!
//! What makes it sound: each call gets integers, or pointers to values that outlive it; `clone3`
//! gives the child memory of its own, as fork does, but for `beside`, which says why it may; and nothing
//! here but `copy` is called but from processes with a single thread, which the callers say.

mod begin;
mod beside;
mod holder;
mod mounts;
pub mod notify;

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

use libc::{c_int, c_long, c_uint};
use rustix::thread::UnshareFlags;

pub use begin::begin;
pub use beside::run_beside;
pub use holder::hold_user_namespace;
pub use mounts::{MountFlags, bind, mount_flags, restrict_mount};

/// The result of a raw call.
fn check(result: c_long) -> io::Result<c_long> {
    match result {
        -1 => Err(io::Error::last_os_error()),
        number => Ok(number),
    }
}

/// Closes all descriptors from 3 on but those in `keep`, which is sorted.
pub fn close_all_but(keep: &[RawFd]) -> io::Result<()> {
    let mut first: c_uint = 3;
    for &fd in keep {
        let fd = fd as c_uint;
        if fd > first {
            close_range(first, fd - 1)?;
        }
        first = first.max(fd + 1);
    }
    close_range(first, c_uint::MAX)
}

fn close_range(first: c_uint, last: c_uint) -> io::Result<()> {
    // SAFETY: integers only. Descriptors of ours are opened later: this is the first thing that a
    // jailer does.
    check(unsafe { libc::syscall(libc::SYS_close_range, first, last, 0) }).map(drop)
}

/// Another number, closed when a program is executed, for what descriptor `fd` is.
pub fn duplicate(fd: RawFd) -> io::Result<OwnedFd> {
    // SAFETY: two integers. The new number is nobody else's.
    unsafe {
        let new = check(libc::fcntl(fd, libc::F_DUPFD_CLOEXEC, 3).into())?;
        Ok(OwnedFd::from_raw_fd(new as RawFd))
    }
}

/// Lets an inherited descriptor survive the program that is executed next.
pub fn inherit(fd: RawFd) -> io::Result<()> {
    // SAFETY: F_SETFD takes an integer.
    check(unsafe { libc::fcntl(fd, libc::F_SETFD, 0) }.into()).map(drop)
}

/// How a process is copied.
pub mod fork_flags {
    /// As fork(2) does.
    pub const NONE: u64 = 0;
    /// Into a new PID namespace.
    pub const NEW_PID_NS: u64 = libc::CLONE_NEWPID as u64;
    /// As another child of this process's parent.
    pub const SIBLING: u64 = libc::CLONE_PARENT as u64;
}

/// What clone3(2) is asked for.
fn clone_args(flags: u64, cgroup: Option<BorrowedFd<'_>>) -> libc::clone_args {
    // SAFETY: clone_args is plain integers, for which zero means "not asked for".
    let mut args: libc::clone_args = unsafe { std::mem::zeroed() };
    args.flags = flags;
    // What a sibling's end is told by is the parent's affair.
    if flags & fork_flags::SIBLING == 0 {
        args.exit_signal = libc::SIGCHLD as u64;
    }
    if let Some(cgroup) = cgroup {
        args.flags |= CLONE_INTO_CGROUP;
        args.cgroup = cgroup.as_raw_fd() as u64;
    }
    args
}

/// A copy of this process, from its first moment in the cgroup (version 2) whose directory is
/// `cgroup`. `None` in the copy.
pub fn fork(flags: u64, cgroup: Option<BorrowedFd<'_>>) -> io::Result<Option<u32>> {
    let args = clone_args(flags, cgroup);
    // SAFETY: without CLONE_VM the child has a copy of everything, and there is one thread only, so
    // no lock is held by a thread that the child does not have.
    let pid = check(unsafe {
        libc::syscall(
            libc::SYS_clone3,
            &raw const args,
            size_of::<libc::clone_args>(),
        )
    })?;
    Ok((pid != 0).then_some(pid as u32))
}

/// A copy of this process as the C library makes it: whatever other threads do, the copy can use the
/// heap. Other locks of theirs stay taken there for ever. `None` in the copy.
pub fn copy() -> io::Result<Option<u32>> {
    // SAFETY: the child has a copy of everything and one thread, and callers have it take no lock but
    // the heap's, which the C library sees to.
    let pid = check(unsafe { libc::fork() }.into())?;
    Ok((pid != 0).then_some(pid as u32))
}

/// Whether this process leads its session. A leader outside of this PID namespace has no number in
/// it, the kernel says 0 then, and rustix takes that for impossible: so libc is asked.
pub fn leads_session() -> bool {
    // SAFETY: integers only.
    let (session, own) = unsafe { (libc::getsid(0), libc::getpid()) };
    session == own
}

/// `linux/sched.h`; libc has it as a signed number of too few bits.
const CLONE_INTO_CGROUP: u64 = 0x2_0000_0000;

/// Leaves the namespaces of the kinds in `flags` for new ones.
pub fn unshare(flags: UnshareFlags) -> io::Result<()> {
    // SAFETY: descriptors are not among what is left (no CLONE_FILES), and there is one thread.
    unsafe { rustix::thread::unshare_unsafe(flags) }.map_err(Into::into)
}

/// Leaves the session keyring of whoever started this process for a new, empty one.
pub fn new_session_keyring() -> io::Result<()> {
    /// `linux/keyctl.h`.
    const KEYCTL_JOIN_SESSION_KEYRING: c_int = 1;
    // SAFETY: a null name asks for a keyring without one.
    check(unsafe { libc::syscall(libc::SYS_keyctl, KEYCTL_JOIN_SESSION_KEYRING, 0) }).map(drop)
}

/// Lets every signal through, and takes none as the parent wished it to be taken.
pub fn reset_signals() {
    // SAFETY: a zeroed set is empty, a zeroed action is SIG_DFL, and both outlive the calls. What
    // fails (SIGKILL, SIGSTOP, and the C library's own) has its default action anyway.
    unsafe {
        for signal in 1..=64 {
            let action: libc::sigaction = std::mem::zeroed();
            libc::sigaction(signal, &raw const action, std::ptr::null_mut());
        }
        let mut none: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&raw mut none);
        libc::sigprocmask(libc::SIG_SETMASK, &raw const none, std::ptr::null_mut());
    }
}

/// The level of Landlock that the kernel offers; 0 for none.
pub fn landlock_version() -> u32 {
    /// `linux/landlock.h`.
    const LANDLOCK_CREATE_RULESET_VERSION: c_uint = 1;
    let none = std::ptr::null::<u8>();
    // SAFETY: with this flag, no attributes are read.
    let version = unsafe {
        libc::syscall(
            libc::SYS_landlock_create_ruleset,
            none,
            0usize,
            LANDLOCK_CREATE_RULESET_VERSION,
        )
    };
    u32::try_from(version).unwrap_or(0)
}

/// Whether `fd` stands for a namespace of kind `kind` (`CLONE_NEW...`).
pub fn is_namespace(fd: BorrowedFd<'_>, kind: c_int) -> bool {
    // SAFETY: NS_GET_NSTYPE takes no argument; other descriptors refuse it.
    unsafe { libc::ioctl(fd.as_raw_fd(), libc::NS_GET_NSTYPE) == kind }
}

/// What execveat(2) gets: three pointers that nobody else knows, see `run_once`.
pub struct ExecPointers {
    /// An empty string.
    pub path: u64,
    /// Arguments.
    pub arguments: u64,
    /// Environment.
    pub environment: u64,
}

/// A mapping at an address of the caller's choice, for as long as the process keeps its memory.
pub struct Page {
    address: usize,
    len: usize,
    used: usize,
}

impl Page {
    /// Maps `len` zeroed bytes at `address`, where nothing is mapped yet.
    pub fn map(address: usize, len: usize) -> io::Result<Self> {
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE;
        let wanted = std::ptr::with_exposed_provenance_mut(address);
        // SAFETY: MAP_FIXED_NOREPLACE never replaces a mapping, so nobody's memory changes.
        let got = unsafe { libc::mmap(wanted, len, protection, flags, -1, 0) };
        match got {
            libc::MAP_FAILED => Err(io::Error::last_os_error()),
            got if got == wanted => Ok(Self {
                address: got.expose_provenance(),
                len,
                used: 0,
            }),
            // Older kernels take the address as a wish.
            _ => Err(io::ErrorKind::Unsupported.into()),
        }
    }

    /// Appends `bytes`, and says where they are.
    pub fn put(&mut self, bytes: &[u8]) -> io::Result<u64> {
        let at = self.address + self.used;
        if bytes.len() > self.len - self.used {
            return Err(io::ErrorKind::ArgumentListTooLong.into());
        }
        let place: *mut u8 = std::ptr::with_exposed_provenance_mut(at);
        // SAFETY: the range is inside the mapping, which is writable and nobody else's.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), place, bytes.len()) };
        self.used += bytes.len();
        Ok(at as u64)
    }
}

/// Becomes the program behind `program`. Returns only when it cannot.
pub fn execute(program: BorrowedFd<'_>, pointers: &ExecPointers) -> io::Error {
    // SAFETY: the pointers lead to NUL-terminated strings and null-terminated lists of such, which
    // the caller has put into mappings that stay until this process's memory is replaced.
    unsafe {
        libc::syscall(
            libc::SYS_execveat,
            program.as_raw_fd(),
            pointers.path,
            pointers.arguments,
            pointers.environment,
            libc::AT_EMPTY_PATH,
        )
    };
    io::Error::last_os_error()
}

/// Puts `fd` in the place of descriptor `number`.
pub fn replace(fd: BorrowedFd<'_>, number: RawFd) -> io::Result<()> {
    // SAFETY: two integers; 0, 1 and 2, which this is for, are owned by nobody in particular.
    check(unsafe { libc::dup2(fd.as_raw_fd(), number) }.into()).map(drop)
}

/// Ends the process without running anything of it.
pub fn leave(status: c_int) -> ! {
    // SAFETY: ends the process at once.
    unsafe { libc::_exit(status) }
}

/// A call that does nothing: prctl(2) with an option that there is not.
pub fn call_nothing(option: u64, argument: u64) {
    // SAFETY: integers, of which the kernel knows the first one not.
    unsafe { libc::syscall(libc::SYS_prctl, option, argument, 0, 0, 0) };
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::fd::AsFd;

    use super::*;

    #[test]
    fn a_file_is_no_namespace_and_a_namespace_is_one() {
        let file = File::open("/proc/self/status").unwrap();
        assert!(!is_namespace(file.as_fd(), libc::CLONE_NEWNS));
        let own = File::open("/proc/self/ns/mnt").unwrap();
        assert!(is_namespace(own.as_fd(), libc::CLONE_NEWNS));
        assert!(!is_namespace(own.as_fd(), libc::CLONE_NEWNET));
    }
}
