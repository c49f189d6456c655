//! Options' values, each once.

use std::fmt::Display;
use std::path::PathBuf;
use std::str::FromStr;

use lexopt::{Arg, Parser};
use tine_jailer::options::value;
use tine_jailer::seccomp::Mode;

pub(super) use tine_jailer::options::text;

pub(super) fn in_words(err: lexopt::Error) -> String {
    err.to_string()
}

pub(super) fn unexpected(arg: &Arg<'_>) -> String {
    match arg {
        Arg::Long(name) => format!("there is no option --{name}; --help lists those that are"),
        Arg::Short(name) => format!("there is no option -{name}; --help lists those that are"),
        Arg::Value(word) => {
            let word = word.display();
            format!("{word}: no words are taken but options; --help lists them")
        }
    }
}

/// Keeps the value of an option that may be given once.
pub(super) fn once<T>(
    slot: &mut Option<T>,
    name: &str,
    value: Result<T, String>,
) -> Result<(), String> {
    let value = value.map_err(|why| format!("--{name}: {why}"))?;
    match slot.replace(value) {
        None => Ok(()),
        Some(_) => Err(format!("--{name}: given twice")),
    }
}

pub(super) fn path(
    slot: &mut Option<PathBuf>,
    name: &str,
    line: &mut Parser,
) -> Result<(), String> {
    let path = PathBuf::from(value(name, line)?);
    let value = match path.as_os_str().is_empty() {
        true => Err("an empty path leads nowhere".to_owned()),
        false => Ok(path),
    };
    once(slot, name, value)
}

pub(super) fn parsed<T: FromStr<Err: Display>>(
    slot: &mut Option<T>,
    name: &str,
    line: &mut Parser,
) -> Result<(), String> {
    let text = text(name, line)?;
    let value = text.parse().map_err(|err| format!("{text}: {err}"));
    once(slot, name, value)
}

pub(super) fn mode(text: &str) -> Result<Mode, String> {
    match text {
        "filter" => Ok(Mode::Filter),
        "trace" => Ok(Mode::Trace),
        "off" => Ok(Mode::Off),
        _ => Err("the modes are filter, trace and off".to_owned()),
    }
}

/// Letters, digits, `-` and `_`, 64 at most.
pub(super) fn id(text: &str) -> Result<String, String> {
    let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_');
    match !text.is_empty() && text.len() <= 64 && text.chars().all(fits) {
        true => Ok(text.to_owned()),
        false => Err("give 1 to 64 letters, digits, `-` or `_`".to_owned()),
    }
}
