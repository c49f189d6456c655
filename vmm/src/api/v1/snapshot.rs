//! `/v1/snapshots` and `/v1/restore`: a machine into a directory, and out of one.

use std::path::PathBuf;

use serde::Deserialize;
use serde_json::json;
use tine_guest_agent::fields::FieldError;
use tine_guest_agent::refresh::MAX_HOSTNAME;

use crate::api::fault::{Reply, done, json_with};
use crate::api::routes::Call;
use crate::control::{RestoreRequest, SnapshotRequest};
use crate::snapshot::Place;

/// A network interface's other TAP device.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Tap {
    id: String,
    tap: String,
}

/// `PUT /v1/snapshots`: answered when the snapshot is whole and durable.
pub async fn take(call: Call) -> Reply {
    let mut fields = call.fields()?;
    let target: PathBuf = fields.required("path")?;
    let stop: Option<bool> = fields.optional("stop")?;
    fields.finish()?;
    absolute("path", &target)?;
    let request = SnapshotRequest {
        target: Place::Directory(target),
        stop: stop.unwrap_or_default(),
    };
    let taken = call.app.handle.snapshot(request).await?;
    json_with(
        201,
        &json!({
            "id": taken.id,
            "path": taken.path,
            "pause_us": taken.pause.as_micros() as u64,
            "took_us": taken.took.as_micros() as u64,
            "memory_bytes": taken.memory_bytes,
        }),
    )
}

/// `PUT /v1/restore`: in a process whose machine has not been configured.
pub async fn restore(call: Call) -> Reply {
    let mut fields = call.fields()?;
    let snapshot: PathBuf = fields.required("snapshot")?;
    let resume: Option<bool> = fields.optional("resume")?;
    let network: Option<Vec<Tap>> = fields.optional("network")?;
    let vsock: Option<PathBuf> = fields.optional("vsock")?;
    let hostname: Option<String> = fields.optional("hostname")?;
    fields.finish()?;
    absolute("snapshot", &snapshot)?;
    // The agent would refuse it, and the machine end for it.
    let fits = |name: &String| (1..=MAX_HOSTNAME).contains(&name.len()) && !name.contains('\0');
    if !hostname.as_ref().is_none_or(fits) {
        let words = format!("must have 1 to {MAX_HOSTNAME} bytes");
        return Err(FieldError::new("hostname", words).into());
    }
    let taps = network.unwrap_or_default().into_iter();
    let request = RestoreRequest {
        snapshot: Place::Directory(snapshot),
        resume: resume.unwrap_or(true),
        taps: taps.map(|tap| (tap.id, tap.tap)).collect(),
        vsock,
        hostname,
    };
    call.app.handle.restore(request).await?;
    done()
}

/// The process works elsewhere than its client.
fn absolute(field: &str, path: &std::path::Path) -> Result<(), FieldError> {
    match path.is_absolute() {
        true => Ok(()),
        false => Err(FieldError::new(field, "must be an absolute path")),
    }
}
