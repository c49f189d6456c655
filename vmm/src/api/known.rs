//! The known API: what existing clients speak, path by path. A request becomes a change of the
//! settings or a command; what is not supported is refused by name.

use hyper::body::Bytes;
use serde_json::json;
use tine_guest_agent::fields::{FieldError, Fields};

use super::fault::{Fault, Reply, done, json};
use super::routes::{Call, Owner, Route};
use super::{KNOWN_API_VERSION, known_devices as devices, known_snapshot as snapshot};
use crate::control::settings::{
    BootSource, Change, Drive, DrivePatch, Entropy, FullConfig, LoggerSettings, MachinePatch,
    MachineSettings, MetricsSettings, Serial, Vsock,
};
use crate::control::{Lifecycle, State};

/// A route of the known API.
macro_rules! route {
    ($method:literal $path:literal $handler:expr) => {
        Route {
            method: $method,
            path: $path,
            owner: Owner::Known(|call| Box::pin($handler(call))),
        }
    };
}

/// All routes of the known API.
pub const ROUTES: &[Route] = &[
    route!("GET" "/" instance),
    route!("GET" "/version" version),
    route!("PUT" "/boot-source" boot_source),
    route!("GET" "/machine-config" machine),
    route!("PUT" "/machine-config" put_machine),
    route!("PATCH" "/machine-config" patch_machine),
    route!("PUT" "/drives/{drive_id}" put_drive),
    route!("PATCH" "/drives/{drive_id}" patch_drive),
    route!("PUT" "/vsock" vsock),
    route!("PUT" "/entropy" entropy),
    route!("PUT" "/serial" serial),
    route!("PUT" "/logger" logger),
    route!("PUT" "/metrics" metrics),
    route!("PUT" "/actions" actions),
    route!("PATCH" "/vm" vm),
    route!("GET" "/vm/config" config),
    route!("PUT" "/network-interfaces/{iface_id}" devices::put_interface),
    route!("PATCH" "/network-interfaces/{iface_id}" devices::patch_interface),
    route!("GET" "/balloon" devices::balloon),
    route!("PUT" "/balloon" devices::put_balloon),
    route!("PATCH" "/balloon" devices::patch_balloon),
    route!("GET" "/balloon/statistics" devices::statistics),
    route!("PATCH" "/balloon/statistics" devices::patch_statistics),
    route!("PATCH" "/balloon/hinting/start" devices::start_hinting),
    route!("PATCH" "/balloon/hinting/stop" devices::stop_hinting),
    route!("GET" "/balloon/hinting/status" devices::hinting),
    route!("GET" "/mmds" devices::mmds),
    route!("PUT" "/mmds" devices::put_mmds),
    route!("PATCH" "/mmds" devices::patch_mmds),
    route!("PUT" "/mmds/config" devices::put_mmds_config),
    route!("PUT" "/snapshot/create" snapshot::create),
    route!("PUT" "/snapshot/load" snapshot::load),
];

async fn instance(call: Call) -> Reply {
    let handle = &call.app.handle;
    let state = match handle.look(|status| (status.state, status.access.is_some())) {
        (State::Paused, _) => "Paused",
        (State::Created, _) | (_, false) => "Not started",
        _ => "Running",
    };
    json(&json!({
        "id": handle.identity().id,
        "state": state,
        "vmm_version": KNOWN_API_VERSION,
        "app_name": "Tine",
    }))
}

async fn version(_call: Call) -> Reply {
    json(&json!({ "firecracker_version": KNOWN_API_VERSION }))
}

async fn configure(call: &Call, change: Change) -> Reply {
    call.app.handle.configure(change).await?;
    done()
}

async fn boot_source(call: Call) -> Reply {
    let source = BootSource::from_fields(call.fields()?)?;
    configure(&call, Change::BootSource(source)).await
}

async fn machine(call: Call) -> Reply {
    json(&call.app.handle.status().settings.machine)
}

async fn put_machine(call: Call) -> Reply {
    let machine = MachineSettings::from_fields(call.fields()?)?;
    configure(&call, Change::Machine(machine)).await
}

async fn patch_machine(call: Call) -> Reply {
    let patch = MachinePatch::from_fields(call.fields()?)?;
    configure(&call, Change::MachinePatch(patch)).await
}

async fn put_drive(call: Call) -> Reply {
    check_id("drive_id", &call.id)?;
    let drive = Drive::from_fields(&call.id, call.fields()?)?;
    configure(&call, Change::Drive(drive)).await
}

async fn patch_drive(call: Call) -> Reply {
    check_id("drive_id", &call.id)?;
    let patch = DrivePatch::from_fields(&call.id, call.fields()?)?;
    call.app.handle.update_drive(patch).await?;
    done()
}

async fn vsock(call: Call) -> Reply {
    let vsock = Vsock::from_fields(call.fields()?)?;
    configure(&call, Change::Vsock(vsock)).await
}

async fn entropy(call: Call) -> Reply {
    let entropy = Entropy::from_fields(call.fields()?)?;
    configure(&call, Change::Entropy(entropy)).await
}

async fn serial(call: Call) -> Reply {
    let serial = Serial::from_fields(call.fields()?)?;
    configure(&call, Change::Serial(serial)).await
}

async fn logger(call: Call) -> Reply {
    let settings = LoggerSettings::from_fields(call.fields()?)?;
    call.app.handle.set_logger(settings).await?;
    done()
}

async fn metrics(call: Call) -> Reply {
    let settings = MetricsSettings::from_fields(call.fields()?)?;
    call.app.handle.set_metrics(settings).await?;
    done()
}

async fn actions(call: Call) -> Reply {
    let mut fields = call.fields()?;
    let action: String = fields.required("action_type")?;
    fields.finish()?;
    let handle = &call.app.handle;
    match action.as_str() {
        "InstanceStart" => handle.change(Lifecycle::Start).await?,
        "FlushMetrics" => handle.flush_metrics().await?,
        "SendCtrlAltDel" => handle.ctrl_alt_del().await?,
        other => {
            let words =
                format!("{other:?} is none of `InstanceStart`, `FlushMetrics`, `SendCtrlAltDel`");
            return Err(FieldError::new("action_type", words).into());
        }
    }
    done()
}

async fn vm(call: Call) -> Reply {
    let mut fields = call.fields()?;
    let state: String = fields.required("state")?;
    fields.finish()?;
    let change = match state.as_str() {
        "Paused" => Lifecycle::Pause,
        "Resumed" => Lifecycle::Resume,
        other => {
            let words = format!("{other:?} is none of `Paused`, `Resumed`");
            return Err(FieldError::new("state", words).into());
        }
    };
    call.app.handle.change(change).await?;
    done()
}

async fn config(call: Call) -> Reply {
    let status = call.app.handle.status();
    json(&FullConfig::from(&*status.settings))
}

/// Ids in paths are letters, digits and underscores.
pub fn check_id(field: &str, id: &str) -> Result<(), Fault> {
    let fits = |c: char| c.is_alphanumeric() || c == '_';
    match id.chars().all(fits) {
        true => Ok(()),
        false => Err(FieldError::new(field, "may have letters, digits and `_` only").into()),
    }
}

/// Refuses a body that is no JSON object; its fields are free.
pub fn any_object(body: &Bytes) -> Result<(), Fault> {
    match body.is_empty() {
        true => Err(Fault::bad_request("the request has no body")),
        false => Ok(Fields::parse(body).map(drop)?),
    }
}
