//! Options and their values, as words of a command line.

use std::fmt::Display;
use std::path::PathBuf;
use std::str::FromStr;

use lexopt::{Arg, Parser};
use tine_jailer::options::value;

pub use tine_jailer::options::text;

/// Refuses what is no option that there is.
pub fn unexpected(arg: &Arg<'_>) -> String {
    match arg {
        Arg::Long(name) => format!("there is no option --{name}; --help lists those that are"),
        Arg::Short(name) => format!("there is no option -{name}; --help lists those that are"),
        Arg::Value(word) => format!(
            "{}: words that are no options are the program's, and stand behind `--`",
            word.display()
        ),
    }
}

/// Keeps the value of an option that may be given once.
pub fn once<T>(slot: &mut Option<T>, name: &str, value: T) -> Result<(), String> {
    match slot.replace(value) {
        None => Ok(()),
        Some(_) => Err(format!("--{name}: given twice")),
    }
}

/// Keeps the value of an option that may be given several times.
pub fn again<T>(all: &mut Vec<T>, value: T) -> Result<(), String> {
    all.push(value);
    Ok(())
}

/// An option's value as a path.
pub fn path(name: &str, line: &mut Parser) -> Result<PathBuf, String> {
    let path = PathBuf::from(value(name, line)?);
    match path.as_os_str().is_empty() {
        true => Err(format!("--{name}: an empty path leads nowhere")),
        false => Ok(path),
    }
}

/// An option's value as what it stands for.
pub fn parsed<T: FromStr<Err: Display>>(name: &str, line: &mut Parser) -> Result<T, String> {
    let text = text(name, line)?;
    text.parse().map_err(|err: T::Err| {
        let err = err.to_string();
        // Some name the value themselves.
        match err.contains(&format!("{text:?}")) {
            true => format!("--{name}: {err}"),
            false => format!("--{name}: {text:?}: {err}"),
        }
    })
}
