//! `/mmds/config`: how the guest reaches the metadata store, and by which interfaces.

use std::net::Ipv4Addr;

use serde::Serialize;
use tine_devices::mmds::{MmdsConfig, MmdsVersion};
use tine_guest_agent::fields::{FieldError, Fields};

use crate::config::MetadataConfig;

/// The guest's way to the metadata store.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct MmdsSettings {
    /// Who may read.
    pub version: MmdsVersion,
    /// The interfaces that lead there.
    pub network_interfaces: Vec<String>,
    /// The store's address.
    pub ipv4_address: Ipv4Addr,
    /// Answers are text whatever the guest accepts.
    pub imds_compat: bool,
}

impl MmdsSettings {
    /// Takes the fields of a request.
    pub fn from_fields(mut fields: Fields) -> Result<Self, FieldError> {
        let usual = MmdsConfig::default();
        let settings = Self {
            version: fields.optional("version")?.unwrap_or_default(),
            network_interfaces: fields.required("network_interfaces")?,
            ipv4_address: fields
                .optional("ipv4_address")?
                .unwrap_or(usual.ipv4_address),
            imds_compat: fields.optional("imds_compat")?.unwrap_or_default(),
        };
        fields.finish()?;
        match settings.network_interfaces.is_empty() {
            true => Err(FieldError::new(
                "network_interfaces",
                "must name one at least",
            )),
            false => Ok(settings),
        }
    }

    /// Those of a restored machine.
    pub(super) fn restored(config: &MetadataConfig) -> Self {
        let reached = config.store.config();
        Self {
            version: reached.version,
            network_interfaces: config.interfaces.clone(),
            ipv4_address: reached.ipv4_address,
            imds_compat: reached.imds_compat,
        }
    }

    /// What the store is told.
    pub fn config(&self) -> MmdsConfig {
        MmdsConfig {
            version: self.version,
            ipv4_address: self.ipv4_address,
            imds_compat: self.imds_compat,
        }
    }
}
