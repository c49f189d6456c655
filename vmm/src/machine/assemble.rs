//! Putting a machine together, in the order that KVM is quickest with: memory slots before vCPUs
//! and interrupt controllers exist, since changing slots later waits for all of them.

use std::io;
use std::sync::{Arc, Mutex, mpsc};

use kvm_bindings::CpuId;
use kvm_ioctls::VcpuFd;
use tine_devices::virtio::balloon::Balloon;
use tine_devices::virtio::block::Block;
use tine_devices::virtio::net::Net;
use tine_devices::virtio::rng::Rng;
use tine_devices::virtio::vsock::Vsock;
use tine_snapshot::section::Section;

use super::drives::Drive;
use super::event_loop::EventLoop;
use super::parts::{Devices, drive_section};
use super::{Machine, MachineError, generation, restore};
use crate::arch::x86_64::acpi::{self, MmioDevice};
use crate::arch::x86_64::{cpuid, regs};
use crate::boot::{self, BootError, BootSource, Entry, cmdline};
use crate::config::{ConsoleConfig, MachineConfig};
use crate::host::HostKind;
use crate::kvm::{EmptyVm, Host, KvmError, Vm};
use crate::memory::{Initial, MachineMemory};
use crate::vcpu::{self, Emulator, Ending, OnEnd, VcpuAhead, Work};

/// What a machine begins with.
enum Origin<'a> {
    /// A kernel.
    Boot,
    /// What another machine had come to.
    Snapshot(Initial, &'a [Section]),
}

impl Machine {
    /// Makes the machine that `config` describes. Its guest does not run yet: see
    /// [`Machine::resume`]. `on_end` is called when the guest ends by itself.
    pub fn assemble(
        config: &MachineConfig,
        on_end: impl Fn(Ending) + Send + Sync + 'static,
    ) -> Result<Self, MachineError> {
        Self::make(config, Origin::Boot, None, Arc::new(on_end))
    }

    /// Makes a machine of `config` that goes on where another one was when `memory` and `sections`
    /// were taken from it. They may say anything: what cannot be is refused. Its guest does not run
    /// yet.
    pub fn restore(
        config: &MachineConfig,
        memory: impl Into<Initial>,
        sections: &[Section],
        on_end: impl Fn(Ending) + Send + Sync + 'static,
    ) -> Result<Self, MachineError> {
        let origin = Origin::Snapshot(memory.into(), sections);
        Self::make(config, origin, None, Arc::new(on_end))
    }

    /// As [`Self::restore`], with a virtual machine that is there already.
    pub(super) fn restore_with(
        vm: EmptyVm,
        config: &MachineConfig,
        memory: Initial,
        sections: &[Section],
        on_end: impl Fn(Ending) + Send + Sync + 'static,
    ) -> Result<Self, MachineError> {
        let origin = Origin::Snapshot(memory, sections);
        Self::make(config, origin, Some(vm), Arc::new(on_end))
    }

    fn make(
        config: &MachineConfig,
        origin: Origin<'_>,
        vm: Option<EmptyVm>,
        on_end: OnEnd,
    ) -> Result<Self, MachineError> {
        config.check()?;
        let os = |action| move |source| MachineError::Os { action, source };
        vcpu::install_kick_handler().map_err(os("handle the vCPU signal"))?;
        let host = match &vm {
            Some(vm) => vm.host().clone(),
            None => Host::open()?,
        };
        check_vcpus(&host, config.vcpus)?;
        let (threads, supported) =
            start_vcpu_threads(&host, config.vcpus, &origin).map_err(os("start a vCPU thread"))?;
        let drives = open_drives(config)?;
        let nets = open_interfaces(config)?;
        let (memory, saved) = match origin {
            Origin::Boot => (MachineMemory::create(config.memory)?, None),
            Origin::Snapshot(initial, sections) => {
                restore::check_memory(config, &initial)?;
                let memory = match initial {
                    Initial::Image(image) => MachineMemory::map(image)?,
                    Initial::Served { size, socket } => MachineMemory::served(size, &socket)?,
                };
                (memory, Some(sections))
            }
        };
        let vm = vm.map_or_else(|| host.create_vm(), Ok)?;
        let vm = vm.with_memory(&memory)?;

        let mut devices = Devices::new(&vm, &memory, config, &on_end)?;
        let mut drive_handles = Vec::with_capacity(drives.len());
        for (block, drive) in drives.into_iter().zip(&config.drives) {
            let (stats, limiter) = (block.stats().clone(), block.rate_limiter().clone());
            let transport = devices.add_virtio(drive_section(&drive.id), Box::new(block))?;
            drive_handles.push(Drive::new(&drive.id, stats, limiter, transport, drive.own));
        }
        let mut interfaces = Vec::with_capacity(nets.len());
        for (net, interface) in nets.into_iter().zip(&config.interfaces) {
            interfaces.push((interface.id.clone(), net.handle()));
            devices.add_virtio(format!("net/{}", interface.id), Box::new(net))?;
        }
        let mut balloon = None;
        if let Some(config) = &config.balloon {
            let device = Balloon::new(config, memory.reclaim())?;
            balloon = Some(device.handle());
            devices.add_virtio("balloon".to_owned(), Box::new(device))?;
        }
        let (vsock_device, vsock) = Vsock::new(&config.vsock)?;
        devices.add_virtio("vsock".to_owned(), Box::new(vsock_device))?;
        let rng = Rng::with_limit(config.entropy_limit.as_ref())?;
        devices.add_virtio("rng".to_owned(), Box::new(rng))?;

        let kind = HostKind::detect();
        let (vcpus, clock) = match saved {
            None => {
                let entry = load(config, kind, &memory, &devices.places)?;
                (
                    create_vcpus(&vm, config.vcpus, &supported()?, &entry)?,
                    None,
                )
            }
            Some(sections) => {
                let (vcpus, clock) = restore::vcpus(&vm, config.vcpus, sections)?;
                // After the interrupt controllers: devices may interrupt at once.
                devices.parts.restore(sections)?;
                (vcpus, Some(clock))
            }
        };
        generation::renew(&memory.regions)?;
        if saved.is_some() {
            generation::announce(&vm)?;
        }
        let Devices {
            buses,
            subscribers,
            parts,
            console_tail,
            ..
        } = devices;
        let buses = Arc::new(buses);
        let emulator = match kind {
            HostKind::Hardware => None,
            HostKind::Software => Some(Arc::new(Emulator::new(memory.regions.clone()))),
        };
        let events = EventLoop::spawn(subscribers).map_err(os("start the device thread"))?;
        // From here on the machine's Drop ends what has been started, should a thread fail.
        let mut machine = Self {
            vcpus: Vec::with_capacity(vcpus.len()),
            events: Some(events),
            vsock,
            console_tail,
            drives: drive_handles,
            interfaces,
            balloon,
            parts,
            memory,
            config: config.clone(),
            clock: Mutex::new(clock),
            host,
            vm,
        };
        for (thread, vcpu) in threads.into_iter().zip(vcpus) {
            let begun = thread.begin(Work {
                vcpu,
                buses: buses.clone(),
                emulator: emulator.clone(),
                on_end: on_end.clone(),
            });
            let gone = || os("give a thread its vCPU")(io::ErrorKind::BrokenPipe.into());
            machine.vcpus.push(begun.ok_or_else(gone)?);
        }
        Ok(machine)
    }
}

/// Starts the vCPUs' threads, which other processors do meanwhile. Of them one asks for the CPU features
/// that KVM can show, where they are needed: what is returned besides waits for the answer.
fn start_vcpu_threads(
    host: &Host,
    count: u8,
    origin: &Origin<'_>,
) -> io::Result<(
    Vec<VcpuAhead>,
    impl FnOnce() -> Result<CpuId, KvmError> + use<>,
)> {
    let (tell, told) = mpsc::sync_channel(1);
    let mut tell = matches!(origin, Origin::Boot).then_some(tell);
    let threads = (0..count).map(|index| {
        let asked = tell.take().map(|tell| (tell, host.clone()));
        VcpuAhead::start(index, move || {
            if let Some((tell, host)) = asked {
                // Nobody waits any more only where the machine could not be made.
                let _ = tell.send(host.supported_cpuid());
            }
        })
    });
    let threads = threads.collect::<io::Result<Vec<_>>>()?;
    // It was asked for by a thread that does nothing else before; a panic of it has been reported.
    let host = host.clone();
    Ok((threads, move || {
        told.recv().unwrap_or_else(|_| host.supported_cpuid())
    }))
}

fn check_vcpus(host: &Host, wanted: u8) -> Result<(), MachineError> {
    let most = host.max_vcpus();
    match usize::from(wanted) <= most {
        true => Ok(()),
        false => Err(MachineError::Vcpus { wanted, most }),
    }
}

fn open_drives(config: &MachineConfig) -> Result<Vec<Block>, MachineError> {
    config
        .drives
        .iter()
        .map(|drive| Ok(Block::open(drive)?))
        .collect()
}

fn open_interfaces(config: &MachineConfig) -> Result<Vec<Net>, MachineError> {
    config
        .interfaces
        .iter()
        .map(|interface| {
            let net = Net::open(interface.device())?;
            match &config.metadata {
                Some(metadata) if metadata.interfaces.contains(&interface.id) => {
                    let responder = Box::new(metadata.store.responder());
                    net.with_detour(responder)
                        .map_err(|source| MachineError::Os {
                            action: "lead an interface to the metadata store",
                            source,
                        })
                }
                _ => Ok(net),
            }
        })
        .collect()
}

/// Writes everything that the guest finds in memory at its first instruction.
fn load(
    config: &MachineConfig,
    host: HostKind,
    memory: &MachineMemory,
    devices: &[MmioDevice],
) -> Result<Entry, MachineError> {
    let mem = &memory.regions;
    let rsdp = acpi::write_tables(mem, config.vcpus, devices)?;
    let line = command_line(config, host)?;
    let source = BootSource {
        kernel: &config.kernel,
        initrd: config.initrd.as_deref(),
        cmdline: &line,
        rsdp,
        memory: memory.size,
    };
    let entry = boot::load(mem, &source)?;
    regs::write_boot_tables(mem, &entry).map_err(BootError::Memory)?;
    Ok(entry)
}

/// Words for every Linux guest: the console; an end instead of a hang when the kernel panics; no
/// search for PCI or for serial ports that are not there; lock prefixes left alone, which a kernel
/// on one processor would patch out one by one; the processor's own randomness counted.
const MACHINE_WORDS: &str = "console=ttyS0 reboot=k panic=-1 noreplace-smp pci=off \
     8250.nr_uarts=1 random.trust_cpu=on";

fn command_line(config: &MachineConfig, host: HostKind) -> Result<String, MachineError> {
    let quiet = match config.console {
        ConsoleConfig::None => "quiet",
        _ => "",
    };
    let root = match config.root_drive {
        Some(drive) => {
            let letter = (b'a' + drive as u8) as char;
            let flags = if config.drives[drive].read_only {
                " tine.rootflags=ro"
            } else {
                ""
            };
            format!("tine.root=/dev/vd{letter}{flags}")
        }
        None => String::new(),
    };
    Ok(cmdline::assemble(
        &[MACHINE_WORDS, quiet, host.kernel_words(), &root],
        &config.cmdline,
    )?)
}

fn create_vcpus(
    vm: &Vm,
    count: u8,
    supported: &CpuId,
    entry: &Entry,
) -> Result<Vec<VcpuFd>, KvmError> {
    (0..count)
        .map(|index| {
            let vcpu = vm.create_vcpu(index)?;
            let cpuid = cpuid::for_vcpu(supported, index, count);
            vcpu.set_cpuid2(&cpuid)
                .map_err(crate::kvm::failed("set the CPU features"))?;
            regs::set_common_registers(&vcpu)?;
            if index == 0 {
                regs::set_boot_registers(&vcpu, entry)?;
            }
            Ok(vcpu)
        })
        .collect()
}
