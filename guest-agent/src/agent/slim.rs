//! Stands in for parts of the C library that the agent never uses in earnest, so that they are not linked in.
//!
//! A static program takes whole families of functions for the sake of one rare message: `printf` with floating point
//! and wide characters, message catalogues with character set conversion, conversion with `dlopen`. That was a sixth of
//! the agent, and every guest copies it at boot. The linker prefers a definition that is here to one in the archive.
//!
//! Only in the profile `agent`: what is a duplicate depends on what else is linked in, and thus on optimisation. Should
//! another version of the C library make one of these a duplicate, building without the feature `slim` helps.

use std::ffi::{CStr, c_char, c_int, c_void};

use super::fault::words;

/// Looked up by Rust's library for calls that newer systems have; it does without each of them.
#[unsafe(no_mangle)]
extern "C" fn dlsym(_handle: *mut c_void, _name: *const c_char) -> *mut c_void {
    std::ptr::null_mut()
}

/// Only for guard pages of the main thread's stack. It would parse `/proc/self/maps` with `sscanf`.
#[unsafe(no_mangle)]
extern "C" fn pthread_getattr_np(_thread: usize, _attributes: *mut c_void) -> c_int {
    libc::ENOSYS
}

/// Names of threads are for debuggers.
#[unsafe(no_mangle)]
extern "C" fn pthread_setname_np(_thread: usize, _name: *const c_char) -> c_int {
    0
}

/// The words of an error, without catalogues.
#[unsafe(no_mangle)]
extern "C" fn __xpg_strerror_r(errno: c_int, buffer: *mut c_char, size: usize) -> c_int {
    let text = words(errno).unwrap_or("unknown error").as_bytes();
    let count = text.len().min(size.saturating_sub(1));
    if size > 0 {
        // SAFETY: the caller's buffer has `size` bytes, of which `count + 1` are written.
        unsafe {
            buffer.copy_from_nonoverlapping(text.as_ptr().cast(), count);
            buffer.add(count).write(0);
        }
    }
    0
}

/// The library itself is broken; there is no one to format a message for.
#[unsafe(no_mangle)]
extern "C" fn __assert_fail(
    assertion: *const c_char,
    _file: *const c_char,
    _line: u32,
    _function: *const c_char,
) -> ! {
    // SAFETY: the library passes a string constant.
    let assertion = unsafe { CStr::from_ptr(assertion) };
    let _ = rustix::io::write(rustix::stdio::stderr(), assertion.to_bytes());
    std::process::abort()
}

/// Messages in the user's language: they stay as they are.
#[unsafe(no_mangle)]
extern "C" fn __dcgettext(
    _domain: *const c_char,
    message: *const c_char,
    _category: c_int,
) -> *const c_char {
    message
}

macro_rules! never_called {
    ($($(#[$doc:meta])* $name:ident)*) => {$(
        $(#[$doc])*
        #[unsafe(no_mangle)]
        extern "C" fn $name() -> c_int {
            0
        }
    )*};
}

never_called! {
    /// Behind `printf`, which is left for statistics of the allocator.
    __vfprintf_internal
    /// Behind `assert` and `perror`.
    __fxprintf
    /// Behind the resolver, which every thread has a state of: interfaces in IPv6 addresses.
    __inet6_scopeid_pton
    /// `/etc/host.conf`.
    _res_hconf_init
    /// Character sets from shared objects.
    __libc_dlopen_mode
    /// Their functions.
    __libc_dlsym
    /// Their end.
    __libc_dlclose
}
