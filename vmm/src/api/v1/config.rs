//! `/v1/config`: the whole configuration of a machine in one request, with what the known API has
//! no fields for.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use tine_devices::rate::RateLimiterConfig;
use tine_devices::virtio::balloon::BalloonConfig;
use tine_devices::virtio::block::layers::Format;
use tine_devices::virtio::net::MacAddr;
use tine_guest_agent::fields::{FieldError, Fields};

use crate::api::fault::{Fault, Reply, done, json};
use crate::api::routes::Call;
use crate::config::{ConsoleConfig, MachineConfig};
use crate::control::settings::{
    BootSource, CacheType, Change, Drive, Interface, IoEngine, Layers, Lower, MachineSettings,
    Settings, Vsock,
};

/// A machine.
#[derive(Debug, Serialize)]
struct Config {
    vcpus: u8,
    memory_mib: u64,
    kernel: Option<PathBuf>,
    initrd: Option<PathBuf>,
    cmdline: String,
    drives: Vec<DriveConfig>,
    network: Vec<InterfaceConfig>,
    #[serde(skip_serializing_if = "Option::is_none")]
    balloon: Option<BalloonConfig>,
    console: String,
    vsock: VsockConfig,
}

/// A network interface.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct InterfaceConfig {
    id: String,
    tap: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    mac: Option<MacAddr>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    mtu: Option<u16>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    rx_rate_limiter: Option<RateLimiterConfig>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    tx_rate_limiter: Option<RateLimiterConfig>,
}

/// A drive.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct DriveConfig {
    id: String,
    path: PathBuf,
    #[serde(default)]
    read_only: bool,
    /// The agent takes it as the guest's root.
    #[serde(default)]
    root: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    partuuid: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    serial: Option<String>,
    #[serde(default = "raw", skip_serializing_if = "is_raw")]
    format: Format,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    lower: Vec<Lower>,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    own: bool,
    #[serde(default = "writeback")]
    cache: Cache,
    #[serde(default)]
    engine: Engine,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    rate_limiter: Option<RateLimiterConfig>,
}

fn raw() -> Format {
    Format::Raw
}

fn is_raw(format: &Format) -> bool {
    *format == Format::Raw
}

fn writeback() -> Cache {
    Cache::Writeback
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Cache {
    Writeback,
    Unsafe,
}

#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Engine {
    #[default]
    Auto,
    Thread,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct VsockConfig {
    #[serde(default = "default_cid")]
    guest_cid: u32,
    #[serde(default)]
    uds_path: Option<PathBuf>,
}

fn default_cid() -> u32 {
    MachineConfig::DEFAULT_CID
}

/// `GET`.
pub async fn get(call: Call) -> Reply {
    json(&Config::from(&*call.app.handle.status().settings))
}

/// The settings as the body of a later `PUT`, with which the machine starts again.
pub fn saved(settings: &Settings) -> serde_json::Result<Vec<u8>> {
    serde_json::to_vec_pretty(&Config::from(settings))
}

/// `PUT`: before the start.
pub async fn put(call: Call) -> Reply {
    let config = Config::from_fields(call.fields()?)?;
    let change = Change::Whole(Box::new(config.into_settings()?));
    call.app.handle.configure(change).await?;
    done()
}

impl Config {
    fn from_fields(mut fields: Fields) -> Result<Self, FieldError> {
        let vsock = fields.optional("vsock")?;
        let config = Self {
            vcpus: fields.optional("vcpus")?.unwrap_or(1),
            memory_mib: fields
                .optional("memory_mib")?
                .unwrap_or(MachineConfig::DEFAULT_MEMORY >> 20),
            kernel: Some(fields.required("kernel")?),
            initrd: fields.optional("initrd")?,
            cmdline: fields.optional("cmdline")?.unwrap_or_default(),
            drives: fields.optional("drives")?.unwrap_or_default(),
            network: fields.optional("network")?.unwrap_or_default(),
            balloon: fields.optional("balloon")?,
            console: fields
                .optional("console")?
                .unwrap_or_else(|| "none".to_owned()),
            vsock: vsock.unwrap_or(VsockConfig {
                guest_cid: default_cid(),
                uds_path: None,
            }),
        };
        fields.finish()?;
        Ok(config)
    }

    fn into_settings(self) -> Result<Settings, Fault> {
        let console = match self.console.as_str() {
            "none" => ConsoleConfig::None,
            "stdout" => ConsoleConfig::Stdout,
            path if path.contains('/') => ConsoleConfig::File(path.into()),
            _ => {
                let words = "must be none, stdout or a path with a `/` in it";
                return Err(FieldError::new("console", words).into());
            }
        };
        let machine = MachineSettings {
            vcpu_count: self.vcpus,
            mem_size_mib: self.memory_mib,
            ..MachineSettings::default()
        };
        Ok(Settings {
            boot_source: Some(BootSource {
                kernel_image_path: self.kernel.unwrap_or_default(),
                initrd_path: self.initrd,
                boot_args: Some(self.cmdline),
            }),
            machine,
            drives: self.drives.into_iter().map(DriveConfig::into).collect(),
            interfaces: self.network.into_iter().map(Interface::from).collect(),
            balloon: self.balloon,
            vsock: Some(Vsock {
                guest_cid: self.vsock.guest_cid,
                uds_path: self.vsock.uds_path,
            }),
            console: Some(console),
            ..Settings::default()
        })
    }
}

impl From<DriveConfig> for Drive {
    fn from(drive: DriveConfig) -> Self {
        Self {
            drive_id: drive.id,
            partuuid: drive.partuuid,
            is_root_device: drive.root,
            cache_type: match drive.cache {
                Cache::Writeback => CacheType::Writeback,
                Cache::Unsafe => CacheType::Unsafe,
            },
            is_read_only: drive.read_only,
            path_on_host: drive.path,
            rate_limiter: drive.rate_limiter,
            io_engine: match drive.engine {
                Engine::Auto => None,
                Engine::Thread => Some(IoEngine::Sync),
            },
            socket: None,
            serial: drive.serial,
            layers: Layers {
                format: drive.format,
                lower: drive.lower,
                own: drive.own,
            },
        }
    }
}

impl From<InterfaceConfig> for Interface {
    fn from(interface: InterfaceConfig) -> Self {
        Self {
            iface_id: interface.id,
            host_dev_name: interface.tap,
            guest_mac: interface.mac,
            mtu: interface.mtu,
            rx_rate_limiter: interface.rx_rate_limiter,
            tx_rate_limiter: interface.tx_rate_limiter,
        }
    }
}

impl From<&Interface> for InterfaceConfig {
    fn from(interface: &Interface) -> Self {
        Self {
            id: interface.iface_id.clone(),
            tap: interface.host_dev_name.clone(),
            mac: interface.guest_mac,
            mtu: interface.mtu,
            rx_rate_limiter: interface.rx_rate_limiter,
            tx_rate_limiter: interface.tx_rate_limiter,
        }
    }
}

impl From<&Drive> for DriveConfig {
    fn from(drive: &Drive) -> Self {
        Self {
            id: drive.drive_id.clone(),
            path: drive.path_on_host.clone(),
            read_only: drive.is_read_only,
            root: drive.is_root_device,
            partuuid: drive.partuuid.clone(),
            serial: drive.serial.clone(),
            format: drive.layers.format,
            lower: drive.layers.lower.clone(),
            own: drive.layers.own,
            cache: match drive.cache_type {
                CacheType::Writeback => Cache::Writeback,
                CacheType::Unsafe => Cache::Unsafe,
            },
            engine: match drive.io_engine {
                Some(IoEngine::Sync) => Engine::Thread,
                _ => Engine::Auto,
            },
            rate_limiter: drive.rate_limiter,
        }
    }
}

impl From<&Settings> for Config {
    fn from(settings: &Settings) -> Self {
        let source = settings.boot_source.as_ref();
        Self {
            vcpus: settings.machine.vcpu_count,
            memory_mib: settings.machine.mem_size_mib,
            kernel: source.map(|source| source.kernel_image_path.clone()),
            initrd: source.and_then(|source| source.initrd_path.clone()),
            cmdline: source
                .and_then(|source| source.boot_args.clone())
                .unwrap_or_default(),
            drives: settings.drives.iter().map(DriveConfig::from).collect(),
            network: settings
                .interfaces
                .iter()
                .map(InterfaceConfig::from)
                .collect(),
            balloon: settings.balloon,
            console: match settings.console() {
                ConsoleConfig::None => "none".to_owned(),
                ConsoleConfig::Stdout => "stdout".to_owned(),
                ConsoleConfig::File(path) => path.to_string_lossy().into_owned(),
            },
            vsock: VsockConfig {
                guest_cid: settings
                    .vsock
                    .as_ref()
                    .map_or(default_cid(), |vsock| vsock.guest_cid),
                uds_path: settings
                    .vsock
                    .as_ref()
                    .and_then(|vsock| vsock.uds_path.clone()),
            },
        }
    }
}
