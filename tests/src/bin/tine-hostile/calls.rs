//! System calls as such, and surviving the ones that a filter catches.

use std::ffi::CString;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};

/// Why a call failed.
#[derive(Clone, Copy)]
pub struct Error {
    number: i32,
    caught: bool,
}

impl Error {
    /// The kernel has no such call.
    pub fn is_missing(self) -> bool {
        self.number == libc::ENOSYS && !self.caught
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.caught {
            true => f.write_str("by the filter"),
            false => write!(f, "{}", std::io::Error::from_raw_os_error(self.number)),
        }
    }
}

static CAUGHT: AtomicBool = AtomicBool::new(false);

/// From now on a call that a filter catches fails instead of ending the process.
pub fn survive_filters() {
    // SAFETY: a zeroed action is valid, and the handler has the form that SA_SIGINFO wants.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = on_caught as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_NODEFER;
        libc::sigaction(libc::SIGSYS, &raw const action, std::ptr::null_mut());
    }
}

extern "C" fn on_caught(_: i32, _: *mut libc::siginfo_t, context: *mut libc::c_void) {
    CAUGHT.store(true, Ordering::SeqCst);
    let context: *mut libc::ucontext_t = context.cast();
    // SAFETY: the kernel passes a context with SA_SIGINFO; what it is given back there as the call's
    // result is an error number, as any call may return one.
    unsafe {
        (*context).uc_mcontext.gregs[libc::REG_RAX as usize] = -i64::from(libc::EPERM);
    }
}

/// Calls the kernel.
pub fn call(number: i64, arguments: &[u64]) -> Result<i64, Error> {
    let argument = |index: usize| arguments.get(index).copied().unwrap_or(0);
    CAUGHT.store(false, Ordering::SeqCst);
    // SAFETY: this is a program of attempts that must fail; those that might succeed get pointers
    // to values of the right size that outlive the call, or null.
    let result = unsafe {
        libc::syscall(
            number,
            argument(0),
            argument(1),
            argument(2),
            argument(3),
            argument(4),
            argument(5),
        )
    };
    match result {
        -1 => Err(Error {
            number: std::io::Error::last_os_error().raw_os_error().unwrap_or(0),
            caught: CAUGHT.load(Ordering::SeqCst),
        }),
        value => Ok(value),
    }
}

/// A string for the kernel. It is never freed: this program is short.
pub fn text(text: &str) -> u64 {
    let text = CString::new(text).expect("no NUL in a constant");
    text.into_raw().expose_provenance() as u64
}

/// The address of a value for the kernel.
pub fn pointer<T>(value: &T) -> u64 {
    std::ptr::from_ref(value).expose_provenance() as u64
}

/// The address of a value that the kernel writes to.
pub fn pointer_mut<T>(value: &mut T) -> u64 {
    std::ptr::from_mut(value).expose_provenance() as u64
}

/// The "current directory" of calls that take a descriptor.
pub const HERE: u64 = libc::AT_FDCWD as i64 as u64;

/// Opens a file.
pub fn open(path: &str, flags: i32) -> Result<i64, Error> {
    call(libc::SYS_openat, &[HERE, text(path), flags as u64, 0o600])
}
