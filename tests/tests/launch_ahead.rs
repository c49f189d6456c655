//! Processes that are started before there are machines for them: by the library, and the options of
//! `tine-vmm` that it does it with.

use std::fs;
use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;
use tempfile::TempDir;
use tine::client::Machine;
use tine::launch::{LOG, LaunchError, Launched, Launcher, NewMachine};
use tine_tests::api::tine_vmm;
use tine_tests::{guest, jail, require_kvm, text};

fn runtime() -> tokio::runtime::Runtime {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    builder.enable_all().build().unwrap()
}

/// A place of a launcher's own, which is not there yet.
fn place() -> (TempDir, Launcher) {
    require_kvm();
    let dir = TempDir::new().unwrap();
    let launcher = Launcher::new(tine_vmm(), dir.path().join("machines"));
    (dir, launcher.wait_for_agents(false))
}

/// This program's processes that wait for machines.
fn waiting(dir: &Path) -> Vec<i32> {
    let here = std::process::id().to_string();
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc").unwrap() {
        let process = entry.unwrap().path();
        // Those that end meanwhile are none.
        let status = fs::read_to_string(process.join("status")).unwrap_or_default();
        let words = fs::read(process.join("cmdline")).unwrap_or_default();
        let output = fs::read_link(process.join("fd/1")).unwrap_or_default();
        let parent = status.lines().find_map(|line| line.strip_prefix("PPid:\t"));
        if parent == Some(&here) && text(&words).contains("--args-fd") && output.starts_with(dir) {
            found.push(
                process
                    .file_name()
                    .unwrap()
                    .to_str()
                    .unwrap()
                    .parse()
                    .unwrap(),
            );
        }
    }
    found.sort();
    found
}

fn names(dir: &Path) -> Vec<String> {
    let entries = fs::read_dir(dir).unwrap();
    let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<String> = names.collect();
    names.sort();
    names
}

/// It is a machine, and nobody else.
async fn boots(machine: &Launched) {
    let boot = json!({ "kernel_image_path": guest("hang") });
    machine.put("/boot-source", &boot).await.unwrap();
    let action = json!({ "action_type": "InstanceStart" });
    machine.put("/actions", &action).await.unwrap();
    assert_eq!(machine.status().await.unwrap().id, machine.id());
    assert!(machine.dir().join(LOG).exists());
}

#[test]
fn machines_take_the_processes_that_wait() {
    runtime().block_on(async {
        let (dir, launcher) = place();
        let machines = dir.path().join("machines");
        launcher.stand_by(3).await.unwrap();
        let pids = waiting(&machines);
        assert_eq!((pids.len(), launcher.standing_by()), (3, 3));
        assert!(names(&machines).is_empty(), "they have no files");
        // As many as there are to be, and not as many more.
        launcher.clone().stand_by(3).await.unwrap();
        assert_eq!(waiting(&machines), pids);

        let parent = launcher.start("parent").await.unwrap();
        assert!(pids.contains(&(parent.pid() as i32)));
        assert_eq!(launcher.standing_by(), 2);
        boots(&parent).await;
        // Three copies: two of those that wait, and one more.
        let named = ["a", "b", "c"].map(NewMachine::bare);
        let copies = launcher.fork(&parent, named.into()).await.unwrap();
        let copies: Vec<Launched> = copies.into_iter().map(Result::unwrap).collect();
        let taken = copies
            .iter()
            .filter(|copy| pids.contains(&(copy.pid() as i32)));
        assert_eq!((taken.count(), launcher.standing_by()), (2, 0));
        assert_eq!(names(&machines), ["a", "b", "c", "parent"]);
        for copy in &copies {
            let other = Machine::connect(copy.socket()).await.unwrap();
            assert_eq!(other.status().await.unwrap().id, copy.id());
            assert!(copy.dir().join(LOG).exists());
        }
        drop((parent, copies));
        assert!(names(&machines).is_empty());
    });
}

#[test]
fn those_that_wait_end_with_their_launcher_and_dead_ones_are_not_taken() {
    runtime().block_on(async {
        let (dir, launcher) = place();
        let machines = dir.path().join("machines");
        launcher.stand_by(3).await.unwrap();
        let pids = waiting(&machines);
        for pid in &pids[..2] {
            kill_process(Pid::from_raw(*pid).unwrap(), Signal::KILL).unwrap();
        }
        // Whichever comes first: two of three are dead, or dying.
        for id in ["a", "b"] {
            boots(&launcher.start(id).await.unwrap()).await;
        }
        assert_eq!(launcher.standing_by(), 0);
        launcher.stand_by(2).await.unwrap();
        let clone = launcher.clone();
        drop(launcher);
        assert_eq!(waiting(&machines).len(), 2);
        drop(clone);
        assert!(waiting(&machines).is_empty());
        assert!(names(&machines).is_empty());
    });
}

#[test]
fn what_cannot_wait_says_why() {
    runtime().block_on(async {
        let (dir, _) = place();
        for (program, why) in [
            ("/nowhere/tine-vmm", "No such file"),
            ("/bin/ls", "args-fd"),
        ] {
            let launcher = Launcher::new(program, dir.path());
            let err = launcher.stand_by(2).await.unwrap_err();
            assert!(matches!(err, LaunchError::Ahead { .. }), "{err}");
            let err = err.to_string();
            assert!(err.contains(program) && err.contains(why), "{err}");
            assert_eq!(launcher.standing_by(), 0);
        }
        assert!(names(dir.path()).is_empty());
    });
}

/// A process that waits, and what is said to it.
struct Waiting {
    process: Child,
    line: UnixStream,
}

impl Waiting {
    fn start(more: &[&str]) -> Self {
        let (mut line, theirs) = UnixStream::pair().unwrap();
        let mut command = Command::new(tine_vmm());
        command
            .args(["--args-fd", "0", "--ready-fd", "0"])
            .args(more);
        command.stdin(OwnedFd::from(theirs)).stderr(Stdio::piped());
        let process = command.spawn().unwrap();
        drop(command);
        let mut byte = [0];
        line.read_exact(&mut byte).unwrap();
        assert_eq!(byte, *b"\n", "it waits");
        Self { process, line }
    }

    /// What it ends with when it is told this and no more.
    fn told(mut self, words: &[u8]) -> (ExitStatus, String) {
        self.line.write_all(words).unwrap();
        self.line.shutdown(Shutdown::Write).unwrap();
        let output = self.process.wait_with_output().unwrap();
        (output.status, text(&output.stderr).to_owned())
    }
}

#[test]
fn it_waits_in_a_jail_too() {
    let jails = jail::machine::jails();
    let (line, theirs) = UnixStream::pair().unwrap();
    let mut command = jails.command("ahead");
    command.args(["--new-pid-ns", "--", "--args-fd", "0", "--ready-fd", "0"]);
    command.stdin(OwnedFd::from(theirs)).stdout(Stdio::null());
    let started = command.status().unwrap();
    drop(command);
    assert!(started.success());
    let hear = || {
        let mut byte = [0];
        (&line).read_exact(&mut byte).unwrap();
        assert_eq!(byte, *b"\n");
    };
    hear();
    (&line).write_all(b"--api-sock\0/run/api.sock\0").unwrap();
    line.shutdown(Shutdown::Write).unwrap();
    hear();
    let answer = jail::machine::request(&jails, "ahead", "GET", "/v1/machine", "");
    assert!(answer.contains("\"id\":\"ahead\""), "{answer}");
}

#[test]
fn it_ends_without_a_word_when_nobody_is_there_to_say_more() {
    let Waiting { process, line } = Waiting::start(&[]);
    drop(line);
    let output = process.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(0));
    assert_eq!(text(&output.stderr), "");
    // And by a signal as anybody else.
    let mut waiting = Waiting::start(&[]);
    let pid = Pid::from_child(&waiting.process);
    kill_process(pid, Signal::TERM).unwrap();
    let status = waiting.process.wait().unwrap();
    let signal = std::os::unix::process::ExitStatusExt::signal(&status);
    assert_eq!(signal, Some(Signal::TERM.as_raw()));
}

#[test]
fn what_comes_later_is_read_as_strictly() {
    for (words, named) in [
        (&b"--nonsense\0"[..], "--nonsense"),
        (b"--id\0a", "zero byte"),
        (
            b"--seccomp\0off\0",
            "--seccomp: it has to be among the first",
        ),
        (b"--no-seccomp\0", "--seccomp: it has to be among the first"),
        (b"--no-api\0--config-file\0/x\0", "--no-api"),
        (b"--ready-fd\x001\0", "--ready-fd: given twice"),
        (b"--args-fd\x001\0", "--args-fd: given twice"),
        (b"--version\0", "no machine"),
    ] {
        let (status, said) = Waiting::start(&[]).told(words);
        assert_eq!(status.code(), Some(2), "{said}");
        assert!(said.contains(named), "{named}: {said}");
    }
    let (status, said) = Waiting::start(&["--id", "a"]).told(b"--id\0b\0");
    assert_eq!(status.code(), Some(2), "{said}");
    assert!(said.contains("--id: given twice"), "{said}");
    // More than anybody would say.
    let mut long = vec![b'x'; (1 << 20) + 1];
    long.push(0);
    let mut waiting = Waiting::start(&[]);
    // It need not have been read to its end.
    let _ = waiting.line.write_all(&long);
    let _ = waiting.line.shutdown(Shutdown::Write);
    let output = waiting.process.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("bytes at most"));
    let output = Command::new(tine_vmm()).args(["--args-fd", "77"]).output();
    let output = output.unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("--args-fd 77"));
}
