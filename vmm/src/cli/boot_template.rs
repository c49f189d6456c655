//! `tine run` boots once: what the guest had come to when its agent first answered is kept, and the
//! next machine of the same kernel, initrd, size and host goes on from there.
//!
//! A template is a snapshot in the cache, named by everything that shaped it. Only machines without
//! drives and network have one: with those, what the guest has read while booting may be another
//! thing today. Whatever goes wrong with one, the machine is booted instead.

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

/// Templates that are kept; the one that was not used for the longest time goes.
const KEPT: usize = 8;

/// Where the template of a machine is, or would be.
pub struct BootTemplate {
    dir: PathBuf,
}

impl BootTemplate {
    /// The template for machines of `config`; `None` where there can be none.
    pub fn of(config: &MachineConfig) -> Option<Self> {
        let alone = config.drives.is_empty()
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

/// What tells a file from what it becomes when it is changed or replaced.
fn identity(path: &Path) -> Option<impl Hash> {
    let path = fs::canonicalize(path).ok()?;
    let meta = fs::metadata(&path).ok()?;
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

/// Removes the templates that are too many.
fn make_room(dir: &Path) -> io::Result<()> {
    let mut all = Vec::new();
    for entry in fs::read_dir(dir.parent().unwrap_or(dir))? {
        let entry = entry?;
        // Those in the making are their writers' business.
        if !entry.file_name().to_string_lossy().starts_with('.') {
            all.push((entry.metadata()?.modified()?, entry.path()));
        }
    }
    all.sort();
    for (_, path) in all.iter().take(all.len().saturating_sub(KEPT)) {
        fs::remove_dir_all(path)?;
    }
    Ok(())
}
