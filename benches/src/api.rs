//! A monitor's process that is driven through its API socket: started, asked, and never left behind.
//!
//! Two are known: Tine's `tine-vmm` and Firecracker. Nothing between a request's first byte and the
//! two things waited for (the guest's sign, the answer) is done but `poll`.

mod ahead;

use std::ffi::OsString;
use std::io::{ErrorKind, PipeReader, Read, Write, pipe};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open};
use serde_json::{Value, json};

pub use self::ahead::Ahead;
use crate::arrivals::Arrivals;
use crate::contestant::Contestant;
use crate::guest::SIGN;

/// How long anything may take.
const PATIENCE: Duration = Duration::from_secs(120);
/// Between looks at a socket that is there and not listened to yet: the next call of its process.
const LOOK: Duration = Duration::from_micros(50);
/// Between looks whether a process is still there that has no socket.
const LIVES: Duration = Duration::from_millis(50);

/// Whose API it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Api {
    /// `tine-vmm`, which lies beside `tine`.
    Tine,
    /// Firecracker, without its system call filter: a build for the gnu target needs calls that the
    /// filter does not know. It starts quicker without.
    Firecracker,
}

/// A program with an API.
#[derive(Debug, Clone)]
pub struct Program {
    api: Api,
    path: PathBuf,
    /// What is put before it: a tracer and its words, or nothing.
    before: Vec<OsString>,
}

impl Program {
    /// The contestant's program with an API, if it has one that is known here.
    pub fn of(contestant: &Contestant) -> Option<Self> {
        let program = &contestant.monitor.program;
        let (api, path) = match contestant.monitor.known_as()? {
            "tine" => (Api::Tine, program.with_file_name("tine-vmm")),
            "firecracker" => (Api::Firecracker, program.clone()),
            _ => return None,
        };
        Some(Self {
            api,
            path,
            before: Vec::new(),
        })
    }

    /// The same, started by another program, which ends with it.
    pub fn under(mut self, words: &[OsString]) -> Self {
        self.before = words.to_vec();
        self
    }

    /// Whose API it has.
    pub fn api(&self) -> Api {
        self.api
    }

    /// Starts the process, with its guest's console on `stdout`, and connects to its socket in `dir`.
    pub fn start(&self, dir: &Path, stdout: impl Into<Stdio>) -> anyhow::Result<Process> {
        let socket = dir.join("api.sock");
        let _ = std::fs::remove_file(&socket);
        let before = self.before.iter().map(OsString::as_os_str);
        let mut words = before.chain([self.path.as_os_str()]);
        let mut command = Command::new(words.next().unwrap_or_default());
        command.args(words).arg("--api-sock").arg(&socket);
        // Firecracker's own filters, built for this C library, end it when it writes a snapshot.
        command.arg("--no-seccomp");
        if self.api == Api::Firecracker {
            command.args(["--level", "Off"]);
        }
        let null = std::fs::File::open("/dev/null").context("cannot open /dev/null")?;
        let stderr = std::fs::File::create(dir.join("stderr")).context("cannot write a file")?;
        command.stdin(null).stdout(stdout).stderr(stderr);
        let arrivals = Arrivals::of(dir)?;
        let started = Instant::now();
        let child = command
            .spawn()
            .with_context(|| format!("cannot start {}", self.path.display()))?;
        let mut process = Process {
            api: self.api,
            started,
            connected: started,
            child,
            under_another: !self.before.is_empty(),
            stream: None,
            stderr: dir.join("stderr"),
        };
        process.connect(&socket, &arrivals)?;
        Ok(process)
    }

    /// The same with a pipe for the console.
    pub fn start_with_console(&self, dir: &Path) -> anyhow::Result<(Process, PipeReader)> {
        let (console, theirs) = pipe().context("cannot make a pipe")?;
        Ok((self.start(dir, theirs)?, console))
    }
}

/// A running process. Dropping it kills it, and waits for its end.
pub struct Process {
    api: Api,
    /// When it was about to be started.
    pub started: Instant,
    /// When its socket took a connection.
    pub connected: Instant,
    child: Child,
    under_another: bool,
    stream: Option<UnixStream>,
    stderr: PathBuf,
}

/// A request that has been answered, and the guest's sign if that was waited for.
pub struct Answered {
    /// When its first byte was about to be written.
    pub asked: Instant,
    /// When the answer's head and body had been read.
    pub answer: Instant,
    /// When the sign had been read.
    pub sign: Option<Instant>,
    /// The answer's body; null when there is none.
    pub body: Value,
}

impl Process {
    /// The process's number.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Tells it to end, without waiting for that.
    pub fn kill(&mut self) {
        if self.under_another {
            // The one above ends when it has written down what it saw.
            self.kill_children();
        } else {
            // Fails only for a process that has ended.
            let _ = self.child.kill();
        }
    }

    fn kill_children(&self) {
        let id = self.child.id();
        let children = std::fs::read_to_string(format!("/proc/{id}/task/{id}/children"));
        let children = children.unwrap_or_default();
        for child in children
            .split_whitespace()
            .filter_map(|word| word.parse().ok())
        {
            if let Some(pid) = Pid::from_raw(child) {
                // Fails only for a process that has ended.
                let _ = kill_process(pid, Signal::KILL);
            }
        }
    }

    /// Processor time of all its threads so far.
    pub fn time(&self) -> anyhow::Result<Duration> {
        let tasks = format!("/proc/{}/task", self.child.id());
        let tasks = std::fs::read_dir(&tasks).with_context(|| format!("cannot read {tasks}"))?;
        // A thread that ends meanwhile has no time that can be told any more.
        let times = tasks.filter_map(|task| thread_time(&task.ok()?.path()).ok());
        Ok(times.sum())
    }

    /// Processor time of its vCPU's thread so far: the guest's, and what KVM does for it.
    pub fn vcpu_time(&self) -> anyhow::Result<Duration> {
        let tasks = format!("/proc/{}/task", self.child.id());
        for task in std::fs::read_dir(&tasks).with_context(|| tasks.clone())? {
            let task = task?.path();
            let name = std::fs::read_to_string(task.join("comm"))?;
            if ["vcpu0", "fc_vcpu 0"].contains(&name.trim()) {
                return thread_time(&task);
            }
        }
        bail!(self.complaint("it has no vCPU"))
    }

    fn connect(&mut self, socket: &Path, arrivals: &Arrivals) -> anyhow::Result<()> {
        let deadline = self.started + PATIENCE;
        let mut there = false;
        loop {
            match there {
                true => sleep(LOOK),
                false => there = arrivals.wait(LIVES)?,
            }
            match UnixStream::connect(socket) {
                Ok(stream) => {
                    self.connected = Instant::now();
                    stream.set_read_timeout(Some(PATIENCE))?;
                    self.stream = Some(stream);
                    return Ok(());
                }
                Err(err) if err.kind() == ErrorKind::NotFound => there = false,
                Err(err) if err.kind() == ErrorKind::ConnectionRefused => {}
                Err(err) => return Err(err).context("cannot connect to a monitor's socket"),
            }
            if let Some(status) = self.child.try_wait()? {
                bail!(self.complaint(&format!("it ended with {status}")));
            }
            if Instant::now() > deadline {
                bail!(self.complaint("it opens no socket"));
            }
        }
    }

    /// Boots `kernel`, with the console on standard output.
    pub fn boot(&mut self, kernel: &Path, memory: u64, more: &Value) -> anyhow::Result<()> {
        self.configure(kernel, memory, more)?;
        self.ask("PUT", "/actions", &instance_start())?;
        Ok(())
    }

    /// The same up to the start.
    pub fn configure(&mut self, kernel: &Path, memory: u64, more: &Value) -> anyhow::Result<()> {
        self.console_to_stdout()?;
        let machine = json!({ "vcpu_count": 1, "mem_size_mib": memory });
        self.ask("PUT", "/machine-config", &machine)?;
        let mut source = json!({ "kernel_image_path": kernel });
        if let (Value::Object(source), Value::Object(more)) = (&mut source, more) {
            source.extend(more.clone());
        }
        self.ask("PUT", "/boot-source", &source)?;
        Ok(())
    }

    /// Puts the console where Firecracker has it anyway.
    pub fn console_to_stdout(&mut self) -> anyhow::Result<()> {
        if self.api == Api::Tine {
            let serial = json!({ "serial_out_path": "/dev/stdout" });
            self.ask("PUT", "/serial", &serial)?;
        }
        Ok(())
    }

    /// A request, and its answer.
    pub fn ask(&mut self, method: &str, path: &str, body: &Value) -> anyhow::Result<Answered> {
        self.ask_for_sign(method, path, body, None)
    }

    /// A request, its answer and the guest's next sign on `console`, whichever comes first.
    pub fn ask_for_sign(
        &mut self,
        method: &str,
        path: &str,
        body: &Value,
        mut console: Option<&mut PipeReader>,
    ) -> anyhow::Result<Answered> {
        let request = request(method, path, body);
        let name = format!("{method} {path}");
        let mut stream = self.stream.take().context("the connection is gone")?;
        let (mut answer, mut sign, mut bytes) = (None, None, Vec::new());
        let mut part = [0; 4096];
        let asked = Instant::now();
        stream.write_all(request.as_bytes()).context(name.clone())?;
        while answer.is_none() || (console.is_some() && sign.is_none()) {
            let mut fds = vec![PollFd::new(&stream, PollFlags::IN)];
            if let (Some(console), None) = (&console, sign) {
                fds.push(PollFd::new(console, PollFlags::IN));
            }
            let limit = Timespec {
                tv_sec: PATIENCE.as_secs() as i64,
                tv_nsec: 0,
            };
            if poll(&mut fds, Some(&limit)).context("cannot wait for a monitor")? == 0 {
                bail!(self.complaint(&format!("{name}: no answer, or no sign of its guest")));
            }
            let ready: Vec<bool> = fds.iter().map(|fd| !fd.revents().is_empty()).collect();
            if let (Some(console), Some(true)) = (&mut console, ready.get(1)) {
                let len = console.read(&mut part).context("cannot read a console")?;
                if part[..len].contains(&SIGN) {
                    sign = Some(Instant::now());
                } else if len == 0 {
                    bail!(self.complaint(&format!("{name}: it ended")));
                }
            }
            if ready[0] {
                let len = stream.read(&mut part).with_context(|| name.clone())?;
                if len == 0 {
                    bail!(self.complaint(&format!("{name}: it hung up")));
                }
                bytes.extend_from_slice(&part[..len]);
                if let Some(whole) = parse(&bytes).with_context(|| name.clone())? {
                    answer = Some((Instant::now(), whole));
                }
            }
        }
        self.stream = Some(stream);
        let (answer, (status, body)) = answer.context("no answer")?;
        if !(200..300).contains(&status) {
            bail!(self.complaint(&format!("{name} was answered with {status}: {body}")));
        }
        Ok(Answered {
            asked,
            answer,
            sign,
            body,
        })
    }

    /// A connection that the guest makes to `listener`, unless the process ends first.
    pub fn accept(&self, listener: &UnixListener) -> anyhow::Result<UnixStream> {
        let process = pidfd_open(Pid::from_child(&self.child), PidfdFlags::empty());
        let process = process.context("cannot watch a process")?;
        let mut fds = [
            PollFd::new(listener, PollFlags::IN),
            PollFd::new(&process, PollFlags::IN),
        ];
        let limit = Timespec {
            tv_sec: PATIENCE.as_secs() as i64,
            tv_nsec: 0,
        };
        poll(&mut fds, Some(&limit)).context("cannot wait for a guest")?;
        let [connected, ended] = fds.map(|fd| !fd.revents().is_empty());
        if connected {
            let (stream, _) = listener.accept().context("cannot accept a connection")?;
            stream.set_read_timeout(Some(PATIENCE))?;
            stream.set_write_timeout(Some(PATIENCE))?;
            return Ok(stream);
        }
        bail!(self.complaint(match ended {
            true => "it ended before its guest made a connection",
            false => "its guest makes no connection",
        }))
    }

    /// What went wrong, with what the monitor has to say to it.
    pub fn complaint(&self, what: &str) -> String {
        let said = std::fs::read_to_string(&self.stderr).unwrap_or_default();
        match said.lines().last() {
            Some(line) => format!("{:?}: {what}; it said: {line}", self.api),
            None => format!("{:?}: {what}", self.api),
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
        let _ = self.child.wait();
    }
}

/// Processor time of the thread whose directory in /proc is `task`.
fn thread_time(task: &Path) -> anyhow::Result<Duration> {
    let spent = std::fs::read_to_string(task.join("schedstat"))?;
    let nanos = spent.split(' ').next().and_then(|word| word.parse().ok());
    Ok(Duration::from_nanos(nanos.context("no schedstat here")?))
}

/// The request to `/actions` that starts the guest.
pub fn instance_start() -> Value {
    json!({ "action_type": "InstanceStart" })
}

/// A request's bytes.
fn request(method: &str, path: &str, body: &Value) -> String {
    let body = match body {
        Value::Null => String::new(),
        body => body.to_string(),
    };
    format!(
        "{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n\
         Content-Length: {}\r\n\r\n{body}",
        body.len()
    )
}

/// A connection to a guest's port, by the socket of its vsock device.
pub struct Port(UnixStream);

impl Port {
    /// Connects, once somebody listens there.
    pub fn open(socket: &Path, port: u32) -> anyhow::Result<Self> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let mut stream = UnixStream::connect(socket).context("cannot connect to a vsock")?;
            stream.set_read_timeout(Some(PATIENCE))?;
            stream.write_all(format!("CONNECT {port}\n").as_bytes())?;
            let (mut line, mut byte) = (Vec::new(), [0]);
            while !line.ends_with(b"\n") && matches!(stream.read(&mut byte), Ok(1)) {
                line.push(byte[0]);
            }
            if line.starts_with(b"OK ") {
                return Ok(Self(stream));
            }
            if Instant::now() > deadline {
                bail!("nobody listens on the guest's port {port}");
            }
            sleep(LOOK);
        }
    }

    /// A request to the HTTP server there, and its answer's body.
    pub fn ask(&mut self, method: &str, path: &str, body: &Value) -> anyhow::Result<Value> {
        self.0.write_all(request(method, path, body).as_bytes())?;
        let (mut bytes, mut part) = (Vec::new(), [0; 4096]);
        loop {
            let len = self.0.read(&mut part).with_context(|| path.to_owned())?;
            bytes.extend_from_slice(&part[..len]);
            match parse(&bytes)? {
                Some((200..=299, body)) => return Ok(body),
                Some((status, body)) => bail!("{path} was answered with {status}: {body}"),
                None if len == 0 => bail!("{path}: the guest hung up"),
                None => {}
            }
        }
    }
}

/// Status and body of an answer, once it is whole.
fn parse(bytes: &[u8]) -> anyhow::Result<Option<(u16, Value)>> {
    let Some(end) = bytes.windows(4).position(|four| four == b"\r\n\r\n") else {
        return Ok(None);
    };
    let head = std::str::from_utf8(&bytes[..end]).context("an answer that is no text")?;
    let status = head
        .split(' ')
        .nth(1)
        .and_then(|status| status.parse().ok());
    let status: u16 = status.context("an answer without a status")?;
    let mut length = 0;
    for line in head.lines() {
        if let Some((name, value)) = line.split_once(':')
            && name.eq_ignore_ascii_case("content-length")
        {
            length = value.trim().parse().context("an answer's length")?;
        }
    }
    let body = &bytes[end + 4..];
    if body.len() < length {
        return Ok(None);
    }
    Ok(Some((
        status,
        serde_json::from_slice(&body[..length]).unwrap_or(Value::Null),
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_found_once_it_is_whole() {
        let whole = b"HTTP/1.1 200 OK\r\nContent-length: 9\r\n\r\n{\"a\": 1 }";
        for len in 0..whole.len() {
            assert!(parse(&whole[..len]).unwrap().is_none(), "{len}");
        }
        let (status, body) = parse(whole).unwrap().unwrap();
        assert_eq!((status, &body["a"]), (200, &json!(1)));
        let none = parse(b"HTTP/1.1 204 \r\nServer: x\r\n\r\n")
            .unwrap()
            .unwrap();
        assert_eq!(none, (204, Value::Null));
        assert!(parse(b"HTTP\r\n\r\n").is_err());
    }
}
