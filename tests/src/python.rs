//! Programs in Python that others published, in environments that only tests use.

use std::fs::File;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::text;

/// A directory below `tests/sdk`.
pub fn sdk(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("sdk").join(name)
}

/// The directory of the environment that `sdk/NAME/requirements.txt` describes: versions and
/// checksums of all packages. It is made beside the tests when it is not there yet.
pub fn environment(name: &str) -> PathBuf {
    let requirements = sdk(name).join("requirements.txt");
    let wanted = std::fs::read(&requirements).expect("the list of packages");
    let mut hasher = DefaultHasher::new();
    wanted.hash(&mut hasher);
    let test = std::env::current_exe().expect("the test's own path");
    // target/TARGET/PROFILE/deps/TEST
    let target = test.ancestors().nth(3).expect("cargo's directories");
    let dir = target.join("sdk").join("python");
    let path = dir.join(format!("{name}-{:016x}", hasher.finish()));
    std::fs::create_dir_all(&dir).expect("a directory for environments");
    // One of several tests makes it, the others wait.
    let lock = File::create(dir.join("lock")).expect("a lock file");
    lock.lock().expect("the lock");
    let whole = path.join("whole");
    if whole.exists() {
        return path;
    }
    let _ = std::fs::remove_dir_all(&path);
    succeed(Command::new("python3").args(["-m", "venv"]).arg(&path));
    let mut pip = Command::new(path.join("bin/pip"));
    pip.args(["install", "--quiet", "--disable-pip-version-check"]);
    pip.args([
        "--only-binary",
        ":all:",
        "--require-hashes",
        "--requirement",
    ]);
    succeed(pip.arg(&requirements));
    File::create(whole).expect("a mark");
    path
}

fn succeed(command: &mut Command) {
    let output = command.output().unwrap_or_else(|err| {
        panic!("{command:?} cannot be started: {err}; ./setup installs what tests call")
    });
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{command:?}: {out}{err}");
}
