//! Ways into an assembled machine that do not need its owner: for reads and for proxied requests.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use serde::Serialize;
use tine_devices::virtio::balloon::BalloonHandle;
use tine_devices::virtio::block::BlockStats;
use tine_devices::virtio::net::{NetHandle, NetStats};
use tine_devices::virtio::vsock::VsockHandle;

use crate::console::ConsoleTail;
use crate::machine::Machine;

/// Handles of a machine's parts.
#[derive(Clone)]
pub struct Access {
    /// The way to the guest's agent.
    pub vsock: VsockHandle,
    /// The last of the guest's console.
    pub console: ConsoleTail,
    /// The drives' counters, by id.
    pub drives: Vec<(String, Arc<BlockStats>)>,
    /// The network interfaces, by id.
    pub interfaces: Vec<(String, NetHandle)>,
    /// The memory balloon.
    pub balloon: Option<BalloonHandle>,
}

impl Access {
    /// The handles of `machine`.
    pub fn to(machine: &Machine) -> Self {
        Self {
            vsock: machine.vsock().clone(),
            console: machine.console_tail().clone(),
            drives: machine.drive_stats(),
            interfaces: machine.interfaces().to_vec(),
            balloon: machine.balloon().cloned(),
        }
    }
}

/// What a machine has used so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, serde::Deserialize)]
#[serde(default)]
pub struct Figures {
    /// Processor time of the whole process, the guest's included, in microseconds.
    pub cpu_us: u64,
    /// Resident memory of the whole process, the guest's included.
    pub memory_bytes: u64,
    /// Bytes read from drives.
    pub disk_read_bytes: u64,
    /// Bytes written to drives.
    pub disk_written_bytes: u64,
    /// Bytes that the guest received from the network.
    pub network_received_bytes: u64,
    /// Bytes that the guest sent to the network.
    pub network_sent_bytes: u64,
}

impl Figures {
    /// The figures of now.
    pub fn now(access: Option<&Access>) -> Self {
        let disk = |of: fn(&BlockStats) -> u64| -> u64 {
            let drives = access.map(|access| access.drives.as_slice());
            drives.unwrap_or_default().iter().map(|d| of(&d.1)).sum()
        };
        let network = |of: fn(&NetStats) -> u64| -> u64 {
            let nets = access.map(|access| access.interfaces.as_slice());
            let nets = nets.unwrap_or_default().iter();
            nets.map(|net| of(net.1.stats())).sum()
        };
        Self {
            cpu_us: cpu_time().as_micros() as u64,
            memory_bytes: resident_memory(),
            disk_read_bytes: disk(|stats| stats.read_bytes.load(Relaxed)),
            disk_written_bytes: disk(|stats| stats.written_bytes.load(Relaxed)),
            network_received_bytes: network(|stats| stats.rx_bytes.load(Relaxed)),
            network_sent_bytes: network(|stats| stats.tx_bytes.load(Relaxed)),
        }
    }
}

fn cpu_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// Kept open, as it is read for each `GET /v1/machine`.
fn resident_memory() -> u64 {
    static STATM: OnceLock<Option<File>> = OnceLock::new();
    let statm = STATM.get_or_init(|| File::open("/proc/self/statm").ok());
    let mut bytes = [0; 128];
    let len = statm.as_ref().map(|file| file.read_at(&mut bytes, 0));
    let text = &bytes[..len.and_then(Result::ok).unwrap_or_default()];
    let pages = str::from_utf8(text).unwrap_or_default().split(' ').nth(1);
    let pages: u64 = pages.and_then(|n| n.parse().ok()).unwrap_or_default();
    pages * rustix::param::page_size() as u64
}
