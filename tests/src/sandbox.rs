//! A `tine-vmm` for requests that somebody made up: it cannot write to the host's files.

use std::fs::File;
use std::process::{Command, Stdio};

use tempfile::TempDir;

use crate::api::{Vmm, tine_vmm};
use crate::guest;

/// Requests name files to create and to write. So the process sees the host's files read-only, but
/// for its own directory, and has an empty `/srv` in memory, the directory of the description's
/// examples. The network is one of its own.
const SANDBOX: &str = r#"
    set -e
    mount --make-rprivate /
    mount --bind "$1" "$1"
    mount -t tmpfs -o size=256M tmpfs /srv
    cp "$1/vmlinux" /srv/vmlinux
    for file in disk.img other.img initramfs.cpio; do head -c 4096 /dev/zero > /srv/$file; done
    mkfifo /srv/fifo
    mount -o remount,bind,ro /
    cd /srv
    shift
    exec "$@"
"#;

/// A process in the sandbox, with files of the examples' names.
pub fn process() -> Vmm {
    let dir = TempDir::new().unwrap();
    std::fs::copy(guest("hang"), dir.path().join("vmlinux")).unwrap();
    let mut command = Command::new("unshare");
    if !is_root() {
        command.args(["--user", "--map-root-user"]);
    }
    command.args(["--mount", "--net", "--", "sh", "-c", SANDBOX, "sandbox"]);
    command.arg(dir.path()).arg(tine_vmm());
    command.arg("--api-sock").arg(dir.path().join("api.sock"));
    // What a guest says goes nowhere: nobody reads it. What the process says is for who asks.
    command.stdin(Stdio::null()).stdout(Stdio::null());
    let errors = File::create(dir.path().join("stderr")).expect("a file");
    command.stderr(errors);
    Vmm::spawn(command, dir)
}

/// Whether the tests are run as root.
pub fn is_root() -> bool {
    // SAFETY: takes and does nothing.
    unsafe { libc::geteuid() == 0 }
}
