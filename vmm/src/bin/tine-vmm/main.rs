//! `tine-vmm`: one process, one machine, and its API on a Unix socket.
//!
//! Exit statuses: 0 when the machine ended in good order, 1 when it could not be made or ended
//! badly, 2 when the arguments made no sense, 4 when the run directory says that its machine has
//! been deleted.

#![cfg_attr(not(test), no_main)]

mod args;
mod config_file;
#[cfg(not(test))]
mod entry;
mod startup;

use std::io::Write;
use std::os::fd::RawFd;

use args::{Args, HELP, Later, Wanted};
use tine::api::{Prepared, Socket};
use tine::arch::x86_64::features;
use tine::control::settings::MetricsSettings;
use tine::control::{Controller, Identity, Outcome, StartPlan, record};
use tine::host::HostKind;
use tine::ready::Ready;
use tine::signals::{self, Blocked};
use tine::{logger, process};
use tine_devices::mmds::Mmds;
use tine_jailer::seccomp::{self, Mode};
use tine_snapshot::{manifest, pair};

const SUCCESS: u8 = 0;
/// The run directory's machine has been deleted.
const DELETED: u8 = 4;

/// All of it, up to the exit status.
#[cfg_attr(test, expect(dead_code, reason = "tests have an entry of their own"))]
fn start() -> u8 {
    process::share_one_heap();
    process::map_heap_ahead();
    let ended = match Wanted::of(std::env::args_os()) {
        Err(words) => Err((2, words)),
        Ok(Wanted::Machine(args)) => begin(&args).map_err(|err| (1, err.to_string())),
        Ok(Wanted::Later(later)) => begin_later(*later),
        Ok(Wanted::Help) => print(HELP),
        Ok(Wanted::Version) => print(concat!("tine-vmm ", env!("CARGO_PKG_VERSION"), "\n")),
        Ok(Wanted::SnapshotVersion) => print(&version(manifest::VERSION)),
        Ok(Wanted::DescribeSnapshot(path)) => match pair::read_state(&path) {
            Ok(state) => print(&version(state.manifest.version)),
            Err(err) => Err((2, err.to_string())),
        },
    };
    ended.unwrap_or_else(|(status, words)| {
        logger::log(logger::Level::Error, &words);
        // A broken pipe on standard error leaves nobody to tell.
        let line = format!("tine-vmm: {words}\n");
        let _ = std::io::stderr().write_all(line.as_bytes());
        status
    })
}

/// In the form that clients of the known API read.
fn version(version: u32) -> String {
    format!("v{version}.0.0\n")
}

fn print(text: &str) -> Result<u8, (u8, String)> {
    let printed = std::io::stdout().write_all(text.as_bytes());
    printed.map_err(|err| (1, format!("standard output: {err}")))?;
    Ok(SUCCESS)
}

fn begin(args: &Args) -> Result<u8, Box<dyn std::error::Error>> {
    let begun = Begun::new(args.seccomp, args.ready_fd, !args.no_api)?;
    run(args, begun)
}

/// The same for a machine that is told of when all else is ready.
fn begin_later(later: Later) -> Result<u8, (u8, String)> {
    let failed = |err: Box<dyn std::error::Error>| (1, err.to_string());
    let begun = Begun::new(later.seccomp, later.ready_fd, true).map_err(failed)?;
    // What the machine is going to need of this host, which does not change.
    process::map_code_ahead();
    HostKind::detect();
    features::here();
    if let Some(ready) = &begun.ready {
        let told = ready.tell_of_waiting();
        told.map_err(|err| (1, format!("--ready-fd: cannot tell: {err}")))?;
    }
    // There is nothing yet that would have to be ended in good order.
    let said = begun.signals.lift(|| later.wait());
    let said = said.map_err(|err| (1, err.to_string()))?;
    match said.map_err(|words| (2, words))? {
        Some(args) => run(&args, begun).map_err(failed),
        None => Ok(SUCCESS),
    }
}

/// What does not depend on what the machine is.
struct Begun {
    ready: Option<Ready>,
    signals: Blocked,
    server: Option<Prepared>,
}

impl Begun {
    fn new(
        seccomp: Mode,
        ready_fd: Option<RawFd>,
        with_server: bool,
    ) -> Result<Self, Box<dyn std::error::Error>> {
        // Before a file of ours gets a number that was not open.
        let ready = ready_fd
            .map(|number| Ready::take(number).map_err(|err| format!("--ready-fd {number}: {err}")));
        let ready = ready.transpose()?;
        process::keep_to_itself()?;
        let signals = signals::block()?;
        seccomp::set_mode(seccomp)?;
        // While this thread goes on, the server gets ready.
        let server = with_server.then(Prepared::begin).transpose()?;
        Ok(Self {
            ready,
            signals,
            server,
        })
    }
}

fn run(args: &Args, begun: Begun) -> Result<u8, Box<dyn std::error::Error>> {
    let Begun {
        ready,
        signals,
        server,
    } = begun;
    seccomp::name_thread("main");
    args.set_up_log()?;
    let server = match server {
        Some(server) => Some((server, Socket::bind(&args.api_sock)?)),
        None => None,
    };
    let identity = Identity {
        id: args.id.clone(),
        run_dir: args.run_dir.clone(),
    };
    let (controller, handle) = match Controller::new(identity, metadata(args)?)? {
        Ok(both) => both,
        Err(times) => {
            let (id, at) = (&args.id, times.accepted_at);
            eprintln!("tine-vmm: machine {id} was deleted at {at}: there is nothing to run");
            return Ok(DELETED);
        }
    };
    // Before anybody can ask for it.
    args.startup.done(&handle);
    if let Some(ready) = ready {
        let told = ready.tell();
        told.map_err(|err| format!("--ready-fd: cannot tell that the socket is ready: {err}"))?;
    }
    let server = match server {
        Some((server, socket)) => Some(server.serve(socket, handle.clone(), args.max_body)?),
        None => None,
    };
    let asked = handle.clone();
    signals.forward(move |number| asked.signal(number))?;
    let plan = plan(args)?;
    let outcome = controller.run(plan);
    if let Some(server) = server {
        server.stop();
    }
    let outcome = outcome?;
    if let (Some(dir), false) = (&args.run_dir, outcome == Outcome::Deleted) {
        record::write(dir, &handle.status().settings)?;
    }
    match outcome {
        Outcome::Ended | Outcome::Deleted => Ok(SUCCESS),
        Outcome::Failed(reason) => Err(reason.into()),
    }
}

/// The metadata store, with what the arguments name in it.
fn metadata(args: &Args) -> Result<Mmds, Box<dyn std::error::Error>> {
    let store = Mmds::new(args.mmds_size_limit);
    if let Some(path) = &args.metadata {
        let name = path.display();
        let read = std::fs::read(path).map_err(|err| format!("metadata file {name}: {err}"))?;
        let document = serde_json::from_slice(&read);
        let document = document.map_err(|err| format!("metadata file {name}: {err}"))?;
        store
            .put(document)
            .map_err(|err| format!("metadata file {name}: {err}"))?;
    }
    Ok(store)
}

/// What the controller begins with.
fn plan(args: &Args) -> Result<StartPlan, Box<dyn std::error::Error>> {
    let mut plan = match &args.config_file {
        Some(path) => config_file::read(path)?,
        None => StartPlan::default(),
    };
    plan.settings.boot_timer = args.boot_timer;
    if let Some(path) = &args.metrics_path {
        if plan.metrics.is_some() {
            return Err(
                "--metrics-path: the configuration file has a `metrics` section too".into(),
            );
        }
        plan.metrics = Some(MetricsSettings {
            metrics_path: path.clone(),
            ..MetricsSettings::default()
        });
    }
    Ok(plan)
}
