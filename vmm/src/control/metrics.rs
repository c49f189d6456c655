//! Figures of the machine and of its process, for `/metrics` files and `/v1/metrics`.

use std::fs::File;
use std::io::{self, Write};
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use serde_json::{Map, Value, json};

use super::events::now;
use super::handle::Handle;
use super::settings::MetricsSettings;
use super::state::State;

/// Counters of the API. They only grow, but for the connections.
#[derive(Debug, Default)]
pub struct Counters {
    /// Requests answered with success.
    pub answered: AtomicU64,
    /// Requests refused for what the client asked (400 to 499).
    pub refused: AtomicU64,
    /// Requests that failed (500 and above).
    pub failed: AtomicU64,
    /// Requests passed on to the agent.
    pub proxied: AtomicU64,
    /// Connections open now.
    pub connections: AtomicU64,
    /// Connections closed because others needed the room, or because they stalled.
    pub closed: AtomicU64,
    /// Microseconds from the start of the process until its socket answered; 0 when nobody said
    /// when it was started.
    pub startup_us: AtomicU64,
    /// Processor time of that in microseconds, likewise.
    pub startup_cpu_us: AtomicU64,
}

/// One figure.
#[derive(Debug, Clone, PartialEq)]
pub struct Sample {
    /// Its name, without prefix.
    pub name: &'static str,
    /// What it is.
    pub help: &'static str,
    /// It only grows.
    pub counter: bool,
    /// What tells it from others of the same name.
    pub label: Option<(&'static str, String)>,
    /// Its value.
    pub value: f64,
}

/// All figures of now.
pub fn samples(handle: &Handle) -> Vec<Sample> {
    let status = handle.status();
    let figures = handle.figures();
    let mut all = Vec::with_capacity(48);
    let mut add = |name, help, counter, label, value| {
        all.push(Sample {
            name,
            help,
            counter,
            label,
            value,
        });
    };
    for state in State::ALL {
        let is = f64::from(u8::from(status.state == state));
        let label = Some(("state", state.word().to_owned()));
        add("state", "1 for the machine's state", false, label, is);
    }
    let cpu = figures.cpu_us as f64 / 1e6;
    add("cpu_seconds_total", "Processor time", true, None, cpu);
    let memory = figures.memory_bytes as f64;
    add("memory_bytes", "Resident memory", false, None, memory);
    let counters = handle.counters();
    for (outcome, counter) in [
        ("answered", &counters.answered),
        ("refused", &counters.refused),
        ("failed", &counters.failed),
    ] {
        let label = Some(("outcome", outcome.to_owned()));
        let value = counter.load(Relaxed) as f64;
        add("api_requests_total", "API requests", true, label, value);
    }
    let value = |counter: &AtomicU64| counter.load(Relaxed) as f64;
    let (proxied, open) = (value(&counters.proxied), value(&counters.connections));
    let closed = value(&counters.closed);
    let help = "Requests passed on to the agent";
    add("agent_requests_total", help, true, None, proxied);
    add("api_connections", "Open connections", false, None, open);
    let help = "Connections closed for want of room or progress";
    add("api_connections_closed_total", help, true, None, closed);
    for (name, help, us) in [
        (
            "startup_seconds",
            "How long the start took",
            &counters.startup_us,
        ),
        (
            "startup_cpu_seconds",
            "Processor time of the start",
            &counters.startup_cpu_us,
        ),
    ] {
        if us.load(Relaxed) > 0 {
            add(name, help, false, None, value(us) / 1e6);
        }
    }
    let Some(access) = &status.access else {
        return all;
    };
    for (id, stats) in &access.drives {
        for (name, help, counter) in [
            ("drive_reads_total", "Reads", &stats.reads),
            ("drive_read_bytes_total", "Bytes read", &stats.read_bytes),
            ("drive_writes_total", "Writes", &stats.writes),
            (
                "drive_written_bytes_total",
                "Bytes written",
                &stats.written_bytes,
            ),
            ("drive_flushes_total", "Flushes", &stats.flushes),
            ("drive_errors_total", "Failed requests", &stats.errors),
        ] {
            let label = Some(("drive", id.clone()));
            add(name, help, true, label, value(counter));
        }
    }
    let dropped = access.console.dropped() as f64;
    let help = "Console bytes beyond its limit";
    add("console_dropped_bytes_total", help, true, None, dropped);
    let stats = access.vsock.stats();
    for (name, help, counter) in [
        (
            "vsock_connections_total",
            "Connections established",
            &stats.connections,
        ),
        (
            "vsock_from_guest_bytes_total",
            "Bytes from the guest",
            &stats.bytes_from_guest,
        ),
        (
            "vsock_to_guest_bytes_total",
            "Bytes to the guest",
            &stats.bytes_to_guest,
        ),
        (
            "vsock_dropped_total",
            "Packets that made no sense",
            &stats.dropped,
        ),
    ] {
        add(name, help, true, None, value(counter));
    }
    all
}

/// Appends all figures to a metrics file, as one JSON object.
pub(super) fn write_line(
    file: &mut File,
    settings: &MetricsSettings,
    handle: &Handle,
) -> io::Result<()> {
    let mut line = Map::new();
    line.insert("at".to_owned(), now().into());
    if settings.emit_id {
        line.insert("id".to_owned(), handle.identity().id.clone().into());
    }
    if let Some(properties) = &settings.properties {
        line.insert("properties".to_owned(), json!(properties));
    }
    for sample in samples(handle) {
        match sample.label {
            None => drop(line.insert(sample.name.to_owned(), sample.value.into())),
            Some((_, value)) => {
                let group = line
                    .entry(sample.name)
                    .or_insert_with(|| Value::Object(Map::new()));
                if let Value::Object(group) = group {
                    group.insert(value, sample.value.into());
                }
            }
        }
    }
    let mut bytes = serde_json::to_vec(&line)?;
    bytes.push(b'\n');
    file.write_all(&bytes)
}
