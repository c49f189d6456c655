//! The arguments of `tine-vmm`.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{CommandFactory, Parser};
use tine::api::DEFAULT_MAX_BODY;
use tine::logger::{self, Level};
use tine_devices::mmds::DEFAULT_LIMIT;
use tine_jailer::seccomp::Mode;
use tine_snapshot::{manifest, pair};

use crate::startup::Startup;

/// One machine and its API socket.
#[derive(Debug, Parser)]
#[command(name = "tine-vmm", version, max_term_width = 100)]
pub struct Args {
    /// Where the API's socket is made
    #[arg(
        long,
        value_name = "PATH",
        default_value = "/run/tine.socket",
        conflicts_with = "no_api"
    )]
    pub api_sock: PathBuf,
    /// The machine's id
    #[arg(long, value_name = "ID", default_value = "anonymous-instance", value_parser = id)]
    pub id: String,
    /// Directory for the machine's records: usage and deletion [default: none are kept]
    #[arg(long, value_name = "DIR")]
    pub run_dir: Option<PathBuf>,
    /// Configure the machine from a JSON file, and start it
    #[arg(long, value_name = "FILE")]
    pub config_file: Option<PathBuf>,
    /// Serve no API
    #[arg(long, requires = "config_file")]
    pub no_api: bool,
    /// JSON file to fill the metadata store with
    #[arg(long, value_name = "FILE")]
    pub metadata: Option<PathBuf>,
    /// Most bytes of the metadata store
    #[arg(long, value_name = "BYTES", default_value_t = DEFAULT_LIMIT)]
    pub mmds_size_limit: usize,
    /// Write to the log when the guest says that it has booted
    #[arg(long)]
    pub boot_timer: bool,
    /// File or FIFO for the log [default: standard output, once a level is given]
    #[arg(long, value_name = "PATH")]
    pub log_path: Option<PathBuf>,
    /// What is logged: Off, Error, Warning, Info, Debug, Trace
    #[arg(long, value_name = "LEVEL")]
    pub level: Option<Level>,
    /// Lines of the log say their level
    #[arg(long)]
    pub show_level: bool,
    /// File or FIFO for metrics, as by `PUT /metrics`
    #[arg(long, value_name = "PATH")]
    pub metrics_path: Option<PathBuf>,
    /// What is done about system calls: `filter` ends the process at one that no thread needs,
    /// `trace` tells the supervisor who is there then, `off` does nothing
    #[arg(long, value_name = "MODE", default_value = "filter", value_parser = seccomp)]
    pub seccomp: Mode,
    /// The same as --seccomp off
    #[arg(long, conflicts_with_all = ["seccomp", "seccomp_filter"])]
    pub no_seccomp: bool,
    /// Most bytes of an API request's body
    #[arg(long = "http-api-max-payload-size", value_name = "BYTES", default_value_t = DEFAULT_MAX_BODY)]
    pub max_body: usize,
    #[command(flatten)]
    pub startup: Startup,
    /// Print the version of the snapshots that are written, and end
    #[arg(long)]
    snapshot_version: bool,
    /// Print the version of a snapshot's file of state, and end
    #[arg(long, value_name = "FILE")]
    describe_snapshot: Option<PathBuf>,
    #[command(flatten)]
    refused: Refused,
}

/// What clients of the known API may ask for and cannot have. They are told so by name, with what
/// to do about it.
#[derive(Debug, clap::Args)]
struct Refused {
    #[arg(long, hide = true)]
    enable_pci: bool,
    #[arg(long, hide = true)]
    seccomp_filter: Option<PathBuf>,
    #[arg(long, hide = true)]
    show_log_origin: bool,
    #[arg(long, hide = true)]
    module: Option<String>,
}

impl Refused {
    /// The first one that was given.
    fn check(&self) -> Result<(), &'static str> {
        let given = [
            (
                self.enable_pci,
                "--enable-pci: devices are on virtio-mmio, and there is no PCI bus; leave it out",
            ),
            (
                self.seccomp_filter.is_some(),
                "--seccomp-filter: filters of the caller's are not supported; leave it out",
            ),
            (
                self.show_log_origin,
                "--show-log-origin: places in the source are not logged; leave it out",
            ),
            (
                self.module.is_some(),
                "--module: the log is not divided into modules; leave it out",
            ),
        ];
        let refused = given.into_iter().find(|(given, _)| *given);
        refused.map_or(Ok(()), |(_, words)| Err(words))
    }
}

fn seccomp(text: &str) -> Result<Mode, String> {
    match text {
        "filter" => Ok(Mode::Filter),
        "trace" => Ok(Mode::Trace),
        "off" => Ok(Mode::Off),
        _ => Err("the modes are filter, trace and off".to_owned()),
    }
}

/// Letters, digits, `-` and `_`, 64 at most.
fn id(text: &str) -> Result<String, String> {
    let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_');
    match !text.is_empty() && text.len() <= 64 && text.chars().all(fits) {
        true => Ok(text.to_owned()),
        false => Err("give 1 to 64 letters, digits, `-` or `_`".to_owned()),
    }
}

/// In the form that clients of the known API read.
fn print_version(version: u32) -> ! {
    println!("v{version}.0.0");
    std::process::exit(0);
}

impl Args {
    /// Whether no word of the arguments can be about the filters, which then are on. Known before
    /// the arguments have been read, and nobody has to wait for that.
    pub fn leave_filters_on() -> bool {
        let about = |word: &OsString| {
            let word = word.as_encoded_bytes();
            word.starts_with(b"--seccomp") || word.starts_with(b"--no-seccomp")
        };
        !std::env::args_os().any(|word| about(&word))
    }

    /// What is done about system calls.
    pub fn seccomp(&self) -> Mode {
        if self.no_seccomp {
            Mode::Off
        } else {
            self.seccomp
        }
    }

    /// The process's arguments. Ends the process where they make no sense.
    pub fn read() -> Self {
        let args = Self::parse();
        if let Err(words) = args.refused.check() {
            let kind = clap::error::ErrorKind::ArgumentConflict;
            Self::command().error(kind, words).exit();
        }
        if args.snapshot_version {
            print_version(manifest::VERSION);
        }
        if let Some(path) = &args.describe_snapshot {
            match pair::read_state(path) {
                Ok(state) => print_version(state.manifest.version),
                Err(err) => Self::command()
                    .error(clap::error::ErrorKind::Io, err)
                    .exit(),
            }
        }
        args
    }

    /// Switches the log on, if it is asked for.
    pub fn set_up_log(&self) -> Result<(), String> {
        logger::set_id(&self.id);
        if self.log_path.is_none() && self.level.is_none() && !self.show_level && !self.boot_timer {
            return Ok(());
        }
        let path = self.log_path.as_deref();
        logger::configure(path, self.level, Some(self.show_level)).map_err(|err| {
            let path = path.unwrap_or("standard output".as_ref()).display();
            format!("cannot write the log to {path}: {err}")
        })
    }
}
