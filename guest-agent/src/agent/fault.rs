//! Errors on their way to a caller: status, code, message, and the system's error by name.

use std::fmt::Display;
use std::io;

use tine_guest_agent::error::{ErrorBody, ErrorInfo};
use tine_guest_agent::fields::FieldError;

/// An answer that is an error.
#[derive(Debug)]
pub struct Fault {
    pub status: u16,
    pub info: Box<ErrorInfo>,
}

impl Fault {
    pub fn new(status: u16, code: &str, message: impl Display) -> Self {
        let info = ErrorInfo {
            code: code.into(),
            message: message.to_string(),
            ..ErrorInfo::default()
        };
        Self {
            status,
            info: Box::new(info),
        }
    }

    pub fn bad_request(message: impl Display) -> Self {
        Self::new(400, "bad_request", message)
    }

    pub fn not_found(message: impl Display) -> Self {
        Self::new(404, "not_found", message)
    }

    pub fn conflict(message: impl Display) -> Self {
        Self::new(409, "conflict", message)
    }

    /// A system call on `path` failed.
    pub fn io(error: &io::Error, path: &str) -> Self {
        let errno = error.raw_os_error().unwrap_or_default();
        let status = match errno {
            libc::ENOENT => 404,
            libc::EACCES | libc::EPERM | libc::EROFS => 403,
            libc::EEXIST | libc::ENOTEMPTY | libc::EISDIR | libc::ENOTDIR | libc::EBUSY => 409,
            libc::EINVAL | libc::ENAMETOOLONG | libc::ELOOP | libc::ESRCH => 400,
            libc::ENOSPC | libc::EDQUOT | libc::EFBIG => 507,
            libc::ECONNREFUSED => 502,
            _ => 500,
        };
        let words = if errno == 0 {
            error.to_string()
        } else {
            describe(errno)
        };
        let mut fault = Self::new(status, "io", format_args!("{path}: {words}"));
        fault.info.errno = name(errno).map(Into::into);
        fault.info.path = Some(path.to_owned());
        fault
    }

    /// The body.
    pub fn json(self) -> Vec<u8> {
        // Plain data always serialises.
        serde_json::to_vec(&ErrorBody { error: *self.info }).unwrap_or_default()
    }
}

impl From<FieldError> for Fault {
    fn from(error: FieldError) -> Self {
        let mut fault = Self::bad_request(&error);
        fault.info.field = Some(error.field).filter(|field| !field.is_empty());
        fault
    }
}

/// "No such file or directory (ENOENT)".
pub fn describe(errno: i32) -> String {
    let words = io::Error::from_raw_os_error(errno).to_string();
    let words = words.split(" (os error").next().unwrap_or_default();
    match name(errno) {
        Some(name) => format!("{words} ({name})"),
        None => format!("{words} (error {errno})"),
    }
}

/// The symbol of an error number.
pub fn name(errno: i32) -> Option<&'static str> {
    macro_rules! names {
        ($($name:ident)*) => {
            match errno { $(libc::$name => Some(stringify!($name)),)* _ => None }
        };
    }
    names! {
        EPERM ENOENT ESRCH EINTR EIO ENXIO E2BIG ENOEXEC EBADF ECHILD EAGAIN ENOMEM EACCES EFAULT ENOTBLK EBUSY EEXIST
        EXDEV ENODEV ENOTDIR EISDIR EINVAL ENFILE EMFILE ENOTTY ETXTBSY EFBIG ENOSPC ESPIPE EROFS EMLINK EPIPE EDOM
        ERANGE EDEADLK ENAMETOOLONG ENOLCK ENOSYS ENOTEMPTY ELOOP ENODATA EOVERFLOW EILSEQ ENOTSOCK EMSGSIZE EPROTO
        EOPNOTSUPP EADDRINUSE EADDRNOTAVAIL ENETDOWN ENETUNREACH ECONNABORTED ECONNRESET ENOBUFS EISCONN ENOTCONN
        ETIMEDOUT ECONNREFUSED EHOSTUNREACH EALREADY EINPROGRESS ESTALE EDQUOT ECANCELED
    }
}
