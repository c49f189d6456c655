//! What a run calls, noted down instead of restricted, so that rules can be made and held against
//! it.

use std::collections::BTreeMap;
use std::fmt;
use std::fs::File;
use std::io::{Read, Write};
use std::path::Path;
use std::str::FromStr;

use rustix::pipe::{PipeFlags, pipe_with};

use super::filters::{ROLES, Role};
use super::names::{name_of, number_of};
use super::supervisor::{supervise_from, watch};
use crate::error::{JailError, failed};
use crate::sys;

/// A call with those arguments that some rule looks at; the others are 0.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Call {
    /// Its number.
    pub number: i64,
    /// Its arguments, the lower 32 bits of each.
    pub arguments: [u64; 6],
}

/// What was called in a run, and how often, by role. A call counts for every role that its thread
/// or one of those that started it had taken on, as a filter does.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Trace(pub BTreeMap<(Role, Call), u64>);

impl Trace {
    /// The calls of a role.
    pub fn of(&self, role: Role) -> impl Iterator<Item = &Call> {
        let own = self.0.keys().filter(move |(other, _)| *other == role);
        own.map(|(_, call)| call)
    }

    /// Adds another run.
    pub fn add(&mut self, other: Trace) {
        for (key, count) in other.0 {
            *self.0.entry(key).or_default() += count;
        }
    }
}

impl fmt::Display for Trace {
    /// A line for each: role, call, arguments, count.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for ((role, call), count) in &self.0 {
            write!(f, "{} {}", role.name(), name_of(call.number).unwrap_or("?"))?;
            call.arguments
                .iter()
                .try_for_each(|value| write!(f, " {value:#x}"))?;
            writeln!(f, " {count}")?;
        }
        Ok(())
    }
}

impl FromStr for Trace {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut trace = Self::default();
        for line in text.lines() {
            let (key, count) =
                entry(line).ok_or_else(|| format!("not a line of a trace: {line}"))?;
            trace.0.insert(key, count);
        }
        Ok(trace)
    }
}

fn entry(line: &str) -> Option<((Role, Call), u64)> {
    let mut words = line.split(' ');
    let role = words.next()?;
    let role = ROLES.into_iter().find(|other| other.name() == role)?;
    let number = number_of(words.next()?)?;
    let mut arguments = [0; 6];
    for argument in &mut arguments {
        *argument = u64::from_str_radix(words.next()?.strip_prefix("0x")?, 16).ok()?;
    }
    let count = words.next()?.parse().ok()?;
    Some(((role, Call { number, arguments }), count))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_printed_is_read() {
        let mut trace = Trace::default();
        let call = |number, arguments| Call { number, arguments };
        trace
            .0
            .insert((Role::Vcpu, call(16, [0, 0xae80, 0, 0, 0, 0])), 7);
        trace.0.insert((Role::Process, call(0, [0; 6])), 1);
        assert_eq!(trace.to_string().parse(), Ok(trace));
        assert!(
            "vcpu nothing 0x0 0x0 0x0 0x0 0x0 0x0 1"
                .parse::<Trace>()
                .is_err()
        );
    }
}

/// From which call on a run is noted down.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum From {
    /// From the next one.
    Now,
    /// From the first one of the program that is executed next.
    Execution,
}

/// Notes down what this process calls, without a jail, in a file that is written when it has ended.
/// A second process sees to that. Has to be called while there is one thread only, by root.
pub fn trace_to(path: &Path, from: From) -> Result<(), JailError> {
    let doing = "start a process that watches over this one";
    let observed = std::process::id();
    let (asked, tell) = pipe_with(PipeFlags::CLOEXEC).map_err(failed(doing))?;
    if sys::fork(sys::fork_flags::NONE, None)
        .map_err(failed(doing))?
        .is_some()
    {
        drop(asked);
        return watch(|number| File::from(tell).write_all(&number.to_ne_bytes()));
    }
    drop(tell);
    let mut number = [0; 4];
    let note = || -> Result<(), JailError> {
        File::from(asked)
            .read_exact(&mut number)
            .map_err(failed(doing))?;
        let trace = supervise_from(observed, i32::from_ne_bytes(number), from)?;
        let doing = format!("write the trace to {}", path.display());
        std::fs::write(path, trace.to_string()).map_err(failed(doing))
    };
    match note() {
        Ok(()) => sys::leave(0),
        Err(err) => {
            // Nobody to tell is no reason to go on.
            let _ = writeln!(std::io::stderr(), "{err}");
            sys::leave(1)
        }
    }
}
