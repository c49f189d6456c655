//! Looking at a snapshot's directory: no machine is needed for it.

use std::fs::File;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::time::Instant;

use serde_json::json;
use tine_devices::virtio::block::layers::{self, Format, Layer};
use tine_snapshot::manifest::Disk;
use tine_snapshot::{Progress, Snapshot};

use crate::cli::failure::Failure;
use crate::cli::output;
use crate::cli::progress::ProgressLine;

/// `tine snapshot inspect`.
#[derive(clap::Args)]
pub struct Inspect {
    /// The snapshot
    #[arg(value_name = "DIR")]
    dir: PathBuf,
}

/// `tine snapshot verify`.
#[derive(clap::Args)]
pub struct Verify {
    /// Print a JSON object
    #[arg(long)]
    json: bool,
    /// The snapshot
    #[arg(value_name = "DIR")]
    dir: PathBuf,
}

/// `tine snapshot flatten`.
#[derive(clap::Args)]
pub struct Flatten {
    /// The snapshot
    #[arg(value_name = "DIR")]
    dir: PathBuf,
    /// The directory to make
    #[arg(value_name = "TARGET")]
    target: PathBuf,
}

fn failed(err: impl std::fmt::Display) -> Failure {
    Failure::new(err.to_string())
}

/// Prints the manifest, and the sections of the state.
pub fn inspect(args: &Inspect) -> Result<u8, Failure> {
    let snapshot = Snapshot::open(&args.dir).map_err(failed)?;
    let mut description = serde_json::to_value(snapshot.manifest()).map_err(failed)?;
    if snapshot.manifest().state.is_some() {
        let sections = snapshot.state().map_err(failed)?;
        let sections = sections.iter().map(|section| {
            json!({
                "name": section.name,
                "kind": section.kind,
                "version": section.version,
                "bytes": section.payload.len(),
            })
        });
        description["sections"] = sections.collect();
    }
    output::print(&output::pretty(&description))?;
    Ok(0)
}

/// Reads all of it.
pub fn verify(args: &Verify) -> Result<u8, Failure> {
    let start = Instant::now();
    let snapshot = Snapshot::open(&args.dir).map_err(failed)?;
    let report = snapshot.verify(progress("checked")).map_err(failed)?;
    let text = match args.json {
        true => output::pretty(&report),
        false => format!(
            "{} is whole: {} bytes checked in {:?}\n",
            args.dir.display(),
            report.memory_bytes + report.disk_bytes,
            start.elapsed()
        ),
    };
    output::print(&text)?;
    Ok(0)
}

/// Writes one that shares nothing.
pub fn flatten(args: &Flatten) -> Result<u8, Failure> {
    let snapshot = Snapshot::open(&args.dir).map_err(failed)?;
    let mut disks = one_file;
    let made = tine_snapshot::flatten(&snapshot, &args.target, &mut disks, progress("written"));
    let made = made.map_err(failed)?;
    output::print(&format!("{}\n", made.manifest().id))?;
    Ok(0)
}

/// Makes one file of a disk's layers.
fn one_file(
    disk: &Disk,
    files: Vec<File>,
    path: &Path,
) -> Result<Format, Box<dyn std::error::Error>> {
    let mut opened = Vec::with_capacity(files.len());
    for (file, layer) in files.into_iter().zip(&disk.layers) {
        opened.push(Layer::from_file(
            Path::new(&layer.file),
            file,
            layer.format,
        )?);
    }
    layers::flatten(opened, path, Format::Qcow2, |_| ControlFlow::Continue(()))?;
    Ok(Format::Qcow2)
}

/// Shows how far it is, where somebody may be looking.
fn progress(done: &'static str) -> impl FnMut(Progress) -> ControlFlow<()> + Send + 'static {
    let mut line = ProgressLine::new(done);
    move |progress: Progress| {
        line.show(progress.done, progress.total);
        ControlFlow::Continue(())
    }
}
