//! `/v1/restore`: a machine out of a snapshot's directory, or out of another machine. `/v1/refresh`: such
//! a machine's guest, told again that it is one of its own.

use std::net::Ipv4Addr;
use std::path::PathBuf;

use serde::Deserialize;
use serde_json::json;
use tine_devices::virtio::net::MacAddr;
use tine_guest_agent::fields::{FieldError, Fields};
use tine_guest_agent::octets::Octets;
use tine_guest_agent::refresh::{Address, MIN_ENTROPY, NewFile, Refresh};

use super::snapshot::absolute;
use crate::api::fault::{Reply, done, json_with};
use crate::api::routes::Call;
use crate::control::{GuestIdentity, OtherInterface, RestoreRequest};
use crate::snapshot::Place;

/// What of a network interface becomes another one.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Interface {
    id: String,
    tap: Option<String>,
    guest_mac: Option<MacAddr>,
    address: Option<Address>,
    gateway: Option<Ipv4Addr>,
}

impl From<Interface> for OtherInterface {
    fn from(other: Interface) -> Self {
        Self {
            id: other.id,
            tap: other.tap,
            guest_mac: other.guest_mac,
            address: other.address,
            gateway: other.gateway,
        }
    }
}

/// `PUT /v1/restore`: in a process whose machine has not been configured.
pub async fn restore(call: Call) -> Reply {
    let mut fields = call.fields()?;
    let snapshot: Option<PathBuf> = fields.optional("snapshot")?;
    let fork: Option<PathBuf> = fields.optional("fork")?;
    let resume: Option<bool> = fields.optional("resume")?;
    let network: Option<Vec<Interface>> = fields.optional("network")?;
    let vsock: Option<PathBuf> = fields.optional("vsock")?;
    let working_set: Option<PathBuf> = fields.optional("working_set")?;
    let identity = identity(&mut fields)?;
    fields.finish()?;
    if let Some(file) = &working_set {
        absolute("working_set", file)?;
    }
    let place = match (snapshot, fork) {
        (Some(dir), None) => {
            absolute("snapshot", &dir)?;
            Place::Directory(dir)
        }
        (None, Some(_)) if working_set.is_some() => {
            let words = "is for a snapshot: a copy's memory is in memory already";
            return Err(FieldError::new("working_set", words).into());
        }
        (None, Some(socket)) => {
            absolute("fork", &socket)?;
            Place::Fork(socket)
        }
        (Some(_), Some(_)) => {
            return Err(FieldError::new("fork", "is given, and `snapshot` too: give one").into());
        }
        (None, None) => return Err(FieldError::new("snapshot", "is missing, as is `fork`").into()),
    };
    let interfaces = network.unwrap_or_default().into_iter();
    let request = RestoreRequest {
        snapshot: place,
        resume: resume.unwrap_or(true),
        interfaces: interfaces.map(OtherInterface::from).collect(),
        vsock,
        identity,
        working_set,
    };
    call.app.handle.restore(request).await?;
    done()
}

/// `POST /v1/refresh`: a restored or forked guest is told the time and random numbers of now.
pub async fn refresh(call: Call) -> Reply {
    let mut fields = call.fields()?;
    let identity = identity(&mut fields)?;
    fields.finish()?;
    call.app.handle.refresh(identity).await?;
    done()
}

/// `PUT /v1/working-set`: what a machine has touched of its snapshot is written to a file.
pub async fn working_set(call: Call) -> Reply {
    let mut fields = call.fields()?;
    let path: PathBuf = fields.required("path")?;
    fields.finish()?;
    absolute("path", &path)?;
    let recorded = call.app.handle.record_working_set(path).await?;
    json_with(
        201,
        &json!({
            "path": recorded.path,
            "snapshot": recorded.snapshot,
            "bytes": recorded.bytes,
            "ranges": recorded.ranges,
        }),
    )
}

/// What of the guest becomes another one.
fn identity(fields: &mut Fields) -> Result<GuestIdentity, FieldError> {
    let files: Option<Vec<NewFile>> = fields.optional("files")?;
    let identity = GuestIdentity {
        hostname: fields.optional("hostname")?,
        machine_id: fields.optional("machine_id")?,
        env: fields.optional("env")?,
        files: files.unwrap_or_default(),
    };
    // The agent would refuse it, and after a restore the machine end for it.
    let told = identity.clone().put_into(Refresh {
        generation: 1,
        entropy: Octets(vec![0; MIN_ENTROPY]),
        ..Refresh::default()
    });
    told.check()?;
    Ok(identity)
}
