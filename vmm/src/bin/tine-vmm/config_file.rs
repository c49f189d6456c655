//! `--config-file`: the known API's requests in one JSON object.

use std::path::Path;

use serde_json::Value;
use tine::control::StartPlan;
use tine::control::settings::{
    BootSource, Change, Drive, Entropy, Interface, LoggerSettings, MachineSettings,
    MetricsSettings, MmdsSettings, Serial, Vsock, balloon,
};
use tine_guest_agent::fields::{FieldError, Fields};

/// Why a file cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("configuration file {path}: {reason}")]
pub struct BadFile {
    path: String,
    reason: String,
}

/// Reads the file into a plan that starts the machine.
pub fn read(path: &Path) -> Result<StartPlan, BadFile> {
    let bad = |reason: String| BadFile {
        path: path.display().to_string(),
        reason,
    };
    let bytes = std::fs::read(path).map_err(|err| bad(err.to_string()))?;
    let mut plan = StartPlan {
        start: true,
        ..StartPlan::default()
    };
    let fields = Fields::parse(&bytes).map_err(|err| bad(err.to_string()))?;
    fill(&mut plan, fields).map_err(bad)?;
    Ok(plan)
}

fn fill(plan: &mut StartPlan, mut fields: Fields) -> Result<(), String> {
    let named = |section: &str, err: FieldError| format!("section `{section}`: {err}");
    let mut section = |name: &str| -> Result<Option<Fields>, String> {
        let value: Option<Value> = fields.optional(name).map_err(|err| err.to_string())?;
        value.map(|value| part(name, &value)).transpose()
    };
    let mut changes = Vec::new();
    if let Some(fields) = section("machine-config")? {
        let machine = MachineSettings::from_fields(fields);
        changes.push(Change::Machine(
            machine.map_err(|err| named("machine-config", err))?,
        ));
    }
    let source = section("boot-source")?.ok_or("section `boot-source` is missing")?;
    let source = BootSource::from_fields(source).map_err(|err| named("boot-source", err))?;
    changes.push(Change::BootSource(source));
    if let Some(fields) = section("vsock")? {
        let vsock = Vsock::from_fields(fields).map_err(|err| named("vsock", err))?;
        changes.push(Change::Vsock(vsock));
    }
    if let Some(fields) = section("balloon")? {
        let balloon = balloon(fields).map_err(|err| named("balloon", err))?;
        changes.push(Change::Balloon(balloon));
    }
    if let Some(fields) = section("entropy")? {
        let entropy = Entropy::from_fields(fields).map_err(|err| named("entropy", err))?;
        changes.push(Change::Entropy(entropy));
    }
    if let Some(fields) = section("serial")? {
        let serial = Serial::from_fields(fields).map_err(|err| named("serial", err))?;
        changes.push(Change::Serial(serial));
    }
    if let Some(fields) = section("logger")? {
        let logger = LoggerSettings::from_fields(fields).map_err(|err| named("logger", err))?;
        plan.logger = Some(logger);
    }
    if let Some(fields) = section("metrics")? {
        let metrics = MetricsSettings::from_fields(fields).map_err(|err| named("metrics", err))?;
        plan.metrics = Some(metrics);
    }
    let drives: Option<Vec<Value>> = fields.optional("drives").map_err(|err| err.to_string())?;
    for value in drives.unwrap_or_default() {
        let id = value["drive_id"].as_str().unwrap_or_default();
        let drive = Drive::from_fields(id, part("drives", &value)?);
        changes.push(Change::Drive(drive.map_err(|err| named("drives", err))?));
    }
    let interfaces: Option<Vec<Value>> = fields
        .optional("network-interfaces")
        .map_err(|err| err.to_string())?;
    for value in interfaces.unwrap_or_default() {
        let id = value["iface_id"].as_str().unwrap_or_default();
        let interface = Interface::from_fields(id, part("network-interfaces", &value)?);
        changes.push(Change::Interface(
            interface.map_err(|err| named("network-interfaces", err))?,
        ));
    }
    // An exported configuration names what there is none of, as null or as an empty list.
    let pmem: Option<Vec<Value>> = fields.optional("pmem").map_err(|err| err.to_string())?;
    if pmem.is_some_and(|list| !list.is_empty()) {
        return Err("section `pmem` is not supported".to_owned());
    }
    let mmds: Option<Value> = fields
        .optional("mmds-config")
        .map_err(|err| err.to_string())?;
    if let Some(value) = mmds {
        let mmds = MmdsSettings::from_fields(part("mmds-config", &value)?);
        plan.mmds = Some(mmds.map_err(|err| named("mmds-config", err))?);
    }
    for name in ["cpu-config", "memory-hotplug"] {
        let value: Option<Value> = fields.optional(name).map_err(|err| err.to_string())?;
        if value.is_some() {
            return Err(format!("section `{name}` is not supported by this version"));
        }
    }
    fields.finish().map_err(|err| err.to_string())?;
    for change in changes {
        plan.settings.apply(change).map_err(|err| err.to_string())?;
    }
    Ok(())
}

fn part(name: &str, value: &Value) -> Result<Fields, String> {
    Fields::parse(value.to_string().as_bytes()).map_err(|err| format!("section `{name}`: {err}"))
}
