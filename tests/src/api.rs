//! `tine-vmm` as a program, and a client of its socket that does nothing clever.

use std::ffi::OsStr;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::{build, guest, require_kvm, text};

/// How long anything may take that should take milliseconds.
const PATIENCE: Duration = Duration::from_secs(20);

/// How long a guest may take.
const LONG: Duration = Duration::from_secs(300);

/// The program `tine-vmm`, built as the tests are. `TINE_VMM_BIN` names another one.
pub fn tine_vmm() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| {
        require_kvm();
        match std::env::var_os("TINE_VMM_BIN") {
            Some(path) => path.into(),
            None => build("tine-vmm"),
        }
    })
}

/// An answer.
#[derive(Debug, Clone)]
pub struct Answer {
    /// The status.
    pub status: u16,
    /// The body.
    pub body: String,
}

impl Answer {
    /// The body as JSON.
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|err| panic!("{err}: {:?}", self.body))
    }

    /// The message of an error of the known API.
    pub fn fault(&self) -> String {
        let value = self.json();
        let message = value["fault_message"].as_str();
        message.unwrap_or_else(|| panic!("{self:?}")).to_owned()
    }

    /// Fails the test unless the status is this.
    #[track_caller]
    pub fn expect(self, status: u16) -> Self {
        assert_eq!(self.status, status, "{}", self.body);
        self
    }
}

/// A running `tine-vmm`. It is killed when the test is done with it.
pub struct Vmm {
    /// The process.
    pub child: Child,
    /// Where its socket and its records are.
    pub dir: TempDir,
}

impl Vmm {
    /// Starts one with a run directory and these arguments.
    pub fn start<S: AsRef<OsStr>>(args: impl IntoIterator<Item = S>) -> Self {
        Self::start_in(TempDir::new().expect("a directory"), args)
    }

    /// Starts one on a run directory that is there already.
    pub fn start_in<S: AsRef<OsStr>>(dir: TempDir, args: impl IntoIterator<Item = S>) -> Self {
        let mut command = Self::command(dir.path());
        command.args(args);
        Self::spawn(command, dir)
    }

    /// Starts what is to become one, with its socket `api.sock` in the directory.
    pub fn spawn(mut command: Command, dir: TempDir) -> Self {
        let child = command.spawn().expect("tine-vmm can be started");
        Self::adopt(child, dir)
    }

    /// Takes one that was started with this run directory, and waits for its socket.
    pub fn adopt(child: Child, dir: TempDir) -> Self {
        let vmm = Self { child, dir };
        let start = Instant::now();
        while UnixStream::connect(vmm.socket()).is_err() {
            assert!(start.elapsed() < PATIENCE, "no socket");
            thread::sleep(Duration::from_millis(1));
        }
        vmm
    }

    /// A command line with a run directory, its output caught.
    pub fn command(dir: &Path) -> Command {
        let mut command = Command::new(tine_vmm());
        command.arg("--api-sock").arg(dir.join("api.sock"));
        command.arg("--run-dir").arg(dir).stdin(Stdio::null());
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    /// One whose bare-metal guest `NAME` runs.
    pub fn running(name: &str) -> Self {
        let vmm = Self::start([] as [&str; 0]);
        vmm.boot_source(name);
        vmm.start_machine().expect(204);
        vmm
    }

    /// Sets the bare-metal guest to boot.
    pub fn boot_source(&self, name: &str) {
        let source = serde_json::json!({ "kernel_image_path": guest(name) });
        self.put("/boot-source", &source).expect(204);
    }

    /// Asks for the start.
    pub fn start_machine(&self) -> Answer {
        self.put(
            "/actions",
            &serde_json::json!({ "action_type": "InstanceStart" }),
        )
    }

    /// Where the socket is.
    pub fn socket(&self) -> PathBuf {
        self.dir.path().join("api.sock")
    }

    /// A connection.
    pub fn connect(&self) -> UnixStream {
        let stream = UnixStream::connect(self.socket()).expect("a connection");
        stream
            .set_read_timeout(Some(PATIENCE))
            .expect("a time limit");
        stream
    }

    /// GET.
    pub fn get(&self, path: &str) -> Answer {
        self.request("GET", path, None)
    }

    /// PUT of JSON.
    pub fn put(&self, path: &str, body: &Value) -> Answer {
        self.request("PUT", path, Some(&body.to_string()))
    }

    /// PATCH of JSON.
    pub fn patch(&self, path: &str, body: &Value) -> Answer {
        self.request("PATCH", path, Some(&body.to_string()))
    }

    /// Any request, on a connection of its own.
    pub fn request(&self, method: &str, path: &str, body: Option<&str>) -> Answer {
        self.request_within(PATIENCE, method, path, body)
    }

    /// Waits until a bare-metal guest has worked some more, and found no fault: it would have ended.
    #[track_caller]
    pub fn goes_on(&self) {
        let cpu = || self.get("/v1/machine").json()["usage"]["cpu_us"].as_u64();
        let before = cpu();
        let start = Instant::now();
        while cpu() < before.map(|us| us + 20_000) {
            assert!(start.elapsed() < PATIENCE * 3, "it stands still");
            thread::yield_now();
        }
        assert_eq!(self.state(), "starting", "a guest without an agent");
    }

    /// Waits until the machine is running: a guest kernel may be interpreted, beside others.
    pub fn wait_until_running(&self) {
        let path = "/v1/machine?wait=running&timeout=300s";
        let answer = self.request_within(LONG, "GET", path, None).expect(200);
        assert_eq!(answer.json()["state"], "running");
    }

    /// Runs a shell script in the guest, which must end well, and returns what it prints.
    pub fn guest_sh(&self, script: &str) -> String {
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        let id = format!("sh-{}", NUMBER.fetch_add(1, Ordering::Relaxed));
        let exec = json!({"request_id": id, "argv": ["sh", "-c", script]}).to_string();
        let answer = self.request_within(LONG, "POST", "/v1/exec", Some(&exec));
        let record = answer.expect(200).json();
        assert_eq!(record["exit_code"], 0, "{script}: {record}");
        record["stdout"]
            .as_str()
            .expect("text")
            .trim_end()
            .to_owned()
    }

    /// Any request, of which the answer may depend on what a guest does.
    pub fn guest_request(&self, method: &str, path: &str, body: &[u8]) -> Answer {
        let answer = self.exchange(LONG, method, path, Some(body));
        parse(&answer)
    }

    /// The same, for an answer that is no text.
    pub fn guest_bytes(&self, path: &str) -> Vec<u8> {
        let answer = self.exchange(LONG, "GET", path, None);
        let end = answer.windows(4).position(|four| four == b"\r\n\r\n");
        assert!(answer.starts_with(b"HTTP/1.1 200 "), "{}", text(&answer));
        answer[end.expect("a head") + 4..].to_vec()
    }

    fn request_within(
        &self,
        patience: Duration,
        method: &str,
        path: &str,
        body: Option<&str>,
    ) -> Answer {
        let bytes = self.exchange(patience, method, path, body.map(str::as_bytes));
        parse(&bytes)
    }

    fn exchange(
        &self,
        patience: Duration,
        method: &str,
        path: &str,
        body: Option<&[u8]>,
    ) -> Vec<u8> {
        let mut stream = self.connect();
        stream
            .set_read_timeout(Some(patience))
            .expect("a time limit");
        let mut request =
            format!("{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n")
                .into_bytes();
        if let Some(body) = body {
            let length = body.len();
            let more = format!("Content-Type: application/json\r\nContent-Length: {length}\r\n");
            request.extend_from_slice(more.as_bytes());
        }
        request.extend_from_slice(b"\r\n");
        request.extend_from_slice(body.unwrap_or_default());
        stream.write_all(&request).expect("the request is taken");
        let mut bytes = Vec::new();
        // An end without a word is what a test may be after; it sees an empty answer.
        let _ = stream.read_to_end(&mut bytes);
        bytes
    }

    /// What the machine is doing.
    pub fn state(&self) -> String {
        let machine = self.get("/v1/machine").expect(200).json();
        machine["state"].as_str().expect("a state").to_owned()
    }

    /// Waits for the end of the process.
    pub fn wait(&mut self) -> ExitStatus {
        let start = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().expect("a child of this process") {
                return status;
            }
            assert!(start.elapsed() < PATIENCE, "the process goes on");
            thread::sleep(Duration::from_millis(2));
        }
    }

    /// What it printed on standard output and standard error, after its end.
    pub fn output(&mut self) -> (String, String) {
        let (mut out, mut err) = (Vec::new(), Vec::new());
        if let Some(mut pipe) = self.child.stdout.take() {
            pipe.read_to_end(&mut out).expect("standard output");
        }
        if let Some(mut pipe) = self.child.stderr.take() {
            pipe.read_to_end(&mut err).expect("standard error");
        }
        (text(&out), text(&err))
    }

    /// Sends a signal.
    pub fn signal(&self, number: i32) {
        // SAFETY: kill takes two integers; the child has not been waited for, so its id is its own.
        assert_eq!(unsafe { libc::kill(self.child.id() as i32, number) }, 0);
    }

    /// The records of the run directory.
    pub fn usage(&self) -> Vec<tine::usage::Record> {
        tine::usage::read(self.dir.path()).expect("usage records")
    }
}

impl Drop for Vmm {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let ended = self.child.wait();
        if thread::panicking() {
            let (_, said) = self.output();
            eprintln!("its process: {ended:?}: {said}");
        }
    }
}

fn parse(bytes: &[u8]) -> Answer {
    let all = text(bytes);
    let (head, body) = all.split_once("\r\n\r\n").unwrap_or((&all, ""));
    let status = head.get(9..12).and_then(|code| code.parse().ok());
    Answer {
        status: status.unwrap_or(0),
        body: body.to_owned(),
    }
}
