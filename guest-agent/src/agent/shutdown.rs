//! Ending the machine in order: commands, then everybody, then the file systems.

use std::io;
use std::rc::Rc;
use std::time::Duration;

use rustix::mount::{MountFlags, UnmountFlags, mount_remount, unmount};
use rustix::system::{RebootCommand, reboot};
use tine_guest_agent::status::{ShutdownAction, ShutdownRequest};

use super::init::read_small;
use super::{Agent, sys};

/// From SIGTERM to SIGKILL when the request does not say.
const DEFAULT_GRACE: Duration = Duration::from_secs(2);

/// After SIGKILL: processes stuck in the kernel are not waited for longer.
const KILL_LIMIT: Duration = Duration::from_secs(2);

/// Asks for the machine's end; a second request changes nothing.
pub fn request(agent: &Agent, request: ShutdownRequest) {
    if agent.shutdown.get().is_none() {
        agent.shutdown.set(Some(request));
        agent.ending.notify_one();
    }
}

/// What init programs understand: Ctrl-Alt-Del and what `poweroff` and `reboot` of busybox send to PID 1.
pub fn by_signal(agent: &Agent, signal: i32) {
    let action = match signal {
        libc::SIGUSR1 | libc::SIGUSR2 | libc::SIGPWR => ShutdownAction::Poweroff,
        _ => ShutdownAction::Reboot,
    };
    request(
        agent,
        ShutdownRequest {
            action,
            grace_ms: None,
        },
    );
}

/// Waits for a request and carries it out. As PID 1 this does not return, but for a kernel that refuses.
pub async fn wait(agent: &Rc<Agent>) -> io::Result<()> {
    agent.ending.notified().await;
    let request = agent.shutdown.get().unwrap_or_default();
    let grace = request
        .grace_ms
        .map_or(DEFAULT_GRACE, Duration::from_millis);
    end_processes(agent, grace).await;
    agent.cgroups.clear();
    if !agent.config.init {
        return Ok(());
    }
    // May take as long as the disks need; nobody else is left to be served.
    rustix::fs::sync();
    release_file_systems();
    let off = request.action == ShutdownAction::Poweroff && !agent.config.off_by_reset;
    reboot(if off {
        RebootCommand::PowerOff
    } else {
        RebootCommand::Restart
    })?;
    Ok(())
}

/// SIGTERM to all, SIGKILL to those that are left. Not as PID 1: the agent's own commands alone.
async fn end_processes(agent: &Rc<Agent>, grace: Duration) {
    let signal = |signal| {
        if agent.config.init {
            let _ = sys::kill(-1, signal);
        } else {
            agent
                .store
                .all()
                .iter()
                .for_each(|exec| drop(exec.signal(signal)));
        }
    };
    signal(libc::SIGTERM);
    if tokio::time::timeout(grace, all_gone(agent)).await.is_err() {
        signal(libc::SIGKILL);
        if !agent.config.init {
            agent.store.all().iter().for_each(|exec| exec.cancel());
        }
        let _ = tokio::time::timeout(KILL_LIMIT, all_gone(agent)).await;
    }
}

/// Waits until no command runs, and as PID 1 until there is no other process that could be waited for.
async fn all_gone(agent: &Rc<Agent>) {
    loop {
        let ended = agent.run_ended.notified();
        let reaped = agent.reaper.reaped.notified();
        let commands = agent.store.all().iter().any(|exec| exec.is_running());
        let others = agent.config.init && sys::has_children();
        if !commands && !others {
            return;
        }
        super::race(ended, reaped).await;
    }
}

/// Lets every file system of a drive come to rest: unmounted where nothing holds it, else read-only.
fn release_file_systems() {
    let mounts = read_small("/proc/mounts");
    for line in mounts.lines().rev() {
        let mut fields = line.split(' ');
        let (Some(source), Some(target)) = (fields.next(), fields.next()) else {
            continue;
        };
        if source.starts_with('/') && unmount(target, UnmountFlags::empty()).is_err() {
            let _ = mount_remount(target, MountFlags::RDONLY, "");
        }
    }
}
