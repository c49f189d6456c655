//! A device that writes down what the transport does to it, and leaves its queues to the test.

use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex, MutexGuard};

use serde::{Deserialize, Serialize};
use tine_devices::bus::lock;
use tine_devices::state::RestoreError;
use tine_devices::testing::FakeDriver;
use tine_devices::virtio::{
    ActivateError, Activation, QueuePlace, VirtQueue, VirtioDevice, read_config_bytes,
};
use tine_snapshot::section::{Section, SectionError, State};
use virtio_bindings::virtio_ring::VIRTIO_RING_F_EVENT_IDX;

/// A feature of the device's own.
pub const ODD_FEATURE: u64 = 1 << 5;
/// A feature above the first 32.
pub const HIGH_FEATURE: u64 = 1 << 40;
pub const EVENT_IDX: u64 = 1 << VIRTIO_RING_F_EVENT_IDX;
pub const CONFIG: [u8; 6] = *b"config";

#[derive(Clone, Default)]
pub struct Probe(Arc<Mutex<Record>>);

#[derive(Default)]
pub struct Record {
    /// There while the device is active.
    pub activation: Option<Activation>,
    pub activations: u32,
    pub resets: u32,
    pub settled: u32,
    /// Queues processed.
    pub processed: Vec<usize>,
    pub config_writes: Vec<(u64, Vec<u8>)>,
    /// The device refuses to start.
    pub refuses: bool,
}

impl Probe {
    pub fn record(&self) -> MutexGuard<'_, Record> {
        lock(&self.0)
    }

    /// A guest that has found such a device.
    pub fn guest() -> (FakeDriver, Self) {
        let probe = Self::default();
        (FakeDriver::new(probe.clone()), probe)
    }

    /// A guest whose driver runs.
    pub fn started(features: u64) -> (FakeDriver, Self) {
        let (mut guest, probe) = Self::guest();
        guest.start(features);
        (guest, probe)
    }

    /// Works on the first queue.
    pub fn queue<T>(&self, work: impl FnOnce(&mut VirtQueue) -> T) -> T {
        let mut record = self.record();
        let activation = record.activation.as_mut().expect("an active device");
        work(&mut activation.queues[0])
    }
}

impl VirtioDevice for Probe {
    fn device_type(&self) -> u32 {
        42
    }

    fn queue_sizes(&self) -> &[u16] {
        &[64, 256]
    }

    fn features(&self) -> u64 {
        ODD_FEATURE | HIGH_FEATURE | EVENT_IDX
    }

    fn read_config(&self, offset: u64, data: &mut [u8]) {
        read_config_bytes(&CONFIG, offset, data);
    }

    fn write_config(&mut self, offset: u64, data: &[u8]) {
        self.record().config_writes.push((offset, data.to_vec()));
    }

    fn activate(&mut self, activation: Activation) -> Result<(), ActivateError> {
        let mut record = self.record();
        record.activations += 1;
        if record.refuses {
            return Err(ActivateError("it does not want to".into()));
        }
        record.activation = Some(activation);
        Ok(())
    }

    fn process_queue(&mut self, index: usize) {
        self.record().processed.push(index);
    }

    fn backend_event(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn process_backend(&mut self) {}

    fn reset(&mut self) {
        let mut record = self.record();
        record.resets += 1;
        record.activation = None;
    }

    fn settle(&mut self) {
        self.record().settled += 1;
    }

    fn queue_places(&self) -> Vec<QueuePlace> {
        let record = self.record();
        let queues = record.activation.iter().flat_map(|active| &active.queues);
        queues.map(VirtQueue::place).collect()
    }

    fn save(&self, name: &str) -> Result<Section, SectionError> {
        Section::of(name, &ProbeState {})
    }

    fn restore(
        &mut self,
        section: &Section,
        activation: Option<Activation>,
    ) -> Result<(), RestoreError> {
        let ProbeState {} = section.decode()?;
        match activation.map(|activation| self.activate(activation)) {
            Some(Err(error)) => Err(RestoreError::activate(&section.name, error)),
            _ => Ok(()),
        }
    }
}

#[derive(Serialize, Deserialize)]
struct ProbeState {}

impl State for ProbeState {
    const KIND: &'static str = "probe";
    const VERSION: u16 = 1;
}
