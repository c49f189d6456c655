//! Starting a machine's process in its jail, and removing the jail.
//!
//! The jail is planned here and made by a copy of this process, which becomes the machine's. What it
//! is given lies where it lies on the host, so that paths mean the same on both sides, and what root
//! keeps for the machine is the machine's own there: its user is one that nobody else has. An ordinary
//! user's machine is that user, in a user namespace where there is no other.

use std::fs::{DirBuilder, File};
use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::fs::{FlockOperation, flock};
use rustix::process::{getegid, geteuid};
use rustix::rand::{GetRandomFlags, getrandom};
use tine::replace::is_named;
use tine_jailer::{Config, Forked, Host, Plan, enter};
use tokio::io::AsyncReadExt;
use tokio::net::unix::pipe;

use super::{Files, bind};
use crate::cli::failure::Failure;
use crate::cli::leftover;
use crate::cli::monitor::Monitor;
use crate::cli::process::arguments;
use crate::cli::rundir;

/// Where jails are made, in the place of the machines.
const BASE: &str = ".jails";
/// The first user of a range that distributions, containers and systemd leave alone, and how many
/// there are (systemd's "Users, Groups, UIDs and GIDs"). Each machine of root's is another user, drawn by lot:
/// two of a hundred machines are the same one in four of 100000 cases, and other walls stand between
/// them.
const FIRST_USER: u32 = 0x7000_0000;
const USERS: u32 = 1 << 27;

/// Where the jails of this user's machines are, as the jailer takes it: a path without links.
pub fn base() -> Result<PathBuf, Failure> {
    let root = rundir::root()?;
    Ok(root.canonicalize().unwrap_or(root).join(BASE))
}

/// Starts `program` as the machine `id`, whose directory is `dir`, in a jail. `command` has its
/// standard input and outputs, and `tied` is the process that it is to end with. Waits until it can be
/// connected to; with false it will never be.
pub async fn start(
    mut command: Command,
    program: &Path,
    id: &str,
    dir: &Path,
    files: &Files,
    tied: Option<u32>,
) -> Result<(Monitor, bool), Failure> {
    let failed = |what: &str, err: &dyn std::fmt::Display| {
        Failure::new(format!("cannot {what} the jail of machine {id}: {err}"))
    };
    // Nobody removes the place while there is nothing in it yet.
    let held = hold_base().map_err(|err| failed("find a place for", &err))?;
    let (hear, tell) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)
        .map_err(|err| failed("start", &err))?;
    let plan = plan(program, id, dir, files, tied, tell.as_raw_fd());
    let plan = plan.map_err(|err| failed("plan", &err))?;
    let number = tell.as_raw_fd();
    let become_monitor = move || {
        rustix::process::setsid()?;
        become_monitor(&plan, number)
    };
    // SAFETY: the copy of this process has this thread alone. The C library's fork leaves its heap
    // usable there, and nothing of what is called takes another lock of this process.
    unsafe {
        command.pre_exec(become_monitor);
    }
    let child = command.spawn().map_err(|err| failed("start", &err))?;
    drop(tell);
    let mut making = Making::of(child.id(), hear).map_err(|err| failed("hear of", &err))?;
    making.hear().await.map_err(|err| failed("hear of", &err))?;
    drop(held);
    making
        .done()
        .map_err(|words| match files.limits.is_empty() {
            true => failed("make", &format!("{words}; --no-jail starts it without one")),
            false => failed("make", &words),
        })
}

/// A jail in the making. Dropped, it is waited for, and its machine ended.
struct Making {
    maker: Monitor,
    /// From the process that makes it, which tells its number between two NULs, and from the machine's,
    /// which tells why it does not run, or that it is ready; the two come in any order. It ends with the
    /// second, or when there will be none.
    from: Option<pipe::Receiver>,
    said: Vec<u8>,
}

impl Making {
    fn of(maker: u32, from: OwnedFd) -> io::Result<Self> {
        Ok(Self {
            maker: Monitor::of(maker)?,
            from: Some(pipe::Receiver::from_owned_fd(from)?),
            said: Vec::new(),
        })
    }

    async fn hear(&mut self) -> io::Result<()> {
        if let Some(from) = &mut self.from {
            from.read_to_end(&mut self.said).await?;
        }
        self.from = None;
        Ok(())
    }

    /// The machine's process and whether it is ready, or why there is none.
    fn done(&mut self) -> Result<(Monitor, bool), String> {
        self.maker.wait();
        let said = String::from_utf8_lossy(&self.said).into_owned();
        let mut parts = said.splitn(3, '\0');
        let before = parts.next().unwrap_or_default();
        let pid = parts.next().unwrap_or_default();
        let words = format!("{before}{}", parts.next().unwrap_or_default());
        let ready = words == "\n";
        let monitor = pid.parse().ok().map(Monitor::of).transpose();
        match (monitor.map_err(|err| err.to_string())?, words.as_str()) {
            (Some(monitor), "" | "\n") => Ok((monitor, ready)),
            (None, "") => Err("its process was killed".to_owned()),
            (monitor, words) => {
                // It has ended, and only its status is left.
                monitor.map(|mut monitor| monitor.wait());
                Err(words.to_owned())
            }
        }
    }
}

impl Drop for Making {
    fn drop(&mut self) {
        let Some(from) = self.from.take() else { return };
        // A few milliseconds: then its process is known.
        if let Ok(from) = from.into_blocking_fd() {
            let mut from = File::from(from);
            let mut part = [0; 512];
            while self.said.iter().filter(|byte| **byte == 0).count() < 2 {
                match from.read(&mut part) {
                    Ok(len @ 1..) => self.said.extend_from_slice(&part[..len]),
                    Ok(0) | Err(_) => break,
                }
            }
        }
        if let Ok((mut monitor, _)) = self.done() {
            monitor.kill();
        }
    }
}

fn plan(
    program: &Path,
    id: &str,
    dir: &Path,
    files: &Files,
    tied: Option<u32>,
    tell: RawFd,
) -> Result<Plan, Box<dyn std::error::Error>> {
    let program = std::fs::canonicalize(program)?;
    let dir = std::fs::canonicalize(dir)?;
    let (uid, gid) = identity()?;
    let mut config = Config::new(id.parse()?, program, uid, gid);
    config.base = dir.with_file_name(BASE);
    config.new_pid_ns = true;
    config.sibling = Some(tell);
    config.end_with_parent = tied;
    // It stands beside this very program.
    config.linked_program = true;
    // It is told there that the program is ready.
    config.keep = vec![tell];
    let shown = files.all(&dir);
    config.binds = shown
        .map(|shown| bind(&shown.path, shown.writable))
        .collect();
    config.binds.push(bind(&dir, true));
    config.cgroup.settings = files.limits.clone();
    config.arguments = arguments(&dir, tell).into();
    let host = Host::gather(&config.cgroup);
    Ok(tine_jailer::plan(&config, &host)?)
}

/// Makes the place of the jails, if it is not there, and holds it until the result is dropped.
fn hold_base() -> Result<File, Box<dyn std::error::Error>> {
    let base = base().map_err(|failure| failure.words)?;
    loop {
        match DirBuilder::new().mode(0o700).create(&base) {
            Err(err) if err.kind() != io::ErrorKind::AlreadyExists => return Err(err.into()),
            _ => {}
        }
        let held = File::open(&base)?;
        flock(&held, FlockOperation::LockShared)?;
        if is_named(&base, &held) {
            return Ok(held);
        }
    }
}

/// Removes the place of the jails, if nothing is in it and nobody is about to change that.
pub fn drop_base(base: &Path) {
    // With somebody there it stays, and goes another time.
    if leftover::own(base).is_some() {
        let _ = std::fs::remove_dir(base);
    }
}

/// The user and the group that a machine is. An ordinary user can only have what is its own.
fn identity() -> io::Result<(u32, u32)> {
    let (user, group) = (geteuid(), getegid());
    if !user.is_root() {
        return Ok((user.as_raw(), group.as_raw()));
    }
    let mut random = [0; 4];
    getrandom(&mut random, GetRandomFlags::empty())?;
    let drawn = FIRST_USER + u32::from_ne_bytes(random) % USERS;
    Ok((drawn, drawn))
}

/// Makes the jail around this process, a copy of the one that is waited for at the other end of
/// `tell`, which is told the number of the new process and what went wrong.
fn become_monitor(plan: &Plan, tell: RawFd) -> io::Result<()> {
    let note = |text: &str| {
        let _ = writeln!(io::stderr(), "tine: {text}");
    };
    let said = match enter(plan, &note) {
        Ok(Forked::Runs { pid }) => format!("\0{pid}\0"),
        Ok(Forked::Ended { .. }) => "it was watched, which nobody asked for".to_owned(),
        Err(err) => err.to_string(),
    };
    tine::process::leave_telling(tell, said.as_bytes())
}

/// The place of the jail of the machine whose directory is `dir`, as the jailer takes it, without links,
/// and the machine's id; `None` where there are no jails.
fn place_of(dir: &Path) -> io::Result<Option<(PathBuf, &str)>> {
    let base = dir.with_file_name(BASE);
    match dir.file_name().and_then(|name| name.to_str()) {
        Some(id) if base.is_dir() => Ok(Some((base.canonicalize()?, id))),
        _ => Ok(None),
    }
}

/// Ends the process of the machine whose directory is `dir`, if it has one in a jail, whatever that
/// process has made of its socket and its arguments.
pub fn kill(dir: &Path) -> Result<(), Failure> {
    let failed = |err: &dyn std::fmt::Display| {
        let dir = dir.display();
        Failure::new(format!("cannot end the process of {dir}: {err}"))
    };
    match place_of(dir).map_err(|err| failed(&err))? {
        None => Ok(()),
        Some((base, id)) => {
            tine_jailer::kill(&base, rundir::PROGRAM, id).map_err(|err| failed(&err))
        }
    }
}

/// Removes the jail of the machine whose directory is `dir`, and which has ended, if it had one.
pub fn discard(dir: &Path) -> Result<(), Failure> {
    let failed = |why: &dyn std::fmt::Display| {
        let dir = dir.display();
        Failure::new(format!("cannot remove the jail of {dir}: {why}"))
    };
    let Some((base, id)) = place_of(dir).map_err(|err| failed(&err))? else {
        return Ok(());
    };
    let collected = tine_jailer::discard(&base, rundir::PROGRAM, id);
    let mut collected = collected.map_err(|err| failed(&err))?;
    if !collected.living.is_empty() {
        return Err(failed(&format!(
            "its process has not ended: `tine rm -f {id}` ends it"
        )));
    }
    match collected.left.pop() {
        None => {
            drop_base(&base);
            Ok(())
        }
        Some((_, why)) => Err(failed(&why)),
    }
}
