//! Machines in jails: whether one is wanted, and what of the host is shown in it.

mod admission;
pub mod note;
mod stage;
mod start;

pub use note::Note;
pub use stage::Stage;
pub use start::{base, discard, drop_base, kill, start};

use std::fs::{self, OpenOptions};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tine::config::{ConsoleConfig, MachineConfig};
use tine_jailer::Bind;
use tine_jailer::cgroup::Setting;

use super::failure::Failure;

/// Set, it asks for no jails where the words do not say.
const NO_WISH: &str = "TINE_NO_JAIL";

/// Whether machines are started in jails.
#[derive(Debug, Clone, Default, clap::Args)]
pub struct Choice {
    /// Start the machine's process in a jail, where it sees nothing of the host but the machine's files:
    /// what is done anyway, unless TINE_NO_JAIL is set
    #[arg(long, overrides_with = "no_jail")]
    jail: bool,
    /// Start the machine's process without a jail, as this user and in sight of all that this user has
    #[arg(long)]
    no_jail: bool,
    /// Limit the machine's cgroup, like memory.max=1G; may be given several times
    #[arg(long, value_name = "FILE=VALUE")]
    cgroup: Vec<Setting>,
}

impl Choice {
    /// What the jail is made with, nothing shown in it so far; `None` where there is to be none, which is
    /// said.
    ///
    /// # Errors
    ///
    /// When limits are asked for, and no jail.
    pub fn files(&self) -> Result<Option<Files>, Failure> {
        let unwished = std::env::var_os(NO_WISH).is_some_and(|value| !value.is_empty());
        if self.jail || !self.no_jail && !unwished {
            return Ok(Some(Files {
                shown: Vec::new(),
                limits: self.cgroup.clone(),
            }));
        }
        if let Some(setting) = self.cgroup.first() {
            return Err(Failure::usage(format!(
                "--cgroup {}={}: a machine without a jail has no cgroup of its own: leave --no-jail out, \
                 or {NO_WISH} unset",
                setting.file, setting.value
            )));
        }
        let who = match rustix::process::geteuid() {
            root if root.is_root() => "root, in sight of all of the host".to_owned(),
            user => format!("user {}, in sight of all that this user has", user.as_raw()),
        };
        eprintln!(
            "tine: NO JAIL: the machine's process runs as {who}, under its system call filters alone"
        );
        Ok(None)
    }

    /// The words of a command line that say the same.
    pub fn words(&self) -> Vec<String> {
        let mut words = Vec::new();
        for (given, word) in [(self.jail, "--jail"), (self.no_jail, "--no-jail")] {
            words.extend(given.then(|| word.to_owned()));
        }
        let limits = self.cgroup.iter();
        words.extend(limits.map(|setting| format!("--cgroup={}={}", setting.file, setting.value)));
        words
    }
}

impl Choice {
    /// For a machine in the foreground, which is part of this process.
    pub fn refuse(&self) -> Result<(), Failure> {
        match self.jail || !self.cgroup.is_empty() {
            false => Ok(()),
            true => Err(Failure::usage(
                "a machine in the foreground is part of this process, which is in no jail and no cgroup \
                 of its own: leave --jail and --cgroup out, or have the machine stay (-d)",
            )),
        }
    }
}

/// Refuses network interfaces, of which a jail's network has none.
pub fn refuse_network(interfaces: &Value) -> Result<(), Failure> {
    match interfaces.as_array().is_none_or(Vec::is_empty) {
        true => Ok(()),
        false => Err(Failure::new(
            "its machine has network interfaces, and the network of a jail is empty: give --no-jail, \
             or start a `tine-vmm` with `tine-jailer --netns`",
        )),
    }
}

/// A file or directory of the host, shown under the path that it has there.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Shown {
    path: PathBuf,
    writable: bool,
}

/// How a path is shown in a jail: where it lies on the host, and what of it is root's there is the
/// machine's. An ordinary user's machine is that user on both sides.
fn bind(path: &Path, writable: bool) -> Bind {
    Bind {
        source: path.into(),
        target: path.into(),
        writable,
        owned: rustix::process::geteuid().is_root(),
    }
}

/// What a jail is made with: what of the host is shown in it, besides the machine's own directory, and
/// the limits of its cgroup; without any, it has none.
#[derive(Debug, Clone, Default)]
pub struct Files {
    shown: Vec<Shown>,
    limits: Vec<Setting>,
}

impl Files {
    /// Shows what is at a path, and gives the path that it has in the jail: the plain one, which
    /// leads through no links.
    pub fn show(&mut self, path: &Path, writable: bool) -> Result<PathBuf, Failure> {
        let plain = fs::canonicalize(path)
            .map_err(|err| Failure::new(format!("cannot open {}: {err}", path.display())))?;
        if plain.starts_with("/dev") {
            return Err(Failure::new(format!(
                "{} is a device of the host, which a jail does not have: use a file, or --no-jail",
                path.display()
            )));
        }
        self.add(plain.clone(), writable);
        Ok(plain)
    }

    /// Shows what a plain path names when the jail is made. Should it lead through a link then, there is
    /// no jail.
    pub fn add(&mut self, path: PathBuf, writable: bool) {
        match self.shown.iter_mut().find(|shown| shown.path == path) {
            Some(shown) => shown.writable |= writable,
            None => self.shown.push(Shown { path, writable }),
        }
    }

    /// Shows all that a machine to be booted is made of.
    pub fn show_machine(&mut self, config: &mut MachineConfig) -> Result<(), Failure> {
        config.kernel = self.show(&config.kernel, false)?;
        if let Some(initrd) = &mut config.initrd {
            *initrd = self.show(initrd, false)?;
        }
        for drive in &mut config.drives {
            drive.path = self.show(&drive.path, !drive.read_only)?;
            for lower in &mut drive.lower {
                lower.path = self.show(&lower.path, false)?;
            }
        }
        match &mut config.console {
            ConsoleConfig::File(file) => self.show_console(file),
            _ => Ok(()),
        }
    }

    /// The same of a machine that has been written down as the body of a `PUT /v1/config` by a process
    /// that was in no jail; [`Note::admit`] is for the others.
    pub fn show_written(&mut self, config: &mut Value) -> Result<(), Failure> {
        refuse_network(&config["network"])?;
        for file in ["kernel", "initrd"] {
            self.show_in(config.get_mut(file), false)?;
        }
        let drives = config.get_mut("drives").and_then(Value::as_array_mut);
        for drive in drives.into_iter().flatten() {
            let writable = drive["read_only"] != true;
            self.show_in(drive.get_mut("path"), writable)?;
            let lower = drive.get_mut("lower").and_then(Value::as_array_mut);
            for lower in lower.into_iter().flatten() {
                self.show_in(lower.get_mut("path"), false)?;
            }
        }
        match config["console"].as_str().map(PathBuf::from) {
            Some(mut file) if file.is_absolute() => {
                self.show_console(&mut file)?;
                config["console"] = json!(file);
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// Shows the file that a value names, if it names one.
    fn show_in(&mut self, value: Option<&mut Value>, writable: bool) -> Result<(), Failure> {
        if let Some(value) = value
            && let Some(path) = value.as_str()
        {
            *value = json!(self.show(Path::new(path), writable)?);
        }
        Ok(())
    }

    /// Shows a console's file, which is made if it is not there.
    pub fn show_console(&mut self, file: &mut PathBuf) -> Result<(), Failure> {
        if !file.exists() {
            let made = OpenOptions::new().create(true).append(true).open(&*file);
            made.map_err(|err| Failure::new(format!("cannot make {}: {err}", file.display())))?;
        }
        *file = self.show(file, true)?;
        Ok(())
    }

    /// All of it, but what lies in `own`, or in a directory that is shown as a whole.
    fn all<'a>(&'a self, own: &'a Path) -> impl Iterator<Item = &'a Shown> {
        let inside = move |path: &Path| {
            let mut others = self.shown.iter().map(|shown| shown.path.as_path());
            path.starts_with(own) || others.any(|other| other != path && path.starts_with(other))
        };
        self.shown.iter().filter(move |shown| !inside(&shown.path))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(files: &Files, own: &Path) -> Vec<(PathBuf, bool)> {
        let all = files.all(own);
        all.map(|shown| (shown.path.clone(), shown.writable))
            .collect()
    }

    #[test]
    fn each_file_is_shown_once_with_the_rights_that_any_use_needs() {
        let dir = tempfile::tempdir().unwrap();
        let dir = fs::canonicalize(dir.path()).unwrap();
        let (own, disk, link) = (dir.join("own"), dir.join("disk"), dir.join("link"));
        fs::create_dir(&own).unwrap();
        for file in [&disk, &own.join("layer")] {
            fs::write(file, "").unwrap();
        }
        std::os::unix::fs::symlink(&disk, &link).unwrap();
        let mut files = Files::default();
        assert_eq!(files.show(&link, false).unwrap(), disk);
        files.show(&disk, true).unwrap();
        files.show(&own.join("layer"), true).unwrap();
        assert_eq!(shown(&files, &own), [(disk.clone(), true)]);
        files.show(&dir, false).unwrap();
        assert_eq!(shown(&files, &own), [(dir, false)]);
        let missing = files.show(&own.join("none"), false).unwrap_err();
        assert!(missing.words.contains("none"), "{missing}");
        assert!(files.show(Path::new("/dev/null"), true).is_err());
    }

    #[test]
    fn network_interfaces_are_refused_with_the_way_out() {
        for none in [json!(null), json!([])] {
            refuse_network(&none).unwrap();
        }
        let refused = refuse_network(&json!([{ "id": "eth0" }])).unwrap_err();
        assert!(refused.words.contains("--no-jail"), "{refused}");
    }

    #[test]
    fn a_machine_that_was_written_down_is_shown_with_all_its_files() {
        let dir = tempfile::tempdir().unwrap();
        let dir = fs::canonicalize(dir.path()).unwrap();
        let file = |name: &str| {
            fs::write(dir.join(name), "").unwrap();
            dir.join(name)
        };
        let mut config = json!({
            "kernel": file("k"), "initrd": null, "console": dir.join("console"),
            "drives": [{
                "path": file("top"), "read_only": false, "lower": [{"path": file("base")}],
            }],
        });
        let mut files = Files::default();
        files.show_written(&mut config).unwrap();
        let wanted = [
            ("k", false),
            ("top", true),
            ("base", false),
            ("console", true),
        ];
        let wanted = wanted.map(|(name, writable)| (dir.join(name), writable));
        assert_eq!(shown(&files, Path::new("/none")), wanted);
    }
}
