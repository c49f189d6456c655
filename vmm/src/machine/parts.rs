//! The devices of a machine, put on its buses and wired to its interrupts.

use std::sync::{Arc, Mutex};

use tine_devices::bus::{Bus, lock};
use tine_devices::irq::IrqLine;
use tine_devices::legacy::i8042::{I8042, I8042_PORT, I8042_PORTS};
use tine_devices::legacy::power::{SLEEP_PORTS, SleepRegisters};
use tine_devices::legacy::serial::{COM1_PORT, COM1_PORTS, Serial};
use tine_devices::state::{RestoreError, find};
use tine_devices::virtio::events::DeviceEvents;
use tine_devices::virtio::mmio::{MMIO_LEN, MmioTransport, QUEUE_NOTIFY};
use tine_devices::virtio::{Interrupt, VirtioDevice};
use tine_snapshot::section::{Section, SectionError};

use super::MachineError;
use super::boot_timer::{BOOT_TIMER_LEN, BootTimer};
use crate::arch::x86_64::acpi::MmioDevice;
use crate::config::{ConsoleConfig, MachineConfig};
use crate::console::{Console, ConsoleTail};
use crate::kvm::Vm;
use crate::layout;
use crate::memory::MachineMemory;
use crate::vcpu::{Buses, Ending, OnEnd};

/// The devices of a machine under construction.
pub(super) struct Devices<'a> {
    vm: &'a Vm,
    memory: &'a MachineMemory,
    pub buses: Buses,
    /// What the ACPI tables have to tell of the virtio devices.
    pub places: Vec<MmioDevice>,
    pub subscribers: Vec<Box<dyn event_manager::MutEventSubscriber + Send>>,
    pub parts: Parts,
    pub console_tail: ConsoleTail,
}

/// The devices of an assembled machine, for what is done to all of them.
pub(super) struct Parts {
    pub serial: Arc<Mutex<Serial<Console>>>,
    pub i8042: Arc<Mutex<I8042>>,
    pub sleep: Arc<Mutex<SleepRegisters>>,
    /// By their names among a snapshot's sections.
    pub virtio: Vec<(String, Arc<Mutex<MmioTransport>>)>,
}

impl<'a> Devices<'a> {
    /// The legacy devices, on buses of their own.
    pub fn new(
        vm: &'a Vm,
        memory: &'a MachineMemory,
        config: &MachineConfig,
        on_end: &OnEnd,
    ) -> Result<Self, MachineError> {
        let console =
            Console::open(&config.console, config.console_limit.as_ref()).map_err(|source| {
                let path = match &config.console {
                    ConsoleConfig::File(path) => path.clone(),
                    _ => "standard output".into(),
                };
                MachineError::Console { path, source }
            })?;
        let console_tail = console.tail();
        let serial = Serial::new(vm.irq_line(layout::COM1_GSI)?, console);
        let serial = Arc::new(Mutex::new(serial));
        let end = on_end.clone();
        let i8042 = Arc::new(Mutex::new(I8042::new(move || end(Ending::Reset))));
        let end = on_end.clone();
        let sleep = SleepRegisters::new(move || end(Ending::PowerOff));
        let sleep = Arc::new(Mutex::new(sleep));
        let (mut ports, mut mmio) = (Bus::new(), Bus::new());
        ports.insert(COM1_PORT, COM1_PORTS, serial.clone())?;
        ports.insert(I8042_PORT, I8042_PORTS, i8042.clone())?;
        let port = u64::from(layout::ACPI_SLEEP_PORT);
        ports.insert(port, SLEEP_PORTS, sleep.clone())?;
        if config.boot_timer {
            let timer = Arc::new(Mutex::new(BootTimer::start()));
            mmio.insert(layout::BOOT_TIMER, BOOT_TIMER_LEN, timer)?;
        }
        let parts = Parts {
            serial,
            i8042,
            sleep,
            virtio: Vec::new(),
        };
        Ok(Self {
            vm,
            memory,
            buses: Buses { ports, mmio },
            places: Vec::new(),
            subscribers: Vec::new(),
            parts,
            console_tail,
        })
    }

    /// Puts `device` in the next place. `name` is its own among the machine's devices.
    pub fn add_virtio(
        &mut self,
        name: String,
        device: Box<dyn VirtioDevice>,
    ) -> Result<Arc<Mutex<MmioTransport>>, MachineError> {
        let slot = self.places.len();
        let place = MmioDevice {
            addr: layout::VIRTIO_MMIO + slot as u64 * MMIO_LEN,
            gsi: layout::VIRTIO_GSIS.start + slot as u32,
        };
        let line: Arc<dyn IrqLine> = self.vm.irq_line(place.gsi)?;
        let interrupt = Arc::new(Interrupt::new(line));
        let transport = MmioTransport::new(device, self.memory.regions.clone(), interrupt)?;
        for (queue, event) in (0..).zip(transport.queue_events()) {
            self.vm
                .notify_on_write(event, place.addr + QUEUE_NOTIFY, queue)?;
        }
        let transport = Arc::new(Mutex::new(transport));
        self.subscribers
            .push(Box::new(DeviceEvents::new(transport.clone())));
        self.buses
            .mmio
            .insert(place.addr, MMIO_LEN, transport.clone())?;
        self.places.push(place);
        self.parts.virtio.push((name, transport.clone()));
        Ok(transport)
    }
}

/// The legacy devices' names among a snapshot's sections.
const SERIAL: &str = "serial";
const I8042_SECTION: &str = "i8042";
const SLEEP: &str = "sleep";

impl Parts {
    /// The legacy devices' state.
    pub fn save_legacy(&self) -> Result<[Section; 3], SectionError> {
        Ok([
            lock(&self.serial).save(SERIAL)?,
            lock(&self.i8042).save(I8042_SECTION)?,
            lock(&self.sleep).save(SLEEP)?,
        ])
    }

    /// Gives all devices their state.
    pub fn restore(&self, sections: &[Section]) -> Result<(), RestoreError> {
        lock(&self.serial).restore(find(sections, SERIAL)?)?;
        lock(&self.i8042).restore(find(sections, I8042_SECTION)?)?;
        lock(&self.sleep).restore(find(sections, SLEEP)?)?;
        for (name, transport) in &self.virtio {
            lock(transport).restore(name, sections)?;
        }
        Ok(())
    }
}

/// The name of a drive among a snapshot's sections.
pub(super) fn drive_section(id: &str) -> String {
    format!("drive/{id}")
}
