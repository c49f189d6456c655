//! What is said when something cannot be done: one line that names the thing, the reason, and
//! where there is one the next step.

use std::fmt;

use tine::client::Error;

use super::output::printable;

/// Tine could not do what was asked.
#[derive(Debug)]
pub struct Failure {
    /// The status to exit with.
    pub status: u8,
    /// The line; empty when there is nothing to say.
    pub words: String,
}

impl Failure {
    /// In words, with status 1.
    pub fn new(words: impl Into<String>) -> Self {
        Self {
            status: 1,
            words: words.into(),
        }
    }

    /// The words made no sense: status 2.
    pub fn usage(words: impl Into<String>) -> Self {
        Self {
            status: 2,
            words: words.into(),
        }
    }

    /// Ended by a signal.
    pub fn signal(number: i32) -> Self {
        Self {
            status: 128u8.wrapping_add(number as u8),
            words: String::new(),
        }
    }

    /// A request to the machine `id` failed.
    pub fn of(id: &str, err: &Error) -> Self {
        Self::new(match err {
            err if err.is_gone() => format!(
                "machine {id} does not run any more: `tine logs {id}` shows its console, \
                 `tine rm {id}` removes what is left of it"
            ),
            Error::InputCut { request_id } => {
                format!("machine {id}: {err}: `tine attach {id} {request_id}`")
            }
            // The machine may have worded it.
            err => format!("machine {id}: {}", printable(&err.to_string())),
        })
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.words)
    }
}
