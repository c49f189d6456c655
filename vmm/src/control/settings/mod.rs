//! How a machine is to be, as requests say it before it starts: inert data, in the shapes of the
//! known API, and from them the one [`MachineConfig`] that a machine is assembled from.

mod balloon;
mod boot;
mod drive;
mod interface;
mod machine;
mod mmds;
mod outputs;
mod vsock;

use serde::Serialize;
use tine_devices::rate::BucketConfig;
use tine_devices::virtio::balloon::BalloonConfig;
use tine_devices::virtio::vsock::VsockConfig;

pub use balloon::balloon;
pub use boot::BootSource;
pub use drive::{CacheType, Drive, DrivePatch, IoEngine, Layers, Lower};
pub use interface::{Interface, InterfacePatch};
pub use machine::{HugePages, MachinePatch, MachineSettings};
pub use mmds::MmdsSettings;
pub use outputs::{Entropy, LoggerSettings, MetricsSettings, Serial};
pub use vsock::Vsock;

use crate::config::{ConsoleConfig, MachineConfig};
use crate::machine::DriveFiles;

/// Everything that has been configured so far.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Settings {
    /// Kernel, initrd and command line.
    pub boot_source: Option<BootSource>,
    /// Processors and memory.
    pub machine: MachineSettings,
    /// Drives, the root drive first.
    pub drives: Vec<Drive>,
    /// Network interfaces.
    pub interfaces: Vec<Interface>,
    /// The memory balloon.
    pub balloon: Option<BalloonConfig>,
    /// The guest's way to the metadata store.
    pub mmds: Option<MmdsSettings>,
    /// The socket device's way for other processes.
    pub vsock: Option<Vsock>,
    /// The entropy device.
    pub entropy: Option<Entropy>,
    /// Where the console goes, as the known API says it.
    pub serial: Option<Serial>,
    /// Where the console goes, as `/v1/config` says it; goes before `serial`.
    pub console: Option<ConsoleConfig>,
    /// The log.
    pub logger: Option<LoggerSettings>,
    /// The metrics file.
    pub metrics: Option<MetricsSettings>,
    /// The device that a guest tells the end of its boot to.
    pub boot_timer: bool,
}

/// One change to the settings.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// Replaces the boot source.
    BootSource(BootSource),
    /// Replaces processors and memory.
    Machine(MachineSettings),
    /// Changes some of processors and memory.
    MachinePatch(MachinePatch),
    /// Adds or replaces a drive.
    Drive(Drive),
    /// Adds or replaces an interface.
    Interface(Interface),
    /// Sets the balloon.
    Balloon(BalloonConfig),
    /// Sets the guest's way to the metadata store.
    Mmds(MmdsSettings),
    /// Sets the socket device's path.
    Vsock(Vsock),
    /// Sets the entropy device.
    Entropy(Entropy),
    /// Sets where the console goes.
    Serial(Serial),
    /// Replaces boot source, processors, memory, drives, vsock and console.
    Whole(Box<Settings>),
}

/// A change, or a whole configuration, that cannot be had.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("{0}")]
pub struct BadSettings(pub String);

impl BadSettings {
    /// In words.
    pub fn new(words: impl std::fmt::Display) -> Self {
        Self(words.to_string())
    }
}

impl Settings {
    /// Makes a change. What is refused changes nothing.
    pub fn apply(&mut self, change: Change) -> Result<(), BadSettings> {
        match change {
            Change::BootSource(source) => {
                source.check()?;
                self.boot_source = Some(source);
            }
            Change::Machine(machine) => {
                machine.check()?;
                balloon::fits(self.balloon.as_ref(), &machine)?;
                self.machine = machine;
            }
            Change::MachinePatch(patch) => {
                let machine = self.machine.patched(patch);
                machine.check()?;
                balloon::fits(self.balloon.as_ref(), &machine)?;
                self.machine = machine;
            }
            Change::Drive(drive) => self.insert_drive(drive)?,
            Change::Interface(interface) => self.insert_interface(interface)?,
            Change::Balloon(balloon) => {
                balloon::fits(Some(&balloon), &self.machine)?;
                self.balloon = Some(balloon);
            }
            Change::Mmds(mmds) => {
                let known = |id: &&String| self.interfaces.iter().any(|i| i.iface_id == **id);
                if let Some(id) = mmds.network_interfaces.iter().find(|id| !known(id)) {
                    return Err(BadSettings::new(format_args!(
                        "field `network_interfaces`: there is no interface {id:?}"
                    )));
                }
                self.mmds = Some(mmds);
            }
            Change::Vsock(vsock) => {
                vsock.check()?;
                self.vsock = Some(vsock);
            }
            Change::Entropy(entropy) => self.entropy = Some(entropy),
            Change::Serial(serial) => self.serial = Some(serial),
            Change::Whole(whole) => {
                let mut next = Settings {
                    entropy: self.entropy,
                    serial: self.serial.clone(),
                    logger: self.logger.clone(),
                    metrics: self.metrics.clone(),
                    boot_timer: self.boot_timer,
                    ..Settings::default()
                };
                next.console = whole.console;
                if let Some(source) = whole.boot_source {
                    next.apply(Change::BootSource(source))?;
                }
                next.apply(Change::Machine(whole.machine))?;
                for drive in whole.drives {
                    next.insert_drive(drive)?;
                }
                for interface in whole.interfaces {
                    next.insert_interface(interface)?;
                }
                if let Some(balloon) = whole.balloon {
                    next.apply(Change::Balloon(balloon))?;
                }
                if let Some(vsock) = whole.vsock {
                    next.apply(Change::Vsock(vsock))?;
                }
                *self = next;
            }
        }
        Ok(())
    }

    /// The root drive is the first, so that the guest finds it as vda.
    fn insert_drive(&mut self, drive: Drive) -> Result<(), BadSettings> {
        drive.check()?;
        let same = |other: &Drive| other.drive_id == drive.drive_id;
        let other_root = self.drives.iter().any(|d| d.is_root_device && !same(d));
        if drive.is_root_device && other_root {
            return Err(BadSettings::new("there is a root drive already"));
        }
        let root = drive.is_root_device;
        let at = match self.drives.iter().position(same) {
            Some(at) => {
                self.drives[at] = drive;
                at
            }
            None => {
                self.drives.push(drive);
                self.drives.len() - 1
            }
        };
        if root {
            self.drives[..=at].rotate_right(1);
        }
        Ok(())
    }

    fn insert_interface(&mut self, interface: Interface) -> Result<(), BadSettings> {
        let same = |other: &Interface| other.iface_id == interface.iface_id;
        let taken = |other: &&Interface| {
            let mac = other.guest_mac.is_some() && other.guest_mac == interface.guest_mac;
            !same(other) && (mac || other.host_dev_name == interface.host_dev_name)
        };
        if let Some(other) = self.interfaces.iter().find(taken) {
            return Err(BadSettings::new(format_args!(
                "interface {:?} has the same MAC address or host device",
                other.iface_id
            )));
        }
        match self.interfaces.iter().position(same) {
            Some(at) => self.interfaces[at] = interface,
            None => self.interfaces.push(interface),
        }
        Ok(())
    }

    /// The configuration of the machine to assemble.
    pub fn machine_config(&self) -> Result<MachineConfig, BadSettings> {
        let source = self
            .boot_source
            .as_ref()
            .ok_or_else(|| BadSettings::new("there is no boot source: say what kernel to boot"))?;
        let mut config = MachineConfig::new(source.kernel_image_path.clone());
        config.initrd = source.initrd_path.clone();
        config.vcpus = self.machine.vcpu_count;
        config.memory = self.machine.memory();
        config.boot_timer = self.boot_timer;
        config.drives = self.drives.iter().map(Drive::block_config).collect();
        config.interfaces = self.interfaces.iter().map(Interface::config).collect();
        config.balloon = self.balloon;
        let root = self.drives.first().filter(|drive| drive.is_root_device);
        config.cmdline = source.words(root.map(Drive::root_words).as_deref());
        // An initrd may hold the agent, which goes by its own word; to others it means nothing.
        config.root_drive = root.and(source.initrd_path.as_ref()).map(|_| 0);
        config.console = self.console();
        config.console_limit = self.console_limit();
        config.entropy_limit = self.entropy.and_then(|entropy| entropy.rate_limiter);
        if let Some(vsock) = &self.vsock {
            config.vsock = VsockConfig {
                guest_cid: vsock.guest_cid,
                uds_path: vsock.uds_path.clone(),
            };
        }
        config.check().map_err(BadSettings::new)?;
        Ok(config)
    }

    /// Whether anything has been said of the machine itself.
    pub fn is_configured(&self) -> bool {
        let devices = self.drives.len() + self.interfaces.len();
        let one = [
            self.boot_source.is_some(),
            self.balloon.is_some(),
            self.mmds.is_some(),
            self.vsock.is_some(),
            self.machine != MachineSettings::default(),
            devices > 0,
        ];
        one.contains(&true)
    }

    /// What the settings of a restored machine are; outputs stay as they were set.
    pub fn restored(config: &MachineConfig, outputs: Self) -> Self {
        let root = config.root_drive;
        let drives = config.drives.iter().enumerate();
        Self {
            machine: MachineSettings {
                vcpu_count: config.vcpus,
                mem_size_mib: config.memory >> 20,
                ..MachineSettings::default()
            },
            drives: drives
                .map(|(at, drive)| Drive::restored(drive, root == Some(at)))
                .collect(),
            interfaces: config.interfaces.iter().map(Interface::restored).collect(),
            balloon: config.balloon,
            mmds: config.metadata.as_ref().map(MmdsSettings::restored),
            vsock: config.vsock.uds_path.as_ref().map(|path| Vsock {
                guest_cid: config.vsock.guest_cid,
                uds_path: Some(path.clone()),
            }),
            boot_timer: config.boot_timer,
            entropy: config.entropy_limit.map(|limit| Entropy {
                rate_limiter: Some(limit),
            }),
            ..outputs
        }
    }

    /// Notes which files the drives are in.
    pub fn note_drives(&mut self, all: Vec<DriveFiles>) {
        for now in all {
            let drive = self.drives.iter_mut().find(|d| d.drive_id == now.drive);
            if let Some(drive) = drive {
                drive.note_files(now);
            }
        }
    }

    /// Where the console goes: standard output, unless told otherwise. Without words for the
    /// kernel nobody asked for a console, and each byte of it costs boot time.
    pub fn console(&self) -> ConsoleConfig {
        let serial = self.serial.as_ref().and_then(|s| s.serial_out_path.clone());
        let words = self.boot_source.as_ref().map(|s| s.boot_args.is_some());
        match (&self.console, serial, words) {
            (Some(console), _, _) => console.clone(),
            (None, Some(path), _) => ConsoleConfig::File(path),
            (None, None, Some(true)) => ConsoleConfig::Stdout,
            (None, None, _) => ConsoleConfig::None,
        }
    }

    /// How much of the console goes there.
    pub fn console_limit(&self) -> Option<BucketConfig> {
        self.serial.as_ref()?.rate_limiter
    }
}

/// What `GET /vm/config` answers.
#[derive(Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct FullConfig<'a> {
    balloon: Option<&'a BalloonConfig>,
    drives: &'a [Drive],
    boot_source: std::borrow::Cow<'a, BootSource>,
    cpu_config: Option<()>,
    logger: Option<&'a LoggerSettings>,
    machine_config: &'a MachineSettings,
    metrics: Option<&'a MetricsSettings>,
    mmds_config: Option<&'a MmdsSettings>,
    network_interfaces: &'a [Interface],
    vsock: Option<&'a Vsock>,
    entropy: Option<&'a Entropy>,
    pmem: [(); 0],
    memory_hotplug: Option<()>,
}

impl<'a> From<&'a Settings> for FullConfig<'a> {
    fn from(settings: &'a Settings) -> Self {
        use std::borrow::Cow;
        let source = settings.boot_source.as_ref();
        Self {
            balloon: settings.balloon.as_ref(),
            drives: &settings.drives,
            boot_source: source.map_or_else(|| Cow::Owned(BootSource::default()), Cow::Borrowed),
            cpu_config: None,
            logger: settings.logger.as_ref(),
            machine_config: &settings.machine,
            metrics: settings.metrics.as_ref(),
            mmds_config: settings.mmds.as_ref(),
            network_interfaces: &settings.interfaces,
            vsock: settings.vsock.as_ref(),
            entropy: settings.entropy.as_ref(),
            pmem: [],
            memory_hotplug: None,
        }
    }
}

#[cfg(test)]
mod tests;
