//! `/vsock`: the way of other processes to the guest's sockets.

use std::path::PathBuf;

use serde::Serialize;
use tine_devices::virtio::vsock::MIN_GUEST_CID;
use tine_guest_agent::fields::{FieldError, Fields};

use super::BadSettings;

/// The socket device.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Vsock {
    /// The guest's address.
    pub guest_cid: u32,
    /// The socket file; only `/v1/config` can leave it out.
    pub uds_path: Option<PathBuf>,
}

impl Vsock {
    /// Takes the fields of a request.
    pub fn from_fields(mut fields: Fields) -> Result<Self, FieldError> {
        let vsock = Self {
            guest_cid: fields.required("guest_cid")?,
            uds_path: Some(fields.required("uds_path")?),
        };
        // Means nothing any more, in the known API either.
        let _: Option<String> = fields.optional("vsock_id")?;
        fields.finish()?;
        Ok(vsock)
    }

    pub(super) fn check(&self) -> Result<(), BadSettings> {
        if (MIN_GUEST_CID..u32::MAX).contains(&self.guest_cid) {
            return Ok(());
        }
        let cid = self.guest_cid;
        Err(BadSettings::new(format_args!(
            "field `guest_cid`: {cid} is reserved; take one from {MIN_GUEST_CID} to {}",
            u32::MAX - 1
        )))
    }
}
