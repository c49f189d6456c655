//! `tine-jailer`: makes a jail and runs a monitor in it. Its arguments are those of the known
//! jailer, and a few more.
//!
//! Exit statuses: the program's own when the jailer became it, 0 when it was started in a process
//! of its own, 1 when there is no jail, 2 when the arguments made no sense.

#![cfg_attr(not(test), no_main)]

mod args;
#[cfg(not(test))]
mod entry;

use std::io::Write;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::ExitStatus;

use args::{Args, HELP, Wanted};
use tine_jailer::{Forked, Host, collect, enter, plan};

const SUCCESS: u8 = 0;

/// All of it, up to the exit status.
#[cfg_attr(test, expect(dead_code, reason = "tests have an entry of their own"))]
fn start() -> u8 {
    let ended = match Wanted::of(std::env::args_os()) {
        Err(words) => Err((2, words)),
        Ok(Wanted::Jail(args)) => run(*args).map_err(|err| (1, err.to_string())),
        Ok(Wanted::Collection(base)) => gc(&base).map_err(|err| (1, err.to_string())),
        Ok(Wanted::Help) => print(HELP),
        Ok(Wanted::Version) => print(concat!("tine-jailer ", env!("CARGO_PKG_VERSION"), "\n")),
    };
    ended.unwrap_or_else(|(status, words)| {
        say(&words);
        status
    })
}

fn print(text: &str) -> Result<u8, (u8, String)> {
    let printed = std::io::stdout().write_all(text.as_bytes());
    printed.map_err(|err| (1, format!("standard output: {err}")))?;
    Ok(SUCCESS)
}

fn gc(base: &Path) -> Result<u8, Box<dyn std::error::Error>> {
    let collected = collect(base, false)?;
    for (path, reason) in &collected.left {
        say(&format!("{} stays: {reason}", path.display()));
    }
    match collected.left.is_empty() {
        true => Ok(SUCCESS),
        false => Err("not everything could be removed".into()),
    }
}

fn run(mut args: Args) -> Result<u8, Box<dyn std::error::Error>> {
    let dry_run = args.dry_run;
    let trace_file = args.trace_file.take();
    let config = args.config()?;
    let host = Host::gather(&config.cgroup);
    let plan = plan(&config, &host)?;
    if dry_run {
        // A reader that has gone away does not matter.
        let _ = write!(std::io::stdout(), "{plan}");
        return Ok(SUCCESS);
    }
    if config.uid == 0 {
        say("--uid 0: a machine that breaks out of its jail would be root; choose another user");
    }
    match enter(&plan, &say)? {
        Forked::Runs { .. } => Ok(SUCCESS),
        Forked::Ended { status, trace } => {
            match trace_file {
                Some(path) => std::fs::write(&path, trace.to_string())
                    .map_err(|err| format!("cannot write {}: {err}", path.display()))?,
                None => drop(write!(std::io::stderr(), "{trace}")),
            }
            Ok(exit_status(status))
        }
    }
}

/// A shell's number for how a process ended.
fn exit_status(status: i32) -> u8 {
    let status = ExitStatus::from_raw(status);
    let code = status.code().or(status.signal().map(|signal| 128 + signal));
    code.unwrap_or(1) as u8
}

fn say(text: &str) {
    // A broken pipe on standard error leaves nobody to tell.
    let _ = writeln!(std::io::stderr(), "tine-jailer: {text}");
}
