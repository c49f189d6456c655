//! `/boot-source`: kernel, initrd and the kernel's command line.

use std::path::{Path, PathBuf};

use serde::Serialize;
use tine_guest_agent::fields::{FieldError, Fields};

use super::BadSettings;

/// What is booted.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct BootSource {
    /// The kernel.
    pub kernel_image_path: PathBuf,
    /// The initial RAM disk.
    pub initrd_path: Option<PathBuf>,
    /// Words for the kernel.
    pub boot_args: Option<String>,
}

impl BootSource {
    /// Takes the fields of a request.
    pub fn from_fields(mut fields: Fields) -> Result<Self, FieldError> {
        let source = Self {
            kernel_image_path: fields.required("kernel_image_path")?,
            initrd_path: fields.optional("initrd_path")?,
            boot_args: fields.optional("boot_args")?,
        };
        fields.finish()?;
        Ok(source)
    }

    /// That the files are there is found out now, not at the start.
    pub(super) fn check(&self) -> Result<(), BadSettings> {
        exists("kernel_image_path", &self.kernel_image_path)?;
        match &self.initrd_path {
            Some(path) => exists("initrd_path", path),
            None => Ok(()),
        }
    }

    /// The caller's words with `root` behind them, but before a `--`, behind which words go to
    /// the guest's init.
    pub(super) fn words(&self, root: Option<&str>) -> String {
        let words = self.boot_args.as_deref().unwrap_or_default();
        let Some(root) = root else {
            return words.to_owned();
        };
        match words.split_once(" -- ") {
            Some((kernel, init)) => format!("{kernel} {root} -- {init}"),
            None => format!("{words} {root}"),
        }
    }
}

/// Fails when there is nothing at `path`.
pub(super) fn exists(field: &str, path: &Path) -> Result<(), BadSettings> {
    match std::fs::metadata(path) {
        Ok(_) => Ok(()),
        Err(err) => {
            let path = path.display();
            Err(BadSettings::new(format_args!(
                "field `{field}`: cannot open {path}: {err}"
            )))
        }
    }
}
