//! Preparing a machine that runs: files are copied into it, and its commands are run.

use std::io::IsTerminal;
use std::path::Path;

use tine::client::{ExecRequest, Machine, Record, State, argv};
use tine_guest_agent::exec::Encoding;
use tine_guest_agent::files::Mkdir;
use tine_guest_agent::octets::{Octets, decode_base64};

use super::plan::Plan;
use crate::cli::cp::{self, GuestPath};
use crate::cli::failure::Failure;
use crate::cli::output;
use crate::cli::process::Process;

/// Lines of a failed command's output that are shown.
const LINES: usize = 12;

/// Prepares the machine.
pub async fn prepare(plan: &Plan, process: &Process, machine: &Machine) -> Result<(), Failure> {
    let files = machine.files();
    for file in &plan.files {
        let to = GuestPath {
            id: process.id.clone(),
            path: file.to.as_str().into(),
        };
        if let Some(parent) = to.path.parent().and_then(Path::to_str) {
            let parents = Mkdir {
                path: parent.into(),
                parents: true,
                ..Mkdir::default()
            };
            let made = files.mkdir(&parents).await;
            made.map_err(|err| Failure::new(format!("cannot copy to {to}: {err}")))?;
        }
        cp::up(&files, &file.from, &to, false).await?;
    }
    let env = plan.environment.iter();
    let env = env.map(|(name, value)| (name.clone(), Octets::from(value.as_str())));
    let request = ExecRequest {
        env: env.collect(),
        ..ExecRequest::default()
    };
    for (n, command) in plan.run.iter().enumerate() {
        if std::io::stderr().is_terminal() {
            eprintln!(
                "[{}/{}] {}",
                n + 1,
                plan.run.len(),
                output::printable(command)
            );
        }
        // Each has a name that nobody else gives: the machines of the template know of it, too.
        let request = ExecRequest {
            argv: argv(["sh", "-c", command]),
            ..request.clone()
        };
        let record = machine.run(request).await;
        let record = record.map_err(|err| process.failure(&err.to_string()))?;
        if let Some(words) = failed(command, &record) {
            return Err(Failure::new(words));
        }
    }
    Ok(())
}

/// What is to be said of a command that did not end with status 0.
fn failed(command: &str, record: &Record) -> Option<String> {
    let why = match (record.state, record.exit_code, record.signal) {
        (State::Exited, Some(0), _) => return None,
        (_, _, Some(signal)) => format!("was killed by signal {signal}"),
        (State::Exited, Some(code), _) => format!("ended with status {code}"),
        _ => match &record.reason {
            Some(reason) => format!("failed: {reason}"),
            None => "failed".to_owned(),
        },
    };
    let mut words = format!("the command {command:?} {}", output::printable(&why));
    let bytes = match record.stderr_encoding {
        Encoding::Utf8 => record.stderr.clone().into_bytes(),
        Encoding::Base64 => decode_base64(&record.stderr).unwrap_or_default(),
    };
    let text = String::from_utf8_lossy(&bytes);
    let lines: Vec<&str> = text
        .lines()
        .filter(|line| !line.trim().is_empty())
        .collect();
    for line in &lines[lines.len().saturating_sub(LINES)..] {
        words.push_str(&format!(
            "\n  stderr: {}",
            output::printable(line.trim_end())
        ));
    }
    Some(words)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failed_command_is_named_with_what_it_said_last() {
        let mut record = Record {
            state: State::Exited,
            exit_code: Some(0),
            ..Record::default()
        };
        assert_eq!(failed("true", &record), None);
        record.exit_code = Some(3);
        record.stderr = (0..20).map(|n| format!("line {n}\x1b[2J\n")).collect();
        let words = failed("make", &record).unwrap();
        assert!(
            words.starts_with("the command \"make\" ended with status 3\n"),
            "{words}"
        );
        assert!(
            words.ends_with("line 19\u{fffd}[2J") && !words.contains("line 7\u{fffd}"),
            "{words}"
        );
        record.stderr = "/w==".to_owned();
        record.stderr_encoding = Encoding::Base64;
        assert!(failed("x", &record).unwrap().ends_with("stderr: \u{fffd}"));
        record.signal = Some(9);
        assert!(failed("x", &record).unwrap().contains("signal 9"));
    }
}
