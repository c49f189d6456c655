//! What the end-to-end tests share: the programs under test, bare-metal guests, and running one
//! with the other.
//!
//! A test here runs on the real `/dev/kvm`. Where there is none it fails, in words.

pub mod api;
pub mod cli;
pub mod jail;
pub mod left;
pub mod linux;
pub mod python;
pub mod sandbox;
pub mod streams;

use std::fs::OpenOptions;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::OnceLock;

/// Runs a program of the host, which must end well, and gives all that it says.
pub fn host(words: &[&str]) -> String {
    let output = Command::new(words[0]).args(&words[1..]).output();
    let output = output.unwrap_or_else(|err| panic!("{}: {err}; run ./setup", words[0]));
    let said = text(&output.stdout) + &text(&output.stderr);
    assert!(output.status.success(), "{words:?}: {said}");
    said
}

/// The bare-metal guest `NAME`, from `guests/NAME.S`.
pub fn guest(name: &str) -> PathBuf {
    let path = Path::new(env!("TINE_GUESTS"))
        .join(name)
        .with_extension("elf");
    assert!(path.is_file(), "there is no guest {name}");
    path
}

/// The program `tine`, built as the tests are. `TINE_BIN` names another one.
pub fn tine() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| {
        require_kvm();
        match std::env::var_os("TINE_BIN") {
            Some(path) => path.into(),
            None => build("tine"),
        }
    })
}

/// The program `tine-worker`, for a guest.
pub fn worker() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| build("tine-worker"))
}

/// Programs that are not a test's own.
const PROGRAMS: [&str; 5] = [
    "tine",
    "tine-vmm",
    "tine-jailer",
    "tine-agent",
    "tine-worker",
];

/// Builds the programs of the workspace, so that no test runs a stale one, and gives this one. All of
/// them, since cargo would build what they share anew for each that is asked for by itself.
fn build(program: &str) -> PathBuf {
    let mut cargo = Command::new(env!("CARGO"));
    cargo.current_dir(env!("CARGO_MANIFEST_DIR"));
    cargo.args(["build", "--quiet", "--workspace"]);
    cargo.args(PROGRAMS.iter().flat_map(|name| ["--bin", *name]));
    if !cfg!(debug_assertions) {
        cargo.arg("--release");
    }
    let status = cargo.status().expect("cargo can be started");
    assert!(status.success(), "cargo cannot build {program}");
    let mut dir = std::env::current_exe().expect("the test's own path");
    // target/PROFILE/deps/TEST
    dir.pop();
    dir.pop();
    dir.join(program)
}

/// Fails the test, in words, on a machine without a usable `/dev/kvm`.
pub fn require_kvm() {
    let opened = OpenOptions::new().read(true).write(true).open("/dev/kvm");
    if let Err(err) = opened {
        panic!("these tests need /dev/kvm, and it cannot be opened: {err}");
    }
}

/// A command line `tine run ARGS`, its output caught and its input empty.
pub fn run<S: AsRef<std::ffi::OsStr>>(args: impl IntoIterator<Item = S>) -> Command {
    let mut command = Command::new(tine());
    command.arg("run").args(args).stdin(Stdio::null());
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// A command line that boots a bare-metal guest with its console on standard output.
pub fn boot(name: &str) -> Command {
    let mut command = run(["--console", "stdout", "--memory", "64M", "--kernel"]);
    command.arg(guest(name));
    command
}

/// Runs to the end.
pub fn finish(mut command: Command) -> Output {
    command.output().expect("the program can be started")
}

/// The output of a run that must end well.
pub fn succeed(command: Command) -> Vec<u8> {
    let output = finish(command);
    assert!(
        output.status.success(),
        "{}: {}",
        output.status,
        text(&output.stderr)
    );
    output.stdout
}

/// The one line on standard error of a run that must end with `status`.
pub fn fail_with(status: i32, command: Command) -> String {
    let output = finish(command);
    let message = text(&output.stderr);
    assert_eq!(output.status.code(), Some(status), "{message}");
    assert_eq!(message.lines().count(), 1, "one line: {message:?}");
    assert!(!message.contains("panicked"), "{message}");
    message
}

/// Bytes as text.
pub fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}
