//! A bare-metal guest by firecracker-rs-sdk, its console in a file.

use std::fs::File;
use std::path::Path;

use firecracker_rs_sdk::firecracker::FirecrackerOption;
use firecracker_rs_sdk::instance::Instance;
use firecracker_rs_sdk::models::{
    BackendType, Balloon, BootSource, InstanceState as State, LogLevel, Logger,
    MachineConfiguration, MemoryBackend, SnapshotCreateParams, SnapshotLoadParams, SnapshotType,
    Vsock,
};

use crate::{Error, Setting, letters, step};

/// Boots, pauses, resumes, snapshots, and goes on from there in another process.
pub fn snapshot(setting: &Setting) -> Result<(), Error> {
    let console = setting.path("console");
    let mut first = start(setting, "first", &console)?;
    configure(setting, &mut first)?;
    expect(&mut first, State::NotStarted)?;
    first.start()?;
    expect(&mut first, State::Running)?;
    letters::wait(&console, 100)?;
    step("the guest speaks");

    first.pause()?;
    expect(&mut first, State::Paused)?;
    let before = std::fs::read(&console)?.len();
    let memory = first.get_machine_configuration()?.mem_size_mib;
    let config = first.get_export_vm_config()?;
    if memory != 64 || config.machine_config.as_ref().map(|m| m.mem_size_mib) != Some(64) {
        return Err(format!("{memory} MiB, and {config:?}").into());
    }
    let after = std::fs::read(&console)?.len();
    if after != before {
        return Err("a paused guest speaks".into());
    }
    first.resume()?;
    letters::wait(&console, before + 100)?;
    step("paused and resumed");

    first.pause()?;
    first.create_snapshot(&SnapshotCreateParams {
        mem_file_path: setting.path("memory"),
        snapshot_path: setting.path("state"),
        snapshot_type: Some(SnapshotType::Full),
        version: None,
    })?;
    let said = std::fs::read(&console)?;
    letters::check(&said)?;
    drop(first);
    step("snapshotted, and the process ended");

    let console = setting.path("console-of-second");
    let mut second = start(setting, "second", &console)?;
    second.load_snapshot(&SnapshotLoadParams {
        enable_diff_snapshots: None,
        mem_file_path: None,
        mem_backend: Some(MemoryBackend {
            backend_type: BackendType::File,
            backend_path: setting.path("memory"),
        }),
        resume_vm: Some(true),
        snapshot_path: setting.path("state"),
    })?;
    expect(&mut second, State::Running)?;
    let more = letters::wait(&console, 100)?;
    letters::check(&more)?;
    let last = *said.last().ok_or("the guest said nothing")?;
    if more[0] != letters::after(last) {
        return Err(format!("{:?} came after {:?}", more[0] as char, last as char).into());
    }
    step("loaded: the guest goes on where it was");
    Ok(())
}

/// A process with its console in a file.
fn start(setting: &Setting, name: &str, console: &Path) -> Result<Instance, Error> {
    File::create(console)?;
    let mut options = FirecrackerOption::new(&setting.vmm);
    let options = options
        .id(name)
        .api_sock(setting.path(&format!("{name}.sock")))
        .level("Info")
        .show_level()
        .http_api_max_payload_size(1 << 16)
        .log_path(Some(setting.path(&format!("{name}.log"))))
        .stdin("/dev/null")
        .stdout(console);
    let mut instance = options.build()?;
    instance.start_vmm()?;
    let version = instance.get_firecracker_version()?;
    step(&format!("{name}: speaks the API of {version:?}"));
    Ok(instance)
}

fn configure(setting: &Setting, instance: &mut Instance) -> Result<(), Error> {
    instance.put_machine_configuration(&MachineConfiguration {
        cpu_template: None,
        smt: Some(false),
        mem_size_mib: 64,
        track_dirty_pages: Some(true),
        vcpu_count: 1,
        huge_pages: None,
    })?;
    instance.put_guest_boot_source(&BootSource {
        boot_args: Some("console=ttyS0 reboot=k panic=1".to_owned()),
        initrd_path: None,
        kernel_image_path: setting.kernel.clone(),
    })?;
    instance.put_balloon(&Balloon {
        amount_mib: 0,
        deflate_on_oom: true,
        stats_polling_interval_s: Some(1),
    })?;
    instance.put_guest_vsock(&Vsock {
        guest_cid: 7,
        uds_path: setting.path("vsock"),
        vsock_id: Some("vsock0".to_owned()),
    })?;
    instance.put_logger(&Logger {
        level: Some(LogLevel::Info),
        log_path: setting.path("log"),
        show_level: None,
        show_log_origin: None,
        module: None,
    })?;
    Ok(())
}

fn expect(instance: &mut Instance, state: State) -> Result<(), Error> {
    let info = instance.describe_instance()?;
    match info.state == state {
        true => Ok(()),
        false => Err(format!("{info:?}, and not {state:?}").into()),
    }
}
