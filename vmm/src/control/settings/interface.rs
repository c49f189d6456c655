//! `/network-interfaces/{id}`: an interface before the start, and its limits later.

use serde::Serialize;
use tine_devices::rate::RateLimiterConfig;
use tine_devices::virtio::net::MacAddr;
use tine_guest_agent::fields::{FieldError, Fields};

use super::drive::same_id;
use crate::config::InterfaceConfig;

/// A network interface.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Interface {
    /// Its name.
    pub iface_id: String,
    /// The TAP device of the host.
    pub host_dev_name: String,
    /// The guest's address.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub guest_mac: Option<MacAddr>,
    /// The largest packet.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mtu: Option<u16>,
    /// Limits of what the guest receives.
    pub rx_rate_limiter: Option<RateLimiterConfig>,
    /// Limits of what the guest sends.
    pub tx_rate_limiter: Option<RateLimiterConfig>,
}

impl Interface {
    /// Takes the fields of a request about the interface `id`.
    pub fn from_fields(id: &str, mut fields: Fields) -> Result<Self, FieldError> {
        let interface = Self {
            iface_id: fields.required("iface_id")?,
            host_dev_name: fields.required("host_dev_name")?,
            guest_mac: fields.optional("guest_mac")?,
            mtu: fields.optional("mtu")?,
            rx_rate_limiter: fields.optional("rx_rate_limiter")?,
            tx_rate_limiter: fields.optional("tx_rate_limiter")?,
        };
        fields.finish()?;
        same_id("iface_id", id, &interface.iface_id)?;
        if interface.mtu.is_some_and(|mtu| mtu < 68) {
            return Err(FieldError::new("mtu", "must be 68 to 65535"));
        }
        Ok(interface)
    }

    /// The interface of a restored machine.
    pub(super) fn restored(config: &InterfaceConfig) -> Self {
        Self {
            iface_id: config.id.clone(),
            host_dev_name: config.tap.clone(),
            guest_mac: config.guest_mac,
            mtu: config.mtu,
            rx_rate_limiter: config.rx_rate_limiter,
            tx_rate_limiter: config.tx_rate_limiter,
        }
    }

    /// What the machine is assembled from.
    pub(super) fn config(&self) -> InterfaceConfig {
        InterfaceConfig {
            id: self.iface_id.clone(),
            tap: self.host_dev_name.clone(),
            guest_mac: self.guest_mac,
            mtu: self.mtu,
            rx_rate_limiter: self.rx_rate_limiter,
            tx_rate_limiter: self.tx_rate_limiter,
        }
    }
}

/// New limits of an interface of a machine that runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InterfacePatch {
    /// The interface.
    pub iface_id: String,
    /// Of what the guest receives.
    pub rx_rate_limiter: Option<RateLimiterConfig>,
    /// Of what the guest sends.
    pub tx_rate_limiter: Option<RateLimiterConfig>,
}

impl InterfacePatch {
    /// Takes the fields of a request about the interface `id`.
    pub fn from_fields(id: &str, mut fields: Fields) -> Result<Self, FieldError> {
        let patch = Self {
            iface_id: fields.required("iface_id")?,
            rx_rate_limiter: fields.optional("rx_rate_limiter")?,
            tx_rate_limiter: fields.optional("tx_rate_limiter")?,
        };
        fields.finish()?;
        same_id("iface_id", id, &patch.iface_id)?;
        Ok(patch)
    }
}
