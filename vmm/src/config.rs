//! What a machine is to be: inert data, checked as a whole before anything is made.

use std::path::PathBuf;

use tine_devices::mmds::Mmds;
use tine_devices::rate::{BucketConfig, RateLimiterConfig};
use tine_devices::virtio::balloon::BalloonConfig;
use tine_devices::virtio::block::BlockConfig;
use tine_devices::virtio::net::{MacAddr, NetConfig, TapSource};
use tine_devices::virtio::vsock::VsockConfig;

use crate::layout;

/// Where the guest's serial console goes.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum ConsoleConfig {
    /// Nowhere; the last of it is kept for error messages.
    #[default]
    None,
    /// To the monitor's standard output.
    Stdout,
    /// To a file, which is created or truncated.
    File(PathBuf),
}

/// A network interface.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InterfaceConfig {
    /// Its name among the machine's.
    pub id: String,
    /// The TAP device of the host.
    pub tap: String,
    /// The guest's address; it makes one up when not given.
    pub guest_mac: Option<MacAddr>,
    /// The largest packet that the guest should send.
    pub mtu: Option<u16>,
    /// Limits of what the guest receives.
    pub rx_rate_limiter: Option<RateLimiterConfig>,
    /// Limits of what the guest sends.
    pub tx_rate_limiter: Option<RateLimiterConfig>,
}

impl InterfaceConfig {
    /// What the device is made from.
    pub(crate) fn device(&self) -> NetConfig {
        let mut config = NetConfig::new(&self.id, TapSource::Name(self.tap.clone()));
        config.guest_mac = self.guest_mac;
        config.mtu = self.mtu;
        config.rx_rate_limiter = self.rx_rate_limiter;
        config.tx_rate_limiter = self.tx_rate_limiter;
        config
    }
}

/// The metadata store, and the interfaces by which the guest reaches it.
#[derive(Clone)]
pub struct MetadataConfig {
    /// The store.
    pub store: Mmds,
    /// Ids of interfaces.
    pub interfaces: Vec<String>,
}

impl std::fmt::Debug for MetadataConfig {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // What is in the store is the guest's business.
        f.debug_struct("MetadataConfig")
            .field("interfaces", &self.interfaces)
            .finish_non_exhaustive()
    }
}

/// A machine.
#[derive(Debug, Clone)]
pub struct MachineConfig {
    /// Number of vCPUs.
    pub vcpus: u8,
    /// Memory in bytes; a multiple of 1 MiB.
    pub memory: u64,
    /// The kernel: an uncompressed ELF file or a bzImage.
    pub kernel: PathBuf,
    /// The initial RAM disk.
    pub initrd: Option<PathBuf>,
    /// Words for the kernel's command line, behind the machine's own.
    pub cmdline: String,
    /// Drives, in the order in which the guest finds them (`vda`, `vdb`, ...).
    pub drives: Vec<BlockConfig>,
    /// Which of the drives, if any, the agent shall take as the root file system.
    pub root_drive: Option<usize>,
    /// The console.
    pub console: ConsoleConfig,
    /// How much of the console goes where it goes: what is beyond it is lost.
    pub console_limit: Option<BucketConfig>,
    /// How much the guest gets of the entropy device: more has to wait.
    pub entropy_limit: Option<RateLimiterConfig>,
    /// Network interfaces, in the order in which the guest finds them.
    pub interfaces: Vec<InterfaceConfig>,
    /// The metadata store.
    pub metadata: Option<MetadataConfig>,
    /// The memory balloon.
    pub balloon: Option<BalloonConfig>,
    /// The socket device.
    pub vsock: VsockConfig,
    /// There is a device that a guest tells the end of its boot to, and the log says when.
    pub boot_timer: bool,
}

impl MachineConfig {
    /// The guest's context id when nobody else wants to reach it by one.
    pub const DEFAULT_CID: u32 = 3;
    /// Memory when nothing else is asked for, in bytes.
    pub const DEFAULT_MEMORY: u64 = 256 << 20;

    /// A machine with one vCPU and the default memory, nothing attached.
    pub fn new(kernel: PathBuf) -> Self {
        Self {
            vcpus: 1,
            memory: Self::DEFAULT_MEMORY,
            kernel,
            initrd: None,
            cmdline: String::new(),
            drives: Vec::new(),
            root_drive: None,
            console: ConsoleConfig::default(),
            console_limit: None,
            entropy_limit: None,
            interfaces: Vec::new(),
            metadata: None,
            balloon: None,
            vsock: VsockConfig {
                guest_cid: Self::DEFAULT_CID,
                uds_path: None,
            },
            boot_timer: false,
        }
    }

    /// Checks what can be checked without opening anything.
    pub fn check(&self) -> Result<(), ConfigError> {
        let mib = self.memory >> 20;
        if self.memory < layout::MIN_MEMORY || self.memory > layout::MAX_MEMORY {
            return Err(ConfigError::Memory { mib });
        }
        if !self.memory.is_multiple_of(1 << 20) {
            return Err(ConfigError::MemoryUnit(self.memory));
        }
        if self.vcpus == 0 || self.vcpus > layout::MAX_VCPUS {
            return Err(ConfigError::Vcpus { count: self.vcpus });
        }
        let others = self.interfaces.len() + usize::from(self.balloon.is_some());
        let places = layout::VIRTIO_GSIS.len() - crate::machine::BUILT_IN_DEVICES;
        let most = places.saturating_sub(others);
        if others > places {
            return Err(ConfigError::Devices {
                count: others,
                most: places,
            });
        }
        if self.drives.len() > most {
            return Err(ConfigError::Drives {
                count: self.drives.len(),
                most,
            });
        }
        Ok(())
    }
}

/// What is wrong with a configuration.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum ConfigError {
    /// Too little or too much memory.
    #[error(
        "a machine cannot have {mib} MiB of memory: give {} to {} MiB",
        layout::MIN_MEMORY >> 20,
        layout::MAX_MEMORY >> 20
    )]
    Memory {
        /// What was asked for, in MiB.
        mib: u64,
    },
    /// Not whole MiB.
    #[error("a machine cannot have {0} bytes of memory: give a multiple of 1 MiB")]
    MemoryUnit(u64),
    /// No or too many vCPUs.
    #[error("a machine cannot have {count} vCPUs: give 1 to {}", layout::MAX_VCPUS)]
    Vcpus {
        /// What was asked for.
        count: u8,
    },
    /// More other devices than there are interrupts for.
    #[error("a machine cannot have {count} interfaces and balloons: give {most} at most")]
    Devices {
        /// How many were given.
        count: usize,
        /// How many can be had.
        most: usize,
    },
    /// More drives than there are interrupts for.
    #[error("a machine cannot have {count} drives: give {most} at most")]
    Drives {
        /// How many were given.
        count: usize,
        /// How many can be had.
        most: usize,
    },
}
