//! A program that is put in the place of the monitor and tries to get out of the jail.
//!
//! `tine-hostile --id ID [ATTEMPT...]` tries what is named, or everything, and prints a line for
//! each: `NAME: refused: WHY`, `NAME: GOT OUT: HOW`, or `NAME: not here: REASON` where the kernel
//! lacks what would be needed. `tine-hostile list` names all attempts. It ends with 0 when
//! everything was refused or not here.
//!
//! It survives what filters do to it: a call that they catch is answered with an error, so that a
//! single run can try everything. The few attempts that only end with the process are tried when
//! they are named.

mod calls;
mod code;
mod files;
mod kernel;
mod mounts;
mod network;
mod privileges;
mod processes;
mod resources;

use std::io::Write;

use calls::Error;

/// What came of an attempt.
pub enum Outcome {
    /// It was refused, and how.
    Refused(String),
    /// It succeeded.
    Out(String),
    /// The kernel has no such thing.
    NotHere(String),
}

/// A way out.
pub struct Attempt {
    /// What it is called.
    pub name: &'static str,
    /// Tries it.
    pub run: fn() -> Outcome,
    /// Ends the process, so it is tried only when it is named.
    pub alone: bool,
}

/// An attempt that leaves the process as it is.
pub const fn attempt(name: &'static str, run: fn() -> Outcome) -> Attempt {
    Attempt {
        name,
        run,
        alone: false,
    }
}

/// Refused if the call failed.
pub fn must_fail(result: Result<i64, Error>) -> Outcome {
    any_must_fail([result])
}

/// Refused if all calls failed.
pub fn any_must_fail(results: impl IntoIterator<Item = Result<i64, Error>>) -> Outcome {
    let mut last = Outcome::NotHere("nothing was tried".to_owned());
    for result in results {
        last = match result {
            Ok(value) => return Outcome::Out(format!("the call returned {value}")),
            Err(err) if err.is_missing() => {
                Outcome::NotHere("the kernel has no such call".to_owned())
            }
            Err(err) => Outcome::Refused(err.to_string()),
        };
    }
    last
}

fn all() -> Vec<Attempt> {
    let mut all = files::attempts();
    all.extend(mounts::attempts());
    all.extend(processes::attempts());
    all.extend(privileges::attempts());
    all.extend(code::attempts());
    all.extend(kernel::attempts());
    all.extend(network::attempts());
    all.extend(resources::attempts());
    all
}

fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    if words.first().is_some_and(|word| word == "list") {
        for attempt in all() {
            say(&format!(
                "{}{}",
                attempt.name,
                if attempt.alone { " alone" } else { "" }
            ));
        }
        return;
    }
    calls::survive_filters();
    // `--id ID` and other options come from the jailer, what follows from the test.
    let named: Vec<&String> = words
        .iter()
        .skip(2)
        .filter(|word| !word.starts_with("--"))
        .collect();
    let mut out = 0;
    for attempt in all() {
        let wanted = match named[..] {
            [] => !attempt.alone,
            _ => named.iter().any(|name| *name == attempt.name),
        };
        if !wanted {
            continue;
        }
        say(&match (attempt.run)() {
            Outcome::Refused(why) => format!("{}: refused: {why}", attempt.name),
            Outcome::NotHere(reason) => format!("{}: not here: {reason}", attempt.name),
            Outcome::Out(how) => {
                out += 1;
                format!("{}: GOT OUT: {how}", attempt.name)
            }
        });
    }
    std::process::exit(i32::from(out > 0));
}

fn say(line: &str) {
    let mut stdout = std::io::stdout();
    // Who does not listen will find too few lines.
    let _ = writeln!(stdout, "{line}");
    let _ = stdout.flush();
}
