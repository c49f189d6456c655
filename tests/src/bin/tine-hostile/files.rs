//! Files of the host.

use crate::calls::{HERE, call, open, pointer, text};
use crate::{Attempt, Outcome, any_must_fail, attempt, must_fail};

/// All attempts.
pub fn attempts() -> Vec<Attempt> {
    vec![
        // First, since others open some.
        attempt("use a descriptor that was left open", || {
            let fcntl = |fd| call(libc::SYS_fcntl, &[fd, libc::F_GETFD as u64]);
            match (3..2048u64).find(|fd| fcntl(*fd).is_ok()) {
                Some(fd) => Outcome::Out(format!("descriptor {fd} is open")),
                None => Outcome::Refused("there is none".to_owned()),
            }
        }),
        attempt("open the host's /etc/passwd", || {
            must_fail(open("/etc/passwd", libc::O_RDONLY))
        }),
        attempt("open a file of the host by `..`", || {
            any_must_fail(
                [
                    "../etc/passwd",
                    "../../../../../../etc/passwd",
                    "/../../etc/passwd",
                ]
                .map(|path| open(path, libc::O_RDONLY)),
            )
        }),
        attempt("list a directory above the root", || {
            let flags = libc::O_RDONLY | libc::O_DIRECTORY;
            match open("/..", flags) {
                // The root is its own parent.
                Ok(_) => {
                    any_must_fail(["/../usr", "/../bin", "/../home"].map(|path| open(path, flags)))
                }
                Err(err) => Outcome::Refused(err.to_string()),
            }
        }),
        attempt("walk /proc", || {
            any_must_fail(
                [
                    "/proc",
                    "/proc/self/status",
                    "/proc/1/root",
                    "/proc/self/fd",
                    "/proc/sys",
                ]
                .map(|path| open(path, libc::O_RDONLY)),
            )
        }),
        attempt("walk /sys", || {
            any_must_fail(["/sys", "/sys/kernel", "/sys/fs/cgroup"].map(|path| open(path, 0)))
        }),
        attempt("open the host's memory", || {
            any_must_fail(
                ["/dev/mem", "/dev/kmem", "/dev/port", "/proc/kcore"]
                    .map(|path| open(path, libc::O_RDWR)),
            )
        }),
        attempt("open the host's disks", || {
            any_must_fail(["/dev/vda", "/dev/sda", "/dev/nvme0n1"].map(|path| open(path, 0)))
        }),
        attempt("follow a symbolic link out", || {
            let made = call(
                libc::SYS_symlinkat,
                &[text("/etc/passwd"), HERE, text("/run/l")],
            );
            match (made, open("/run/l", libc::O_RDONLY)) {
                (_, Ok(_)) => Outcome::Out("the link leads out".to_owned()),
                (Err(err), Err(_)) => Outcome::Refused(err.to_string()),
                (Ok(_), Err(err)) => Outcome::Refused(err.to_string()),
            }
        }),
        attempt("link a device to another name", || {
            let link = [HERE, text("/dev/kvm"), HERE, text("/run/kvm"), 0];
            must_fail(call(libc::SYS_linkat, &link))
        }),
        attempt("open a file by its handle", || {
            // The root of a file system, for those that number it 2: bytes, kind, inode, generation.
            let handle: [u32; 4] = [8, 1, 2, 0];
            must_fail(call(
                libc::SYS_open_by_handle_at,
                &[HERE, pointer(&handle), 0],
            ))
        }),
        attempt("read the environment", || {
            match std::env::vars_os().next() {
                Some(variable) => Outcome::Out(format!("there is {variable:?}")),
                None => Outcome::Refused("it is empty".to_owned()),
            }
        }),
        attempt("put a file into /dev", || {
            must_fail(open("/dev/file", libc::O_CREAT | libc::O_WRONLY))
        }),
        attempt("change the rights of a device", || {
            any_must_fail([
                call(libc::SYS_fchmodat, &[HERE, text("/dev/kvm"), 0o777]),
                call(libc::SYS_fchownat, &[HERE, text("/dev/kvm"), 0, 0, 0]),
            ])
        }),
        attempt("be told of what happens to files", || {
            any_must_fail([
                call(libc::SYS_fanotify_init, &[0, 0]),
                call(libc::SYS_fanotify_init, &[libc::FAN_REPORT_FID.into(), 0]),
            ])
        }),
        attempt("use quotas", || {
            must_fail(call(
                libc::SYS_quotactl,
                &[0x8000_0300, text("/dev/vda"), 0, 0],
            ))
        }),
    ]
}
