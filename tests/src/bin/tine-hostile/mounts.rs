//! Mounts, roots, nodes and namespaces.

use crate::calls::{HERE, call, open, pointer, text};
use crate::{Attempt, Outcome, any_must_fail, attempt, must_fail};

fn mount(source: &str, target: &str, kind: &str, flags: u64) -> Result<i64, crate::calls::Error> {
    call(
        libc::SYS_mount,
        &[text(source), text(target), text(kind), flags, 0],
    )
}

fn unshare(flags: i32) -> Outcome {
    must_fail(call(libc::SYS_unshare, &[flags as u64]))
}

/// All attempts.
pub fn attempts() -> Vec<Attempt> {
    vec![
        attempt("mount /proc", || {
            must_fail(mount("proc", "/run", "proc", 0))
        }),
        attempt("mount a file system in memory", || {
            must_fail(mount("t", "/run", "tmpfs", 0))
        }),
        attempt("mount a disk", || {
            must_fail(mount("/dev/vda", "/run", "ext4", 0))
        }),
        attempt("mount a directory again", || {
            must_fail(mount("/", "/run", "", libc::MS_BIND))
        }),
        attempt("make /dev writable", || {
            let remount = libc::MS_REMOUNT | libc::MS_BIND;
            must_fail(mount("", "/dev", "", remount))
        }),
        attempt("make the root executable", || {
            let remount = libc::MS_REMOUNT | libc::MS_BIND;
            must_fail(mount("", "/", "", remount))
        }),
        attempt("take /dev down", || {
            must_fail(call(
                libc::SYS_umount2,
                &[text("/dev"), libc::MNT_DETACH as u64],
            ))
        }),
        attempt("copy the root's mount", || {
            must_fail(call(libc::SYS_open_tree, &[HERE, text("/"), 1]))
        }),
        attempt("open a file system's context", || {
            must_fail(call(libc::SYS_fsopen, &[text("proc"), 0]))
        }),
        attempt("change the root", || {
            must_fail(call(libc::SYS_pivot_root, &[text("/run"), text("/run")]))
        }),
        attempt("escape by a second chroot", || {
            let _ = call(libc::SYS_mkdirat, &[HERE, text("/run/below"), 0o700]);
            if let Err(err) = call(libc::SYS_chroot, &[text("/run/below")]) {
                return Outcome::Refused(err.to_string());
            }
            for _ in 0..64 {
                let _ = call(libc::SYS_chdir, &[text("..")]);
            }
            let _ = call(libc::SYS_chroot, &[text(".")]);
            any_must_fail(["/etc/passwd", "/usr"].map(|path| open(path, 0)))
        }),
        attempt("make the node of a disk", || {
            let node = [
                HERE,
                text("/run/disk"),
                u64::from(libc::S_IFBLK | 0o600),
                254 << 8,
            ];
            must_fail(call(libc::SYS_mknodat, &node))
        }),
        attempt("make the node of the host's memory", || {
            let node = [
                HERE,
                text("/run/mem"),
                u64::from(libc::S_IFCHR | 0o600),
                1 << 8 | 1,
            ];
            must_fail(call(libc::SYS_mknodat, &node))
        }),
        attempt("make a user namespace", || unshare(libc::CLONE_NEWUSER)),
        attempt("make a mount namespace", || unshare(libc::CLONE_NEWNS)),
        attempt("make a network namespace", || unshare(libc::CLONE_NEWNET)),
        attempt("make a PID namespace", || unshare(libc::CLONE_NEWPID)),
        attempt("make namespaces with a process in them", || {
            let flags = libc::CLONE_NEWUSER | libc::CLONE_NEWNS | libc::SIGCHLD;
            match call(libc::SYS_clone, &[flags as u64, 0, 0, 0, 0]) {
                Ok(0) => std::process::exit(0),
                other => must_fail(other),
            }
        }),
        attempt("make namespaces by clone3", || {
            let mut arguments = [0u64; 11];
            arguments[0] = libc::CLONE_NEWUSER as u64;
            arguments[4] = libc::SIGCHLD as u64;
            match call(libc::SYS_clone3, &[pointer(&arguments), 88]) {
                Ok(0) => std::process::exit(0),
                // The filter says that there is no such call.
                Err(err) if err.is_missing() => Outcome::Refused("by the filter".to_owned()),
                other => must_fail(other),
            }
        }),
        attempt("enter the namespaces of process 1", || {
            let pid = call(libc::SYS_pidfd_open, &[1, 0]);
            let fd = match pid {
                Ok(fd) => fd as u64,
                Err(err) => return Outcome::Refused(err.to_string()),
            };
            // In a PID namespace of its own, this is process 1: entering one's own user namespace
            // is refused to everybody.
            let flags = libc::CLONE_NEWUSER | libc::CLONE_NEWNS;
            must_fail(call(libc::SYS_setns, &[fd, flags as u64]))
        }),
    ]
}
