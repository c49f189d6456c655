//! `/serial`, `/logger`, `/metrics` and `/entropy`.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::Serialize;
use tine_devices::rate::{BucketConfig, RateLimiterConfig};
use tine_guest_agent::fields::{FieldError, Fields};

use crate::logger::Level;

/// Where the guest's console goes.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Serial {
    /// A file, created or truncated; standard output when not given.
    pub serial_out_path: Option<PathBuf>,
    /// How many bytes of it: what is beyond that is lost.
    pub rate_limiter: Option<BucketConfig>,
}

impl Serial {
    /// Takes the fields of a request.
    pub fn from_fields(mut fields: Fields) -> Result<Self, FieldError> {
        let serial = Self {
            serial_out_path: fields.optional("serial_out_path")?,
            rate_limiter: fields.optional("rate_limiter")?,
        };
        fields.finish()?;
        Ok(serial)
    }
}

/// The entropy device. Every machine has it, as no guest should be without.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Entropy {
    /// Limits of what the guest gets: more has to wait.
    pub rate_limiter: Option<RateLimiterConfig>,
}

impl Entropy {
    /// Takes the fields of a request.
    pub fn from_fields(mut fields: Fields) -> Result<Self, FieldError> {
        let entropy = Self {
            rate_limiter: fields.optional("rate_limiter")?,
        };
        fields.finish()?;
        Ok(entropy)
    }
}

/// The log.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct LoggerSettings {
    /// A file or FIFO; standard output when not given.
    pub log_path: Option<PathBuf>,
    /// The least important level that is written.
    pub level: Option<Level>,
    /// Lines say their level.
    pub show_level: Option<bool>,
    /// Lines say where in the source they come from: not supported.
    pub show_log_origin: Option<bool>,
    /// Only lines of a module: not supported.
    pub module: Option<String>,
}

impl LoggerSettings {
    /// Takes the fields of a request.
    pub fn from_fields(mut fields: Fields) -> Result<Self, FieldError> {
        let level: Option<String> = fields.optional("level")?;
        let level = level.map(|word| word.parse()).transpose();
        let settings = Self {
            log_path: fields.optional("log_path")?,
            level: level.map_err(|err| FieldError::new("level", err))?,
            show_level: fields.optional("show_level")?,
            show_log_origin: fields.optional("show_log_origin")?,
            module: fields.optional("module")?,
        };
        fields.finish()?;
        if settings.show_log_origin == Some(true) {
            let words = "places in the source are not logged: leave it out";
            return Err(FieldError::new("show_log_origin", words));
        }
        if settings.module.is_some() {
            let words = "the log is not divided into modules: leave it out";
            return Err(FieldError::new("module", words));
        }
        Ok(settings)
    }
}

/// The metrics file.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct MetricsSettings {
    /// A file or FIFO, which gets a JSON object a line.
    pub metrics_path: PathBuf,
    /// Lines say the machine's id.
    pub emit_id: bool,
    /// What else lines say.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub properties: Option<BTreeMap<String, String>>,
}

impl MetricsSettings {
    /// Takes the fields of a request.
    pub fn from_fields(mut fields: Fields) -> Result<Self, FieldError> {
        let settings = Self {
            metrics_path: fields.required("metrics_path")?,
            emit_id: fields.optional("emit_id")?.unwrap_or_default(),
            properties: fields.optional("properties")?,
        };
        fields.finish()?;
        Ok(settings)
    }
}
