//! The arguments of `tine-vmm`. Read by lexopt, which builds nothing: a parser that is described
//! first costs a tenth of the whole start.

mod help;
mod later;
mod values;

use std::ffi::OsString;
use std::os::fd::RawFd;
use std::path::{Path, PathBuf};

use lexopt::{Arg, Parser};
use tine::api::DEFAULT_MAX_BODY;
use tine::logger::{self, Level};
use tine_devices::mmds::DEFAULT_LIMIT;
use tine_jailer::seccomp::Mode;

use self::help::REFUSED;
use self::values::{id, in_words, mode, once, parsed, path, text, unexpected};
use crate::startup::Startup;

pub use self::help::HELP;
pub use self::later::Later;

/// What the process is there for.
#[derive(Debug)]
pub enum Wanted {
    /// A machine.
    Machine(Box<Args>),
    /// A machine of which more is going to be said.
    Later(Box<Later>),
    /// The help.
    Help,
    /// The program's version.
    Version,
    /// The version of the snapshots that are written.
    SnapshotVersion,
    /// The version of a snapshot's file of state.
    DescribeSnapshot(PathBuf),
}

/// One machine and its API socket. See [`HELP`].
#[derive(Debug)]
pub struct Args {
    pub api_sock: PathBuf,
    pub id: String,
    pub run_dir: Option<PathBuf>,
    pub config_file: Option<PathBuf>,
    pub no_api: bool,
    pub ready_fd: Option<RawFd>,
    pub metadata: Option<PathBuf>,
    pub mmds_size_limit: usize,
    pub boot_timer: bool,
    pub log_path: Option<PathBuf>,
    pub level: Option<Level>,
    pub show_level: bool,
    pub metrics_path: Option<PathBuf>,
    pub seccomp: Mode,
    pub max_body: usize,
    pub startup: Startup,
}

/// What was given, each once.
#[derive(Default)]
struct Given {
    api_sock: Option<PathBuf>,
    id: Option<String>,
    run_dir: Option<PathBuf>,
    config_file: Option<PathBuf>,
    no_api: Option<()>,
    ready_fd: Option<RawFd>,
    args_fd: Option<RawFd>,
    metadata: Option<PathBuf>,
    mmds_size_limit: Option<usize>,
    boot_timer: Option<()>,
    log_path: Option<PathBuf>,
    level: Option<Level>,
    show_level: Option<()>,
    metrics_path: Option<PathBuf>,
    seccomp: Option<Mode>,
    no_seccomp: Option<()>,
    max_body: Option<usize>,
    start_time_us: Option<u64>,
    start_time_cpu_us: Option<u64>,
    parent_cpu_time_us: Option<u64>,
}

impl Wanted {
    /// From the words of a command line, the program's name first.
    ///
    /// # Errors
    ///
    /// In words that name the option, when the line makes no sense.
    pub fn of(words: impl IntoIterator<Item = OsString>) -> Result<Self, String> {
        let mut given = Given::default();
        if let Some(other) = given.read(Parser::from_iter(words))? {
            return Ok(other);
        }
        match given.args_fd {
            Some(fd) => Later::new(given, fd).map(|later| Self::Later(Box::new(later))),
            None => given.machine().map(|args| Self::Machine(Box::new(args))),
        }
    }
}

impl Given {
    /// Reads words; tells what they want if that is no machine.
    fn read(&mut self, mut line: Parser) -> Result<Option<Wanted>, String> {
        let given = self;
        while let Some(arg) = line.next().map_err(in_words)? {
            let name = match arg {
                Arg::Long(name) => name.to_owned(),
                Arg::Short('h') => "help".to_owned(),
                Arg::Short('V') => "version".to_owned(),
                other => return Err(unexpected(&other)),
            };
            if let Some((_, why)) = REFUSED.iter().find(|(refused, _)| *refused == name) {
                return Err(format!("--{name}: {why}"));
            }
            let line = &mut line;
            match name.as_str() {
                "api-sock" => path(&mut given.api_sock, &name, line)?,
                "id" => once(&mut given.id, &name, id(&text(&name, line)?))?,
                "run-dir" => path(&mut given.run_dir, &name, line)?,
                "config-file" => path(&mut given.config_file, &name, line)?,
                "no-api" => once(&mut given.no_api, &name, Ok(()))?,
                "ready-fd" => parsed(&mut given.ready_fd, &name, line)?,
                "metadata" => path(&mut given.metadata, &name, line)?,
                "mmds-size-limit" => parsed(&mut given.mmds_size_limit, &name, line)?,
                "boot-timer" => once(&mut given.boot_timer, &name, Ok(()))?,
                "log-path" => path(&mut given.log_path, &name, line)?,
                "level" => parsed(&mut given.level, &name, line)?,
                "show-level" => once(&mut given.show_level, &name, Ok(()))?,
                "metrics-path" => path(&mut given.metrics_path, &name, line)?,
                "seccomp" => once(&mut given.seccomp, &name, mode(&text(&name, line)?))?,
                "no-seccomp" => once(&mut given.no_seccomp, &name, Ok(()))?,
                "http-api-max-payload-size" => parsed(&mut given.max_body, &name, line)?,
                "start-time-us" => parsed(&mut given.start_time_us, &name, line)?,
                "start-time-cpu-us" => parsed(&mut given.start_time_cpu_us, &name, line)?,
                "parent-cpu-time-us" => parsed(&mut given.parent_cpu_time_us, &name, line)?,
                "args-fd" => parsed(&mut given.args_fd, &name, line)?,
                "snapshot-version" => return Ok(Some(Wanted::SnapshotVersion)),
                "describe-snapshot" => {
                    let mut file = None;
                    path(&mut file, &name, line)?;
                    return Ok(Some(Wanted::DescribeSnapshot(file.unwrap_or_default())));
                }
                "help" => return Ok(Some(Wanted::Help)),
                "version" => return Ok(Some(Wanted::Version)),
                _ => return Err(unexpected(&Arg::Long(&name))),
            }
        }
        Ok(None)
    }

    /// What is done about system calls.
    fn mode(&self) -> Result<Mode, String> {
        match (self.no_seccomp, self.seccomp) {
            (Some(()), Some(_)) => {
                Err("--no-seccomp and --seccomp: give one of the two".to_owned())
            }
            (Some(()), None) => Ok(Mode::Off),
            (None, mode) => Ok(mode.unwrap_or(Mode::Filter)),
        }
    }

    fn machine(self) -> Result<Args, String> {
        let no_api = self.no_api.is_some();
        if no_api && self.api_sock.is_some() {
            return Err("--no-api and --api-sock: give one of the two".to_owned());
        }
        if no_api && self.ready_fd.is_some() {
            return Err("--no-api and --ready-fd: there is no socket to tell of".to_owned());
        }
        if no_api && self.config_file.is_none() {
            return Err(
                "--no-api: nobody can configure the machine; give --config-file too".into(),
            );
        }
        let seccomp = self.mode()?;
        Ok(Args {
            api_sock: self.api_sock.unwrap_or_else(|| "/run/tine.socket".into()),
            id: self.id.unwrap_or_else(|| "anonymous-instance".to_owned()),
            run_dir: self.run_dir,
            config_file: self.config_file,
            no_api,
            ready_fd: self.ready_fd,
            metadata: self.metadata,
            mmds_size_limit: self.mmds_size_limit.unwrap_or(DEFAULT_LIMIT),
            boot_timer: self.boot_timer.is_some(),
            log_path: self.log_path,
            level: self.level,
            show_level: self.show_level.is_some(),
            metrics_path: self.metrics_path,
            seccomp,
            max_body: self.max_body.unwrap_or(DEFAULT_MAX_BODY),
            startup: Startup {
                start_time_us: self.start_time_us,
                start_time_cpu_us: self.start_time_cpu_us,
                parent_cpu_time_us: self.parent_cpu_time_us,
            },
        })
    }
}

impl Args {
    /// Switches the log on, if it is asked for.
    ///
    /// # Errors
    ///
    /// When it cannot be written to where it has to go.
    pub fn set_up_log(&self) -> Result<(), String> {
        logger::set_id(&self.id);
        if self.log_path.is_none() && self.level.is_none() && !self.show_level && !self.boot_timer {
            return Ok(());
        }
        let path = self.log_path.as_deref();
        logger::configure(path, self.level, Some(self.show_level)).map_err(|err| {
            let path = path.unwrap_or(Path::new("standard output")).display();
            format!("cannot write the log to {path}: {err}")
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(words: &[&str]) -> Result<Wanted, String> {
        let words = ["tine-vmm"].iter().chain(words);
        Wanted::of(words.map(|word| word.into()))
    }

    fn machine(words: &[&str]) -> Args {
        match read(words) {
            Ok(Wanted::Machine(args)) => *args,
            other => panic!("{words:?}: {other:?}"),
        }
    }

    #[test]
    fn values_follow_or_are_joined_by_an_equals_sign() {
        let args = machine(&["--id", "a", "--api-sock=/s", "--mmds-size-limit=7"]);
        assert_eq!((args.id.as_str(), args.mmds_size_limit), ("a", 7));
        assert_eq!(args.api_sock, Path::new("/s"));
        assert_eq!(args.seccomp, Mode::Filter);
        assert_eq!(machine(&["--no-seccomp"]).seccomp, Mode::Off);
    }

    #[test]
    fn what_makes_no_sense_is_named() {
        for (words, named) in [
            (&["--id"][..], "--id: its value"),
            (&["--id", "--no-api"], "--id: its value"),
            (&["--id", "a", "--id", "b"], "--id: given twice"),
            (&["--boot-timer", "--boot-timer"], "--boot-timer: given"),
            (&["--run-dir", ""], "--run-dir: an empty path"),
            (&["--start-time-us", "-1"], "--start-time-us: -1"),
            (&["--boot-timer=yes"], "--boot-timer"),
            (&["-x"], "-x"),
            (&["word"], "word"),
            (&["--", "word"], "word"),
            (&["--api-sock", "/s", "--no-api"], "--api-sock"),
            (&["--seccomp", "off", "--no-seccomp"], "--no-seccomp"),
            (&["--no-api"], "--config-file"),
            (&["--no-api", "--ready-fd", "3"], "--ready-fd"),
            (&["--ready-fd", "x"], "--ready-fd: x"),
        ] {
            let said = read(words).expect_err(&words.join(" "));
            assert!(said.contains(named), "{words:?}: {said}");
        }
    }

    #[test]
    fn the_help_names_every_default_as_it_is() {
        let args = machine(&[]);
        for value in [
            args.api_sock.display().to_string(),
            args.id,
            args.mmds_size_limit.to_string(),
            args.max_body.to_string(),
        ] {
            let named = format!("[default: {value}]");
            assert!(HELP.contains(&named), "{named}");
        }
    }
}
