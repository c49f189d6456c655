//! fctools: a Linux guest whose agent answers over vsock, and a bare-metal one by a JSON file.

use std::time::Duration;

use bytes::Bytes;
use fctools::extension::http_vsock::VmVsockHttp;
use fctools::process_spawner::DirectProcessSpawner;
use fctools::runtime::tokio::TokioRuntime;
use fctools::vm::api::VmApi;
use fctools::vm::configuration::{InitMethod, VmConfiguration, VmConfigurationData};
use fctools::vm::models::{
    BalloonDevice, BootSource, CreateSnapshot, EntropyDevice, LoggerSystem, MachineConfiguration,
    SnapshotType, VsockDevice,
};
use fctools::vm::shutdown::{VmShutdownAction, VmShutdownMethod};
use fctools::vm::snapshot::PrepareVmFromSnapshotOptions;
use fctools::vm::{Vm, VmState};
use fctools::vmm::arguments::{VmmApiSocket, VmmArguments, VmmLogLevel, VmmSeccompFilter};
use fctools::vmm::executor::unrestricted::UnrestrictedVmmExecutor;
use fctools::vmm::id::VmmId;
use fctools::vmm::installation::VmmInstallation;
use fctools::vmm::ownership::VmmOwnershipModel;
use fctools::vmm::resource::system::ResourceSystem;
use fctools::vmm::resource::{CreatedResourceType, MovedResourceType, ResourceType};
use futures_util::AsyncReadExt;
use http::{Request, StatusCode};
use http_body_util::{BodyExt, Full};
use serde_json::{Value, json};

use crate::{Error, Setting, letters, step};

type Machine = Vm<UnrestrictedVmmExecutor, DirectProcessSpawner, TokioRuntime>;
type Resources = ResourceSystem<DirectProcessSpawner, TokioRuntime>;

/// The guest's vsock port on which its agent serves HTTP.
const AGENT: u32 = 1024;
/// A guest kernel may be interpreted, beside others.
const BOOT: Duration = Duration::from_secs(300);
const SOCKET: Duration = Duration::from_secs(20);
const MOVED: ResourceType = ResourceType::Moved(MovedResourceType::HardLinkedOrCopied);

fn block_on<T>(future: impl Future<Output = Result<T, Error>>) -> Result<T, Error> {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    builder.enable_all().build()?.block_on(future)
}

/// Boots Linux, pauses, resumes, snapshots, and goes on from there in another process.
pub fn snapshot_of_linux(setting: &Setting) -> Result<(), Error> {
    block_on(async {
        let mut resources = resources();
        let uds = resources.create_resource(setting.path("vsock"), ResourceType::Produced)?;
        let mut data = data(setting, &mut resources, 128)?;
        data.vsock_device = Some(VsockDevice { guest_cid: 9, uds });
        data.balloon_device = Some(BalloonDevice {
            amount_mib: 0,
            deflate_on_oom: true,
            stats_polling_interval_s: Some(1),
            free_page_reporting: Some(true),
        });
        data.entropy_device = Some(EntropyDevice::default());
        let log = ResourceType::Created(CreatedResourceType::File);
        data.logger_system = Some(LoggerSystem {
            logs: Some(resources.create_resource(setting.path("log"), log)?),
            level: Some(VmmLogLevel::Warn),
            show_level: Some(true),
            show_log_origin: Some(false),
            module: None,
        });
        let arguments = VmmArguments::new(VmmApiSocket::Enabled(setting.path("first.sock")))
            .api_max_payload_bytes(1 << 16)
            .mmds_size_limit(1 << 16)
            .seccomp_filter(VmmSeccompFilter::Disabled);
        let executor = UnrestrictedVmmExecutor::new(arguments).id(VmmId::new("the-first")?);
        let configuration = VmConfiguration::New {
            init_method: InitMethod::ViaApiCalls,
            data,
        };
        let installation = installation(setting);
        let mut first = Vm::prepare(executor, resources, installation, configuration).await?;
        first.start(SOCKET).await?;
        step("started");
        wait_for_agent(&first).await?;
        let script = "echo kept > /run/kept; cat /proc/sys/kernel/random/boot_id";
        let ran = sh(&first, "before", script).await?;
        step("the guest's agent answers over vsock");

        first.pause().await?;
        let info = first.get_info().await?;
        if !info.is_paused || info.id != "the-first" {
            return Err(format!("paused, and {info:?}").into());
        }
        first.resume().await?;
        sh(&first, "between", "test -e /run/kept").await?;
        let memory = first.get_machine_configuration().await?.mem_size_mib;
        let balloon = first.get_balloon_device().await?;
        if memory != 128 || balloon.stats_polling_interval_s != Some(1) {
            return Err(format!("{memory} MiB, {balloon:?}").into());
        }
        step("paused and resumed");

        first.pause().await?;
        let system = first.get_resource_system_mut();
        let request = CreateSnapshot {
            snapshot_type: Some(SnapshotType::Full),
            snapshot: system.create_resource(setting.path("state"), ResourceType::Produced)?,
            mem_file: system.create_resource(setting.path("memory"), ResourceType::Produced)?,
        };
        let snapshot = first.create_snapshot(request).await?;
        kill(&mut first).await?;
        step("snapshotted, and the process killed");

        let arguments = VmmArguments::new(VmmApiSocket::Enabled(setting.path("second.sock")));
        let options = PrepareVmFromSnapshotOptions {
            executor: UnrestrictedVmmExecutor::new(arguments),
            process_spawner: DirectProcessSpawner,
            runtime: TokioRuntime,
            moved_resource_type: MovedResourceType::HardLinkedOrCopied,
            ownership_model: VmmOwnershipModel::Shared,
            track_dirty_pages: Some(true),
            resume_vm: Some(true),
            network_overrides: Vec::new(),
        };
        let mut second = snapshot.prepare_vm(&mut first, options).await?;
        second.start(SOCKET).await?;
        if second.get_info().await?.is_paused {
            return Err("loaded with resume_vm, and paused".into());
        }
        // The agent's own memory, a file in the guest's memory, and a new process.
        let uri = "/v1/exec/before";
        let (_, kept) = ask(&second, "GET", uri, Value::Null).await?;
        let again = sh(&second, "after", &format!("{script}; cat /run/kept")).await?;
        let boot_id = ran["stdout"].as_str().unwrap_or_default();
        if kept["stdout"] != ran["stdout"] || again["stdout"] != format!("{boot_id}kept\n") {
            return Err(format!("{ran}, then {kept} and {again}").into());
        }
        step("loaded: the guest goes on");
        second.pause().await?;
        second.resume().await?;
        kill(&mut second).await?;
        second.cleanup().await?;
        first.cleanup().await?;
        Ok(())
    })
}

/// The same configuration as a file that the process starts from.
pub fn boot_by_a_json_file(setting: &Setting) -> Result<(), Error> {
    block_on(async {
        let mut resources = resources();
        let mut data = data(setting, &mut resources, 64)?;
        let uds = resources.create_resource(setting.path("vsock"), ResourceType::Produced)?;
        data.vsock_device = Some(VsockDevice { guest_cid: 9, uds });
        let socket = VmmApiSocket::Enabled(setting.path("api.sock"));
        let executor = UnrestrictedVmmExecutor::new(VmmArguments::new(socket).enable_boot_timer());
        let configuration = VmConfiguration::New {
            init_method: InitMethod::ViaJsonConfiguration(setting.path("config.json")),
            data,
        };
        let installation = installation(setting);
        let mut vm: Machine = Vm::prepare(executor, resources, installation, configuration).await?;
        vm.start(SOCKET).await?;
        let mut pipes = vm.take_pipes()?;
        let mut said = vec![0; 100];
        pipes.stdout.read_exact(&mut said).await?;
        // With the boot timer there is a log, on standard output as well; the guest comes later.
        let from = said.iter().rposition(|byte| *byte == b'\n').unwrap_or(0);
        letters::check(&said[from..])?;
        vm.pause().await?;
        vm.resume().await?;
        pipes.stdout.read_exact(&mut said).await?;
        letters::check(&said)?;
        step("the guest speaks on a pipe");
        kill(&mut vm).await?;
        vm.cleanup().await?;
        Ok(())
    })
}

fn resources() -> Resources {
    ResourceSystem::new(
        DirectProcessSpawner,
        TokioRuntime,
        VmmOwnershipModel::Shared,
    )
}

/// Only the first of the three programs is ever started.
fn installation(setting: &Setting) -> VmmInstallation {
    VmmInstallation::new(&setting.vmm, &setting.vmm, &setting.vmm)
}

fn data(setting: &Setting, to: &mut Resources, mib: usize) -> Result<VmConfigurationData, Error> {
    let initrd = setting.initrd.as_ref();
    Ok(VmConfigurationData {
        boot_source: BootSource {
            kernel_image: to.create_resource(&setting.kernel, MOVED)?,
            boot_args: Some("console=ttyS0 reboot=k".to_owned()),
            initrd: initrd
                .map(|path| to.create_resource(path, MOVED))
                .transpose()?,
        },
        drives: Vec::new(),
        pmem_devices: Vec::new(),
        machine_configuration: MachineConfiguration {
            vcpu_count: 1,
            mem_size_mib: mib,
            smt: Some(false),
            track_dirty_pages: Some(true),
            huge_pages: None,
        },
        cpu_template: None,
        network_interfaces: Vec::new(),
        balloon_device: None,
        vsock_device: None,
        logger_system: None,
        metrics_system: None,
        memory_hotplug_configuration: None,
        mmds_configuration: None,
        entropy_device: None,
    })
}

/// Asks the agent, by the SDK's own HTTP over vsock.
async fn ask(
    vm: &Machine,
    method: &str,
    uri: &str,
    body: Value,
) -> Result<(StatusCode, Value), Error> {
    let client = vm.connect_to_http_over_vsock(AGENT).await?;
    let body = match body {
        Value::Null => Bytes::new(),
        body => Bytes::from(body.to_string()),
    };
    let request = Request::builder().method(method).uri(uri);
    let request = request.header("host", "guest").body(Full::new(body))?;
    let answer = client.send_request(request).await?;
    let status = answer.status();
    let bytes = answer.into_body().collect().await?.to_bytes();
    Ok((status, serde_json::from_slice(&bytes)?))
}

async fn wait_for_agent(vm: &Machine) -> Result<(), Error> {
    let answers = async {
        while ask(vm, "GET", "/v1/health", Value::Null).await.is_err() {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    let answered = tokio::time::timeout(BOOT, answers).await;
    answered.map_err(|_| "the guest's agent does not answer".into())
}

/// Runs a shell script in the guest, which has to end well.
async fn sh(vm: &Machine, id: &str, script: &str) -> Result<Value, Error> {
    let request = json!({"request_id": id, "argv": ["sh", "-c", script]});
    let (status, record) = ask(vm, "POST", "/v1/exec", request).await?;
    match status == StatusCode::OK && record["exit_code"] == 0 {
        true => Ok(record),
        false => Err(format!("{script}: {status}: {record}").into()),
    }
}

async fn kill(vm: &mut Machine) -> Result<(), Error> {
    let action = VmShutdownAction {
        method: VmShutdownMethod::Kill,
        timeout: Some(SOCKET),
        graceful: false,
    };
    vm.shutdown([action]).await?;
    match vm.get_state() {
        VmState::Exited | VmState::Crashed(_) => Ok(()),
        other => Err(format!("killed, and {other}").into()),
    }
}
