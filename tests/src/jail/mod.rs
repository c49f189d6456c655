//! Jails in tests: programs that may be jailed, and a place where making jails leaves nothing.

pub mod machine;
pub mod seen;
pub mod user;

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::OnceLock;

use tempfile::TempDir;

use crate::{build, text};

/// The program `tine-jailer`, built as the tests are. `TINE_JAILER_BIN` names another one.
pub fn tine_jailer() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| match std::env::var_os("TINE_JAILER_BIN") {
        Some(path) => path.into(),
        None => build("tine-jailer"),
    })
}

/// A copy of `program` in `dir`: cargo keeps two names for each of its own, and the jailer takes
/// none that has two.
pub fn copy(program: &Path, dir: &Path) -> PathBuf {
    let name = program.file_name().expect("a program has a name");
    let path = dir.join(name);
    std::fs::copy(program, &path).expect("the program can be copied");
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).expect("its mode");
    path
}

/// Whether the tests run as root. Those that need it fail without, in words.
pub fn require_root() {
    // SAFETY: geteuid takes nothing and cannot fail.
    let user = unsafe { libc::geteuid() };
    assert_eq!(
        user, 0,
        "this test makes jails as root does: run it as root"
    );
}

/// Gives the calling thread, and the processes that it starts from now on, a mount namespace of
/// their own with an empty `/run`: what the jailer keeps there goes with the test.
pub fn private_mounts() {
    require_root();
    let call = |result: i32, what: &str| {
        assert_eq!(result, 0, "{what}: {}", std::io::Error::last_os_error());
    };
    let none = std::ptr::null();
    let private = libc::MS_REC | libc::MS_PRIVATE;
    // SAFETY: constant strings and null; what is unshared is the calling thread's own.
    unsafe {
        call(libc::unshare(libc::CLONE_NEWNS), "unshare");
        call(
            libc::mount(none, c"/".as_ptr(), none, private, none.cast()),
            "private",
        );
        let tmpfs = c"tmpfs".as_ptr();
        call(
            libc::mount(tmpfs, c"/run".as_ptr(), tmpfs, 0, none.cast()),
            "/run",
        );
    }
}

/// Mounts `count` small file systems below `dir`, in a mount namespace of the test's own.
pub fn many_mounts(dir: &Path, count: usize) {
    for number in 0..count {
        let place = dir.join(number.to_string());
        std::fs::create_dir(&place).expect("a directory");
        let place = std::ffi::CString::new(place.to_str().expect("text")).expect("no NUL");
        let tmpfs = c"tmpfs".as_ptr();
        // SAFETY: C strings that live through the call.
        let result =
            unsafe { libc::mount(tmpfs, place.as_ptr(), tmpfs, 0, c"size=4k".as_ptr().cast()) };
        assert_eq!(result, 0, "{}", std::io::Error::last_os_error());
    }
}

/// Runs other test files of this crate, with `program` in the place of `tine-vmm`, but for the tests
/// whose names begin with one of `without`.
pub fn suites(names: &[&str], program: &Path, without: &[&str]) -> Output {
    private_mounts();
    let mut command = Command::new(env!("CARGO"));
    command.args(["test", "--quiet", "--workspace"]);
    if !cfg!(debug_assertions) {
        command.arg("--release");
    }
    command.current_dir(env!("CARGO_MANIFEST_DIR"));
    for name in names {
        command.args(["--test", name]);
    }
    command.arg("--");
    for name in without {
        command.args(["--skip", name]);
    }
    command.env("TINE_VMM_BIN", program).stdin(Stdio::null());
    command.output().expect("cargo can be started")
}

/// Fails the test with what a suite printed that had to pass.
pub fn passed(output: &Output) {
    assert!(
        output.status.success(),
        "{}\n{}",
        text(&output.stdout),
        text(&output.stderr)
    );
}

/// A base directory for jails, and a copy of a program to put into them. What is left there when
/// the test ends is removed, processes too.
pub struct Jails {
    /// A directory that everybody can look into.
    pub dir: TempDir,
    /// The program.
    pub program: PathBuf,
}

impl Jails {
    /// For `program`, in a mount namespace of the calling thread's own.
    pub fn of(program: &Path) -> Self {
        private_mounts();
        let dir = TempDir::new().expect("a directory");
        let mode = std::fs::Permissions::from_mode(0o755);
        std::fs::set_permissions(dir.path(), mode).expect("its mode");
        std::fs::create_dir(dir.path().join("base")).expect("a directory");
        let program = copy(program, dir.path());
        Self { dir, program }
    }

    /// Where jails are made.
    pub fn base(&self) -> PathBuf {
        self.dir.path().join("base")
    }

    /// The directory of one.
    pub fn of_id(&self, id: &str) -> PathBuf {
        let name = self.program.file_name().expect("a program has a name");
        self.base().join(name).join(id)
    }

    /// The process in one, as its file says.
    pub fn pid(&self, id: &str) -> i32 {
        self.find(id).expect("a file with the process's number")
    }

    fn find(&self, id: &str) -> Option<i32> {
        let name = self.program.file_name()?;
        let mut file = self.of_id(id).join("root").join(name).into_os_string();
        file.push(".pid");
        std::fs::read_to_string(&file).ok()?.parse().ok()
    }

    /// A command line of the jailer, as far as all have it.
    pub fn command(&self, id: &str) -> Command {
        let mut command = Command::new(tine_jailer());
        command.args(["--id", id, "--exec-file"]).arg(&self.program);
        command.arg("--chroot-base-dir").arg(self.base());
        command
            .args(["--uid", "4242", "--gid", "4243"])
            .stdin(Stdio::null());
        command
    }

    /// Removes what dead machines left.
    pub fn collect(&self) -> Output {
        let mut command = Command::new(tine_jailer());
        command
            .arg("--gc")
            .arg("--chroot-base-dir")
            .arg(self.base());
        command.output().expect("tine-jailer can be started")
    }

    /// Ends the process of a jail as abruptly as can be, and waits for its end.
    pub fn kill(&self, id: &str) {
        Self::end(self.pid(id));
    }

    fn end(pid: i32) {
        // SAFETY: kill takes integers. The process is in a jail that this test has made.
        unsafe { libc::kill(pid, libc::SIGKILL) };
        while alive(pid) {
            std::thread::yield_now();
        }
    }
}

/// Whether a process runs. One that only waits to be reaped does not.
pub fn alive(pid: i32) -> bool {
    let Ok(stat) = std::fs::read_to_string(format!("/proc/{pid}/stat")) else {
        return false;
    };
    let state = stat
        .rsplit_once(") ")
        .and_then(|(_, rest)| rest.chars().next());
    state.is_some_and(|state| !"ZX".contains(state))
}

impl Drop for Jails {
    fn drop(&mut self) {
        let name = self.program.file_name().expect("a program has a name");
        let ids = std::fs::read_dir(self.base().join(name))
            .into_iter()
            .flatten()
            .flatten();
        for id in ids.filter_map(|entry| entry.file_name().into_string().ok()) {
            if let Some(pid) = self
                .find(&id)
                .filter(|_| self.of_id(&id).join("jail").exists())
            {
                Self::end(pid);
            }
        }
        let _ = self.collect();
    }
}
