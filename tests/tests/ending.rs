//! However a run ends, the machine ends with it and nothing stays behind.

use std::io::Read;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, ExitStatus};
use std::time::{Duration, Instant};

use tine_tests::{boot, fail_with, text};

/// Starts a guest and waits until it runs.
fn started(name: &str) -> Child {
    let mut child = boot(name).spawn().expect("tine can be started");
    let mut byte = [0];
    child
        .stdout
        .as_mut()
        .unwrap()
        .read_exact(&mut byte)
        .expect("the guest's first byte");
    assert_eq!(&byte, b"A");
    child
}

fn signal(child: &Child, signal: i32) {
    // SAFETY: kill takes two integers; the child has not been waited for, so its id is its own.
    assert_eq!(unsafe { libc::kill(child.id() as i32, signal) }, 0);
}

fn wait(child: &mut Child) -> ExitStatus {
    let start = Instant::now();
    let status = child.wait().unwrap();
    assert!(
        start.elapsed() < Duration::from_secs(5),
        "took {:?}",
        start.elapsed()
    );
    status
}

#[test]
fn signals_end_a_machine_whatever_its_guest_does() {
    for guest in ["hang", "spin"] {
        for number in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
            let mut child = started(guest);
            signal(&child, number);
            assert_eq!(wait(&mut child).code(), Some(128 + number), "{guest}");
        }
    }
}

#[test]
fn a_killed_monitor_takes_its_machine_with_it() {
    let mut child = started("spin");
    signal(&child, libc::SIGKILL);
    assert_eq!(wait(&mut child).signal(), Some(libc::SIGKILL));
}

#[test]
fn the_time_limit_ends_with_status_124_and_says_so() {
    for guest in ["hang", "spin"] {
        let mut command = boot(guest);
        command.args(["--timeout", "200ms"]);
        let message = fail_with(124, command);
        assert!(message.contains("timed out after 200ms"), "{message}");
    }
}

#[test]
fn a_run_leaves_no_file_behind() {
    let dir = tempfile::tempdir().unwrap();
    let mut command = boot("hello");
    command
        .current_dir(dir.path())
        .env("TMPDIR", dir.path())
        .env("XDG_RUNTIME_DIR", dir.path());
    assert_eq!(command.output().unwrap().stdout, b"A");
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
}

#[test]
fn timing_is_one_line_a_phase_on_standard_error() {
    let mut command = boot("hello");
    command.arg("--timing");
    let output = command.output().unwrap();
    assert_eq!(output.stdout, b"A");
    let lines = text(&output.stderr);
    assert_eq!(lines.lines().count(), 2, "{lines}");
    for (line, phase) in lines
        .lines()
        .zip(["monitor set-up", "first guest instruction"])
    {
        assert!(
            line.starts_with("timing: ") && line.contains(phase),
            "{line}"
        );
    }
}
