//! Asking a supervisor about system calls (seccomp_unotify(2)). A leaf with `unsafe` in it.
//!
//! What makes it sound: each call gets integers, or pointers to values of the type that the request
//! is defined for, which outlive it.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};

use super::check;

/// A system call that a supervisor is asked about.
pub struct Notice {
    id: u64,
    /// The thread.
    pub thread: u32,
    /// The call.
    pub number: i32,
    /// Its arguments.
    pub arguments: [u64; 6],
}

/// The descriptor that the next one to be opened will have.
pub fn next_descriptor() -> io::Result<RawFd> {
    // SAFETY: integers. The copy is closed at once.
    let fd = check(unsafe { libc::fcntl(0, libc::F_DUPFD_CLOEXEC, 0) }.into())? as RawFd;
    // SAFETY: the descriptor is the one just made, and nobody else's.
    unsafe { libc::close(fd) };
    Ok(fd)
}

/// Has a supervisor asked about every system call of this thread and of those that it starts.
pub fn ask_about_everything() -> io::Result<()> {
    /// `linux/bpf_common.h`: return a constant.
    const RETURN: u16 = 0x06;
    let mut program = [libc::sock_filter {
        code: RETURN,
        jt: 0,
        jf: 0,
        k: libc::SECCOMP_RET_USER_NOTIF,
    }];
    let filter = libc::sock_fprog {
        len: 1,
        filter: program.as_mut_ptr(),
    };
    // SAFETY: the filter and its program outlive the call, which copies them.
    check(unsafe {
        libc::syscall(
            libc::SYS_seccomp,
            libc::SECCOMP_SET_MODE_FILTER,
            libc::SECCOMP_FILTER_FLAG_NEW_LISTENER,
            &raw const filter,
        )
    })
    .map(drop)
}

/// Whether a supervisor is asked through `fd`.
pub fn is_notifier(fd: BorrowedFd<'_>) -> bool {
    let nobody = 0u64;
    let request = libc::SECCOMP_IOCTL_NOTIF_ID_VALID as libc::Ioctl;
    // SAFETY: the request reads eight bytes; other descriptors do not know it.
    let result = unsafe { libc::ioctl(fd.as_raw_fd(), request, &raw const nobody) };
    result == 0 || io::Error::last_os_error().raw_os_error() == Some(libc::ENOENT)
}

/// Waits for a question.
pub fn next_notice(questions: BorrowedFd<'_>) -> io::Result<Notice> {
    // SAFETY: plain integers, which have to be zero before the call.
    let mut notice: libc::seccomp_notif = unsafe { std::mem::zeroed() };
    let request = libc::SECCOMP_IOCTL_NOTIF_RECV as libc::Ioctl;
    // SAFETY: the request fills a value of this type, which outlives the call.
    check(unsafe { libc::ioctl(questions.as_raw_fd(), request, &raw mut notice) }.into())?;
    Ok(Notice {
        id: notice.id,
        thread: notice.pid,
        number: notice.data.nr,
        arguments: notice.data.args,
    })
}

/// Lets the call be made, or answers it: with 0, or with a negative error number.
pub fn answer(questions: BorrowedFd<'_>, notice: &Notice, instead: Option<i32>) {
    let mut response = libc::seccomp_notif_resp {
        id: notice.id,
        val: 0,
        error: instead.unwrap_or(0),
        flags: 0,
    };
    if instead.is_none() {
        response.flags = libc::SECCOMP_USER_NOTIF_FLAG_CONTINUE as u32;
    }
    let request = libc::SECCOMP_IOCTL_NOTIF_SEND as libc::Ioctl;
    // SAFETY: the request reads a value of this type, which outlives the call. It fails only when
    // the thread is gone.
    unsafe { libc::ioctl(questions.as_raw_fd(), request, &raw mut response) };
}
