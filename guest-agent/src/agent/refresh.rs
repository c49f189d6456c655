//! After a restore or fork: makes the guest a machine of its own. See [`tine_guest_agent::refresh`].
//!
//! Until the answer nobody can use the machine, so this is done on the loop itself, where handing work to a thread
//! would cost more system calls than the work. Only files that may be on a slow disk go to a thread.

use std::fs::File;
use std::io::Write;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;

use tine_guest_agent::events::Event;
use tine_guest_agent::hello::Hello;
use tine_guest_agent::octets::Octets;
use tine_guest_agent::refresh::{GENERATION_FILE, NewFile, Refresh};

use super::Agent;
use super::effects::{Effects, temporary};
use super::fault::Fault;

/// Does all that is asked; the answer says who and which generation this is now.
pub async fn refresh(agent: &Rc<Agent>, wanted: Refresh) -> Result<Hello, Fault> {
    let known = agent.hello.borrow().generation;
    if wanted.generation < known {
        let generation = wanted.generation;
        let message = format!("generation {generation} is past, this is generation {known}");
        return Err(Fault::conflict(message));
    }
    let effects = &agent.config.effects;
    // A snapshot taken while the disks were held.
    agent.freezer.thaw(effects);
    let failed = |what: &'static str| move |error| Fault::io(&error, what);
    effects
        .add_entropy(&wanted.entropy.0)
        .map_err(failed("random numbers"))?;
    effects
        .set_clock(wanted.clock_ns)
        .map_err(failed("the clock"))?;
    if let Some(name) = &wanted.hostname {
        effects
            .set_hostname(name)
            .map_err(failed("the host name"))?;
    }
    effects
        .change_interfaces(&wanted.interfaces)
        .map_err(failed("the network interfaces"))?;
    if let Some(env) = wanted.env {
        agent.env.replace(Arc::new(env));
    }
    write_files(effects, wanted.machine_id, wanted.files).await?;
    if wanted.generation > known {
        agent.store.inherit();
        // A kernel without a network has none to forget; where it fails, the kernel finds out later.
        let _ = effects.forget_neighbours();
        agent.hello.borrow_mut().generation = wanted.generation;
    }
    // Last, because it says that all of it is done.
    write_generation(effects, wanted.generation)
        .map_err(|error| Fault::io(&error, GENERATION_FILE))?;
    agent.refreshed.notify_waiters();
    if wanted.generation > known {
        agent.events.emit(&Event::Restored {
            generation: wanted.generation,
        });
    }
    Ok(agent.hello_now())
}

/// Tells the guest's programs which generation this is. The directory is there from boot on, so that it can be watched.
pub fn write_generation(effects: &Effects, generation: u64) -> std::io::Result<()> {
    let path = effects.path(GENERATION_FILE);
    replace(&path, Some(0o644), format!("{generation}\n").as_bytes())
}

async fn write_files(
    effects: &Effects,
    machine_id: Option<String>,
    files: Vec<NewFile>,
) -> Result<(), Fault> {
    let mut all: Vec<(PathBuf, Option<u32>, Octets)> = Vec::new();
    if let Some(id) = machine_id {
        all.push((
            effects.path("/etc/machine-id"),
            Some(0o444),
            format!("{id}\n").into(),
        ));
    }
    for file in files {
        let path = effects.path(super::files::params::path(&file.path));
        all.push((path, file.mode, file.content));
    }
    if all.is_empty() {
        return Ok(());
    }
    super::files::blocking(move || {
        for (path, mode, content) in &all {
            replace(path, *mode, &content.0)
                .map_err(|error| Fault::io(&error, &path.to_string_lossy()))?;
        }
        Ok(())
    })
    .await
}

/// Writes a file whole, making its directory where it is missing.
fn replace(path: &Path, mode: Option<u32>, content: &[u8]) -> std::io::Result<()> {
    // What is replaced keeps its mode unless the request says otherwise.
    let mode = mode.or_else(|| Some(path.metadata().ok()?.mode() & 0o7777));
    let temporary = temporary(path);
    let create = || {
        File::options()
            .write(true)
            .create_new(true)
            .mode(mode.unwrap_or(0o644))
            .open(&temporary)
    };
    let mut file = match (create(), path.parent()) {
        (Err(error), Some(parent)) if error.kind() == std::io::ErrorKind::NotFound => {
            std::fs::create_dir_all(parent)?;
            create()?
        }
        (result, _) => result?,
    };
    let result = (|| {
        file.write_all(content)?;
        if let Some(mode) = mode {
            file.set_permissions(PermissionsExt::from_mode(mode))?;
        }
        std::fs::rename(&temporary, path)
    })();
    if result.is_err() {
        let _ = std::fs::remove_file(&temporary);
    }
    result
}
