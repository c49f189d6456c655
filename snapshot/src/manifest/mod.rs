//! The manifest: what a snapshot is and which files belong to it (`FORMAT.md`, "manifest.json").
//!
//! Plain data. [`Manifest::parse`] checks the text's own checksum, its version and everything that
//! can be checked without another file.

mod check;
mod text;

use serde::{Deserialize, Serialize};

use crate::checksum::Checksum;
use crate::id::Id;

pub(crate) use check::Form;

/// The manifest's file.
pub const FILE: &str = "manifest.json";
/// What [`Manifest::format`] says.
pub const FORMAT: &str = "tine-snapshot";
/// The newest version that this build reads, and the one it writes.
pub const VERSION: u32 = 1;
/// A manifest is no longer than this.
pub const MAX_LEN: u64 = 1 << 20;
/// Guest memory is no larger than this: 4 TiB.
pub const MAX_MEMORY: u64 = 1 << 42;
/// Layers that one memory or one disk has at most. What has more is to be flattened first.
pub const MAX_LAYERS: usize = 128;
/// Drives that a machine has at most.
pub const MAX_DISKS: usize = 64;
/// Ranges of guest addresses that memory is made of at most.
pub const MAX_REGIONS: usize = 64;

/// What `manifest.json` says.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    /// [`FORMAT`].
    pub format: String,
    /// The format's version.
    pub version: u32,
    /// The snapshot's own name, for ever.
    pub id: Id,
    /// What is in it.
    pub kind: Kind,
    /// The snapshot that this one's lower layers come from. For people: nothing is read from it.
    pub parent: Option<Parent>,
    /// When the machine stood still: RFC 3339, UTC.
    pub created_at: String,
    /// The version of Tine that wrote it.
    pub tine_version: String,
    /// How often the machine's line was restored or forked before.
    pub generation: u64,
    /// The machine.
    pub machine: Machine,
    /// The host it ran on.
    pub host: Host,
    /// The file `state`.
    pub state: Option<StateFile>,
    /// Guest memory, of a full snapshot.
    pub memory: Option<Memory>,
    /// The disks, in the machine's order.
    pub disks: Vec<Disk>,
}

/// What a snapshot holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// State, memory and disks: processes go on.
    Full,
    /// The disks alone: the next start is a boot.
    Disk,
}

/// The snapshot before.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Parent {
    /// Its id.
    pub id: Id,
    /// Where it was, or what it was called then.
    pub note: String,
}

/// The machine that the snapshot is of.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Machine {
    /// Its processors.
    pub vcpus: u32,
    /// Its memory.
    pub memory_bytes: u64,
    /// Its configuration: whatever the monitor needs to make it again. Not looked into here.
    pub config: serde_json::Value,
}

/// Facts of the host that decide where a full snapshot can be restored.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Host {
    /// Such as `GenuineIntel`.
    pub cpu_vendor: String,
    /// The processor's own name.
    pub cpu_model: String,
    /// Who runs guest code.
    pub kvm: Kvm,
    /// What guests see as the frequency of the time stamp counter.
    pub tsc_khz: u32,
    /// Features that the guest was shown, as words, such as `avx2`.
    pub cpuid_features: Vec<String>,
}

/// Who runs guest code.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kvm {
    /// VT-x or SVM.
    Hardware,
    /// KVM that interprets the guest's kernel.
    Software,
}

/// The file `state`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StateFile {
    /// Its length.
    pub length: u64,
    /// Over all of it.
    pub checksum: Checksum,
}

/// Guest memory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Memory {
    /// All of it, in bytes.
    pub size: u64,
    /// Bytes in a page: [`crate::PAGE`].
    pub page: u64,
    /// Where the guest has it, in the order in which it stands in the files.
    pub regions: Vec<Region>,
    /// The files, the lowest first.
    pub layers: Vec<MemoryLayer>,
}

/// A range of guest addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Region {
    /// Its first address.
    pub guest_address: u64,
    /// Its length in bytes.
    pub length: u64,
}

/// One layer of memory: a file of pages and its index.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MemoryLayer {
    /// `memory-N`.
    pub file: String,
    /// `memory-N.index`.
    pub index: String,
    /// What both files say they are.
    pub id: Id,
    /// The length of the index in bytes.
    pub index_length: u64,
    /// Over all of the index.
    pub index_checksum: Checksum,
    /// Bytes of pages in the file that are not holes.
    pub stored_bytes: u64,
}

/// One disk.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Disk {
    /// The drive's id.
    pub drive: String,
    /// The guest cannot write to it.
    pub read_only: bool,
    /// The files, the lowest first.
    pub layers: Vec<DiskLayer>,
}

/// One layer of a disk.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DiskLayer {
    /// `disk-DRIVE-N.raw` or `disk-DRIVE-N.qcow2`.
    pub file: String,
    /// How the disk is in the file.
    pub format: DiskFormat,
    /// The layer's own name.
    pub id: Id,
    /// Bytes of the disk that the guest sees through this layer.
    pub virtual_size: u64,
    /// Bytes in the file.
    pub file_length: u64,
    /// Over the file's first [`HEAD`] bytes: a quick look whether it is the right file.
    pub head_checksum: Checksum,
    /// Over all of the file, as `FORMAT.md` ("Disks") defines it.
    pub checksum: Option<Checksum>,
}

/// How much of a disk's file [`DiskLayer::head_checksum`] is over.
pub const HEAD: u64 = 256 << 10;

/// How a disk is in a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DiskFormat {
    /// Byte by byte.
    Raw,
    /// qcow2; everything below the lowest layer is zeroes.
    Qcow2,
}

impl DiskFormat {
    /// As it stands in file names.
    pub fn extension(self) -> &'static str {
        match self {
            Self::Raw => "raw",
            Self::Qcow2 => "qcow2",
        }
    }
}

/// The file of memory layer `n`.
pub(crate) fn memory_file(n: usize) -> String {
    format!("memory-{n}")
}

/// The index of memory layer `n`.
pub(crate) fn index_file(n: usize) -> String {
    format!("memory-{n}.index")
}

/// The file of layer `n` of a drive.
pub fn disk_file(drive: &str, n: usize, format: DiskFormat) -> String {
    format!("disk-{drive}-{n}.{}", format.extension())
}

/// Whether a drive's id can be part of a file's name.
pub fn is_drive_id(id: &str) -> bool {
    (1..=64).contains(&id.len())
        && id
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-'))
}
