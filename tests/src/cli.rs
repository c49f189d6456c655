//! What the tests of the command line share: a place of its own for machines, and in it either the
//! real `tine-vmm`, or the real agent on a socket where a machine's would be. The second needs no
//! guest, and takes no time: a machine's socket passes the agent's answers on as they are.

use std::ffi::{OsStr, OsString};
use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use tempfile::TempDir;

use crate::{build, text, tine};

/// Nothing here takes this long.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// The program `tine-agent`, built as the tests are.
fn agent() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| build("tine-agent"))
}

/// The program `tine-vmm`, beside `tine`.
pub fn with_vmm() {
    static BUILT: OnceLock<()> = OnceLock::new();
    BUILT.get_or_init(|| {
        if std::env::var_os("TINE_BIN").is_none() {
            build("tine-vmm");
        }
    });
}

/// A place for machines, removed with everything in it.
pub struct Place {
    dir: TempDir,
    /// What stands before the arguments of `tine`; nothing for the one that is built here.
    launcher: Vec<OsString>,
}

/// All places of this program.
static PLACES: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());

fn lock(places: &Mutex<Vec<PathBuf>>) -> MutexGuard<'_, Vec<PathBuf>> {
    places.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Ends the machines of places that are never dropped, because they are the whole program's, and
/// removes the places.
extern "C" fn end_all() {
    for run in lock(&PLACES).drain(..) {
        end_machines(&run);
        if let Some(dir) = run.parent() {
            let _ = std::fs::remove_dir_all(dir);
        }
    }
}

/// Ends what a test that failed may have left.
fn end_machines(run: &Path) {
    // First those who would make others.
    let pools = std::fs::read_dir(run.join(".pools"));
    for entry in pools.into_iter().flatten().flatten() {
        let mut stop = Command::new(tine());
        stop.args(["pool", "stop"]).arg(entry.file_name());
        let _ = stop.env("TINE_RUN_DIR", run).output();
    }
    for entry in std::fs::read_dir(run).into_iter().flatten().flatten() {
        if entry.path().join("vmm.log").exists() {
            let mut rm = Command::new(tine());
            rm.args(["rm", "-f"]).arg(entry.file_name());
            let _ = rm.env("TINE_RUN_DIR", run).output();
        }
    }
}

impl Default for Place {
    fn default() -> Self {
        Self::new()
    }
}

impl Place {
    /// An empty one.
    pub fn new() -> Self {
        // Many tests here wait for what a program says: one that says nothing ends them all.
        // SAFETY: alarm takes an integer.
        unsafe { libc::alarm(600) };
        let dir = TempDir::new().expect("a directory");
        let run = dir.path().join("run");
        std::fs::create_dir(&run).expect("a directory");
        let mut places = lock(&PLACES);
        if places.is_empty() {
            // SAFETY: the function lives as long as the program.
            unsafe { libc::atexit(end_all) };
        }
        places.push(run);
        drop(places);
        let launcher = Vec::new();
        Self { dir, launcher }
    }

    /// Has `tine` started by these words, of which the last one is it.
    pub fn launched_by(mut self, words: Vec<OsString>) -> Self {
        self.launcher = words;
        self
    }

    /// Where machines' directories are.
    pub fn run(&self) -> PathBuf {
        self.dir.path().join("run")
    }

    /// A path for a test's own files.
    pub fn path(&self, name: impl AsRef<OsStr>) -> PathBuf {
        self.dir.path().join(name.as_ref())
    }

    /// A command line `tine ARGS`, its output caught and its input empty.
    pub fn tine<S: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = S>) -> Command {
        let mut command = match self.launcher.as_slice() {
            [] => Command::new(tine()),
            [program, more @ ..] => {
                let mut command = Command::new(program);
                command.args(more);
                command
            }
        };
        command.args(args).env("TINE_RUN_DIR", self.run());
        command.current_dir(self.dir.path()).stdin(Stdio::null());
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    /// Starts the bare-metal guest `guest` in a machine of 64 MiB that stays, with more arguments.
    pub fn run_bare(&self, id: &str, guest: &str, more: &[&str]) {
        let mut command = self.bare(id, &crate::guest(guest), more);
        self.done(command.output().expect("tine can be started"));
    }

    /// The command line that starts a machine of 64 MiB that stays, with a kernel that is a bare-metal
    /// guest, which has no agent.
    pub fn bare(&self, id: &str, kernel: &Path, more: &[&str]) -> Command {
        let mut command = self.tine(["run", "-d", "--no-wait", "--memory", "64M"]);
        command.args(["--name", id]).args(more);
        command.arg("--kernel").arg(kernel);
        command
    }

    /// The process of the machine `id`, which runs.
    pub fn pid(&self, id: &str) -> i32 {
        let all = self.ok(["inspect", "--json", id]);
        let all: serde_json::Value = serde_json::from_str(&all).expect("JSON");
        all["pid"].as_i64().expect("a process") as i32
    }

    /// A file with an empty ext4 of 24 MiB, for a Linux guest's disk.
    pub fn ext4(&self, name: &str) -> PathBuf {
        let disk = self.path(name);
        let made = std::fs::File::create(&disk).and_then(|file| file.set_len(24 << 20));
        made.expect("a file");
        crate::host(&["mkfs.ext4", "-q", disk.to_str().expect("text")]);
        disk
    }

    /// Runs `tine ARGS` to its end.
    pub fn output<S: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = S>) -> Output {
        self.tine(args).output().expect("tine can be started")
    }

    /// Standard output of `tine ARGS`, which must end well and silently.
    pub fn ok<S: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = S>) -> String {
        self.done(self.output(args))
    }

    fn done(&self, output: Output) -> String {
        let errors = text(&output.stderr);
        let ended = output.status;
        assert!(ended.success(), "{ended}: {errors}{}", self.logs());
        assert_eq!(errors, "");
        text(&output.stdout)
    }

    /// What the machines' processes have logged, for the message of a test that fails.
    fn logs(&self) -> String {
        let machines = std::fs::read_dir(self.run()).into_iter().flatten();
        let logs = machines.flatten().map(|dir| dir.path().join("vmm.log"));
        let read = logs.filter_map(|log| Some((log.clone(), std::fs::read_to_string(log).ok()?)));
        read.map(|(log, text)| format!("\n{}:\n{text}", log.display()))
            .collect()
    }

    /// Standard error of `tine ARGS`, which must end with `status`.
    pub fn fails<S: AsRef<OsStr>>(&self, status: i32, args: impl IntoIterator<Item = S>) -> String {
        let output = self.output(args);
        let errors = text(&output.stderr);
        assert_eq!(output.status.code(), Some(status), "{errors}");
        assert!(!errors.contains("panicked"), "{errors}");
        errors
    }

    /// An agent where the socket of the machine `id` would be.
    pub fn agent(&self, id: &str) -> HostAgent {
        let dir = self.run().join(id);
        std::fs::create_dir(&dir).expect("a machine's directory");
        HostAgent::start(&dir.join("api.sock"))
    }

    /// The same, but behind a line that can be cut.
    pub fn agent_behind_cutter(&self, id: &str) -> (HostAgent, Cutter) {
        let dir = self.run().join(id);
        std::fs::create_dir(&dir).expect("a machine's directory");
        let agent = HostAgent::start(&dir.join("agent.sock"));
        let cutter = Cutter::between(&dir.join("api.sock"), &dir.join("agent.sock"));
        (agent, cutter)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        end_machines(&self.run());
    }
}

/// The agent as an ordinary program.
pub struct HostAgent {
    child: Child,
}

impl HostAgent {
    fn start(socket: &Path) -> Self {
        // Whoever runs the tests may ignore signals; PID 1 of a guest starts with none ignored.
        let child = Command::new("env")
            .arg("--default-signal")
            .arg(agent())
            .arg("--listen")
            .arg(format!("unix:{}", socket.display()))
            .args(["--cgroup", "/nonexistent"])
            .stdin(Stdio::null())
            .spawn()
            .expect("the agent can be started");
        let agent = Self { child };
        eventually(|| UnixStream::connect(socket).is_ok());
        agent
    }
}

impl Drop for HostAgent {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Waits until something is so.
pub fn eventually(so: impl Fn() -> bool) {
    let start = Instant::now();
    while !so() {
        assert!(start.elapsed() < PATIENCE, "it never came to it");
        thread::sleep(Duration::from_millis(5));
    }
}

/// A line between a client and an agent that breaks when told to.
pub struct Cutter {
    shared: Arc<CutterState>,
}

struct CutterState {
    open: Mutex<Vec<[UnixStream; 2]>>,
    connections: AtomicUsize,
    /// Bytes that each further connection passes to the client before it is cut.
    down: AtomicUsize,
    /// The same the other way.
    up: AtomicUsize,
    refuse: Mutex<bool>,
}

impl Cutter {
    fn between(client_side: &Path, agent_side: &Path) -> Self {
        let listener = UnixListener::bind(client_side).expect("a socket");
        let shared = Arc::new(CutterState {
            open: Mutex::default(),
            connections: AtomicUsize::new(0),
            down: AtomicUsize::new(usize::MAX),
            up: AtomicUsize::new(usize::MAX),
            refuse: Mutex::new(false),
        });
        let (state, agent_side) = (shared.clone(), agent_side.to_owned());
        thread::spawn(move || {
            for client in listener.incoming().flatten() {
                state.join(client, &agent_side);
            }
        });
        Self { shared }
    }

    /// Cuts all connections.
    pub fn cut(&self) {
        for pair in self.shared.open.lock().unwrap().drain(..) {
            for end in pair {
                let _ = end.shutdown(Shutdown::Both);
            }
        }
    }

    /// How many connections there have been.
    pub fn connections(&self) -> usize {
        self.shared.connections.load(Ordering::SeqCst)
    }

    /// Cuts each further connection after it has passed this many bytes to the client.
    pub fn cut_down_after(&self, bytes: usize) {
        self.shared.down.store(bytes, Ordering::SeqCst);
    }

    /// Cuts each further connection after it has passed this many bytes to the agent.
    pub fn cut_up_after(&self, bytes: usize) {
        self.shared.up.store(bytes, Ordering::SeqCst);
    }

    /// Cuts each further connection at once, or does not any more.
    pub fn refuse(&self, refuse: bool) {
        *self.shared.refuse.lock().unwrap() = refuse;
    }
}

impl CutterState {
    fn join(&self, client: UnixStream, agent_side: &Path) {
        self.connections.fetch_add(1, Ordering::SeqCst);
        let refuse = *self.refuse.lock().unwrap();
        let (false, Ok(agent)) = (refuse, UnixStream::connect(agent_side)) else {
            return;
        };
        let again = |stream: &UnixStream| stream.try_clone().expect("a descriptor");
        self.open
            .lock()
            .unwrap()
            .push([again(&client), again(&agent)]);
        let limits = (&self.down, &self.up);
        let (down, up) = (
            limits.0.load(Ordering::SeqCst),
            limits.1.load(Ordering::SeqCst),
        );
        let (client_again, agent_again) = (again(&client), again(&agent));
        thread::spawn(move || pass(agent, client, down));
        thread::spawn(move || pass(client_again, agent_again, up));
    }
}

/// Passes bytes on: all, or so many and then cuts.
fn pass(mut from: UnixStream, mut to: UnixStream, mut left: usize) {
    let mut buffer = [0; 8192];
    loop {
        let most = left.min(buffer.len());
        match from.read(&mut buffer[..most]) {
            Ok(0) if most > 0 => {
                let _ = to.shutdown(Shutdown::Write);
                return;
            }
            Ok(count) if count > 0 && to.write_all(&buffer[..count]).is_ok() => left -= count,
            _ => break,
        }
    }
    let _ = from.shutdown(Shutdown::Both);
    let _ = to.shutdown(Shutdown::Both);
}

/// Reads from a child until what it said contains `wanted`.
pub fn read_until(from: &mut impl Read, wanted: &str) -> String {
    let mut said = Vec::new();
    let mut byte = [0];
    while !text(&said).contains(wanted) {
        match from.read(&mut byte) {
            Ok(1) => said.push(byte[0]),
            end => panic!("{end:?} instead of {wanted:?} after {:?}", text(&said)),
        }
    }
    text(&said)
}

/// Sends a signal to a child.
pub fn signal(child: &Child, number: i32) {
    // SAFETY: kill takes two integers; the child has not been waited for, so its id is its own.
    assert_eq!(unsafe { libc::kill(child.id() as i32, number) }, 0);
}
