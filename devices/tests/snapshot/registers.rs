//! The transport's section as it is written down: whoever changes it makes another version.

use serde::{Deserialize, Serialize};
use tine_devices::bus::lock;
use tine_devices::state::RestoreError;
use tine_devices::testing::FakeDriver;
use tine_snapshot::section::{Section, State};

use crate::probe::{EVENT_IDX, ODD_FEATURE, Probe};

pub const NAME: &str = "probe";
pub const VERSION_1: u64 = 1 << 32;

/// All of it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Registers {
    pub device_type: u32,
    pub status: u32,
    pub needs_reset: bool,
    pub causes: u32,
    pub config_generation: u32,
    pub queue_select: u32,
    pub device_features_select: u32,
    pub driver_features_select: u32,
    pub driver_features: u64,
    pub queues: Vec<Ring>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Ring {
    pub size: u16,
    pub ready: bool,
    pub descriptors: u64,
    pub available: u64,
    pub used: u64,
    pub next_available: u16,
    pub next_used: u16,
    pub broken: bool,
}

impl State for Registers {
    const KIND: &'static str = "virtio-mmio";
    const VERSION: u16 = 1;
}

/// Of a running device, with its rings in the middle of memory.
pub fn running() -> Registers {
    let ring = |at: u64| Ring {
        size: 64,
        ready: true,
        descriptors: at,
        available: at + 0x1000,
        used: at + 0x2000,
        next_available: 3,
        next_used: 3,
        broken: false,
    };
    Registers {
        device_type: 42,
        status: 15,
        needs_reset: false,
        causes: 0,
        config_generation: 7,
        queue_select: 1,
        device_features_select: 1,
        driver_features_select: 1,
        driver_features: VERSION_1 | EVENT_IDX | ODD_FEATURE,
        queues: vec![ring(0x10_0000), ring(0x20_0000)],
    }
}

pub fn sections(registers: &Registers) -> Vec<Section> {
    let probe = Probe::started(0).0.save(NAME).remove(0);
    let registers = Section::of(format!("{NAME}/transport"), registers).unwrap();
    vec![probe, registers]
}

pub fn restore(registers: &Registers) -> (FakeDriver, Probe, Result<(), RestoreError>) {
    let (guest, probe) = Probe::guest();
    let restored = lock(&guest.transport).restore(NAME, &sections(registers));
    (guest, probe, restored)
}
