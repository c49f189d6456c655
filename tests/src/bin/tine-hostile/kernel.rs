//! Parts of the kernel that a monitor has no business with.

use crate::calls::{call, pointer, pointer_mut, text};
use crate::{Attempt, Outcome, any_must_fail, attempt, must_fail};

/// All attempts.
pub fn attempts() -> Vec<Attempt> {
    vec![
        attempt("load a BPF program", || {
            // BPF_MAP_CREATE and BPF_PROG_LOAD with attributes of nothing.
            let attributes = [1u32, 4, 4, 1, 0, 0, 0, 0, 0, 0, 0, 0];
            any_must_fail(
                [0u64, 5].map(|command| call(libc::SYS_bpf, &[command, pointer(&attributes), 48])),
            )
        }),
        attempt("count events of the processor", || {
            let mut attributes = [0u32; 32];
            attributes[1] = 128;
            let whole_host = [pointer(&attributes), u64::MAX, 0, u64::MAX, 0];
            let itself = [pointer(&attributes), 0, u64::MAX, u64::MAX, 0];
            any_must_fail(
                [whole_host, itself].map(|arguments| call(libc::SYS_perf_event_open, &arguments)),
            )
        }),
        attempt("make an io_uring", || {
            let mut parameters = [0u64; 15];
            match call(libc::SYS_io_uring_setup, &[8, pointer_mut(&mut parameters)]) {
                // The filter says that there is none, so that drives do without.
                Err(err) if err.is_missing() => {
                    Outcome::Refused("as if there were none".to_owned())
                }
                other => must_fail(other),
            }
        }),
        attempt("handle page faults of the kernel", || {
            any_must_fail([
                call(libc::SYS_userfaultfd, &[0]),
                call(libc::SYS_userfaultfd, &[1]),
            ])
        }),
        attempt("open /dev/userfaultfd", || {
            must_fail(crate::calls::open("/dev/userfaultfd", libc::O_RDWR))
        }),
        attempt("start another kernel", || {
            any_must_fail([
                call(libc::SYS_kexec_load, &[0, 0, 0, 0]),
                call(libc::SYS_kexec_file_load, &[u64::MAX, u64::MAX, 0, 0, 0]),
            ])
        }),
        attempt("load a module", || {
            any_must_fail([
                call(libc::SYS_init_module, &[0, 0, text("")]),
                call(libc::SYS_finit_module, &[0, text(""), 0]),
                call(libc::SYS_delete_module, &[text("kvm"), 0]),
            ])
        }),
        attempt("have a key of the launcher", || {
            // The test has put it into the session keyring that the jailer was started with.
            let key = [text("user"), text("tine-test-key"), 0, 0];
            must_fail(call(libc::SYS_request_key, &key))
        }),
        attempt("add a key", || {
            const USER_KEYRING: u64 = -4i64 as u64;
            let key = [text("user"), text("k"), text("v"), 1, USER_KEYRING];
            must_fail(call(libc::SYS_add_key, &key))
        }),
        attempt("read the kernel's log", || {
            let mut buffer = [0u8; 64];
            must_fail(call(libc::SYS_syslog, &[3, pointer_mut(&mut buffer), 64]))
        }),
        attempt("switch the host off", || {
            // RB_ENABLE_CAD changes nothing if it should get through.
            must_fail(call(
                libc::SYS_reboot,
                &[0xfee1_dead, 672_274_793, 0x89ab_cdef, 0],
            ))
        }),
        attempt("swap to a file", || {
            must_fail(call(libc::SYS_swapon, &[text("/run/f"), 0]))
        }),
        attempt("account for processes", || {
            must_fail(call(libc::SYS_acct, &[text("/run/f")]))
        }),
        attempt("use the processor's ports", || {
            any_must_fail([
                call(libc::SYS_iopl, &[3]),
                call(libc::SYS_ioperm, &[0x64, 1, 1]),
            ])
        }),
        attempt("change the local descriptor table", || {
            let mut buffer = [0u64; 8];
            must_fail(call(
                libc::SYS_modify_ldt,
                &[0, pointer_mut(&mut buffer), 64],
            ))
        }),
        attempt("use calls of 32-bit programs", || {
            // In the table of x32, numbers have bit 30: 39 is getpid.
            must_fail(call(0x4000_0000 | 39, &[]))
        }),
    ]
}
