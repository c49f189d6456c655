//! Saving and restoring: the registers, and the places in the queues for the device.

use serde::{Deserialize, Serialize};
use tine_snapshot::section::{Section, SectionError, State};
use virtio_bindings::virtio_config::*;
use virtio_bindings::virtio_mmio::{VIRTIO_MMIO_INT_CONFIG, VIRTIO_MMIO_INT_VRING};
use virtio_queue::{Queue, QueueT};
use vm_memory::GuestAddress;

use super::super::QueuePlace;
use super::{Activation, MmioTransport, VIRTIO_RING_F_EVENT_IDX, VirtQueue};
use crate::state::{RestoreError, find};

/// What the transport keeps for a device.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Registers {
    /// VIRTIO_ID_*.
    device_type: u32,
    /// Without DEVICE_NEEDS_RESET. The device is active if and only if it says DRIVER_OK.
    status: u32,
    needs_reset: bool,
    causes: u32,
    config_generation: u32,
    queue_select: u32,
    device_features_select: u32,
    driver_features_select: u32,
    driver_features: u64,
    queues: Vec<Ring>,
}

/// A queue as the driver set it up, and how far the device is in it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Ring {
    size: u16,
    ready: bool,
    descriptors: u64,
    available: u64,
    used: u64,
    next_available: u16,
    next_used: u16,
    broken: bool,
}

impl Ring {
    fn place(&self) -> QueuePlace {
        QueuePlace {
            next_available: self.next_available,
            next_used: self.next_used,
            broken: self.broken,
        }
    }
}

impl State for Registers {
    const KIND: &'static str = "virtio-mmio";
    const VERSION: u16 = 1;
}

/// The name of the transport's own section, beside the device's `name`.
fn registers_name(name: &str) -> String {
    format!("{name}/transport")
}

impl MmioTransport {
    /// Settles the device and gives its state, in sections `name` and `name/transport`. The device
    /// goes on afterwards as if nothing had happened, on the event loop's thread: so whoever keeps
    /// this transport locked until guest memory is frozen too has both from the same moment. The
    /// vCPUs are not running.
    pub fn save(&mut self, name: &str) -> Result<Vec<Section>, SectionError> {
        self.device.settle();
        let sections = self.save_settled(name);
        self.kick();
        sections
    }

    fn save_settled(&self, name: &str) -> Result<Vec<Section>, SectionError> {
        let places = self.device.queue_places();
        // A queue that the device has no use for is where the driver put it.
        let places = places
            .into_iter()
            .chain(std::iter::repeat(QueuePlace::default()));
        let queues = self.rings.iter().zip(places).map(|(ring, place)| Ring {
            size: ring.size(),
            ready: ring.ready(),
            descriptors: ring.desc_table(),
            available: ring.avail_ring(),
            used: ring.used_ring(),
            next_available: place.next_available,
            next_used: place.next_used,
            broken: place.broken,
        });
        let registers = Registers {
            device_type: self.device.device_type(),
            status: self.status,
            needs_reset: self.interrupt.is_reset_needed(),
            causes: self.interrupt.causes(),
            config_generation: self.interrupt.config_generation(),
            queue_select: self.queue_select,
            device_features_select: self.device_features_select,
            driver_features_select: self.driver_features_select,
            driver_features: self.driver_features,
            queues: queues.collect(),
        };
        let device = self.device.save(name)?;
        Ok(vec![device, Section::of(registers_name(name), &registers)?])
    }

    /// Gives a fresh device, made as the saved one was, the state that [`Self::save`] gave. It goes
    /// on by itself, on the event loop's thread, with what is in its queues. On an error it is as
    /// after a reset.
    ///
    /// Guest memory and the interrupt controllers are what they were already: an interrupt that
    /// was not acknowledged is raised here, and its edge would be lost on a controller whose state
    /// is set later. (So a machine saves its devices first, as settling may raise interrupts, and
    /// its controllers after that.)
    ///
    /// `sections` may be all those of a snapshot; `name` says which are this device's.
    pub fn restore(&mut self, name: &str, sections: &[Section]) -> Result<(), RestoreError> {
        self.reset();
        let restored = self.try_restore(name, sections);
        match &restored {
            Ok(()) => {
                self.kick();
                self.interrupt.raise_again();
            }
            Err(_) => self.reset(),
        }
        restored
    }

    fn try_restore(&mut self, name: &str, sections: &[Section]) -> Result<(), RestoreError> {
        let device = find(sections, name)?;
        let section = find(sections, &registers_name(name))?;
        let registers: Registers = section.decode()?;
        let section = &section.name;
        RestoreError::unless_same(
            section,
            "the device's type",
            registers.device_type,
            self.device.device_type(),
            "give the machine the devices it had",
        )?;
        self.check_stage(section, &registers)?;
        let event_idx = registers.driver_features & 1 << VIRTIO_RING_F_EVENT_IDX != 0;
        let active = registers.status & VIRTIO_CONFIG_S_DRIVER_OK != 0;
        RestoreError::unless_same(
            section,
            "the number of queues",
            registers.queues.len(),
            self.rings.len(),
            "give the device the features it had",
        )?;
        let mut queues = Vec::new();
        for (at, saved) in registers.queues.iter().enumerate() {
            let ring = &mut self.rings[at];
            set_up(ring, saved).map_err(|(field, reason)| bad_queue(section, at, field, reason))?;
            if !active {
                continue;
            }
            if ring.ready() && !ring.is_valid(&*self.mem) {
                return Err(bad_queue(section, at, "ring", "is not in guest memory"));
            }
            ring.set_event_idx(event_idx);
            let copy = Queue::try_from(ring.state())
                .map_err(|error| bad_queue(section, at, "ring", &error.to_string()))?;
            let (mem, interrupt) = (self.mem.clone(), self.interrupt.clone());
            queues.push(VirtQueue::new(copy, mem, interrupt).at(saved.place()));
        }
        self.interrupt.restore(
            registers.causes,
            registers.needs_reset,
            registers.config_generation,
        );
        let activation = active.then(|| Activation {
            mem: self.mem.clone(),
            queues,
            features: registers.driver_features,
            interrupt: self.interrupt.clone(),
        });
        // From here on a reset has something to reset.
        self.active = active;
        self.device.restore(device, activation)?;
        self.status = registers.status;
        self.queue_select = registers.queue_select;
        self.device_features_select = registers.device_features_select;
        self.driver_features_select = registers.driver_features_select;
        self.driver_features = registers.driver_features;
        Ok(())
    }

    /// Checks what a driver can have brought the registers to.
    fn check_stage(&self, section: &str, registers: &Registers) -> Result<(), RestoreError> {
        const STAGES: [u32; 5] = [
            0,
            VIRTIO_CONFIG_S_ACKNOWLEDGE,
            VIRTIO_CONFIG_S_ACKNOWLEDGE | VIRTIO_CONFIG_S_DRIVER,
            VIRTIO_CONFIG_S_ACKNOWLEDGE | VIRTIO_CONFIG_S_DRIVER | VIRTIO_CONFIG_S_FEATURES_OK,
            VIRTIO_CONFIG_S_ACKNOWLEDGE
                | VIRTIO_CONFIG_S_DRIVER
                | VIRTIO_CONFIG_S_FEATURES_OK
                | VIRTIO_CONFIG_S_DRIVER_OK,
        ];
        let bad = |field: &str, reason: &str| Err(RestoreError::field(section, field, reason));
        let stage = registers.status & !VIRTIO_CONFIG_S_FAILED;
        if !STAGES.contains(&stage) {
            return bad("status", "is none that a driver can set");
        }
        if registers.causes & !(VIRTIO_MMIO_INT_VRING | VIRTIO_MMIO_INT_CONFIG) != 0 {
            return bad("causes", "have bits without a meaning");
        }
        let settled = stage & VIRTIO_CONFIG_S_FEATURES_OK != 0;
        if settled {
            let features = registers.driver_features;
            if features & 1 << VIRTIO_F_VERSION_1 == 0 {
                return bad("driver_features", "are those of a legacy driver");
            }
            let missing = features & !self.offered_features();
            if missing != 0 {
                return Err(RestoreError::Differs {
                    section: section.to_owned(),
                    what: "the set of features in use",
                    saved: format!("{features:#x}"),
                    here: format!("without {missing:#x}"),
                    next_step: "configure the device as it was",
                });
            }
        }
        for (at, queue) in registers.queues.iter().enumerate() {
            let bad = |field, reason| Err(bad_queue(section, at, field, reason));
            if queue.ready && !settled {
                return bad("ready", "is set before the features are agreed on");
            }
            if queue.broken && !registers.needs_reset {
                return bad("broken", "is set, and the driver is not asked for a reset");
            }
            let place = queue.place();
            if stage & VIRTIO_CONFIG_S_DRIVER_OK == 0 && place != QueuePlace::default() {
                return bad("next_available", "is set before the device was started");
            }
            if !place.is_possible() {
                return bad("next_used", "is another place than next_available");
            }
        }
        Ok(())
    }
}

fn bad_queue(section: &str, at: usize, field: &str, reason: &str) -> RestoreError {
    RestoreError::field(section, format!("queues[{at}].{field}"), reason)
}

/// Sets a ring up as the driver did; gives the field that does not allow it, and why.
fn set_up(ring: &mut Queue, saved: &Ring) -> Result<(), (&'static str, &'static str)> {
    ring.try_set_size(saved.size)
        .map_err(|_| ("size", "is no power of two up to the queue's largest size"))?;
    ring.try_set_desc_table_address(GuestAddress(saved.descriptors))
        .map_err(|_| ("descriptors", "is not aligned to 16 bytes"))?;
    ring.try_set_avail_ring_address(GuestAddress(saved.available))
        .map_err(|_| ("available", "is not aligned to 2 bytes"))?;
    ring.try_set_used_ring_address(GuestAddress(saved.used))
        .map_err(|_| ("used", "is not aligned to 4 bytes"))?;
    ring.set_ready(saved.ready);
    Ok(())
}
