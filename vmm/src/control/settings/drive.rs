//! `/drives/{id}`: a drive before the start, and what of it can be changed later.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use tine_devices::rate::RateLimiterConfig;
use tine_devices::virtio::block::layers::Format;
use tine_devices::virtio::block::{BlockConfig, Cache, Engine, LowerConfig};
use tine_guest_agent::fields::{FieldError, Fields};

use super::BadSettings;
use super::boot::exists;
use crate::machine::DriveFiles;

/// What a flush is worth.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum CacheType {
    /// Nothing.
    #[default]
    Unsafe,
    /// What was written is durable after it.
    Writeback,
}

/// How the host reads and writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum IoEngine {
    /// A thread of the drive's own.
    Sync,
    /// io_uring, where the host has it.
    Async,
}

/// A drive.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Drive {
    /// Its name.
    pub drive_id: String,
    /// The root partition's id, for the kernel's command line.
    pub partuuid: Option<String>,
    /// The guest's root is on it.
    pub is_root_device: bool,
    /// What a flush is worth.
    pub cache_type: CacheType,
    /// The guest may not write.
    pub is_read_only: bool,
    /// The image.
    pub path_on_host: PathBuf,
    /// Limits.
    pub rate_limiter: Option<RateLimiterConfig>,
    /// How the host reads and writes; its choice when not given.
    pub io_engine: Option<IoEngine>,
    /// Never set: drives of other processes are not supported.
    pub socket: Option<String>,
    /// The serial number that the guest reads; only `/v1/config` can set it.
    #[serde(skip)]
    pub serial: Option<String>,
    /// How the disk is in the image, and what that lies over; only `/v1/config` can say it.
    #[serde(skip)]
    pub layers: Layers,
}

/// A drive's image and what is below it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Layers {
    /// How the disk is in the image.
    pub format: Format,
    /// What the image lies over, the lowest first.
    pub lower: Vec<Lower>,
    /// The image is the machine's own: a snapshot may take it over as it is.
    pub own: bool,
}

/// A file below a drive's image.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Lower {
    /// The file.
    pub path: PathBuf,
    /// How the disk is in it.
    pub format: Format,
}

impl Default for Layers {
    fn default() -> Self {
        Self {
            format: Format::Raw,
            lower: Vec::new(),
            own: false,
        }
    }
}

impl Drive {
    /// Takes the fields of a request about the drive `id`.
    pub fn from_fields(id: &str, mut fields: Fields) -> Result<Self, FieldError> {
        let drive_id: String = fields.required("drive_id")?;
        let socket: Option<String> = fields.optional("socket")?;
        if socket.is_some() {
            let words = "drives served by another process (vhost-user) are not supported";
            return Err(FieldError::new("socket", words));
        }
        let drive = Self {
            drive_id,
            partuuid: fields.optional("partuuid")?,
            is_root_device: fields.required("is_root_device")?,
            cache_type: fields.optional("cache_type")?.unwrap_or_default(),
            is_read_only: fields.optional("is_read_only")?.unwrap_or_default(),
            path_on_host: fields.required("path_on_host")?,
            rate_limiter: fields.optional("rate_limiter")?,
            io_engine: fields.optional("io_engine")?,
            socket: None,
            serial: None,
            layers: Layers::default(),
        };
        fields.finish()?;
        same_id("drive_id", id, &drive.drive_id)?;
        Ok(drive)
    }

    /// The drive of a restored machine.
    pub(super) fn restored(config: &BlockConfig, root: bool) -> Self {
        Self {
            drive_id: config.id.clone(),
            partuuid: None,
            is_root_device: root,
            cache_type: match config.cache {
                Cache::Unsafe => CacheType::Unsafe,
                Cache::Writeback => CacheType::Writeback,
            },
            is_read_only: config.read_only,
            path_on_host: config.path.clone(),
            rate_limiter: config.rate_limiter,
            io_engine: match config.engine {
                Engine::Thread => Some(IoEngine::Sync),
                Engine::Auto => None,
            },
            socket: None,
            serial: config.serial.clone(),
            layers: Layers {
                format: config.format,
                lower: config.lower.iter().map(Lower::from).collect(),
                own: config.own,
            },
        }
    }

    /// It is in these files now.
    pub(super) fn note_files(&mut self, mut now: DriveFiles) {
        let Some((path, format)) = now.files.pop() else {
            return;
        };
        let lower = now.files.into_iter();
        self.path_on_host = path;
        self.layers = Layers {
            format,
            lower: lower.map(|(path, format)| Lower { path, format }).collect(),
            own: now.own,
        };
    }

    pub(super) fn check(&self) -> Result<(), BadSettings> {
        exists("path_on_host", &self.path_on_host)?;
        let mut lower = self.layers.lower.iter();
        lower.try_for_each(|lower| exists("lower", &lower.path))
    }

    /// What the device is made from.
    pub fn block_config(&self) -> BlockConfig {
        let mut config = BlockConfig::new(&self.drive_id, &self.path_on_host);
        config.read_only = self.is_read_only;
        config.format = self.layers.format;
        config.own = self.layers.own;
        let lower = self.layers.lower.iter();
        config.lower = lower
            .map(|l| LowerConfig {
                path: l.path.clone(),
                format: l.format,
            })
            .collect();
        config.serial = self.serial.clone();
        config.rate_limiter = self.rate_limiter;
        config.cache = match self.cache_type {
            CacheType::Unsafe => Cache::Unsafe,
            CacheType::Writeback => Cache::Writeback,
        };
        config.engine = match self.io_engine {
            Some(IoEngine::Sync) => Engine::Thread,
            Some(IoEngine::Async) | None => Engine::Auto,
        };
        config
    }

    /// How a kernel is told that its root is on this drive, the first one.
    pub(super) fn root_words(&self) -> String {
        let device = match &self.partuuid {
            Some(id) => format!("PARTUUID={id}"),
            None => "/dev/vda".to_owned(),
        };
        let mode = if self.is_read_only { "ro" } else { "rw" };
        format!("root={device} {mode}")
    }
}

impl From<&LowerConfig> for Lower {
    fn from(lower: &LowerConfig) -> Self {
        Self {
            path: lower.path.clone(),
            format: lower.format,
        }
    }
}

/// A change to a drive of a machine that runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DrivePatch {
    /// The drive.
    pub drive_id: String,
    /// The image to go on with; the same one, with its size of now, when not given.
    pub path_on_host: Option<PathBuf>,
    /// New limits.
    pub rate_limiter: Option<RateLimiterConfig>,
}

impl DrivePatch {
    /// Takes the fields of a request about the drive `id`.
    pub fn from_fields(id: &str, mut fields: Fields) -> Result<Self, FieldError> {
        let patch = Self {
            drive_id: fields.required("drive_id")?,
            path_on_host: fields.optional("path_on_host")?,
            rate_limiter: fields.optional("rate_limiter")?,
        };
        fields.finish()?;
        same_id("drive_id", id, &patch.drive_id)?;
        Ok(patch)
    }
}

/// The id in the path and the one in the body are the same.
pub(super) fn same_id(field: &str, path: &str, body: &str) -> Result<(), FieldError> {
    let words = format!("is {body:?}, and the path says {path:?}");
    (path == body)
        .then_some(())
        .ok_or_else(|| FieldError::new(field, words))
}
