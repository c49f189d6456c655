//! Writing a captured machine into a snapshot's directory: in the background, as the machine goes
//! on meanwhile.

use std::ops::{ControlFlow, Range};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::time::SystemTime;

use serde_json::Value;
use tine_snapshot::manifest::{self, Kind, Manifest, Parent, Region};
use tine_snapshot::pair::{self, MemoryFile};
use tine_snapshot::{
    DiskSource, Facts, MemoryWriter, Progress, ReadError, Snapshot, SnapshotWriter, WriteError,
};

use super::{Description, Place, host};
use crate::clock;
use crate::layout;
use crate::machine::{Capture, CapturedDisk};
use crate::memory::{Image, Stored};
use crate::vcpu::state::VcpuState;

/// How much is read and written in one go, in bytes.
const PART: usize = 1 << 20;

/// A captured machine, with what its manifest says.
pub struct Save {
    /// The machine.
    pub capture: Capture,
    /// Its devices.
    pub description: Description,
    /// When it stood still.
    pub at: SystemTime,
    /// How often its line was restored or forked before.
    pub generation: u64,
}

impl Save {
    /// Writes the snapshot to a place, and gives what it says of itself.
    pub fn write(
        &self,
        place: &Place,
        report: impl FnMut(Progress) -> ControlFlow<()> + Send + 'static,
    ) -> Result<Manifest, WriteError> {
        match place {
            Place::Directory(dir) => {
                let snapshot = self.write_directory(dir, report)?;
                Ok(snapshot.manifest().clone())
            }
            Place::Pair { state, memory } => self.write_pair(state, memory, report),
            Place::Fork(socket) | Place::Served { socket, .. } => Err(WriteError::Invalid {
                path: socket.clone(),
                reason: "a socket is not a place for a snapshot".to_owned(),
            }),
        }
    }

    /// Writes two files, which take the place of files of the same names.
    fn write_pair(
        &self,
        state: &Path,
        memory: &Path,
        report: impl FnMut(Progress) -> ControlFlow<()> + Send + 'static,
    ) -> Result<Manifest, WriteError> {
        self.sync_disks(state)?;
        let image = &self.capture.memory;
        let source = |source| unreadable(memory, source);
        let data = image.data().map_err(source)?;
        let mut file = MemoryFile::begin(memory, image.size)?;
        file.on_progress(total(&data), report);
        for_each_part(image, &data, source, |at, part| file.write(at, part))?;
        let written = file.finish()?;
        pair::write_state(state, self.facts(None)?, &self.capture.sections, written)
    }

    /// Writes the snapshot `target`, a directory that is not there yet. Where most of memory is in
    /// an earlier snapshot already, that is taken over and the rest written.
    ///
    /// `report` is told of progress; when it breaks, nothing is left.
    fn write_directory(
        &self,
        target: &Path,
        report: impl FnMut(Progress) -> ControlFlow<()> + Send + 'static,
    ) -> Result<Snapshot, WriteError> {
        let image = &self.capture.memory;
        let mut writer = SnapshotWriter::begin(target)?;
        writer.on_progress(report);
        let parent = below(image);
        let depth = parent.as_ref().map_or(0, |(depth, _)| *depth);
        let part = image.above(depth);
        let source = |source| unreadable(target, source);
        let data = part.data().map_err(source)?;
        writer.reserve(total(&data))?;
        writer.write_state(&self.capture.sections)?;
        add_disks(&self.capture.disks, &mut writer)?;
        if let Some((_, parent)) = &parent {
            writer.link_memory_layers(parent)?;
        }
        if parent.is_none() || !part.layers.is_empty() {
            let mut layer = writer.memory_layer(image.size)?;
            let gaps = match parent {
                // Below the first layer everything is zero anyway.
                None => Vec::new(),
                Some(_) => gaps(&part, &data),
            };
            write_memory(&mut layer, &part, &data, &gaps, source)?;
            layer.finish()?;
        }
        let parent = parent.map(|(_, parent)| Parent {
            id: parent.manifest().id,
            note: parent.path().display().to_string(),
        });
        let snapshot = writer.finish(self.facts(parent)?)?;
        if let Some(top) = image.layers.last() {
            top.set_stored(Stored {
                dir: snapshot.path().to_owned(),
                snapshot: snapshot.manifest().id,
            });
        }
        Ok(snapshot)
    }

    /// Makes durable what is in the disks' files, which stay where they are.
    fn sync_disks(&self, state: &Path) -> Result<(), WriteError> {
        for layer in self.capture.disks.iter().flat_map(|disk| &disk.layers) {
            let path = layer.path().to_owned();
            if path.to_str().is_none() {
                return Err(WriteError::Invalid {
                    path: state.to_owned(),
                    reason: format!(
                        "it has to name the image {}, which is not UTF-8: rename the image",
                        path.display()
                    ),
                });
            }
            if layer.is_writable() {
                let synced = layer.file().sync_data();
                synced.map_err(|source| WriteError::Io {
                    action: "sync",
                    path,
                    source,
                })?;
            }
        }
        Ok(())
    }

    fn facts(&self, parent: Option<Parent>) -> Result<Facts, ReadError> {
        let vcpu = self.capture.sections.iter();
        let vcpu = vcpu
            .filter_map(|section| section.decode::<VcpuState>().ok())
            .next();
        let vcpu = vcpu.expect("a captured machine has a vCPU");
        let regions = layout::ram_ranges(self.capture.memory.size).into_iter();
        Ok(Facts {
            kind: Kind::Full,
            parent,
            created_at: clock::rfc3339(self.at),
            tine_version: env!("CARGO_PKG_VERSION").to_owned(),
            generation: self.generation,
            machine: machine(&self.description),
            host: host::facts(&vcpu),
            regions: regions
                .map(|range| Region {
                    guest_address: range.start,
                    length: range.end - range.start,
                })
                .collect(),
        })
    }
}

/// The disks of a machine alone, with what their manifest says.
pub struct SaveDisks {
    /// The disks, frozen.
    pub disks: Arc<Vec<CapturedDisk>>,
    /// The machine's devices.
    pub description: Description,
    /// When they were frozen.
    pub at: SystemTime,
    /// How often the machine's line was restored or forked before.
    pub generation: u64,
}

impl SaveDisks {
    /// Writes the snapshot `target`, a directory that is not there yet. `report` is told of
    /// progress; when it breaks, nothing is left.
    pub fn write(
        &self,
        target: &Path,
        report: impl FnMut(Progress) -> ControlFlow<()> + Send + 'static,
    ) -> Result<Snapshot, WriteError> {
        let mut writer = SnapshotWriter::begin(target)?;
        writer.on_progress(report);
        add_disks(&self.disks, &mut writer)?;
        writer.finish(Facts {
            kind: Kind::Disk,
            parent: None,
            created_at: clock::rfc3339(self.at),
            tine_version: env!("CARGO_PKG_VERSION").to_owned(),
            generation: self.generation,
            machine: machine(&self.description),
            host: host::any(),
            regions: Vec::new(),
        })
    }
}

fn machine(description: &Description) -> manifest::Machine {
    manifest::Machine {
        vcpus: u32::from(description.vcpus),
        memory_bytes: description.memory,
        config: serde_json::to_value(description).unwrap_or(Value::Null),
    }
}

/// The disks' files: those that are the machine's own become part of the snapshot as they are.
fn add_disks(disks: &[CapturedDisk], writer: &mut SnapshotWriter) -> Result<(), WriteError> {
    for disk in disks {
        writer.begin_disk(&disk.drive, disk.read_only)?;
        for layer in &disk.layers {
            writer.add_disk_layer(&DiskSource {
                file: layer.file(),
                format: layer.format(),
                virtual_size: layer.virtual_size(),
                frozen: disk.owned,
                checksum: false,
            })?;
        }
    }
    Ok(())
}

/// The snapshot that has most of the lower layers, and how many. One that is gone, or has become
/// another one, counts for nothing.
fn below(image: &Image) -> Option<(usize, Snapshot)> {
    (1..=image.layers.len()).rev().find_map(|depth| {
        let stored = image.layers[depth - 1].stored()?;
        let snapshot = Snapshot::open(&stored.dir).ok()?;
        (snapshot.manifest().id == stored.snapshot).then_some((depth, snapshot))
    })
}

/// What the layers of `part` cover without having data there: zeros over what is below.
fn gaps(part: &Image, data: &[(Range<u64>, usize)]) -> Vec<Range<u64>> {
    let mut gaps = Vec::new();
    let mut data = data.iter().map(|(range, _)| range).peekable();
    for covered in part.covered() {
        let mut at = covered.start;
        while let Some(range) = data.next_if(|range| range.start < covered.end) {
            if range.start > at {
                gaps.push(at..range.start);
            }
            at = range.end;
        }
        if at < covered.end {
            gaps.push(at..covered.end);
        }
    }
    gaps
}

fn total(data: &[(Range<u64>, usize)]) -> u64 {
    data.iter().map(|(range, _)| range.end - range.start).sum()
}

fn unreadable(target: &Path, source: std::io::Error) -> WriteError {
    WriteError::Io {
        action: "read guest memory for",
        path: target.to_owned(),
        source,
    }
}

/// Reads data in the order of its offsets.
fn for_each_part(
    image: &Image,
    data: &[(Range<u64>, usize)],
    failed: impl Fn(std::io::Error) -> WriteError,
    mut each: impl FnMut(u64, &[u8]) -> Result<(), WriteError>,
) -> Result<(), WriteError> {
    let mut buffer = vec![0; PART];
    for (range, index) in data {
        let file = &image.layers[*index].file;
        for start in range.clone().step_by(PART) {
            let len = (range.end - start).min(PART as u64) as usize;
            let part = &mut buffer[..len];
            file.read_exact_at(part, start).map_err(&failed)?;
            each(start, part)?;
        }
    }
    Ok(())
}

/// Writes data and gaps in the order of their offsets.
fn write_memory(
    layer: &mut MemoryWriter<'_>,
    image: &Image,
    data: &[(Range<u64>, usize)],
    gaps: &[Range<u64>],
    failed: impl Fn(std::io::Error) -> WriteError,
) -> Result<(), WriteError> {
    let mut gaps = gaps.iter().peekable();
    for_each_part(image, data, failed, |at, part| {
        while let Some(gap) = gaps.next_if(|gap| gap.start < at) {
            layer.zero(gap.start, gap.end - gap.start)?;
        }
        layer.write(at, part)
    })?;
    gaps.try_for_each(|gap| layer.zero(gap.start, gap.end - gap.start))
}
