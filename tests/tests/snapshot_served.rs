//! Machines whose memory another process serves, as the known API's `Uffd` backend has it. With a
//! bare-metal guest.

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};

use serde_json::{Value, json};
use tine_tests::api::Vmm;

/// A process that serves a memory file.
struct Server {
    child: Child,
    said: BufReader<ChildStdout>,
    socket: PathBuf,
}

impl Server {
    fn start(dir: &Path, memory: &Path, limit: Option<u64>) -> Self {
        let socket = dir.join("pages.sock");
        let _ = fs::remove_file(&socket);
        let mut command = Command::new(env!("CARGO_BIN_EXE_tine-pages"));
        command.arg(&socket).arg(memory);
        command.args(limit.map(|pages| pages.to_string()));
        let mut child = command
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut said = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        said.read_line(&mut line).unwrap();
        assert_eq!(line, "ready\n");
        Self {
            child,
            said,
            socket,
        }
    }

    /// How many pages it has served when it is needed no more.
    fn given(mut self) -> u64 {
        let mut rest = String::new();
        self.said.read_to_string(&mut rest).unwrap();
        assert!(self.child.wait().unwrap().success());
        rest.trim().parse().unwrap()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn empty() -> Vmm {
    Vmm::start([] as [&str; 0])
}

/// Writes the machine's pair of files, and lets it stand still.
fn create(vmm: &Vmm) -> (PathBuf, PathBuf) {
    let (state, memory) = (vmm.dir.path().join("state"), vmm.dir.path().join("memory"));
    vmm.patch("/vm", &json!({ "state": "Paused" })).expect(204);
    let create = json!({ "snapshot_path": state, "mem_file_path": memory });
    vmm.put("/snapshot/create", &create).expect(204);
    (state, memory)
}

fn load(state: &Path, kind: &str, path: &Path) -> Value {
    json!({
        "snapshot_path": state,
        "mem_backend": { "backend_type": kind, "backend_path": path },
        "resume_vm": true,
    })
}

#[test]
fn memory_comes_page_by_page_and_can_be_taken_again() {
    let first = Vmm::running("counting");
    first.goes_on();
    let (state, memory) = create(&first);
    let server = Server::start(first.dir.path(), &memory, None);
    let second = empty();
    let served = load(&state, "Uffd", &server.socket);
    second.put("/snapshot/load", &served).expect(204);
    second.goes_on();
    // A snapshot has what the guest has never touched, too, and needs the server no more.
    let dir = second.dir.path().join("snapshot");
    let taken = second.put("/v1/snapshots", &json!({ "path": dir }));
    taken.expect(201);
    let pages = fs::metadata(&memory).unwrap().len() / 4096;
    let given = server.given();
    assert_eq!(given, pages, "each page once");
    second.goes_on();
    let again = tine_snapshot::Snapshot::open(&dir).unwrap();
    again.verify(|_| ControlFlow::Continue(())).unwrap();
    let third = empty();
    third
        .put("/v1/restore", &json!({ "snapshot": dir }))
        .expect(204);
    third.goes_on();
    // So does a fork, and one after a snapshot finds everything there.
    let forked = second.request("POST", "/v1/fork", Some("{}")).expect(201);
    let fork = json!({ "fork": forked.json()["socket"] });
    let copy = empty();
    copy.put("/v1/restore", &fork).expect(204);
    copy.goes_on();
}

#[test]
fn a_machine_whose_server_is_gone_fails_and_says_so() {
    let first = Vmm::running("counting");
    let (state, memory) = create(&first);
    let server = Server::start(first.dir.path(), &memory, Some(3));
    let mut second = empty();
    let served = load(&state, "Uffd", &server.socket);
    // The guest may have missed its page before the answer.
    let answer = second.put("/snapshot/load", &served);
    assert!(matches!(answer.status, 0 | 204), "{answer:?}");
    let status = second.wait();
    assert_eq!(status.code(), Some(1), "{status:?}");
    let last = second.usage().pop().unwrap();
    assert_eq!(last.event, "failed");
    assert!(
        last.reason
            .as_deref()
            .unwrap_or_default()
            .contains("served its memory"),
        "{last:?}"
    );
}

#[test]
fn whoever_serves_nothing_is_named() {
    let first = Vmm::running("counting");
    let (state, _) = create(&first);
    let second = empty();
    let nobody = first.dir.path().join("nobody.sock");
    let refused = second.put("/snapshot/load", &load(&state, "Uffd", &nobody));
    let fault = refused.expect(400).fault();
    assert!(fault.contains("nobody.sock"), "{fault}");
    let refused = second.put("/snapshot/load", &load(&state, "Tape", &nobody));
    assert!(refused.expect(400).fault().contains("`backend_type`"));
    assert_eq!(second.state(), "created");
}
