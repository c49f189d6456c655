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
    match (words(errno), name(errno)) {
        (Some(words), Some(name)) => format!("{words} ({name})"),
        _ => format!("error {errno}"),
    }
}

/// The system's errors by number, name and words: what the C library has too, with catalogues of translations.
macro_rules! errors {
    ($($name:ident $words:literal)*) => {
        /// The symbol of an error number.
        pub fn name(errno: i32) -> Option<&'static str> {
            match errno { $(libc::$name => Some(stringify!($name)),)* _ => None }
        }

        /// An error number in words.
        pub fn words(errno: i32) -> Option<&'static str> {
            match errno { $(libc::$name => Some($words),)* _ => None }
        }
    };
}

errors! {
    EPERM "Operation not permitted"
    ENOENT "No such file or directory"
    ESRCH "No such process"
    EINTR "Interrupted system call"
    EIO "Input/output error"
    ENXIO "No such device or address"
    E2BIG "Argument list too long"
    ENOEXEC "Exec format error"
    EBADF "Bad file descriptor"
    ECHILD "No child processes"
    EAGAIN "Resource temporarily unavailable"
    ENOMEM "Cannot allocate memory"
    EACCES "Permission denied"
    EFAULT "Bad address"
    ENOTBLK "Block device required"
    EBUSY "Device or resource busy"
    EEXIST "File exists"
    EXDEV "Invalid cross-device link"
    ENODEV "No such device"
    ENOTDIR "Not a directory"
    EISDIR "Is a directory"
    EINVAL "Invalid argument"
    ENFILE "Too many open files in system"
    EMFILE "Too many open files"
    ENOTTY "Inappropriate ioctl for device"
    ETXTBSY "Text file busy"
    EFBIG "File too large"
    ENOSPC "No space left on device"
    ESPIPE "Illegal seek"
    EROFS "Read-only file system"
    EMLINK "Too many links"
    EPIPE "Broken pipe"
    ERANGE "Numerical result out of range"
    EDEADLK "Resource deadlock avoided"
    ENAMETOOLONG "File name too long"
    ENOLCK "No locks available"
    ENOSYS "Function not implemented"
    ENOTEMPTY "Directory not empty"
    ELOOP "Too many levels of symbolic links"
    ENODATA "No data available"
    EPROTO "Protocol error"
    EOVERFLOW "Value too large for defined data type"
    EILSEQ "Invalid or incomplete multibyte or wide character"
    ELIBBAD "Accessing a corrupted shared library"
    ENOTSOCK "Socket operation on non-socket"
    EMSGSIZE "Message too long"
    EOPNOTSUPP "Operation not supported"
    EAFNOSUPPORT "Address family not supported by protocol"
    EADDRINUSE "Address already in use"
    EADDRNOTAVAIL "Cannot assign requested address"
    ENETDOWN "Network is down"
    ENETUNREACH "Network is unreachable"
    ECONNABORTED "Software caused connection abort"
    ECONNRESET "Connection reset by peer"
    ENOBUFS "No buffer space available"
    ENOTCONN "Transport endpoint is not connected"
    ETIMEDOUT "Connection timed out"
    ECONNREFUSED "Connection refused"
    EHOSTUNREACH "No route to host"
    EALREADY "Operation already in progress"
    EINPROGRESS "Operation now in progress"
    ESTALE "Stale file handle"
    EDQUOT "Disk quota exceeded"
    ECANCELED "Operation canceled"
}
