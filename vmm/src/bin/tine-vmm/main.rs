//! `tine-vmm`: one process, one machine, and its API on a Unix socket.
//!
//! Exit statuses: 0 when the machine ended in good order, 1 when it could not be made or ended
//! badly, 2 when the arguments made no sense, 4 when the run directory says that its machine has
//! been deleted.

mod args;
mod config_file;
mod record;
mod startup;

use std::process::ExitCode;

use args::Args;
use tine::api::{Prepared, Socket};
use tine::control::settings::MetricsSettings;
use tine::control::{Controller, Identity, Outcome, StartPlan};
use tine::signals::{self, Blocked};
use tine::{logger, process};
use tine_devices::mmds::Mmds;
use tine_jailer::seccomp::{self, Mode};

/// The run directory's machine has been deleted.
const DELETED: u8 = 4;

fn main() -> ExitCode {
    process::share_one_heap();
    process::map_heap_ahead();
    match begin() {
        Ok(code) => code,
        Err(err) => {
            logger::log(logger::Level::Error, &err);
            // A broken pipe on standard error leaves nobody to tell.
            let line = format!("tine-vmm: {err}\n");
            let _ = std::io::Write::write_all(&mut std::io::stderr(), line.as_bytes());
            ExitCode::from(1)
        }
    }
}

fn begin() -> Result<ExitCode, Box<dyn std::error::Error>> {
    process::keep_to_itself()?;
    let signals = signals::block()?;
    // While the server gets ready, the arguments are read.
    let filtered = Args::leave_filters_on();
    if filtered {
        seccomp::set_mode(Mode::Filter)?;
    }
    let server = Prepared::begin(filtered)?;
    run(&Args::read(), signals, server)
}

fn run(
    args: &Args,
    signals: Blocked,
    server: Prepared,
) -> Result<ExitCode, Box<dyn std::error::Error>> {
    if !Args::leave_filters_on() {
        seccomp::set_mode(args.seccomp())?;
    }
    seccomp::name_thread("main");
    args.set_up_log()?;
    let socket = match args.no_api {
        true => None,
        false => Some(Socket::bind(&args.api_sock)?),
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
            return Ok(ExitCode::from(DELETED));
        }
    };
    // Before anybody can ask for it.
    args.startup.done(&handle);
    let server = match socket {
        Some(socket) => Some(server.serve(socket, handle.clone(), args.max_body)?),
        None => {
            drop(server);
            None
        }
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
        Outcome::Ended | Outcome::Deleted => Ok(ExitCode::SUCCESS),
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
