//! `/v1/snapshots` and `/v1/fork`: a machine into a directory, and into other processes.

use std::path::PathBuf;
use std::time::Duration;

use serde_json::json;
use tine_guest_agent::fields::FieldError;

use crate::api::fault::{Reply, json_with};
use crate::api::routes::Call;
use crate::control::{ForkRequest, SnapshotRequest};
use crate::snapshot::Place;

/// `PUT /v1/snapshots`: answered when the snapshot is whole and durable.
pub async fn take(call: Call) -> Reply {
    let mut fields = call.fields()?;
    let target: PathBuf = fields.required("path")?;
    let stop: Option<bool> = fields.optional("stop")?;
    let kind: Option<String> = fields.optional("kind")?;
    fields.finish()?;
    absolute("path", &target)?;
    let disks_alone = match kind.as_deref() {
        None | Some("full") => false,
        Some("disk") => true,
        Some(_) => return Err(FieldError::new("kind", "must be full or disk").into()),
    };
    let request = SnapshotRequest {
        target: Place::Directory(target),
        stop: stop.unwrap_or_default(),
        disks_alone,
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

/// Most copies of one fork.
const MAX_COPIES: u32 = 10_000;
/// How long they wait to be taken, when the request does not say, and at most; in milliseconds.
const FORK_PATIENCE: u64 = 60_000;
const MAX_FORK_PATIENCE: u64 = 3_600_000;

/// `POST /v1/fork`: answered when the copies can be taken, by `PUT /v1/restore` of other processes.
pub async fn fork(call: Call) -> Reply {
    let mut fields = call.fields()?;
    let count: Option<u32> = fields.optional("count")?;
    let socket: Option<PathBuf> = fields.optional("socket")?;
    let patience: Option<u64> = fields.optional("timeout_ms")?;
    fields.finish()?;
    let (count, patience) = (count.unwrap_or(1), patience.unwrap_or(FORK_PATIENCE));
    if !(1..=MAX_COPIES).contains(&count) {
        return Err(FieldError::new("count", format!("must be 1 to {MAX_COPIES}")).into());
    }
    if !(1..=MAX_FORK_PATIENCE).contains(&patience) {
        let words = format!("must be 1 to {MAX_FORK_PATIENCE}");
        return Err(FieldError::new("timeout_ms", words).into());
    }
    if let Some(socket) = &socket {
        absolute("socket", socket)?;
    }
    let request = ForkRequest {
        count,
        socket,
        patience: Duration::from_millis(patience),
    };
    let forked = call.app.handle.fork(request).await?;
    json_with(
        201,
        &json!({
            "socket": forked.socket,
            "count": count,
            "generation": forked.generation,
            "layers": forked.layers,
            "pause_us": forked.pause.as_micros() as u64,
        }),
    )
}

/// The process works elsewhere than its client.
pub(super) fn absolute(field: &str, path: &std::path::Path) -> Result<(), FieldError> {
    match path.is_absolute() {
        true => Ok(()),
        false => Err(FieldError::new(field, "must be an absolute path")),
    }
}
