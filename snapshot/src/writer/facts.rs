//! What whoever takes a snapshot says about it.

use crate::id::Id;
use crate::manifest::{self, Host, Kind, Machine, Manifest, Memory, MemoryLayer, Parent, Region};
use crate::memory::PAGE;

/// What a manifest says that the writer does not know by itself.
#[derive(Debug, Clone)]
pub struct Facts {
    /// Full, with state and memory, or the disks alone.
    pub kind: Kind,
    /// The snapshot before, if this one builds on it.
    pub parent: Option<Parent>,
    /// When the machine stood still: RFC 3339, UTC.
    pub created_at: String,
    /// The version of Tine.
    pub tine_version: String,
    /// How often the machine's line was restored or forked before.
    pub generation: u64,
    /// The machine.
    pub machine: Machine,
    /// The host.
    pub host: Host,
    /// Where the guest has its memory. Empty without memory.
    pub regions: Vec<Region>,
}

impl Facts {
    /// The manifest, still without state and disks.
    pub(crate) fn into_manifest(self, id: Id, memory: Option<(u64, Vec<MemoryLayer>)>) -> Manifest {
        Manifest {
            format: manifest::FORMAT.to_owned(),
            version: manifest::VERSION,
            id,
            kind: self.kind,
            parent: self.parent,
            created_at: self.created_at,
            tine_version: self.tine_version,
            generation: self.generation,
            machine: self.machine,
            host: self.host,
            state: None,
            memory: memory.map(|(size, layers)| Memory {
                size,
                page: PAGE,
                regions: self.regions,
                layers,
            }),
            disks: Vec::new(),
        }
    }
}
