//! `tine run` boots once: what the guest had come to when its agent first answered is kept, and the
//! next machine of the same kernel, initrd, disks, size and host goes on from there.
//!
//! A template is a snapshot in the cache, without the disks, named by everything that shaped it. Only
//! machines whose disks are files that they cannot write to have one: what a guest can write to is
//! another thing after each run, and so is what a network had to say. Where one cannot be gone on from,
//! the machine is booted, and its template made anew; one that a run failed with is discarded.

use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::ops::ControlFlow;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::thread::{self, JoinHandle};
use std::time::SystemTime;

use tine::arch::x86_64::features;
use tine::config::{ConsoleConfig, MachineConfig};
use tine::image;
use tine::machine::Machine;
use tine::snapshot::{Description, Loaded, Place, Save};
use tine_devices::virtio::block::BlockConfig;
use tine_devices::virtio::block::layers::Format;

use super::leftover::own;

/// Templates that are kept; the one that was not used for the longest time goes.
const KEPT: usize = 8;

/// Where the template of a machine is, or would be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BootTemplate {
    dir: PathBuf,
}

impl BootTemplate {
    /// The template for machines of `config`; `None` where there can be none.
    pub fn of(config: &MachineConfig) -> Option<Self> {
        let alone = config.drives.iter().all(is_only_read)
            && config.interfaces.is_empty()
            && config.balloon.is_none()
            && !config.boot_timer
            && config.console == ConsoleConfig::None;
        if !alone {
            return None;
        }
        let mut key = DefaultHasher::new();
        env!("CARGO_PKG_VERSION").hash(&mut key);
        (config.vcpus, config.memory, &config.cmdline).hash(&mut key);
        identity(&config.kernel)?.hash(&mut key);
        identity(config.initrd.as_deref()?)?.hash(&mut key);
        config.root_drive.hash(&mut key);
        for drive in &config.drives {
            identity(&drive.path)?.hash(&mut key);
            (&drive.id, &drive.serial, drive.format == Format::Qcow2).hash(&mut key);
        }
        // A guest kernel is not the same after the host was booted anew with another one.
        (features::vendor(), features::model(), features::here()).hash(&mut key);
        rustix::system::uname().release().hash(&mut key);
        let name = format!("{:016x}", key.finish());
        let dir = image::cache_dir().join("boot").join(name);
        Some(Self { dir })
    }

    /// The template, if there is a sound one.
    pub fn load(&self) -> Option<Loaded> {
        let loaded = Loaded::open(&self.dir).ok()?;
        // When it was last used, for those who have to choose.
        let now = fs::FileTimes::new().set_modified(SystemTime::now());
        let _ = fs::File::open(&self.dir).and_then(|dir| dir.set_times(now));
        Some(loaded)
    }

    /// Makes the template of a machine whose agent has just answered, on a thread of its own. The
    /// machine stands still for a moment.
    pub fn make(&self, machine: &Machine) -> Option<JoinHandle<()>> {
        // What it has read is still what is there.
        if Self::of(machine.config()).as_ref() != Some(self) {
            return None;
        }
        machine.pause();
        let captured = machine.capture();
        machine.resume();
        let mut description = Description::of(machine.config());
        description.agent = true;
        let save = Save {
            capture: captured.ok()?,
            description,
            at: SystemTime::now(),
            generation: 0,
        };
        let dir = self.dir.clone();
        let write = move || {
            // Another run may have been quicker, and a full disk is no reason to complain: the
            // machine runs, and the next one boots.
            let _ = parent(&dir);
            let place = Place::Directory(dir.clone());
            let _ = save.write(&place, |_| ControlFlow::Continue(()));
            let _ = make_room(&dir);
        };
        let thread = thread::Builder::new().name("template".to_owned());
        thread.spawn(write).ok()
    }

    /// Removes a template that is of no use.
    pub fn discard(&self) {
        let _ = fs::remove_dir_all(&self.dir);
    }
}

/// Whether all machines find the same in a drive. Another cache or engine, limits and layers are
/// not what `tine run` has words for.
fn is_only_read(drive: &BlockConfig) -> bool {
    drive.read_only && drive.lower.is_empty() && drive.rate_limiter.is_none()
}

/// What tells a file from what it becomes when it is changed or replaced; `None` for what is no
/// file, and may be another thing without saying so.
fn identity(path: &Path) -> Option<impl Hash> {
    let path = fs::canonicalize(path).ok()?;
    let meta = fs::metadata(&path).ok().filter(fs::Metadata::is_file)?;
    let changed = (
        meta.mtime(),
        meta.mtime_nsec(),
        meta.ctime(),
        meta.ctime_nsec(),
    );
    Some((path, meta.dev(), meta.ino(), meta.len(), changed))
}

/// Makes the directory that templates are in; it is its user's alone.
fn parent(dir: &Path) -> io::Result<()> {
    use std::os::unix::fs::DirBuilderExt;
    let mut builder = fs::DirBuilder::new();
    builder.recursive(true).mode(0o700);
    builder.create(dir.parent().unwrap_or(dir))
}

/// Removes the templates that are too many, and what makers left that were killed.
fn make_room(dir: &Path) -> io::Result<()> {
    let mut all = Vec::new();
    for entry in fs::read_dir(dir.parent().unwrap_or(dir))? {
        let entry = entry?;
        if !entry.file_name().to_string_lossy().starts_with('.') {
            all.push((entry.metadata()?.modified()?, entry.path()));
        } else if let Some(_lock) = own(&entry.path()) {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
    all.sort();
    for (_, path) in all.iter().take(all.len().saturating_sub(KEPT)) {
        fs::remove_dir_all(path)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::fs::FileTimes;
    use std::time::Duration;

    use super::*;

    /// A machine of files in a directory.
    fn config(dir: &Path) -> MachineConfig {
        let file = |name: &str| {
            let path = dir.join(name);
            if !path.exists() {
                fs::write(&path, name).unwrap();
            }
            path
        };
        let mut config = MachineConfig::new(file("kernel"));
        config.initrd = Some(file("initrd"));
        let mut root = BlockConfig::new("root", file("root"));
        root.read_only = true;
        config.drives.push(root);
        config.root_drive = Some(0);
        config
    }

    #[test]
    fn all_that_shapes_a_guest_is_in_the_name() {
        let dir = tempfile::tempdir().unwrap();
        let of = |change: &dyn Fn(&mut MachineConfig)| {
            let mut config = config(dir.path());
            change(&mut config);
            BootTemplate::of(&config)
        };
        let first = of(&|_| ());
        assert!(first.is_some() && first == of(&|_| ()));
        let changes: [&dyn Fn(&mut MachineConfig); 8] = [
            &|config| config.vcpus = 2,
            &|config| config.memory += 1 << 20,
            &|config| config.cmdline = "quiet".to_owned(),
            &|config| config.kernel = dir.path().join("initrd"),
            &|config| config.root_drive = None,
            &|config| config.drives[0].format = Format::Qcow2,
            &|config| config.drives[0].id = "other".to_owned(),
            &|config| config.drives.push(config.drives[0].clone()),
        ];
        for (n, change) in changes.iter().enumerate() {
            let other = of(change);
            assert!(other.is_some() && other != first, "change {n}");
        }
        // The same paths, and other files.
        for name in ["kernel", "initrd", "root"] {
            let before = of(&|_| ());
            let path = dir.path().join(name);
            fs::rename(&path, dir.path().join("old")).unwrap();
            assert_ne!(of(&|_| ()), before, "{name} replaced");
            let before = of(&|_| ());
            let file = fs::File::options().write(true).open(&path).unwrap();
            let later = FileTimes::new().set_modified(SystemTime::now() + Duration::from_secs(2));
            file.set_times(later).unwrap();
            assert_ne!(of(&|_| ()), before, "{name} written to");
        }
    }

    #[test]
    fn what_may_be_another_thing_each_time_has_none() {
        let dir = tempfile::tempdir().unwrap();
        let changes: [&dyn Fn(&mut MachineConfig); 5] = [
            &|config| config.drives[0].read_only = false,
            &|config| config.drives[0].path = "/dev/null".into(),
            &|config| config.initrd = None,
            &|config| config.kernel = dir.path().join("missing"),
            &|config| config.console = ConsoleConfig::Stdout,
        ];
        for (n, change) in changes.iter().enumerate() {
            let mut config = config(dir.path());
            change(&mut config);
            assert_eq!(BootTemplate::of(&config), None, "change {n}");
        }
    }

    #[test]
    fn those_used_last_are_kept_and_what_killed_makers_left_goes() {
        let dir = tempfile::tempdir().unwrap();
        let make = |name: String, age: u64| {
            let path = dir.path().join(name);
            fs::create_dir(&path).unwrap();
            let at = SystemTime::now() - Duration::from_secs(age);
            let open = fs::File::open(&path).unwrap();
            open.set_times(FileTimes::new().set_modified(at)).unwrap();
            open
        };
        for age in 0..12 {
            make(format!("template-{age}"), age * 60);
        }
        make(".template-0.partial-dead".to_owned(), 0);
        let alive = make(".template-1.partial-alive".to_owned(), 0);
        alive.lock().unwrap();
        make_room(&dir.path().join("template-0")).unwrap();
        let mut left: Vec<String> = fs::read_dir(dir.path())
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        left.sort();
        let mut wanted = vec![".template-1.partial-alive".to_owned()];
        wanted.extend((0..KEPT).map(|n| format!("template-{n}")));
        assert_eq!(left, wanted);
    }
}
