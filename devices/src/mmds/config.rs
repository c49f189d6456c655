//! How the store is reached, as inert data, and why it could not be changed.

use std::net::Ipv4Addr;

use serde::{Deserialize, Serialize};

/// Who may read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum MmdsVersion {
    /// Everyone.
    #[default]
    V1,
    /// Who has asked for a token before.
    V2,
}

/// How the guest reaches the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct MmdsConfig {
    /// Who may read.
    pub version: MmdsVersion,
    /// A link-local address, 169.254.1.0 to 169.254.254.255.
    pub ipv4_address: Ipv4Addr,
    /// Answers are text whatever the guest says that it accepts, as those of EC2 are.
    pub imds_compat: bool,
}

impl Default for MmdsConfig {
    fn default() -> Self {
        Self {
            version: MmdsVersion::V1,
            ipv4_address: Ipv4Addr::new(169, 254, 169, 254),
            imds_compat: false,
        }
    }
}

impl MmdsConfig {
    pub(super) fn check(&self) -> Result<(), MmdsError> {
        match self.ipv4_address.octets() {
            [169, 254, 1..=254, _] => Ok(()),
            _ => Err(MmdsError::Address(self.ipv4_address)),
        }
    }
}

/// Why the store could not be changed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum MmdsError {
    /// The address is of another kind.
    #[error("{0} is not a link-local IPv4 address (169.254.1.0 to 169.254.254.255)")]
    Address(Ipv4Addr),
    /// The document would be too large.
    #[error("the metadata would be {len} bytes long, more than the limit of {limit}")]
    TooLarge {
        /// Bytes of it as compact JSON.
        len: usize,
        /// The limit.
        limit: usize,
    },
    /// The document is no object.
    #[error("the metadata has to be a JSON object")]
    NotAnObject,
    /// There is nothing to merge into yet.
    #[error("the metadata store is empty: PUT a document before a PATCH")]
    Empty,
}
