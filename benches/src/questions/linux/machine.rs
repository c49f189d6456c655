//! The machine that commands are run in: a Linux guest in a `tine-vmm` of its own, with the
//! benchmark's helper in it.

use std::collections::HashMap;
use std::fs;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use serde_json::json;
use tine::image::Image;

use super::http::{Connection, PATIENCE};

/// The guest's memory in MiB: a file of 64 MiB has to fit into half of it. More takes longer to boot.
const MEMORY: u64 = 192;
/// Where the agent listens.
const AGENT: u32 = 1024;
/// Where the helper listens.
const HELPER: u32 = 7000;

/// The programs that are started, by number.
pub const PROGRAMS: [&str; 2] = ["/bench/tiny", "/bin/true"];

/// A running machine. Dropping it kills it.
pub struct Machine {
    process: Child,
    /// Its id, and its directory's name: how `tine exec` finds it.
    id: String,
    dir: PathBuf,
    tine: PathBuf,
    next: u64,
}

impl Machine {
    /// Boots it, and puts the helper in.
    pub fn start(dir: &Path, tine: &Path) -> anyhow::Result<Self> {
        let image = Image::built()?;
        let own = std::env::current_exe().context("cannot tell where this program is")?;
        let helper = own.with_file_name("tine-bench-guest");
        let helper = fs::read(&helper).with_context(|| {
            let path = helper.display();
            format!("cannot read {path}: build it with `cargo build --release -p tine-bench`")
        })?;
        // Several questions of a run have one each.
        static STARTED: AtomicU32 = AtomicU32::new(0);
        let number = STARTED.fetch_add(1, Ordering::Relaxed);
        let id = format!("bench-{number}");
        let dir = dir.join(&id);
        fs::create_dir(&dir)?;
        let monitor = tine.with_file_name("tine-vmm");
        let process = Command::new(&monitor)
            .arg("--api-sock")
            .arg(dir.join("api.sock"))
            .args(["--id", &id])
            .arg("--run-dir")
            .arg(&dir)
            .stdin(Stdio::null())
            .spawn()
            .with_context(|| format!("cannot start {}", monitor.display()))?;
        let mut machine = Self {
            process,
            id,
            dir,
            tine: tine.to_owned(),
            next: 0,
        };
        let mut api = machine.first_connection()?;
        api.json(
            "PUT",
            "/v1/config",
            &json!({ "memory_mib": MEMORY, "kernel": image.kernel, "initrd": image.initramfs }),
        )?;
        let vsock = json!({ "guest_cid": 3, "uds_path": machine.dir.join("v.sock") });
        api.json("PUT", "/vsock", &vsock)?;
        api.json(
            "PUT",
            "/actions",
            &json!({ "action_type": "InstanceStart" }),
        )?;
        let limit = PATIENCE.as_secs();
        let wait = format!("/v1/machine?wait=running&timeout={limit}s");
        api.json("GET", &wait, &serde_json::Value::Null)?;
        for (name, content) in [
            ("helper", helper.as_slice()),
            ("tiny", &super::tiny::program()),
        ] {
            let target = format!("/v1/files/content?path=/bench/{name}&mode=755&parents=1");
            let answer = api.call("PUT", &target, content)?;
            ensure!(answer.status == 200, "{target}: {}", answer.status);
        }
        let port = HELPER.to_string();
        let argv: Vec<&str> = ["/bench/helper", &port]
            .into_iter()
            .chain(PROGRAMS)
            .collect();
        let request = json!({ "request_id": "helper", "argv": argv });
        api.json("POST", "/v1/exec?wait=false", &request)?;
        Ok(machine)
    }

    fn first_connection(&mut self) -> anyhow::Result<Connection> {
        let begun = Instant::now();
        loop {
            if let Ok(connection) = self.api() {
                return Ok(connection);
            }
            if let Some(status) = self.process.try_wait()? {
                bail!("tine-vmm ended at once, {status}");
            }
            ensure!(begun.elapsed() < PATIENCE, "tine-vmm does not answer");
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// A connection to the machine's socket.
    pub fn api(&self) -> std::io::Result<Connection> {
        Connection::open(&self.dir.join("api.sock"))
    }

    /// A connection to the agent, past the machine's API.
    pub fn agent(&self) -> anyhow::Result<Connection> {
        Connection::to_port(&self.dir.join("v.sock"), AGENT)
    }

    /// A connection to the helper for the purpose that the byte stands for.
    pub fn helper(&self, purpose: u8) -> anyhow::Result<Connection> {
        let mut connection = Connection::to_port(&self.dir.join("v.sock"), HELPER)?;
        connection.write_all(&[purpose])?;
        Ok(connection)
    }

    /// An exec of a program over a connection, and how long it took.
    pub fn exec(&mut self, over: &mut Connection, program: &str) -> anyhow::Result<Duration> {
        self.next += 1;
        let request_id = format!("bench-{}", self.next);
        let body = json!({ "request_id": request_id, "argv": [program] }).to_string();
        let begun = Instant::now();
        let answer = over.call("POST", "/v1/exec", body.as_bytes())?;
        let took = begun.elapsed();
        let text = String::from_utf8_lossy(&answer.body);
        ensure!(text.contains("\"exit_code\":0"), "{program}: {text}");
        Ok(took)
    }

    /// `tine exec` of a program: how long it took, and the processor time of that process.
    pub fn tine_exec(&self, program: &str) -> anyhow::Result<(Duration, Duration)> {
        let mut command = Command::new(&self.tine);
        let run_dir = self.dir.parent().context("a directory above")?;
        command
            .args(["exec", &self.id, "--", program])
            .env("TINE_RUN_DIR", run_dir);
        command.stdin(Stdio::null()).stdout(Stdio::null());
        let before = children_time();
        let begun = Instant::now();
        let status = command.status()?;
        let took = begun.elapsed();
        ensure!(status.success(), "tine exec {program}: {status}");
        Ok((took, children_time() - before))
    }

    /// Processor time of each of the monitor's threads so far, by name.
    pub fn threads(&self) -> anyhow::Result<HashMap<String, Duration>> {
        let mut times = HashMap::new();
        for task in fs::read_dir(format!("/proc/{}/task", self.process.id()))? {
            let task = task?.path();
            let name = fs::read_to_string(task.join("comm"))?;
            let spent = fs::read_to_string(task.join("schedstat"))?;
            let nanos = spent.split(' ').next().and_then(|word| word.parse().ok());
            let nanos = nanos.context("the kernel keeps no schedstat")?;
            times.insert(name.trim().to_owned(), Duration::from_nanos(nanos));
        }
        Ok(times)
    }
}

/// Processor time of all children that have been waited for.
fn children_time() -> Duration {
    // SAFETY: the structure is plain data that lives through the call.
    let usage = unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        libc::getrusage(libc::RUSAGE_CHILDREN, &mut usage);
        usage
    };
    let time = |time: libc::timeval| {
        Duration::from_secs(time.tv_sec as u64) + Duration::from_micros(time.tv_usec as u64)
    };
    time(usage.ru_utime) + time(usage.ru_stime)
}

impl Drop for Machine {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Has the helper start a program, and returns the time that the guest says it took. `how` is `f`
/// or `v`.
pub fn start_in_guest(helper: &mut Connection, how: u8, program: u8) -> anyhow::Result<Duration> {
    let begun = Instant::now();
    helper.write_all(&[how, program])?;
    let mut nanos = [0; 8];
    helper.read_exact(&mut nanos)?;
    let took = Duration::from_nanos(u64::from_le_bytes(nanos));
    let seen = begun.elapsed();
    ensure!(
        took <= seen,
        "the guest's clock says {took:?} for what took {seen:?} here"
    );
    Ok(took)
}

/// A round trip to the helper and back without work.
pub fn echo(helper: &mut Connection, there: u32, back: u32) -> anyhow::Result<Duration> {
    let mut request = vec![0; there as usize];
    request[..4].copy_from_slice(&there.to_le_bytes());
    request[4..8].copy_from_slice(&back.to_le_bytes());
    let begun = Instant::now();
    helper.write_all(&request)?;
    let mut answer = vec![0; back as usize];
    helper.read_exact(&mut answer)?;
    Ok(begun.elapsed())
}
