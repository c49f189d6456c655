//! Figures of the guest and of the agent.

use tine_guest_agent::PROTOCOL_VERSION;
use tine_guest_agent::status::{DiskFigures, Health, MemoryFigures};

use super::Agent;
use super::init::read_small;

/// The kernel's load averages are fixed-point numbers with this many bits behind the point.
const LOAD_SHIFT: u32 = 16;

/// What `GET /v1/health` answers.
pub fn figures(agent: &Agent) -> Health {
    let system = rustix::system::sysinfo();
    let load = |value| value as f64 / f64::from(1 << LOAD_SHIFT);
    let records = agent.store.all();
    Health {
        protocol: PROTOCOL_VERSION,
        agent: env!("CARGO_PKG_VERSION").into(),
        uptime_s: system.uptime as u64,
        load: [
            load(system.loads[0]),
            load(system.loads[1]),
            load(system.loads[2]),
        ],
        memory: memory(),
        disk: disk(),
        processes: system.procs.into(),
        execs_running: records.iter().filter(|exec| exec.is_running()).count(),
        execs_known: records.len(),
        agent_memory_bytes: kib(&read_small("/proc/self/status"), "VmRSS:"),
    }
}

/// The guest's memory.
pub fn memory() -> MemoryFigures {
    let text = read_small("/proc/meminfo");
    MemoryFigures {
        total_bytes: kib(&text, "MemTotal:"),
        free_bytes: kib(&text, "MemFree:"),
        available_bytes: kib(&text, "MemAvailable:"),
    }
}

/// The root file system.
pub fn disk() -> DiskFigures {
    let figures = rustix::fs::statvfs("/").map(|figures| DiskFigures {
        total_bytes: figures.f_blocks * figures.f_frsize,
        available_bytes: figures.f_bavail * figures.f_frsize,
    });
    figures.unwrap_or_default()
}

/// The bytes of a line `NAME  123 kB`.
fn kib(text: &str, name: &str) -> u64 {
    let line = text.lines().find_map(|line| line.strip_prefix(name));
    let number = line.and_then(|line| line.split_ascii_whitespace().next());
    number
        .and_then(|number| number.parse::<u64>().ok())
        .unwrap_or_default()
        * 1024
}
