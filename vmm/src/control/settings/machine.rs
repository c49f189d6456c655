//! `/machine-config`: processors and memory.

use serde::{Deserialize, Serialize};
use tine_guest_agent::fields::{FieldError, Fields};

use super::BadSettings;
use crate::config::ConfigError;
use crate::layout;

/// Pages behind guest memory.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum HugePages {
    /// As the host has it.
    #[default]
    None,
    /// Transparent huge pages.
    Transparent,
    /// Explicit pages of 2 MiB.
    #[serde(rename = "2M")]
    TwoMib,
}

/// Processors and memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct MachineSettings {
    /// Number of vCPUs.
    pub vcpu_count: u8,
    /// Memory in MiB.
    pub mem_size_mib: u64,
    /// Two threads to a core.
    pub smt: bool,
    /// Memory is tracked for incremental snapshots.
    pub track_dirty_pages: bool,
    /// Pages behind guest memory.
    pub huge_pages: HugePages,
}

impl Default for MachineSettings {
    fn default() -> Self {
        Self {
            vcpu_count: 1,
            mem_size_mib: 128,
            smt: false,
            track_dirty_pages: false,
            huge_pages: HugePages::None,
        }
    }
}

/// Some of them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct MachinePatch {
    vcpu_count: Option<u8>,
    mem_size_mib: Option<u64>,
    smt: Option<bool>,
    track_dirty_pages: Option<bool>,
    huge_pages: Option<HugePages>,
}

impl MachinePatch {
    /// Takes the fields of a request.
    pub fn from_fields(mut fields: Fields) -> Result<Self, FieldError> {
        let patch = Self {
            vcpu_count: fields.optional("vcpu_count")?,
            mem_size_mib: fields.optional("mem_size_mib")?,
            smt: fields.optional("smt")?,
            track_dirty_pages: fields.optional("track_dirty_pages")?,
            huge_pages: fields.optional("huge_pages")?,
        };
        let template: Option<String> = fields.optional("cpu_template")?;
        fields.finish()?;
        match template.as_deref() {
            None if patch == Self::default() => Err(FieldError::new("", "has no field to change")),
            None | Some("None") => Ok(patch),
            Some(_) => Err(FieldError::new(
                "cpu_template",
                "CPU templates are not supported: leave it out or give \"None\"",
            )),
        }
    }
}

impl MachineSettings {
    /// Takes the fields of a request. What is not given has its default.
    pub fn from_fields(fields: Fields) -> Result<Self, FieldError> {
        let patch = MachinePatch::from_fields(fields)?;
        let missing = |name| FieldError::new(name, "is missing");
        patch.vcpu_count.ok_or_else(|| missing("vcpu_count"))?;
        patch.mem_size_mib.ok_or_else(|| missing("mem_size_mib"))?;
        Ok(Self::default().patched(patch))
    }

    pub(super) fn patched(self, patch: MachinePatch) -> Self {
        Self {
            vcpu_count: patch.vcpu_count.unwrap_or(self.vcpu_count),
            mem_size_mib: patch.mem_size_mib.unwrap_or(self.mem_size_mib),
            smt: patch.smt.unwrap_or(self.smt),
            track_dirty_pages: patch.track_dirty_pages.unwrap_or(self.track_dirty_pages),
            huge_pages: patch.huge_pages.unwrap_or(self.huge_pages),
        }
    }

    pub(super) fn check(&self) -> Result<(), BadSettings> {
        let bad =
            |field, words: String| Err(BadSettings::new(format_args!("field `{field}`: {words}")));
        if self.vcpu_count == 0 || self.vcpu_count > layout::MAX_VCPUS {
            let count = self.vcpu_count;
            return bad("vcpu_count", ConfigError::Vcpus { count }.to_string());
        }
        let mib = self.mem_size_mib;
        if !(layout::MIN_MEMORY >> 20..=layout::MAX_MEMORY >> 20).contains(&mib) {
            return bad("mem_size_mib", ConfigError::Memory { mib }.to_string());
        }
        if self.smt {
            let words = "guests see one thread to a core, so it must be false";
            return bad("smt", words.to_owned());
        }
        if self.huge_pages != HugePages::None {
            let words = "huge pages are not supported: leave it out or give \"None\"";
            return bad("huge_pages", words.to_owned());
        }
        Ok(())
    }

    /// Memory in bytes.
    pub fn memory(&self) -> u64 {
        self.mem_size_mib << 20
    }
}
