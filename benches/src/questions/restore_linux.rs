//! How long does it take from a request to restore a Linux guest until its agent answers, and until
//! it has run a command?

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::Context;
use serde_json::{Value, json};
use tine::host::HostKind;
use tine::image::Image;

use crate::api::{Api, Port, Process, Program, instance_start};
use crate::compare::{Measure, Unit};
use crate::contestant::Contestant;
use crate::questions::snapshot::{monitors, take};
use crate::questions::{Bench, Question, column};
use crate::report::Answer;
use crate::rounds;

/// The question.
pub const QUESTION: Question = Question {
    name: "restore-linux",
    for_root: false,
    answer,
};

const ABOUT: &str = "The same Linux guest (1 vCPU, 128 MiB, Tine's kernel and agent, a vsock and an \
    entropy device) was snapshotted by each monitor itself. Times run from just before the request to \
    restore it is written to the socket of a process that is up, to the agent's answer to having been \
    told so, and to the answer to a command of it after that (/bin/true). On software KVM no guest uses \
    XSAVE, which its interpreter lacks. Tine tells the agent by \
    itself and passes the command on; for Firecracker the benchmark does both through the socket of \
    the vsock device. The guest's own share is the processor time of the vCPU's thread until then.";

/// Rounds when nobody says otherwise.
const RUNS: usize = 10;
/// In MiB.
const MEMORY: u64 = 128;
/// The agent's port in the guest, and the one it announces itself on.
const AGENT: u32 = 1024;

/// Tine carries out XSAVE for guests whose kernels are interpreted; Firecracker's guest would not come
/// up. So that all boot the same, none of them uses it there.
const INTERPRETED: &str = "noxsave";

struct Turn {
    program: Program,
    snapshot: PathBuf,
    dir: PathBuf,
}

struct Sample {
    agent: f64,
    exec: f64,
    guest: f64,
}

fn answer(bench: &Bench) -> anyhow::Result<Answer> {
    let contestants = monitors(bench, QUESTION.name);
    let turns = contestants.iter().enumerate().map(|(number, contestant)| {
        prepare(contestant, &bench.dir().join(format!("linux-{number}")))
            .with_context(|| format!("cannot prepare {}", contestant.name))
    });
    let turns = turns.collect::<anyhow::Result<Vec<_>>>()?;
    rustix::fs::sync();
    let (warm_up, runs) = (bench.warm_up().min(1), bench.runs(RUNS));
    let samples = rounds::run(QUESTION.name, &turns, warm_up, runs, once)?;
    let measure = |name, field: fn(&Sample) -> f64| {
        Measure::new(name, Unit::Millis, &contestants, column(&samples, field))
    };
    Ok(Answer {
        question: QUESTION.name.into(),
        about: ABOUT.into(),
        measures: vec![
            measure("request to the agent's answer", |sample| sample.agent),
            measure("request to the first command's end", |sample| sample.exec),
            measure("the guest's own share of that", |sample| sample.guest),
        ],
    })
}

/// A guest that has been booted, and when what was done.
pub struct Booted {
    /// Its monitor.
    pub process: Process,
    /// The monitor has answered first.
    pub first: Instant,
    /// All settings are made.
    pub configured: Instant,
    /// The agent is there.
    pub agent: Instant,
}

/// Boots the guest until its agent is there. The socket of its vsock device is `v.sock` in `dir`.
pub fn boot(program: &Program, dir: &Path) -> anyhow::Result<Booted> {
    let image = Image::built()?;
    let mut process = program.start(dir, std::process::Stdio::null())?;
    let first = process.ask("GET", "/version", &Value::Null)?.answer;
    let host = HostKind::detect();
    let more = match host {
        HostKind::Hardware => "",
        HostKind::Software => INTERPRETED,
    };
    let mut source = json!({ "initrd_path": image.initramfs, "boot_args": more });
    let (configured, agent) = match program.api() {
        Api::Tine => {
            process.configure(&image.kernel, MEMORY, &source)?;
            let configured = Instant::now();
            process.ask("PUT", "/actions", &instance_start())?;
            let wait = "/v1/machine?wait=running&timeout=300s";
            (configured, process.ask("GET", wait, &Value::Null)?.answer)
        }
        Api::Firecracker => {
            // What Tine tells every Linux guest.
            source["boot_args"] = json!(format!(
                "console=ttyS0 reboot=k panic=-1 noreplace-smp pci=off 8250.nr_uarts=1 \
                 random.trust_cpu=on quiet {} {more}",
                host.kernel_words()
            ));
            let announced = dir.join(format!("v.sock_{AGENT}"));
            // What the one before has left.
            for left in [&announced, &dir.join("v.sock")] {
                let _ = fs::remove_file(left);
            }
            let listener = UnixListener::bind(announced).context("cannot listen")?;
            let vsock = json!({ "guest_cid": 3, "uds_path": dir.join("v.sock") });
            process.ask("PUT", "/vsock", &vsock)?;
            process.ask("PUT", "/entropy", &json!({}))?;
            process.configure(&image.kernel, MEMORY, &source)?;
            let configured = Instant::now();
            process.ask("PUT", "/actions", &instance_start())?;
            let stream = process.accept(&listener)?;
            BufReader::new(stream).read_line(&mut String::new())?;
            (configured, Instant::now())
        }
    };
    Ok(Booted {
        process,
        first,
        configured,
        agent,
    })
}

/// Boots the guest and snapshots it once its agent is there.
fn prepare(contestant: &Contestant, dir: &Path) -> anyhow::Result<Turn> {
    let program = Program::of(contestant).context("it has no API")?;
    fs::create_dir(dir).context("cannot make a directory")?;
    let mut process = boot(&program, dir)?.process;
    let snapshot = dir.join("snapshot");
    take(&program, &mut process, &snapshot, "Full")?;
    Ok(Turn {
        program,
        snapshot,
        dir: dir.to_owned(),
    })
}

/// Runs a command in a guest whose agent is there, and returns its record.
pub fn exec(
    program: &Program,
    process: &mut Process,
    dir: &Path,
    request: &Value,
) -> anyhow::Result<Value> {
    match program.api() {
        Api::Tine => Ok(process.ask("POST", "/v1/exec", request)?.body),
        Api::Firecracker => {
            Port::open(&dir.join("v.sock"), AGENT)?.ask("POST", "/v1/exec", request)
        }
    }
}

fn once(turn: &Turn) -> anyhow::Result<Sample> {
    let socket = turn.dir.join("v.sock");
    // Firecracker does not remove what the one before has left.
    let _ = fs::remove_file(&socket);
    let mut process = turn.program.start(&turn.dir, std::process::Stdio::null())?;
    process.ask("GET", "/version", &Value::Null)?;
    let exec = json!({ "request_id": "first", "argv": ["/bin/true"] });
    let (asked, agent) = match turn.program.api() {
        Api::Tine => {
            let body = json!({ "snapshot": turn.snapshot });
            let asked = process.ask("PUT", "/v1/restore", &body)?.asked;
            let wait = "/v1/machine?wait=running&timeout=300s";
            let agent = process.ask("GET", wait, &Value::Null)?.answer;
            let record = process.ask("POST", "/v1/exec", &exec)?.body;
            check(&record)?;
            (asked, agent)
        }
        Api::Firecracker => through_vsock(turn, &mut process, &socket, &exec)?,
    };
    let end = Instant::now();
    let millis = |duration: Duration| duration.as_secs_f64() * 1e3;
    Ok(Sample {
        agent: millis(agent - asked),
        exec: millis(end - asked),
        guest: millis(process.vcpu_time()?),
    })
}

/// What Tine does inside, from outside.
fn through_vsock(
    turn: &Turn,
    process: &mut Process,
    socket: &Path,
    exec: &Value,
) -> anyhow::Result<(Instant, Instant)> {
    let memory = json!({ "backend_type": "File", "backend_path": turn.snapshot.join("memory") });
    let body = json!({
        "snapshot_path": turn.snapshot.join("state"), "mem_backend": memory, "resume_vm": true,
    });
    let asked = process.ask("PUT", "/snapshot/load", &body)?.asked;
    let mut refresh = tine::agent::new_identity(1).context("cannot get random bytes")?;
    let mut agent = Port::open(socket, AGENT)?;
    let since = SystemTime::now().duration_since(UNIX_EPOCH)?;
    refresh.clock_ns = since.as_nanos() as u64;
    agent.ask("POST", "/v1/refresh", &serde_json::to_value(&refresh)?)?;
    let answered = Instant::now();
    check(&agent.ask("POST", "/v1/exec", exec)?)?;
    Ok((asked, answered))
}

fn check(record: &Value) -> anyhow::Result<()> {
    anyhow::ensure!(record["exit_code"] == 0, "/bin/true: {record}");
    Ok(())
}
