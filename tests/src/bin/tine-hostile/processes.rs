//! Other processes.

use crate::calls::{Error, call, pointer};
use crate::{Attempt, Outcome, any_must_fail, attempt, must_fail};

/// Numbers that other processes may have.
fn others() -> impl Iterator<Item = u64> {
    let own = u64::from(std::process::id());
    (1..5000u64).filter(move |pid| *pid != own)
}

/// Whether any other process can be reached by `reach`.
fn reach_any(reach: impl Fn(u64) -> Result<i64, Error>) -> Outcome {
    let mut last = String::new();
    for pid in others() {
        match reach(pid) {
            Ok(_) => return Outcome::Out(format!("process {pid} can be reached")),
            Err(err) => last = err.to_string(),
        }
    }
    Outcome::Refused(last)
}

/// All attempts.
pub fn attempts() -> Vec<Attempt> {
    vec![
        attempt("signal another process", || {
            reach_any(|pid| call(libc::SYS_kill, &[pid, 0]))
        }),
        attempt("signal a thread of another process", || {
            reach_any(|pid| call(libc::SYS_tgkill, &[pid, pid, 0]))
        }),
        attempt("have another process traced", || {
            reach_any(|pid| call(libc::SYS_ptrace, &[libc::PTRACE_SEIZE.into(), pid, 0, 0]))
        }),
        attempt("read another process's memory", || {
            let buffer = [0u8; 8];
            let local = libc::iovec {
                iov_base: buffer.as_ptr().cast_mut().cast(),
                iov_len: 8,
            };
            let remote = libc::iovec {
                iov_base: std::ptr::with_exposed_provenance_mut(0x40_0000),
                iov_len: 8,
            };
            reach_any(|pid| {
                let arguments = [pid, pointer(&local), 1, pointer(&remote), 1, 0];
                call(libc::SYS_process_vm_readv, &arguments)
            })
        }),
        attempt("hold on to another process", || {
            reach_any(|pid| call(libc::SYS_pidfd_open, &[pid, 0]))
        }),
        attempt("change another process's limits", || {
            let limit = [0u64, 0];
            reach_any(|pid| {
                let core = u64::from(libc::RLIMIT_CORE);
                call(libc::SYS_prlimit64, &[pid, core, pointer(&limit), 0])
            })
        }),
        attempt("change another process's priority", || {
            reach_any(|pid| call(libc::SYS_setpriority, &[libc::PRIO_PROCESS.into(), pid, 19]))
        }),
        attempt("put another process on one processor", || {
            let mask = 1u64;
            reach_any(|pid| call(libc::SYS_sched_setaffinity, &[pid, 8, pointer(&mask)]))
        }),
        attempt("type into the launcher's terminal", || {
            let letter = b'x';
            any_must_fail((0..3).map(|fd| {
                let request = libc::TIOCSTI;
                call(libc::SYS_ioctl, &[fd, request, pointer(&letter)])
            }))
        }),
        attempt("see shared memory of the host", || {
            // The test has made a segment with this key.
            any_must_fail([call(libc::SYS_shmget, &[0x7469_6e65, 1, 0])])
        }),
        attempt("open a message queue", || {
            let flags = (libc::O_CREAT | libc::O_RDWR) as u64;
            any_must_fail([call(
                libc::SYS_mq_open,
                &[crate::calls::text("q"), flags, 0o600, 0],
            )])
        }),
        // Who is traced is stopped by its next signal.
        Attempt {
            name: "be traced",
            run: || {
                must_fail(call(
                    libc::SYS_ptrace,
                    &[libc::PTRACE_TRACEME.into(), 0, 0, 0],
                ))
            },
            alone: true,
        },
    ]
}
