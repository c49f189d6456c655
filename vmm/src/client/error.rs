//! What can go wrong between a client and a machine.

use std::error::Error as StdError;
use std::io;
use std::path::PathBuf;

use serde::Deserialize;
use tine_guest_agent::exec::Record;

/// Why a request gave nothing.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Nobody answers at the machine's socket: its process has gone, or was never there.
    #[error("no machine answers at {}: {source}", path.display())]
    Connect {
        /// The socket.
        path: PathBuf,
        /// What the host said.
        source: io::Error,
    },
    /// The connection broke before the answer was complete. Whether the request was carried out
    /// is not known; an exec with the same request id can be sent again without harm.
    #[error("the connection to the machine broke: {0}")]
    Broken(#[source] Box<dyn StdError + Send + Sync>),
    /// The answer is not what it must be.
    #[error("the machine does not keep to the protocol: {0}")]
    Protocol(String),
    /// The machine, or the agent in it, refused.
    #[error("{message}")]
    Refused {
        /// The HTTP status.
        status: u16,
        /// A stable word, such as `not_found`.
        code: String,
        /// One sentence.
        message: String,
        /// Name of the system's error number, where a system call failed.
        errno: Option<String>,
        /// What the machine is doing, where that is why.
        state: Option<String>,
    },
    /// The command has ended, but some of its output was produced while no connection stood, and
    /// was more than the machine keeps.
    #[error("{bytes} bytes of the command's output were lost while the connection was broken")]
    Lost {
        /// How many bytes, of both streams.
        bytes: u64,
        /// How the command ended.
        record: Box<Record>,
    },
    /// The connection broke while input was under way, and nobody knows how much of it arrived.
    /// The command goes on; its streams can be attached again.
    #[error(
        "the connection broke while input was sent, and how much of it arrived is not known: the \
         command goes on as request `{request_id}`"
    )]
    InputCut {
        /// The command.
        request_id: String,
    },
}

impl Error {
    pub(crate) fn protocol(what: impl Into<String>) -> Self {
        Error::Protocol(what.into())
    }

    pub(super) fn broken(source: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        Error::Broken(source.into())
    }

    /// The connection ended in the middle.
    pub(super) fn cut() -> Self {
        Error::broken(io::Error::from(io::ErrorKind::UnexpectedEof))
    }

    /// The HTTP status of a refusal.
    pub fn status(&self) -> Option<u16> {
        match self {
            Error::Refused { status, .. } => Some(*status),
            _ => None,
        }
    }

    /// The machine's process has gone.
    pub fn is_gone(&self) -> bool {
        matches!(self, Error::Connect { source, .. } if matches!(
            source.kind(),
            io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused
        ))
    }

    /// Whether the same request may succeed a moment later, although nothing is changed.
    pub(super) fn is_passing(&self) -> bool {
        match self {
            Error::Broken(_) => true,
            // So many wait at the socket that no more are let in.
            Error::Connect { source, .. } => source.kind() == io::ErrorKind::WouldBlock,
            Error::Refused { status, .. } => matches!(status, 502..=504),
            _ => false,
        }
    }
}

impl From<hyper::Error> for Error {
    fn from(err: hyper::Error) -> Self {
        match err.is_parse() || err.is_parse_too_large() {
            true => Error::Protocol(err.to_string()),
            false => Error::broken(err),
        }
    }
}

/// The body of an answer that is an error: the agent's, with what the machine adds.
#[derive(Deserialize)]
struct Body {
    error: Info,
}

#[derive(Deserialize)]
struct Info {
    code: String,
    message: String,
    errno: Option<String>,
    state: Option<String>,
}

/// The shape that errors of the known API have.
#[derive(Deserialize)]
struct Fault {
    fault_message: String,
}

/// Most characters of an answer that is quoted because it is no error as it should be.
const QUOTED: usize = 200;

/// The error that an answer tells of.
pub(super) fn refused(status: u16, body: &[u8]) -> Error {
    let info = serde_json::from_slice::<Body>(body).map(|body| body.error);
    let info = info.unwrap_or_else(|_| Info {
        code: String::new(),
        message: match serde_json::from_slice::<Fault>(body) {
            Ok(fault) => fault.fault_message,
            Err(_) => {
                let text = String::from_utf8_lossy(body);
                let text: String = text.trim().chars().take(QUOTED).collect();
                format!("the machine answered {status}: {text}")
            }
        },
        errno: None,
        state: None,
    });
    Error::Refused {
        status,
        code: info.code,
        message: info.message,
        errno: info.errno,
        state: info.state,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_shapes_of_errors_and_none() {
        let body = br#"{"error":{"code":"io","message":"/x: No such file","errno":"ENOENT"}}"#;
        let Error::Refused { code, errno, .. } = refused(404, body) else {
            panic!("not refused");
        };
        assert_eq!((code.as_str(), errno.as_deref()), ("io", Some("ENOENT")));
        let known = refused(400, br#"{"fault_message":"no"}"#);
        assert_eq!(known.to_string(), "no");
        let long = refused(500, &[b'x'; 9000]);
        assert!(long.to_string().len() < 300, "{long}");
    }
}
