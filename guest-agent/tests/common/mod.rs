//! The real agent on a Unix socket, and a small client for it.
#![allow(dead_code)] // Each test file uses its own part.

use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use serde_json::Value;
use tine_guest_agent::frame::{Decoder, Frame, Stream};
use tine_guest_agent::hello::Hello;

/// No answer of the agent takes this long.
pub const PATIENCE: Duration = Duration::from_secs(30);

static NEXT: AtomicU32 = AtomicU32::new(0);

/// A name that no other test uses.
pub fn unique(prefix: &str) -> String {
    format!(
        "{prefix}-{}-{}",
        std::process::id(),
        NEXT.fetch_add(1, Ordering::Relaxed)
    )
}

/// A running agent with a control group directory of its own.
pub struct Agent {
    child: Child,
    dir: tempfile::TempDir,
    cgroup: Option<PathBuf>,
    hello: UnixListener,
    /// The first hello and its connection.
    pub greeting: Option<(Hello, UnixStream)>,
}

impl Agent {
    pub fn start() -> Self {
        Self::start_with(&[])
    }

    /// Starts it and waits for its hello.
    pub fn start_with(options: &[&str]) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let hello_path = dir.path().join("hello");
        let hello = UnixListener::bind(&hello_path).unwrap();
        let cgroup = cgroup_root().map(|root| root.join(unique("tine-agent-test")));
        if let Some(cgroup) = &cgroup {
            std::fs::create_dir(cgroup).unwrap();
        }
        // Another build of it, such as the one for the guest, can be put to the same tests.
        let agent = std::env::var("TINE_AGENT_UNDER_TEST");
        // Whoever runs the tests may ignore signals (nohup does); PID 1 of a guest starts with none ignored.
        let child = Command::new("env")
            .arg("--default-signal")
            .arg(agent.as_deref().unwrap_or(env!("CARGO_BIN_EXE_tine-agent")))
            .args([
                "--listen",
                &format!("unix:{}", dir.path().join("agent").display()),
            ])
            .args(["--hello", &format!("unix:{}", hello_path.display())])
            .args([
                "--cgroup",
                cgroup
                    .as_deref()
                    .unwrap_or(Path::new("/nonexistent"))
                    .to_str()
                    .unwrap(),
            ])
            .args(options)
            .spawn()
            .unwrap();
        let mut agent = Self {
            child,
            dir,
            cgroup,
            hello,
            greeting: None,
        };
        agent.greeting = Some(agent.hello());
        agent
    }

    /// Waits for the next hello. Ending its connection brings the next one.
    pub fn hello(&self) -> (Hello, UnixStream) {
        let (mut conn, _) = self.hello.accept().unwrap();
        conn.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut line = Vec::new();
        let mut byte = [0];
        while byte != [b'\n'] {
            conn.read_exact(&mut byte).unwrap();
            line.push(byte[0]);
        }
        (serde_json::from_slice(&line).unwrap(), conn)
    }

    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    pub fn connect(&self) -> UnixStream {
        let conn = UnixStream::connect(self.dir.path().join("agent")).unwrap();
        conn.set_read_timeout(Some(PATIENCE)).unwrap();
        conn
    }

    /// One request on a connection of its own.
    pub fn call(&self, method: &str, path: &str, body: &[u8]) -> Answer {
        let mut conn = self.connect();
        send(&mut conn, method, path, "", body);
        read_answer(&mut conn)
    }

    pub fn json(&self, method: &str, path: &str, body: Value) -> Answer {
        self.call(method, path, body.to_string().as_bytes())
    }

    /// Runs a command to its end and gives its record. `more` are further fields of the request.
    pub fn exec(&self, argv: &[&str], more: Value) -> Value {
        let answer = self.json("POST", "/v1/exec", request(argv, more));
        assert_eq!(answer.status, 200, "{}", answer.text());
        answer.value()
    }

    /// Starts a command as a stream.
    pub fn stream(&self, argv: &[&str], more: Value) -> Live {
        self.upgrade("/v1/exec", &request(argv, more))
    }

    pub fn upgrade(&self, path: &str, body: &Value) -> Live {
        let mut conn = self.connect();
        let headers = "Connection: Upgrade\r\nUpgrade: tine-stream/1\r\n";
        send(
            &mut conn,
            "POST",
            path,
            headers,
            body.to_string().as_bytes(),
        );
        let answer = read_head(&mut conn);
        assert_eq!(answer.status, 101, "{}", answer.head);
        Live {
            conn,
            decoder: Decoder::new(),
        }
    }

    /// Children of the agent that have ended and were not waited for.
    pub fn zombies(&self) -> usize {
        let children = format!("/proc/{0}/task/{0}/children", self.pid());
        let children = std::fs::read_to_string(children).unwrap();
        let ended = |pid: &&str| {
            let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
            stat.rsplit(") ")
                .next()
                .is_some_and(|rest| rest.starts_with('Z'))
        };
        children.split_whitespace().filter(ended).count()
    }

    /// Resident memory of the agent, at most so far.
    pub fn peak_memory(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.pid())).unwrap();
        let line = status
            .lines()
            .find_map(|line| line.strip_prefix("VmHWM:"))
            .unwrap();
        line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() * 1024
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let Some(cgroup) = &self.cgroup else { return };
        let _ = std::fs::write(cgroup.join("cgroup.kill"), "1");
        // Killed processes take a moment to leave; there is no event that outlives their group.
        for _ in 0..100 {
            for group in std::fs::read_dir(cgroup).into_iter().flatten().flatten() {
                let _ = std::fs::remove_dir(group.path());
            }
            if std::fs::remove_dir(cgroup).is_ok() {
                break;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

/// The body of an exec request.
pub fn request(argv: &[&str], more: Value) -> Value {
    let mut body = serde_json::json!({ "request_id": unique("r"), "argv": argv });
    for (name, value) in more.as_object().unwrap() {
        body[name] = value.clone();
    }
    body
}

fn cgroup_root() -> Option<PathBuf> {
    let mounts = std::fs::read_to_string("/proc/mounts").unwrap();
    let line = mounts
        .lines()
        .find(|line| line.split(' ').nth(2) == Some("cgroup2"))?;
    line.split(' ').nth(1).map(PathBuf::from)
}

/// An answer as it came.
pub struct Answer {
    pub status: u16,
    pub head: String,
    pub body: Vec<u8>,
}

impl Answer {
    pub fn text(&self) -> String {
        format!("{} {}", self.status, String::from_utf8_lossy(&self.body))
    }

    pub fn value(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap()
    }

    /// A header's value.
    pub fn header(&self, name: &str) -> Option<&str> {
        let lines = self.head.lines().filter_map(|line| line.split_once(": "));
        lines
            .filter(|(key, _)| key.eq_ignore_ascii_case(name))
            .map(|(_, value)| value)
            .next()
    }
}

pub fn send(conn: &mut UnixStream, method: &str, path: &str, headers: &str, body: &[u8]) {
    let length = body.len();
    let head =
        format!("{method} {path} HTTP/1.1\r\nHost: a\r\nContent-Length: {length}\r\n{headers}\r\n");
    conn.write_all(&[head.as_bytes(), body].concat()).unwrap();
}

/// Reads an answer up to its blank line, and not a byte more.
pub fn read_head(conn: &mut UnixStream) -> Answer {
    let mut head = Vec::new();
    let mut byte = [0];
    while !head.ends_with(b"\r\n\r\n") {
        conn.read_exact(&mut byte).expect("the answer's head");
        head.push(byte[0]);
    }
    let head = String::from_utf8(head).unwrap();
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    Answer {
        status,
        head,
        body: Vec::new(),
    }
}

pub fn read_answer(conn: &mut UnixStream) -> Answer {
    let mut answer = read_head(conn);
    if let Some(length) = answer.header("content-length") {
        answer.body = vec![0; length.parse().unwrap()];
        conn.read_exact(&mut answer.body).unwrap();
    } else if answer.header("transfer-encoding") == Some("chunked") {
        while let Some(chunk) = read_chunk(conn) {
            answer.body.extend(chunk);
        }
    }
    answer
}

/// One chunk of a chunked body; `None` at its end.
pub fn read_chunk(conn: &mut UnixStream) -> Option<Vec<u8>> {
    let mut line = Vec::new();
    let mut byte = [0];
    while !line.ends_with(b"\r\n") {
        conn.read_exact(&mut byte).expect("a chunk's size");
        line.push(byte[0]);
    }
    let size = usize::from_str_radix(std::str::from_utf8(&line).unwrap().trim(), 16).unwrap();
    let mut chunk = vec![0; size + 2];
    conn.read_exact(&mut chunk).expect("a chunk");
    chunk.truncate(size);
    (size > 0).then_some(chunk)
}

/// An upgraded connection.
pub struct Live {
    pub conn: UnixStream,
    decoder: Decoder,
}

impl Live {
    pub fn send(&mut self, stream: Stream, payload: &[u8]) {
        let mut out = Vec::new();
        tine_guest_agent::frame::encode(stream, payload, &mut out);
        self.conn.write_all(&out).unwrap();
    }

    /// The next frame; `None` when the agent has closed.
    pub fn frame(&mut self) -> Option<Frame> {
        let mut buffer = [0; 4096];
        loop {
            if let Some(frame) = self.decoder.next_frame().unwrap() {
                return Some(frame);
            }
            match self.conn.read(&mut buffer).expect("a frame in time") {
                0 => return None,
                count => self.decoder.push(&buffer[..count]),
            }
        }
    }

    /// The next frame, which must be control.
    pub fn control(&mut self) -> Value {
        let frame = self.frame().expect("a control frame");
        assert_eq!(frame.stream, Stream::Control);
        serde_json::from_slice(&frame.payload).unwrap()
    }

    /// Everything until the agent closes.
    pub fn finish(mut self) -> Whole {
        let mut whole = Whole::default();
        while let Some(frame) = self.frame() {
            match frame.stream {
                Stream::Stdout => whole.stdout.extend(frame.payload),
                Stream::Stderr => whole.stderr.extend(frame.payload),
                _ => whole
                    .control
                    .push(serde_json::from_slice(&frame.payload).unwrap()),
            }
        }
        whole
    }

    pub fn shut(&self) {
        self.conn.shutdown(Shutdown::Both).unwrap();
    }
}

/// All that a stream has said.
#[derive(Default)]
pub struct Whole {
    pub stdout: Vec<u8>,
    pub stderr: Vec<u8>,
    pub control: Vec<Value>,
}

impl Whole {
    /// The last control frame.
    pub fn record(&self) -> &Value {
        self.control.last().expect("a record")
    }
}
