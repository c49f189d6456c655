//! The devices' part of a snapshot's state, which somebody made up: a device takes it on or refuses it.
//! Either way its rings can be worked on, whatever is in memory, and the next driver is served.
//!
//! The first byte of an input says which device it is. What follows are the sections of its state, with
//! [`tine_fuzz::BETWEEN`] between them, and then the memory in which a driver has its rings.

#![no_main]

use std::io;
use std::sync::Arc;

use libfuzzer_sys::fuzz_target;
use tempfile::NamedTempFile;
use tine_devices::GuestMemory;
use tine_devices::bus::lock;
use tine_devices::testing::{Buffer, FakeDriver};
use tine_devices::virtio::VirtioDevice;
use tine_devices::virtio::balloon::{Balloon, BalloonConfig, MemoryReclaim};
use tine_devices::virtio::block::{Block, BlockConfig, Engine};
use tine_devices::virtio::rng::Rng;
use tine_devices::virtio::vsock::{Vsock, VsockConfig, VsockHandle};
use tine_fuzz::BETWEEN;
use tine_fuzz::bounded::Bounded;
use tine_snapshot::section::Section;
use vm_memory::{Bytes, GuestAddress};

#[global_allocator]
static ALLOCATOR: Bounded<{ 16 << 20 }> = Bounded;

const NAME: &str = "device/0";
/// Where the fake driver's rings begin.
const RINGS: u64 = 0x1_0000;

/// Memory that nobody gives back.
struct Kept;

impl MemoryReclaim for Kept {
    fn reclaim(&self, _: &GuestMemory, _: GuestAddress, _: u64) -> io::Result<()> {
        Ok(())
    }
}

/// A device, and what has to live as long.
struct Made {
    device: Box<dyn VirtioDevice>,
    /// Beside the version's.
    features: u64,
    _host: Option<VsockHandle>,
    _file: Option<NamedTempFile>,
}

fn made(device: impl VirtioDevice + 'static, features: u64) -> Made {
    Made {
        device: Box::new(device),
        features,
        _host: None,
        _file: None,
    }
}

/// All of them have event indices (bit 29).
const EVENT_IDX: u64 = 1 << 29;
const DEVICES: [fn() -> Made; 4] = [rng, vsock, balloon, block];

fn rng() -> Made {
    made(Rng::new().expect("a device"), EVENT_IDX)
}

fn vsock() -> Made {
    let config = VsockConfig {
        guest_cid: 42,
        uds_path: None,
    };
    let (device, handle) = Vsock::new(&config).expect("a device");
    Made {
        _host: Some(handle),
        ..made(device, EVENT_IDX)
    }
}

fn balloon() -> Made {
    let config = BalloonConfig {
        amount_mib: 4,
        deflate_on_oom: true,
        stats_polling_interval_s: 3600,
        free_page_reporting: true,
        free_page_hinting: true,
    };
    let device = Balloon::new(&config, Arc::new(Kept)).expect("a device");
    made(device, EVENT_IDX | 0b101110)
}

fn block() -> Made {
    let file = NamedTempFile::new().expect("a file");
    file.as_file().set_len(1 << 16).expect("a file");
    let mut config = BlockConfig::new("root", file.path().to_owned());
    config.engine = Engine::Thread;
    Made {
        _file: Some(file),
        ..made(Block::open(&config).expect("a device"), EVENT_IDX)
    }
}

/// A device's own state, with requests in its first queue.
fn good(make: fn() -> Made) -> Vec<Section> {
    let made = make();
    let mut driver = FakeDriver::boxed(made.device);
    driver.start(made.features);
    for _ in 0..3 {
        driver.submit(0, &[Buffer::In(64)]);
    }
    driver.save(NAME)
}

thread_local! {
    static GOOD: [Vec<Section>; 4] = DEVICES.map(good);
}

fn seeds() -> Vec<Vec<u8>> {
    let seed = |(n, sections): (usize, &Vec<Section>)| {
        let payloads: Vec<_> = sections
            .iter()
            .map(|section| &section.payload[..])
            .collect();
        [&[n as u8], &payloads.join(BETWEEN)[..]].concat()
    };
    GOOD.with(|good| good.iter().enumerate().map(seed).collect())
}

fn run(good: &[Vec<Section>; 4], data: &[u8]) {
    let Some((first, rest)) = data.split_first() else {
        return;
    };
    let which = usize::from(*first) % DEVICES.len();
    let mut sections = good[which].clone();
    let mut parts = tine_fuzz::split(rest).into_iter();
    for (section, payload) in sections.iter_mut().zip(parts.by_ref()) {
        section.payload = payload.to_vec();
    }
    let made = DEVICES[which]();
    let queues = made.device.queue_sizes().len();
    let mut driver = FakeDriver::boxed(made.device);
    for (n, part) in parts.enumerate() {
        let at = GuestAddress(RINGS + n as u64 * 0x4000);
        let _ = driver.mem.write_slice(part, at);
    }
    let restored = lock(&driver.transport).restore(NAME, &sections);
    if let Err(err) = restored {
        assert!(err.to_string().contains(NAME), "nothing is named: {err}");
    }
    for queue in 0..queues {
        driver.kick(queue);
    }
    settle(&driver);
    drop(driver.save(NAME));
    driver.reset();
    driver.start(made.features);
    settle(&driver);
    assert!(!driver.needs_reset());
}

/// Lets the device work until it is quiet.
fn settle(driver: &FakeDriver) {
    for _ in 0..1000 {
        let kicked = driver.run_queue_events();
        let has_backend = lock(&driver.transport).backend_event().is_some();
        if !(has_backend && driver.run_backend(0)) && kicked.is_empty() {
            return;
        }
    }
    panic!("the device spins");
}

fuzz_target!(
    init: tine_fuzz::begin(seeds),
    |data: &[u8]| GOOD.with(|good| run(good, data))
);
