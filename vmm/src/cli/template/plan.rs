//! What is to be built: the recipe, and the options on top of it.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::build::check_agent;
use super::recipe::Recipe;
use crate::cli::failure::Failure;
use crate::cli::parse;

/// Memory of a machine, in bytes, when nothing is said: as `tine run` has it.
const MEMORY: u64 = 256 << 20;

/// What the command line says of it.
#[derive(clap::Args)]
pub struct Options {
    /// What to start from: the image of a root file system, or a snapshot's directory [default: the
    /// guest image alone]
    #[arg(long, value_name = "DIR|ROOTFS[,ro][,qcow2]")]
    from: Option<String>,
    /// Run a command in the machine; several may be given
    #[arg(long = "run", value_name = "COMMAND", allow_hyphen_values = true)]
    run: Vec<String>,
    /// Copy a file or directory of this host into the machine, before any command is run
    #[arg(long = "file", value_name = "PATH:GUEST_PATH", value_parser = parse::file)]
    files: Vec<parse::Copied>,
    /// Set a variable for the commands and for those of the template's machines; without a value,
    /// pass it on
    #[arg(short, long = "env", value_name = "NAME[=VALUE]", value_parser = parse::variable)]
    env: Vec<(String, String)>,
    /// Number of vCPUs [default: 1]
    #[arg(long, value_name = "N")]
    vcpus: Option<u8>,
    /// Memory, with a unit (K, M, G); a bare number is MiB [default: 256M]
    #[arg(long, value_name = "SIZE", value_parser = parse::size)]
    memory: Option<u64>,
    /// Read the recipe in a file, tine.toml
    #[arg(long, value_name = "FILE")]
    recipe: Option<PathBuf>,
}

/// What the machine is made from.
#[derive(Debug, PartialEq, Eq)]
pub enum From {
    /// The guest image alone.
    Nothing,
    /// The image of a root file system.
    Image(parse::Drive),
    /// A snapshot.
    Snapshot(PathBuf),
}

/// What is to be built. Paths are absolute.
#[derive(Debug)]
pub struct Plan {
    pub from: From,
    pub memory: u64,
    pub vcpus: u8,
    pub files: Vec<parse::Copied>,
    pub run: Vec<String>,
    pub environment: BTreeMap<String, String>,
}

impl Plan {
    /// Reads the recipe, and looks at what it names.
    pub fn of(options: Options) -> Result<Self, Failure> {
        let mut recipe = match &options.recipe {
            Some(path) => Recipe::read(path)?,
            None => Recipe::default(),
        };
        if let Some(from) = &options.from {
            (recipe.rootfs, recipe.snapshot) = match Path::new(from).is_dir() {
                true => (None, Some(from.into())),
                false => (Some(parse::drive(from).map_err(Failure::usage)?), None),
            };
        }
        recipe.files.extend(options.files);
        recipe.run.extend(options.run);
        recipe.environment.extend(options.env);
        recipe.vcpus = options.vcpus.or(recipe.vcpus);
        recipe.memory = options.memory.or(recipe.memory);
        let from = match (recipe.rootfs, recipe.snapshot) {
            (Some(mut drive), _) => {
                drive.path = absolute(&drive.path)?;
                let found = std::fs::metadata(&drive.path);
                found.map_err(|err| cannot("use the image", &drive.path, &err))?;
                From::Image(drive)
            }
            (None, Some(dir)) if recipe.memory.is_some() || recipe.vcpus.is_some() => {
                return Err(Failure::usage(format!(
                    "the snapshot {} says how much memory and how many vCPUs there are: leave both out",
                    dir.display()
                )));
            }
            (None, Some(dir)) => {
                let dir = absolute(&dir)?;
                check_agent(&dir)?;
                From::Snapshot(dir)
            }
            (None, None) => From::Nothing,
        };
        for file in &mut recipe.files {
            file.from = absolute(&file.from)?;
            let found = std::fs::metadata(&file.from);
            found.map_err(|err| cannot("copy", &file.from, &err))?;
        }
        Ok(Self {
            from,
            memory: recipe.memory.unwrap_or(MEMORY),
            vcpus: recipe.vcpus.unwrap_or(1),
            files: recipe.files,
            run: recipe.run,
            environment: recipe.environment,
        })
    }
}

impl From {
    /// Its path, for the record.
    pub fn words(&self) -> Option<String> {
        let path = match self {
            From::Nothing => return None,
            From::Image(drive) => &drive.path,
            From::Snapshot(dir) => dir,
        };
        Some(path.display().to_string())
    }
}

fn absolute(path: &Path) -> Result<PathBuf, Failure> {
    std::path::absolute(path).map_err(|err| cannot("use the path", path, &err))
}

fn cannot(what: &str, path: &Path, err: &std::io::Error) -> Failure {
    Failure::new(format!("cannot {what} {}: {err}", path.display()))
}
