//! `tine template build`: a machine is started, prepared, and kept as a version.
//!
//! The machine is a process of its own, with a directory among the others: `tine exec` and `tine
//! logs` look into it meanwhile. It ends with this process, however that ends.

use std::time::{Duration, SystemTime};

use serde_json::json;
use tine::client::Machine;
use tine::clock;
use tine::config::MachineConfig;
use tine::image::Image;
use tine_devices::virtio::block::layers::{self, Backing, Layer};
use tine_devices::virtio::block::{BlockConfig, LowerConfig};
use tine_snapshot::Snapshot;
use tine_snapshot::manifest::{Kind, disk_file};

use super::building::Building;
use super::plan::{From, Options, Plan};
use super::prepare::prepare;
use super::record::{self, Version};
use super::store::Store;
use super::working_set;
use crate::cli::exit::TIMED_OUT;
use crate::cli::failure::Failure;
use crate::cli::jail::{Choice, Files};
use crate::cli::process::Process;
use crate::cli::run::config::keep_console;
use crate::cli::rundir::{self, CONSOLE};
use crate::cli::session::Signals;
use crate::cli::{output, parse, restore};

/// `tine template build`.
#[derive(clap::Args)]
#[command(after_help = "\
A machine is started, files are copied into it, the commands are run by its `sh` one after the other,
and a full snapshot of it becomes the next version, and the active one. If any of that fails, nothing
is left. The image, or the snapshot, that it starts from is not changed.

A recipe holds the same as the options, which come on top of it:
  rootfs = \"debian.ext4\"        # or snapshot = \"DIR\"
  memory = \"512M\"
  vcpus = 2
  run = [\"make -C /work/src\"]
  [files]
  \"src\" = \"/work/src\"
  [environment]
  LANG = \"C.UTF-8\"

Examples:
  tine template build web --from debian.ext4 --file src:/work/src --run 'make -C /work/src'
  tine template build web --recipe tine.toml
  tine run --template web -- /work/src/test")]
pub struct Args {
    /// Its name
    #[arg(value_name = "NAME", value_parser = record::name)]
    name: String,
    #[command(flatten)]
    options: Options,
    /// Leave the version that is active as it is
    #[arg(long)]
    no_activate: bool,
    /// The time that all of it may take (status 124)
    #[arg(long, value_name = "TIME", value_parser = parse::duration)]
    timeout: Option<Duration>,
    /// Print a JSON object
    #[arg(long)]
    json: bool,
}

/// Builds the version; the result is the status to exit with.
pub async fn build(args: Args) -> Result<u8, Failure> {
    let (name, options) = (args.name, args.options);
    let plan = Plan::of(options)?;
    let signals = Signals::watch()?;
    let store = Store::of_user()?;
    let building = store.begin()?;
    let id = building.machine_id();
    building.note_machine(&rundir::root()?.join(&id))?;
    let mut booting = match &plan.from {
        From::Snapshot(_) => None,
        From::Image(_) | From::Nothing => Some(config(&plan, &building)?),
    };
    let mut files = Choice::default().files()?;
    if let Some(files) = &mut files {
        show(files, &plan, &building, &mut booting)?;
    }
    let mut process = Process::prepare(Some(id), files)?.ending_with_this_one();
    let bring_up = async |process: &Process, machine: &Machine| {
        let made = make(&plan, booting, &building, process, machine);
        let Some(limit) = args.timeout else {
            return made.await;
        };
        let late = |_| Failure {
            status: TIMED_OUT,
            words: format!("it was not built within {limit:?}"),
        };
        tokio::time::timeout(limit, made).await.map_err(late)?
    };
    let made = process.bring_up(signals, bring_up).await;
    made.map_err(|failure| match failure.words.is_empty() {
        true => failure,
        false => Failure {
            words: format!("template {name}: {}", failure.words),
            ..failure
        },
    })?;
    process.clean_up();
    building.drop_scratch()?;
    building.check_snapshot()?;
    working_set::record(&building.snapshot(), &name).await?;
    let snapshot = Snapshot::open(&building.snapshot());
    let snapshot = snapshot.map_err(|err| Failure::new(err.to_string()))?;
    let machine = &snapshot.manifest().machine;
    let record = Version {
        created: clock::rfc3339(SystemTime::now()),
        from: plan.from.words(),
        run: plan.run,
        environment: plan.environment,
        memory: machine.memory_bytes,
        vcpus: machine.vcpus,
    };
    let version = store.publish(building, &name, &record, !args.no_activate)?;
    output::print(&match args.json {
        true => output::pretty(&json!({
            "name": name,
            "version": version,
            "active": !args.no_activate,
            "snapshot": store.version_dir(&name, version).join(super::store::SNAPSHOT),
        })),
        false => format!("{name}@{version}\n"),
    })?;
    Ok(0)
}

/// Shows in a jail what the machine is made of, and where it becomes a version.
fn show(
    files: &mut Files,
    plan: &Plan,
    building: &Building,
    booting: &mut Option<MachineConfig>,
) -> Result<(), Failure> {
    if let Some(dir) = building.snapshot().parent() {
        files.show(dir, true)?;
    }
    if let From::Snapshot(dir) = &plan.from {
        restore::show_snapshot(files, dir, &mut None)?;
    }
    match booting {
        Some(config) => files.show_machine(config),
        None => Ok(()),
    }
}

/// Starts the machine, prepares it, and takes the snapshot.
async fn make(
    plan: &Plan,
    mut config: Option<MachineConfig>,
    building: &Building,
    process: &Process,
    machine: &Machine,
) -> Result<(), Failure> {
    let console = process.dir.join(CONSOLE);
    let serial = json!({ "serial_out_path": console });
    process.put(machine, "/serial", &serial).await?;
    match &plan.from {
        From::Snapshot(dir) if restore::is_disks_alone(dir) => {
            let booting = restore::booting(&plain(dir), None, &process.dir);
            config = Some(booting.map_err(|err| process.failure(&err.to_string()))?.0);
        }
        From::Snapshot(dir) => {
            let request = json!({ "snapshot": plain(dir) });
            process.put(machine, "/v1/restore", &request).await?;
        }
        From::Image(_) | From::Nothing => {}
    }
    if let Some(config) = &mut config {
        keep_console(config, false, &console);
        let check = config.check();
        check.map_err(|err| Failure::new(err.to_string()))?;
        process.boot(machine, config).await?;
    }
    process.wait_until_running(machine, None).await?;
    prepare(plan, process, machine).await?;
    let snapshot = building.snapshot();
    let target = match (snapshot.parent(), snapshot.file_name()) {
        (Some(parent), Some(name)) => plain(parent).join(name),
        _ => snapshot,
    };
    let taken = machine.snapshot(&target, true).await;
    taken.map_err(|err| process.failure(&err.to_string()))?;
    Ok(())
}

/// A path as a jail shows it.
fn plain(path: &std::path::Path) -> std::path::PathBuf {
    path.canonicalize().unwrap_or_else(|_| path.to_owned())
}

/// A machine that boots. What it writes to its root file system goes into a layer over the image.
fn config(plan: &Plan, building: &Building) -> Result<MachineConfig, Failure> {
    let failed = |err: &dyn std::fmt::Display| Failure::new(err.to_string());
    let image = Image::built().map_err(|err| failed(&err))?;
    let mut config = MachineConfig::new(image.kernel);
    config.initrd = Some(image.initramfs);
    config.vcpus = plan.vcpus;
    config.memory = plan.memory;
    let From::Image(drive) = &plan.from else {
        return Ok(config);
    };
    let mut block = BlockConfig::new("root", drive.path.clone());
    block.format = drive.format;
    block.read_only = drive.read_only;
    if !drive.read_only {
        let image = Layer::open(&drive.path, drive.format).map_err(|err| failed(&err))?;
        // As the snapshot's directory is going to have it.
        let name = disk_file(&block.id, 0, drive.format);
        let backing = Backing {
            name: &name,
            format: drive.format,
        };
        block.path = building.scratch();
        block.format = layers::Format::Qcow2;
        layers::create(&block.path, image.virtual_size(), Some(backing))
            .map_err(|err| failed(&err))?;
        block.lower = vec![LowerConfig {
            path: drive.path.clone(),
            format: drive.format,
        }];
    }
    config.drives.push(block);
    config.root_drive = Some(0);
    Ok(config)
}

/// Whether a machine of the snapshot has an agent, which is what prepares it.
pub fn check_agent(dir: &std::path::Path) -> Result<(), Failure> {
    let snapshot = Snapshot::open(dir).map_err(|err| Failure::new(err.to_string()))?;
    let manifest = snapshot.manifest();
    match manifest.kind == Kind::Disk || manifest.machine.config["agent"] == true {
        true => Ok(()),
        false => Err(Failure::new(format!(
            "the snapshot {} is of a machine without an agent, so nothing can be prepared in it",
            dir.display()
        ))),
    }
}
