//! A Linux guest, booted once in this process and shared by the tests of one file: a boot takes
//! many seconds where guest kernels are interpreted.

use std::fs;
use std::io::{Cursor, Read, Write};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, OnceLock};
use std::time::{Duration, Instant};

use tempfile::TempDir;
use tine::agent::{self, Agent, Hellos, Streams};
use tine::config::MachineConfig;
use tine::machine::{Capture, Machine};
use tine::vcpu::Ending;
use tine_devices::virtio::block::BlockConfig;
use tine_guest_agent::AGENT_PORT;
use tine_guest_agent::exec::{ExecRequest, Record};
use tine_guest_agent::octets::Octets;

use crate::{require_kvm, text};

/// The built image: kernel and initramfs. Builds what is missing or stale.
pub fn image() -> &'static (PathBuf, PathBuf) {
    static BUILT: OnceLock<(PathBuf, PathBuf)> = OnceLock::new();
    BUILT.get_or_init(|| {
        let recipe = Path::new(env!("CARGO_MANIFEST_DIR")).join("../guest-agent/image/build");
        let output = Command::new(recipe)
            .output()
            .expect("the image recipe can be started");
        assert!(output.status.success(), "{}", text(&output.stderr));
        let lines = text(&output.stdout);
        let path = |name: &str| {
            let found = lines.lines().find_map(|line| line.strip_prefix(name));
            PathBuf::from(found.unwrap_or_else(|| panic!("{name} in {lines:?}")))
        };
        (path("kernel="), path("initramfs="))
    })
}

/// A Debian root file system, from the project's recipe.
pub fn debian() -> PathBuf {
    let recipe = Path::new(env!("CARGO_MANIFEST_DIR")).join("../guest-agent/image/rootfs");
    let output = Command::new(recipe)
        .output()
        .expect("the rootfs recipe can be started");
    assert!(output.status.success(), "{}", text(&output.stderr));
    let lines = text(&output.stdout);
    lines
        .lines()
        .find_map(|line| line.strip_prefix("rootfs="))
        .expect("rootfs=PATH")
        .into()
}

/// A running machine with a Linux guest.
pub struct Guest {
    /// The machine.
    pub machine: Machine,
    /// Where the machine's files are: `writable.img`, `read-only.img`, the socket `vsock`.
    pub dir: TempDir,
    agent: Agent,
    /// How the guest ended, if it did.
    ended: &'static Mutex<Option<Ending>>,
}

/// What an exec gave.
#[derive(Debug)]
pub struct Ran {
    /// The agent's record.
    pub record: Record,
    /// Standard output.
    pub stdout: Vec<u8>,
    /// Standard error.
    pub stderr: Vec<u8>,
}

/// Bytes of each of the guest's two disks.
pub const DISK_LEN: u64 = 16 << 20;

impl Guest {
    /// The guest that all tests of this process share.
    pub fn shared() -> &'static Guest {
        static GUEST: OnceLock<Guest> = OnceLock::new();
        GUEST.get_or_init(|| Guest::boot(1))
    }

    /// A guest of its own, with this many vCPUs.
    pub fn boot(vcpus: u8) -> Guest {
        require_kvm();
        let dir = TempDir::new().expect("a directory for the machine");
        for name in ["writable", "read-only"] {
            let path = dir.path().join(name).with_extension("img");
            let file = std::fs::File::create(&path).expect("a disk image");
            file.set_len(DISK_LEN).expect("a disk image");
        }
        let config = Self::config(vcpus, dir.path());
        let ended: &'static Mutex<Option<Ending>> = Box::leak(Box::default());
        let machine = Machine::assemble(&config, move |ending| {
            *ended.lock().expect("not poisoned") = Some(ending);
        })
        .expect("a machine");
        let hellos = Hellos::listen(machine.vsock()).expect("a vsock port");
        machine.resume();
        let Ok((_, connection)) = hellos.next() else {
            panic!("no agent: {:?}", machine.console_tail().lines(20));
        };
        // The agent's side of it is how it knows that the host is the same.
        std::mem::forget(connection);
        let agent = Agent::new(machine.vsock().clone());
        Guest {
            machine,
            dir,
            agent,
            ended,
        }
    }

    /// The machine whose files are in `dir`.
    fn config(vcpus: u8, dir: &Path) -> MachineConfig {
        let (kernel, initramfs) = image();
        let mut config = MachineConfig::new(kernel.clone());
        config.initrd = Some(initramfs.clone());
        config.memory = 128 << 20;
        config.vcpus = vcpus;
        config.vsock.uds_path = Some(dir.join("vsock"));
        for name in ["writable", "read-only"] {
            let path = dir.join(name).with_extension("img");
            let mut drive = BlockConfig::new(name, path);
            drive.read_only = name == "read-only";
            config.drives.push(drive);
        }
        config
    }

    /// Takes the machine's state and ends it.
    pub fn capture(self) -> Captured {
        self.machine.pause();
        let capture = self.machine.capture().expect("the machine's state");
        Captured {
            capture,
            dir: self.dir,
        }
    }

    /// Runs a request with `input` on standard input.
    pub fn exec(&self, mut request: ExecRequest, input: &[u8]) -> Ran {
        static NUMBER: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(0);
        let number = NUMBER.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        request.request_id = format!("test-{number}");
        request.stdin = !input.is_empty();
        let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
        let stdin: Option<Box<dyn std::io::Read + Send>> = match input {
            [] => None,
            input => Some(Box::new(Cursor::new(input.to_vec()))),
        };
        let streams = Streams {
            stdin,
            stdout: &mut stdout,
            stderr: &mut stderr,
        };
        let record = self.agent.exec(&request, streams).unwrap_or_else(|err| {
            let ended = self.ended.lock().expect("not poisoned");
            panic!(
                "{err}; ended: {ended:?}; {:?}",
                self.machine.console_tail().lines(20)
            )
        });
        Ran {
            record,
            stdout,
            stderr,
        }
    }

    /// Sends a request to the agent, and returns its answer's status and body. The connection has no more than this
    /// one, and nothing is made of the answer.
    pub fn ask(&self, method: &str, path: &str, body: &str) -> (u16, String) {
        let mut stream = self.machine.vsock().connect(AGENT_PORT).expect("the agent");
        let head = format!(
            "{method} {path} HTTP/1.1\r\nHost: agent\r\nConnection: close\r\nContent-Length: {}\r\n\r\n",
            body.len()
        );
        stream
            .write_all(format!("{head}{body}").as_bytes())
            .expect("a request");
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).expect("an answer");
        let answer = text(&answer);
        let (head, body) = answer.split_once("\r\n\r\n").expect("a head and a body");
        let status = head.split(' ').nth(1).and_then(|word| word.parse().ok());
        (status.expect("a status"), body.to_owned())
    }

    /// Runs a shell script.
    pub fn sh(&self, script: &str) -> Ran {
        self.exec(argv(["sh", "-c", script]), b"")
    }

    /// Runs a shell script that must end with status 0, and returns what it prints.
    pub fn out(&self, script: &str) -> String {
        let ran = self.sh(script);
        let errors = text(&ran.stderr);
        assert_eq!(
            ran.record.exit_code,
            Some(0),
            "{script}: {:?} {errors}",
            ran.record
        );
        text(&ran.stdout).trim_end().to_owned()
    }
}

/// A guest at one moment, and its disks.
pub struct Captured {
    /// What another machine can be made of.
    pub capture: Capture,
    dir: TempDir,
}

impl Captured {
    /// The guest goes on in a machine of its own.
    pub fn restore(self) -> Guest {
        let config = Guest::config(1, self.dir.path());
        let ended: &'static Mutex<Option<Ending>> = Box::leak(Box::default());
        let Capture {
            sections, memory, ..
        } = self.capture;
        let machine = Machine::restore(&config, memory, &sections, move |ending| {
            *ended.lock().expect("not poisoned") = Some(ending);
        })
        .expect("a machine");
        machine.resume();
        let agent = Agent::new(machine.vsock().clone());
        Guest {
            machine,
            dir: self.dir,
            agent,
            ended,
        }
    }
}

impl Captured {
    /// As many guests go on at once, in machines of this process: each is told that it is `child-N`, and
    /// has disks of its own.
    pub fn restore_each(&self, count: usize) -> Vec<Guest> {
        let own = (0..count).map(|_| {
            let dir = TempDir::new().expect("a directory for the machine");
            for name in ["writable.img", "read-only.img"] {
                fs::copy(self.dir.path().join(name), dir.path().join(name)).expect("a disk image");
            }
            (Guest::config(1, dir.path()), Mutex::new(Some(dir)))
        });
        let (configs, dirs): (Vec<_>, Vec<_>) = own.unzip();
        let ended: Vec<Mutex<Option<Ending>>> = (0..count).map(|_| Mutex::default()).collect();
        let ended: &'static [Mutex<Option<Ending>>] = ended.leak();
        let Capture {
            sections, memory, ..
        } = &self.capture;
        let on_end = |place: usize, ending| {
            *ended[place].lock().expect("not poisoned") = Some(ending);
        };
        let made = |place: usize, machine: Result<Machine, _>| {
            let machine: Machine = machine.expect("a machine");
            machine.resume();
            machine.vsock().transport_reset();
            let mut identity = agent::new_identity(1).expect("random bytes");
            identity.hostname = Some(format!("child-{place}"));
            let until = Instant::now() + Duration::from_secs(120);
            agent::refresh(machine.vsock(), &identity, until).expect("the agent's answer");
            let dir = dirs[place].lock().expect("not poisoned").take();
            Guest {
                agent: Agent::new(machine.vsock().clone()),
                machine,
                dir: dir.expect("one machine has one directory"),
                ended: &ended[place],
            }
        };
        let memory = memory.clone().into();
        Machine::restore_each(&configs, &memory, sections, on_end, made)
    }
}

/// A request for a program and its arguments.
pub fn argv<'a>(words: impl IntoIterator<Item = &'a str>) -> ExecRequest {
    let argv = words
        .into_iter()
        .map(|word| Octets(word.as_bytes().to_vec()))
        .collect();
    ExecRequest {
        argv,
        ..Default::default()
    }
}
