//! The command line: what the words mean, and what becomes of them.
//!
//! Exit statuses: a command's own; 128 and the signal's number when it was killed; 124 when time
//! ran out; 1 when Tine itself could not do what was asked; 2 when the words made no sense.

mod attach;
mod background;
mod boot_template;
mod completion;
mod copies;
mod cp;
mod events;
mod exec;
mod exit;
mod failure;
mod foreground;
mod fork;
mod forward;
mod gc;
mod identity;
mod inspect;
mod jail;
mod keys;
mod kill;
mod leftover;
mod logs;
mod machines;
mod monitor;
mod output;
mod parse;
mod pause;
mod pool;
mod process;
mod progress;
mod ps;
mod restore;
mod rm;
mod run;
mod rundir;
mod session;
mod snapshot;
mod stop;
mod template;
mod terminal;
mod timing;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

use self::failure::Failure;

/// Runs code you did not write in a machine of its own.
#[derive(Parser)]
#[command(name = "tine", version, max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Run(Box<run::Args>),
    Ps(ps::Args),
    Exec(exec::Args),
    Attach(attach::Args),
    Kill(kill::Args),
    Cp(cp::Args),
    Forward(forward::Args),
    Logs(logs::Args),
    Events(events::Args),
    Inspect(inspect::Args),
    Snapshot(snapshot::Args),
    Fork(fork::Args),
    Restore(Box<restore::Args>),
    Template(template::Args),
    Pool(pool::Args),
    Pause(pause::Pause),
    Resume(pause::Resume),
    Stop(stop::Stop),
    Start(stop::Start),
    Rm(rm::Args),
    Gc(gc::Args),
    Completion(completion::Args),
}

// Its process becomes a machine, and need not hold what describes the other commands.
/// Boot a machine, run a command in it, and remove it; or leave it running (-d)
#[derive(Parser)]
#[command(name = "tine run", max_term_width = 100)]
struct Run {
    #[command(flatten)]
    args: run::Args,
}

fn command() -> Command {
    let mut words = std::env::args_os().skip(1);
    if words.next().is_none_or(|word| word != "run") {
        return Cli::parse().command;
    }
    let words = std::iter::once("tine run".into()).chain(words);
    let args = Box::new(Run::parse_from(words).args);
    tine::process::give_free_memory_back();
    Command::Run(args)
}

/// Runs what the process's arguments say.
pub fn main() -> ExitCode {
    let result = match command() {
        Command::Run(args) => run::run(*args),
        Command::Ps(args) => in_runtime(ps::ps(args)),
        Command::Exec(args) => in_runtime(exec::exec(args)),
        Command::Attach(args) => in_runtime(attach::attach(args)),
        Command::Kill(args) => in_runtime(kill::kill(args)),
        Command::Cp(args) => in_runtime(cp::cp(args)),
        Command::Forward(args) => in_runtime(forward::forward(args)),
        Command::Logs(args) => in_runtime(logs::logs(args)),
        Command::Events(args) => in_runtime(events::events(args)),
        Command::Inspect(args) => in_runtime(inspect::inspect(args)),
        Command::Snapshot(args) => in_runtime(snapshot::snapshot(args)),
        Command::Fork(args) => in_runtime(fork::fork(args)),
        Command::Restore(args) => restore::restore(*args),
        Command::Template(args) => in_runtime(template::template(args)),
        Command::Pool(args) => in_runtime(pool::pool(args)),
        Command::Pause(args) => in_runtime(pause::pause(args)),
        Command::Resume(args) => in_runtime(pause::resume(args)),
        Command::Stop(args) => in_runtime(stop::stop(args)),
        Command::Start(args) => in_runtime(stop::start(args)),
        Command::Rm(args) => in_runtime(rm::rm(args)),
        Command::Gc(args) => in_runtime(gc::gc(args)),
        Command::Completion(args) => completion::completion(&args),
    };
    match result {
        Ok(status) => ExitCode::from(status),
        Err(failure) => {
            if !failure.words.is_empty() {
                // A broken pipe on standard error leaves nobody to tell.
                let _ = std::io::Write::write_all(
                    &mut std::io::stderr(),
                    format!("tine: {failure}\n").as_bytes(),
                );
            }
            ExitCode::from(failure.status)
        }
    }
}

/// Runs a client on this thread. Threads that wait in the system end with the process.
fn in_runtime<T>(work: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|err| Failure::new(format!("cannot set up the event loop: {err}")))?;
    let result = runtime.block_on(work);
    runtime.shutdown_background();
    result
}
