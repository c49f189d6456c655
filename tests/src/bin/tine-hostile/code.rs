//! Other programs, and code of its own.

use crate::calls::{HERE, call, open, pointer, text};
use crate::{Attempt, Outcome, any_must_fail, attempt, must_fail};

fn execute(path: &str) -> Result<i64, crate::calls::Error> {
    let arguments = [text(path), 0];
    call(
        libc::SYS_execve,
        &[text(path), pointer(&arguments), pointer(&0u64)],
    )
}

/// All attempts.
pub fn attempts() -> Vec<Attempt> {
    vec![
        attempt("start a process", || {
            any_must_fail([
                fork(libc::SYS_fork, &[]),
                fork(libc::SYS_vfork, &[]),
                fork(libc::SYS_clone, &[libc::SIGCHLD as u64, 0, 0, 0, 0]),
            ])
        }),
        attempt("execute a shell", || {
            any_must_fail(["/bin/sh", "/bin/bash", "/usr/bin/env", "/busybox"].map(execute))
        }),
        attempt("execute a file that it has written", || {
            let flags = libc::O_CREAT | libc::O_WRONLY;
            if let Ok(fd) = open("/run/program", flags) {
                let text = b"#!/run/program\n";
                let _ = call(
                    libc::SYS_write,
                    &[fd as u64, text.as_ptr().expose_provenance() as u64, 15],
                );
                let _ = call(libc::SYS_fchmod, &[fd as u64, 0o755]);
                let _ = call(libc::SYS_close, &[fd as u64]);
            }
            must_fail(execute("/run/program"))
        }),
        attempt("execute from memory", || {
            let fd = match call(libc::SYS_memfd_create, &[text("program"), 0]) {
                Ok(fd) => fd as u64,
                Err(err) => return Outcome::Refused(err.to_string()),
            };
            // Nothing to run: a process that is refused for that reason was not refused to execute.
            let list = [0u64];
            let empty = libc::AT_EMPTY_PATH as u64;
            let arguments = [fd, text(""), pointer(&list), pointer(&list), empty];
            match call(libc::SYS_execveat, &arguments) {
                Err(err) if err.to_string().contains("Exec format") => {
                    Outcome::Out("a file in memory would be executed".to_owned())
                }
                other => must_fail(other),
            }
        }),
        attempt("execute itself once more", || {
            let list = [0u64];
            any_must_fail([
                execute("/tine-hostile"),
                call(
                    libc::SYS_execveat,
                    &[
                        HERE,
                        text("/tine-hostile"),
                        pointer(&list),
                        pointer(&list),
                        0,
                    ],
                ),
            ])
        }),
        attempt("have memory that is written and executed", || {
            let protection = (libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC) as u64;
            let flags = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS) as u64;
            must_fail(call(
                libc::SYS_mmap,
                &[0, 4096, protection, flags, u64::MAX, 0],
            ))
        }),
        attempt("make written memory executable", || {
            let protection = (libc::PROT_READ | libc::PROT_WRITE) as u64;
            let flags = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS) as u64;
            let page = call(libc::SYS_mmap, &[0, 4096, protection, flags, u64::MAX, 0]);
            let page = page.unwrap_or(0) as u64;
            let executable = (libc::PROT_READ | libc::PROT_EXEC) as u64;
            any_must_fail([
                call(libc::SYS_mprotect, &[page, 4096, executable]),
                call(libc::SYS_pkey_mprotect, &[page, 4096, executable, u64::MAX]),
            ])
        }),
        attempt("have all memory executable", || {
            /// `linux/personality.h`.
            const READ_IMPLIES_EXEC: u64 = 0x40_0000;
            must_fail(call(libc::SYS_personality, &[READ_IMPLIES_EXEC]))
        }),
    ]
}

fn fork(number: i64, arguments: &[u64]) -> Result<i64, crate::calls::Error> {
    match call(number, arguments) {
        // The new process has nothing to do. A vfork's shares this one's memory: it must not return.
        Ok(0) => {
            let _ = call(libc::SYS_exit_group, &[0]);
            Ok(0)
        }
        other => other,
    }
}
