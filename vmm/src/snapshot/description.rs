//! What a snapshot says of its machine: enough to make another one of the same devices, and nothing
//! that belongs to the host but the names of network devices. Paths are the caller's to give, but
//! for those that clients of the known API leave to the pair of files.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use tine_devices::mmds::MmdsConfig;
use tine_devices::rate::RateLimiterConfig;
use tine_devices::virtio::balloon::BalloonConfig;
use tine_devices::virtio::block::layers::{Format, Layer};
use tine_devices::virtio::block::{BlockConfig, Cache};
use tine_devices::virtio::net::MacAddr;
use tine_devices::virtio::vsock::VsockConfig;

use crate::config::{InterfaceConfig, MachineConfig, MetadataConfig};
use crate::machine::CapturedDisk;

/// A machine's devices, as a manifest has them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Description {
    /// Number of vCPUs.
    pub vcpus: u8,
    /// Memory in bytes.
    pub memory: u64,
    /// Drives, in the guest's order.
    pub drives: Vec<Drive>,
    /// Which of the drives the agent took as the root file system.
    pub root_drive: Option<usize>,
    /// Network interfaces, in the guest's order.
    pub interfaces: Vec<Interface>,
    /// Ids of the interfaces by which the guest reaches the metadata store.
    pub metadata: Option<Vec<String>>,
    /// How the guest reaches the store, above all whether it needs a token; the document itself is
    /// not a part of the machine. Not there in snapshots of before it was kept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metadata_config: Option<MmdsConfig>,
    /// The memory balloon.
    pub balloon: Option<BalloonConfig>,
    /// The entropy device's limits, if it has any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub entropy_limit: Option<RateLimiterConfig>,
    /// The guest's vsock context id.
    pub guest_cid: u32,
    /// There is a device that a guest tells the end of its boot to.
    pub boot_timer: bool,
    /// The guest's agent had answered.
    pub agent: bool,
    /// Where other processes reached the guest's sockets: in a pair of files only, as clients of
    /// the known API expect the socket where it was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vsock_path: Option<PathBuf>,
}

/// A drive.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Drive {
    /// Its id.
    pub id: String,
    /// The guest cannot write to it.
    pub read_only: bool,
    /// Its serial number, if not the id.
    pub serial: Option<String>,
    /// The guest's flushes are left out.
    pub unsafe_cache: bool,
    /// Its limits.
    pub rate_limiter: Option<RateLimiterConfig>,
    /// The files that it is in, the lowest first: in a pair of files only, as clients of the known
    /// API leave disks where they are.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub files: Vec<DriveFile>,
}

/// A file that is a drive, or a layer of one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DriveFile {
    /// Where it is, as it was given.
    pub path: PathBuf,
    /// How the disk is in it.
    pub format: Format,
}

/// A network interface.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Interface {
    /// Its id.
    pub id: String,
    /// The TAP device that it had.
    pub tap: String,
    /// The guest's address, if it was given.
    pub guest_mac: Option<MacAddr>,
    /// The largest packet that the guest should send.
    pub mtu: Option<u16>,
    /// Limits of what the guest receives.
    pub rx_rate_limiter: Option<RateLimiterConfig>,
    /// Limits of what the guest sends.
    pub tx_rate_limiter: Option<RateLimiterConfig>,
}

impl Description {
    /// Describes a machine; whether its agent has answered is the caller's to say.
    pub fn of(config: &MachineConfig) -> Self {
        let drive = |drive: &BlockConfig| Drive {
            id: drive.id.clone(),
            read_only: drive.read_only,
            serial: drive.serial.clone(),
            unsafe_cache: drive.cache == Cache::Unsafe,
            rate_limiter: drive.rate_limiter,
            files: Vec::new(),
        };
        let interface = |interface: &InterfaceConfig| Interface {
            id: interface.id.clone(),
            tap: interface.tap.clone(),
            guest_mac: interface.guest_mac,
            mtu: interface.mtu,
            rx_rate_limiter: interface.rx_rate_limiter,
            tx_rate_limiter: interface.tx_rate_limiter,
        };
        let ids = |metadata: &MetadataConfig| metadata.interfaces.clone();
        Self {
            vcpus: config.vcpus,
            memory: config.memory,
            drives: config.drives.iter().map(drive).collect(),
            root_drive: config.root_drive,
            interfaces: config.interfaces.iter().map(interface).collect(),
            metadata: config.metadata.as_ref().map(ids),
            metadata_config: config.metadata.as_ref().map(|m| m.store.config()),
            balloon: config.balloon,
            entropy_limit: config.entropy_limit,
            guest_cid: config.vsock.guest_cid,
            boot_timer: config.boot_timer,
            agent: false,
            vsock_path: None,
        }
    }

    /// Says in which files the drives are.
    pub fn name_files(&mut self, disks: &[CapturedDisk]) {
        for drive in &mut self.drives {
            let disk = disks.iter().find(|disk| disk.drive == drive.id);
            let layers = disk.map_or([].as_slice(), |disk| &disk.layers);
            let file = |layer: &Layer| DriveFile {
                path: layer.path().to_owned(),
                format: layer.format(),
            };
            drive.files = layers.iter().map(file).collect();
        }
    }

    /// A machine of these devices. The drives have no images yet, the vsock no socket on the host,
    /// the console goes nowhere, and there is no metadata store: these are the caller's to give.
    pub fn config(&self) -> MachineConfig {
        let drive = |drive: &Drive| {
            let mut config = BlockConfig::new(&drive.id, PathBuf::new());
            config.read_only = drive.read_only;
            config.serial = drive.serial.clone();
            config.rate_limiter = drive.rate_limiter;
            if drive.unsafe_cache {
                config.cache = Cache::Unsafe;
            }
            config
        };
        let interface = |interface: &Interface| InterfaceConfig {
            id: interface.id.clone(),
            tap: interface.tap.clone(),
            guest_mac: interface.guest_mac,
            mtu: interface.mtu,
            rx_rate_limiter: interface.rx_rate_limiter,
            tx_rate_limiter: interface.tx_rate_limiter,
        };
        // What was booted once is in memory: there is no kernel to name.
        let mut config = MachineConfig::new(PathBuf::new());
        config.vcpus = self.vcpus;
        config.memory = self.memory;
        config.drives = self.drives.iter().map(drive).collect();
        config.root_drive = self.root_drive;
        config.interfaces = self.interfaces.iter().map(interface).collect();
        config.balloon = self.balloon;
        config.entropy_limit = self.entropy_limit;
        config.vsock = VsockConfig {
            guest_cid: self.guest_cid,
            uds_path: None,
        };
        config.boot_timer = self.boot_timer;
        config
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_description_comes_back_as_it_was() {
        let mut config = MachineConfig::new("/a/kernel".into());
        config.vcpus = 3;
        config.drives.push(BlockConfig::new("root", "/an/image"));
        config.drives[0].cache = Cache::Unsafe;
        config.root_drive = Some(0);
        config.vsock.guest_cid = 77;
        config.vsock.uds_path = Some("/a/socket".into());
        let description = Description::of(&config);
        let text = serde_json::to_string(&description).unwrap();
        for path in ["kernel", "image", "socket"] {
            assert!(!text.contains(path), "no path of the host: {text}");
        }
        let read: Description = serde_json::from_str(&text).unwrap();
        assert_eq!(read, description);
        assert_eq!(Description::of(&read.config()), description);
    }
}
