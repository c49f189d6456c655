//! What a manifest must fulfil by itself: names of files that lead nowhere else, sizes that fit
//! together, numbers within their bounds.

use super::{
    Disk, FORMAT, Kind, MAX_DISKS, MAX_LAYERS, MAX_MEMORY, MAX_REGIONS, Manifest, Memory, VERSION,
    disk_file, index_file, is_drive_id, memory_file,
};
use crate::memory::PAGE;
use crate::memory::index::MAX_INDEX;
use crate::state_file::MAX_STATE;

/// A field, and what is wrong with it.
pub(crate) struct Wrong {
    pub(crate) field: String,
    pub(crate) reason: String,
}

/// Where a manifest stands.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Form {
    /// In a directory.
    Directory,
    /// In the state of a pair of files.
    Pair,
}

fn wrong(field: impl Into<String>, reason: impl Into<String>) -> Wrong {
    Wrong {
        field: field.into(),
        reason: reason.into(),
    }
}

fn require(holds: bool, field: &str, reason: &str) -> Result<(), Wrong> {
    if holds {
        Ok(())
    } else {
        Err(wrong(field, reason))
    }
}

impl Manifest {
    /// Everything that can be said without another file.
    pub(crate) fn check(&self, form: Form) -> Result<(), Wrong> {
        require(self.format == FORMAT, "format", "not \"tine-snapshot\"")?;
        require(
            self.version == VERSION,
            "version",
            "there is no such version",
        )?;
        require(
            is_time(&self.created_at),
            "created_at",
            "no RFC 3339 time in UTC",
        )?;
        let full = self.kind == Kind::Full;
        match form {
            Form::Directory => {
                require(
                    !full || self.state.is_some(),
                    "state",
                    "a full snapshot has one",
                )?;
            }
            Form::Pair => {
                let layers = self.memory.as_ref().map_or(0, |memory| memory.layers.len());
                require(self.state.is_none(), "state", "this is it")?;
                require(layers == 1, "memory", "not one layer")?;
                require(
                    self.disks.is_empty(),
                    "disks",
                    "there are none in a pair of files",
                )?;
            }
        }
        require(
            self.memory.is_some() == full,
            "memory",
            "a full snapshot, and no other, has it",
        )?;
        if let Some(state) = &self.state {
            require(
                state.length <= MAX_STATE,
                "state.length",
                "more than a state can have",
            )?;
        }
        if let Some(memory) = &self.memory {
            memory.check()?;
            let machine = self.machine.memory_bytes;
            require(
                memory.size == machine,
                "memory.size",
                "not machine.memory_bytes",
            )?;
        }
        require(
            self.disks.len() <= MAX_DISKS,
            "disks",
            "more than a machine can have",
        )?;
        for (n, disk) in self.disks.iter().enumerate() {
            let field = format!("disks[{n}]");
            let twice = self.disks[..n]
                .iter()
                .any(|other| other.drive == disk.drive);
            require(!twice, &field, "a drive of this id stands before it")?;
            disk.check(&field)?;
        }
        Ok(())
    }
}

impl Memory {
    fn check(&self) -> Result<(), Wrong> {
        require(self.page == PAGE, "memory.page", "pages have 4096 bytes")?;
        let size = (1..=MAX_MEMORY).contains(&self.size) && self.size.is_multiple_of(PAGE);
        require(
            size,
            "memory.size",
            "not whole pages, none, or more than 4 TiB",
        )?;
        let count = (1..=MAX_REGIONS).contains(&self.regions.len());
        require(count, "memory.regions", "none, or more than a machine has")?;
        let (mut end, mut sum) = (0_u64, 0_u64);
        for (n, region) in self.regions.iter().enumerate() {
            let field = format!("memory.regions[{n}]");
            let next = region.guest_address.checked_add(region.length);
            let pages = region.length > 0
                && region.length.is_multiple_of(PAGE)
                && region.guest_address.is_multiple_of(PAGE);
            require(pages, &field, "not whole pages, or none")?;
            require(
                region.guest_address >= end,
                &field,
                "not behind the one before",
            )?;
            end = next.ok_or_else(|| wrong(&field, "goes beyond the last address"))?;
            // Disjoint ranges of 64-bit addresses: their sum cannot overflow.
            sum += region.length;
        }
        require(
            sum == self.size,
            "memory.regions",
            "do not add up to memory.size",
        )?;
        let count = (1..=MAX_LAYERS).contains(&self.layers.len());
        require(count, "memory.layers", "none, or more than 128")?;
        for (n, layer) in self.layers.iter().enumerate() {
            let field = format!("memory.layers[{n}]");
            let names = layer.file == memory_file(n) && layer.index == index_file(n);
            require(
                names,
                &field,
                "its files do not have the names that belong to it",
            )?;
            let twice = self.layers[..n].iter().any(|other| other.id == layer.id);
            require(!twice, &field, "the same layer stands below it")?;
            let stored = layer.stored_bytes <= self.size && layer.stored_bytes.is_multiple_of(PAGE);
            require(
                stored,
                &field,
                "stored_bytes is not whole pages of this memory",
            )?;
            require(
                layer.index_length <= MAX_INDEX,
                &field,
                "index_length is beyond its bound",
            )?;
        }
        Ok(())
    }
}

impl Disk {
    fn check(&self, field: &str) -> Result<(), Wrong> {
        require(
            is_drive_id(&self.drive),
            field,
            "its id cannot be in the name of a file",
        )?;
        let count = (1..=MAX_LAYERS).contains(&self.layers.len());
        require(count, field, "no layers, or more than 128")?;
        for (n, layer) in self.layers.iter().enumerate() {
            let field = format!("{field}.layers[{n}]");
            let name = disk_file(&self.drive, n, layer.format);
            require(
                layer.file == name,
                &field,
                "its file does not have the name that belongs to it",
            )?;
            let twice = self.layers[..n].iter().any(|other| other.id == layer.id);
            require(!twice, &field, "the same layer stands below it")?;
            let size =
                layer.virtual_size <= i64::MAX as u64 && layer.file_length <= i64::MAX as u64;
            require(size, &field, "larger than a file can be")?;
        }
        Ok(())
    }
}

/// `2026-01-31T12:34:56Z`, with or without a fraction of the second.
fn is_time(text: &str) -> bool {
    let shape = |text: &str, pattern: &str| {
        text.len() == pattern.len()
            && text
                .bytes()
                .zip(pattern.bytes())
                .all(|(byte, wanted)| match wanted {
                    b'0' => byte.is_ascii_digit(),
                    _ => byte == wanted,
                })
    };
    let Some(text) = text.strip_suffix('Z') else {
        return false;
    };
    let (time, fraction) = text.split_once('.').unwrap_or((text, "0"));
    shape(time, "0000-00-00T00:00:00")
        && (1..=9).contains(&fraction.len())
        && fraction.bytes().all(|byte| byte.is_ascii_digit())
}
