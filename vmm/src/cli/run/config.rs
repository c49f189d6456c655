//! From the options to what a machine is to be: for this process, and as a request to another.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use tine::config::{ConsoleConfig, MachineConfig};
use tine::image::{Image, NoImage};
use tine_devices::virtio::block::{BlockConfig, LowerConfig};

use super::Args;

/// The machine of this process.
pub fn local(args: &Args) -> Result<MachineConfig, NoImage> {
    let built = match (&args.kernel, &args.initrd) {
        (Some(_), Some(_)) => None,
        (Some(_), None) if !args.needs_agent() => None,
        _ => Some(Image::built()?),
    };
    let built = built.as_ref();
    let kernel = args
        .kernel
        .clone()
        .or_else(|| built.map(|image| image.kernel.clone()));
    let mut config = MachineConfig::new(kernel.unwrap_or_default());
    config.initrd = args
        .initrd
        .clone()
        .or_else(|| built.map(|image| image.initramfs.clone()));
    config.cmdline = args.cmdline.clone();
    config.vcpus = args.vcpus;
    config.memory = args.memory;
    config.console = args.console.clone().unwrap_or_default();
    config.root_drive = args.rootfs.as_ref().map(|_| 0);
    for (number, drive) in args.rootfs.iter().chain(&args.disks).enumerate() {
        let id = match (number, &args.rootfs) {
            (0, Some(_)) => "root".to_owned(),
            (number, _) => format!("disk{number}"),
        };
        let mut block = BlockConfig::new(id, drive.path.clone());
        block.read_only = drive.read_only;
        block.format = drive.format;
        config.drives.push(block);
    }
    Ok(config)
}

/// The same machine as the body of `PUT /v1/config`, for a process that works elsewhere: all paths
/// are absolute.
pub fn remote(config: &MachineConfig) -> std::io::Result<Value> {
    let path = |path: &PathBuf| std::path::absolute(path);
    let console: PathBuf = match &config.console {
        ConsoleConfig::None => "none".into(),
        ConsoleConfig::Stdout => "stdout".into(),
        ConsoleConfig::File(file) => path(file)?,
    };
    let mut drives = Vec::new();
    for (number, drive) in config.drives.iter().enumerate() {
        drives.push(json!({
            "id": drive.id,
            "path": path(&drive.path)?,
            "read_only": drive.read_only,
            "root": config.root_drive == Some(number),
            "serial": drive.serial,
            "format": drive.format,
            "lower": lower(drive)?,
            "own": drive.own,
        }));
    }
    Ok(json!({
        "vcpus": config.vcpus,
        "memory_mib": config.memory >> 20,
        "kernel": path(&config.kernel)?,
        "initrd": config.initrd.as_ref().map(path).transpose()?,
        "cmdline": config.cmdline,
        "drives": drives,
        "console": console,
    }))
}

/// What a drive's image lies over.
fn lower(drive: &BlockConfig) -> std::io::Result<Vec<Value>> {
    let lower = drive.lower.iter();
    let one = |lower: &LowerConfig| {
        Ok(json!({ "path": std::path::absolute(&lower.path)?, "format": lower.format }))
    };
    lower.map(one).collect()
}

/// Where the console of a machine that stays goes, and the words for its kernel: into its
/// directory, unless something else was asked for. Each byte of it costs boot time, so the kernel
/// is told to say no more than it has to.
pub fn keep_console(config: &mut MachineConfig, given: bool, file: &Path) {
    if !given {
        config.console = ConsoleConfig::File(file.to_owned());
        config.cmdline = format!("quiet {}", config.cmdline);
    }
}
