//! The known API's snapshots: a machine into a file of state and one of memory, and out of them.

use std::path::PathBuf;

use serde::Deserialize;
use tine_guest_agent::fields::FieldError;

use super::fault::{Reply, done};
use super::routes::Call;
use crate::control::{GuestIdentity, OtherInterface, RestoreRequest, SnapshotRequest, State};
use crate::snapshot::Place;

/// Where memory comes from.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Backend {
    backend_type: String,
    backend_path: PathBuf,
}

/// An interface's other TAP device.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct NetworkOverride {
    iface_id: String,
    host_dev_name: String,
}

/// The socket device's other path.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct VsockOverride {
    uds_path: PathBuf,
}

/// `PUT /snapshot/create`, of a paused machine. A snapshot of type `Diff` has all of memory too:
/// laid over the one before, it is what a smaller one would be.
pub async fn create(call: Call) -> Reply {
    let mut fields = call.fields()?;
    let state: PathBuf = fields.required("snapshot_path")?;
    let memory: PathBuf = fields.required("mem_file_path")?;
    let kind: Option<String> = fields.optional("snapshot_type")?;
    fields.finish()?;
    if !matches!(kind.as_deref(), None | Some("Full" | "Diff")) {
        return Err(FieldError::new("snapshot_type", "must be Full or Diff").into());
    }
    let now = call.app.handle.look(|status| status.state);
    if now != State::Paused {
        return Err(super::fault::Fault::bad_request(format_args!(
            "a snapshot is taken of a paused machine, and this one is {now}: PATCH /vm first"
        )));
    }
    let request = SnapshotRequest {
        target: Place::Pair { state, memory },
        stop: false,
        disks_alone: false,
    };
    call.app.handle.snapshot(request).await?;
    done()
}

/// `PUT /snapshot/load`, before anything was configured.
pub async fn load(call: Call) -> Reply {
    let mut fields = call.fields()?;
    let state: PathBuf = fields.required("snapshot_path")?;
    let file: Option<PathBuf> = fields.optional("mem_file_path")?;
    let backend: Option<Backend> = fields.optional("mem_backend")?;
    // Every machine can have snapshots of what changed since the last one.
    for name in ["enable_diff_snapshots", "track_dirty_pages"] {
        let _: Option<bool> = fields.optional(name)?;
    }
    let resume: Option<bool> = fields.optional("resume_vm")?;
    let networks: Option<Vec<NetworkOverride>> = fields.optional("network_overrides")?;
    let vsock: Option<VsockOverride> = fields.optional("vsock_override")?;
    let realtime: Option<bool> = fields.optional("clock_realtime")?;
    let pages: Option<String> = fields.optional("huge_pages")?;
    fields.finish()?;
    if realtime.unwrap_or_default() {
        let words = "is not supported: the agent sets the guest's time";
        return Err(FieldError::new("clock_realtime", words).into());
    }
    if !matches!(pages.as_deref(), None | Some("None" | "Snapshot")) {
        return Err(FieldError::new("huge_pages", "must be None or Snapshot").into());
    }
    let snapshot = match (file, backend) {
        (Some(memory), None) => Place::Pair { state, memory },
        (None, Some(backend)) => match &backend.backend_type[..] {
            "File" => Place::Pair {
                state,
                memory: backend.backend_path,
            },
            "Uffd" => Place::Served {
                state,
                socket: backend.backend_path,
            },
            _ => {
                let words = "field `backend_type`: must be File or Uffd";
                return Err(FieldError::new("mem_backend", words).into());
            }
        },
        _ => {
            let words = "one of `mem_backend` and `mem_file_path` has to be there";
            return Err(FieldError::new("mem_backend", words).into());
        }
    };
    let networks = networks.unwrap_or_default().into_iter();
    let interfaces = networks.map(|net| OtherInterface {
        id: net.iface_id,
        tap: Some(net.host_dev_name),
        ..OtherInterface::default()
    });
    let request = RestoreRequest {
        snapshot,
        resume: resume.unwrap_or_default(),
        interfaces: interfaces.collect(),
        vsock: vsock.map(|vsock| vsock.uds_path),
        identity: GuestIdentity::default(),
        working_set: None,
    };
    call.app.handle.restore(request).await?;
    done()
}
