//! A machine out of a snapshot that is part of this process, for one command or until its guest ends.

use tine::agent;
use tine::config::{ConsoleConfig, MachineConfig};
use tine::control::{GuestIdentity, give_addresses};
use tine::machine::Machine;
use tine::snapshot::{Loaded, Place, Prefetch};
use tine_guest_agent::refresh::{NewInterface, Refresh};

use super::{Args, booting, is_disks_alone};
use crate::cli::foreground::{self, Job, OnEnd, Ready, RunError};
use crate::cli::timing::Timing;

/// Makes the machine and runs it to its end; the result is the status to exit with.
pub(super) fn restore(mut args: Args, identity: GuestIdentity) -> Result<u8, RunError> {
    let mut timing = Timing::start(args.timing);
    if is_disks_alone(&args.dir) {
        if !identity.is_empty() {
            return Err(RunError::NoAgent);
        }
        return boot_in_foreground(args, timing);
    }
    let loaded = Loaded::open(&args.dir)?;
    let place = Place::Directory(args.dir.clone());
    let prefetch = Prefetch::wanted(args.working_set.as_deref(), &place, &loaded.memory)?;
    let mut config = loaded.description.config();
    config.console = args.console.clone().unwrap_or_default();
    let own = loaded
        .disks
        .place(&loaded.description, &mut config, &std::env::temp_dir())?;
    timing.phase("snapshot read");
    let template = args.template.take();
    let job = job(args, &config);
    let ready = match loaded.description.agent {
        false if !identity.is_empty() => return Err(RunError::NoAgent),
        false => Ready::Hello(None),
        true => {
            let interfaces = give_addresses(&mut config, &[], true);
            let interfaces = interfaces.map_err(|err| RunError::Os("get random bytes", err))?;
            refreshed(&loaded, identity, interfaces)?
        }
    };
    let make = |on_end: OnEnd| {
        if let Some(prefetch) = prefetch {
            prefetch.begin();
        }
        let (memory, sections) = (loaded.memory, loaded.sections);
        let machine = Machine::restore(&config, memory, &sections, move |end| on_end(end));
        // They live for as long as they are open.
        own.iter().for_each(|path| drop(std::fs::remove_file(path)));
        drop(template);
        Ok((machine?, ready))
    };
    foreground::run(make, job, &mut timing)
}

fn boot_in_foreground(args: Args, mut timing: Timing) -> Result<u8, RunError> {
    let own = std::env::temp_dir();
    let (config, made) = booting(&args.dir, args.console.clone(), &own)?;
    timing.phase("snapshot read");
    let job = job(args, &config);
    let make = |on_end: OnEnd| {
        let machine = Machine::assemble(&config, move |end| on_end(end));
        // They live for as long as they are open.
        made.iter()
            .for_each(|path| drop(std::fs::remove_file(path)));
        Ok((machine?, Ready::Hello(None)))
    };
    foreground::run(make, job, &mut timing)
}

fn job(args: Args, config: &MachineConfig) -> Job {
    Job {
        writable: config.drives.iter().any(|drive| !drive.read_only),
        show_console: config.console == ConsoleConfig::None,
        command: args.command,
        place: args.place,
        interactive: args.interactive,
        timeout: args.timeout,
        record: args.record_working_set,
    }
}

/// How the agent of a restored guest comes to be ready.
pub fn refreshed(
    loaded: &Loaded,
    identity: GuestIdentity,
    interfaces: Vec<NewInterface>,
) -> Result<Ready, RunError> {
    let generation = loaded.generation.saturating_add(1);
    let refresh = agent::new_identity(generation);
    let refresh = Refresh {
        interfaces,
        ..refresh.map_err(|err| RunError::Os("get random bytes", err))?
    };
    Ok(Ready::Refresh(Box::new(identity.put_into(refresh))))
}
