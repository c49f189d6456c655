//! From a command's record to the status that a shell would give.

use tine_guest_agent::exec::{Record, State};

/// As `timeout(1)` does it.
pub const TIMED_OUT: u8 = 124;

/// The exit status; what it does not say goes to standard error.
pub fn status(record: &Record) -> u8 {
    if let (State::Failed | State::TimedOut, Some(reason)) = (record.state, &record.reason) {
        eprintln!("tine: {}", super::output::printable(reason));
    }
    match (record.state, record.exit_code, record.signal) {
        (State::TimedOut, _, _) => TIMED_OUT,
        (_, _, Some(signal)) => 128u8.wrapping_add(signal as u8),
        (_, Some(code), None) => code as u8,
        (State::Killed, None, None) => 128 + libc::SIGKILL as u8,
        (_, None, None) => 1,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_a_shell_would() {
        let record = |state, exit_code, signal| Record {
            state,
            exit_code,
            signal,
            ..Record::default()
        };
        assert_eq!(status(&record(State::Exited, Some(7), None)), 7);
        assert_eq!(status(&record(State::Killed, None, Some(9))), 137);
        assert_eq!(status(&record(State::TimedOut, None, Some(9))), 124);
        assert_eq!(status(&record(State::Failed, Some(127), None)), 127);
        assert_eq!(status(&record(State::Failed, None, None)), 1);
    }
}
