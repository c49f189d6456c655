//! What PID 1 does before it serves: the mounts that programs expect, the root drive, the loopback device.
//!
//! Each step is time that somebody waits for, so there is none that no program needs. A step that a program can do
//! without fails with a line on the console; without the others the machine is ended, so that the monitor sees it.

use std::os::fd::IntoRawFd;

use rustix::fs::{CWD, Mode, OFlags};
use rustix::io::Errno;
use rustix::mount::{MountFlags, mount};
use rustix::system::{RebootCommand, reboot};
use tine_guest_agent::refresh::GENERATION_FILE;

use super::config::Config;
use super::{root, sys};

/// Most descriptors a program may ask for: what distributions allow.
const DESCRIPTOR_LIMIT: u64 = 1 << 20;

/// Makes the machine usable for programs.
pub fn prepare() -> Result<Config, String> {
    // The modes given here are meant as they stand.
    rustix::process::umask(Mode::empty());
    let strict = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    let devices = MountFlags::NOSUID | MountFlags::NOEXEC;
    mount_on("proc", "/proc", "proc", strict, "").map_err(|error| format!("/proc: {error}"))?;
    wish(
        mount_on("dev", "/dev", "devtmpfs", MountFlags::NOSUID, "mode=755"),
        "/dev",
    );
    open_console();
    let (config, boot) = Config::from_cmdline(&read_small("/proc/cmdline"))?;
    let read_only = match &boot.root {
        Some(device) => root::switch(device, &boot)?,
        None => false,
    };
    wish(mount_on("sysfs", "/sys", "sysfs", strict, ""), "/sys");
    wish(
        mount_on("cgroup2", "/sys/fs/cgroup", "cgroup2", strict, "nsdelegate"),
        "/sys/fs/cgroup",
    );
    wish(
        mount_on(
            "devpts",
            "/dev/pts",
            "devpts",
            devices,
            "gid=5,mode=620,ptmxmode=666",
        ),
        "/dev/pts",
    );
    let scratch = MountFlags::NOSUID | MountFlags::NODEV;
    // A directory is enough, as /dev is a tmpfs itself; another mount would cost as much as reading the command line.
    let _ = rustix::fs::mkdir("/dev/shm", Mode::from_raw_mode(0o1777));
    for (link, target) in [
        ("fd", "fd"),
        ("stdin", "fd/0"),
        ("stdout", "fd/1"),
        ("stderr", "fd/2"),
    ] {
        let _ = rustix::fs::symlink(format!("/proc/self/{target}"), format!("/dev/{link}"));
    }
    if boot.root.is_some() {
        wish(
            mount_on("tmpfs", "/run", "tmpfs", scratch, "mode=755"),
            "/run",
        );
    } else {
        // The initramfs is memory already.
        let _ = rustix::fs::mkdir("/run", Mode::from_raw_mode(0o755));
        let everybody = Mode::from_raw_mode(0o1777);
        if rustix::fs::mkdir("/tmp", everybody) == Err(Errno::EXIST) {
            let _ = rustix::fs::chmod("/tmp", everybody);
        }
    }
    let generation = super::refresh::write_generation(&config.effects, 0);
    wish(generation, GENERATION_FILE);
    if read_only {
        wish(
            mount_on("tmpfs", "/tmp", "tmpfs", scratch, "mode=1777"),
            "/tmp",
        );
    }
    rustix::process::umask(Mode::from_raw_mode(0o022));
    let hostname = boot.hostname.as_deref().unwrap_or("tine");
    wish(
        rustix::system::sethostname(hostname.as_bytes()),
        "host name",
    );
    wish(sys::loopback_up(), "loopback device");
    sys::raise_descriptor_limit(DESCRIPTOR_LIMIT);
    rest_when_idle();
    // Ctrl-Alt-Del, which monitors can send, becomes a signal and an orderly end.
    let _ = reboot(RebootCommand::CadOff);
    Ok(config)
}

/// Keeps the kernel from waking up twice a second to see whether memory should be compacted ahead of need (Linux,
/// Documentation/admin-guide/sysctl/vm.rst): where machines wait by the hundred, that is most of what they do. What
/// needs a large piece of memory still has it compacted then.
fn rest_when_idle() {
    const PROACTIVENESS: &str = "/proc/sys/vm/compaction_proactiveness";
    // A kernel without it does nothing of the kind.
    let _ = rustix::fs::open(
        PROACTIVENESS,
        OFlags::WRONLY | OFlags::CLOEXEC,
        Mode::empty(),
    )
    .and_then(|file| rustix::io::write(&file, b"0"));
}

/// Ends a machine whose agent cannot serve. The reason is on the console.
pub fn give_up() {
    // The words may be what is wrong, so they are only searched for the one that matters here.
    let reset = read_small("/proc/cmdline")
        .split_ascii_whitespace()
        .any(|word| word == "tine.off=reset");
    let _ = reboot(if reset {
        RebootCommand::Restart
    } else {
        RebootCommand::PowerOff
    });
    // Only reached without the right to: the kernel then says what happens when PID 1 ends.
}

/// Mounts, making the directory where it is missing. What is mounted already is fine.
pub fn mount_on(
    source: &str,
    target: &str,
    kind: &str,
    flags: MountFlags,
    data: &str,
) -> rustix::io::Result<()> {
    let data = std::ffi::CString::new(data).map_err(|_| Errno::INVAL)?;
    let attempt = || match mount(source, target, kind, flags, data.as_c_str()) {
        Err(Errno::BUSY) => Ok(()),
        result => result,
    };
    match attempt() {
        Err(Errno::NOENT) => {
            rustix::fs::mkdir(target, Mode::from_raw_mode(0o755))?;
            attempt()
        }
        result => result,
    }
}

/// Says what did not work out, and goes on.
pub fn wish<E: std::fmt::Display>(result: Result<(), E>, what: &str) {
    if let Err(error) = result {
        eprintln!("tine-agent: {what}: {error}");
    }
}

/// The kernel opens the console for PID 1 only if the initramfs has the node; programs' streams must never be given
/// the numbers 0 to 2 by accident.
fn open_console() {
    let missing = |fd: &rustix::fd::BorrowedFd<'_>| rustix::io::fcntl_getfd(fd).is_err();
    while missing(&rustix::stdio::stderr()) {
        let console = ["/dev/console", "/dev/null"].iter().find_map(|path| {
            rustix::fs::openat(CWD, *path, OFlags::RDWR | OFlags::NOCTTY, Mode::empty()).ok()
        });
        let Some(console) = console else { return };
        // Ours for good.
        let _ = console.into_raw_fd();
    }
}

/// The text of a small file in one read, empty if it cannot be had: for files of /proc, which have no size.
pub fn read_small(path: &str) -> String {
    let mut buffer = vec![0; 8192];
    let count = rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
        .and_then(|file| rustix::io::read(&file, &mut buffer))
        .unwrap_or_default();
    buffer.truncate(count);
    String::from_utf8_lossy(&buffer).into_owned()
}
