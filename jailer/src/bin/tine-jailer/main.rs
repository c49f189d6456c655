//! `tine-jailer`: makes a jail and runs a monitor in it. Its arguments are those of the known
//! jailer, and a few more.
//!
//! Exit statuses: the program's own when the jailer became it, 0 when it was started in a process
//! of its own, 1 when there is no jail, 2 when the arguments made no sense.

mod args;

use std::io::Write;
use std::os::unix::process::ExitStatusExt;
use std::process::{ExitCode, ExitStatus};

use args::Args;
use clap::Parser;
use tine_jailer::{Forked, Host, collect, enter, plan};

fn main() -> ExitCode {
    match run(Args::parse()) {
        Ok(code) => code,
        Err(err) => {
            say(&err.to_string());
            ExitCode::from(1)
        }
    }
}

fn run(args: Args) -> Result<ExitCode, Box<dyn std::error::Error>> {
    if args.gc {
        let collected = collect(&args.chroot_base_dir, false)?;
        for (path, reason) in &collected.left {
            say(&format!("{} stays: {reason}", path.display()));
        }
        return match collected.left.is_empty() {
            true => Ok(ExitCode::SUCCESS),
            false => Err("not everything could be removed".into()),
        };
    }
    let dry_run = args.dry_run;
    let trace_file = args.seccomp.file.clone();
    let config = args.config()?;
    let host = Host::gather(&config.cgroup);
    let plan = plan(&config, &host)?;
    if dry_run {
        // A reader that has gone away does not matter.
        let _ = write!(std::io::stdout(), "{plan}");
        return Ok(ExitCode::SUCCESS);
    }
    if config.uid == 0 {
        say("--uid 0: a machine that breaks out of its jail would be root; choose another user");
    }
    match enter(&plan, &say)? {
        Forked::Runs { .. } => Ok(ExitCode::SUCCESS),
        Forked::Ended { status, trace } => {
            match trace_file {
                Some(path) => std::fs::write(&path, trace.to_string())
                    .map_err(|err| format!("cannot write {}: {err}", path.display()))?,
                None => drop(write!(std::io::stderr(), "{trace}")),
            }
            Ok(exit_code(status))
        }
    }
}

/// A shell's number for how a process ended.
fn exit_code(status: i32) -> ExitCode {
    let status = ExitStatus::from_raw(status);
    let code = status.code().or(status.signal().map(|signal| 128 + signal));
    ExitCode::from(code.unwrap_or(1) as u8)
}

fn say(text: &str) {
    // A broken pipe on standard error leaves nobody to tell.
    let _ = writeln!(std::io::stderr(), "tine-jailer: {text}");
}
