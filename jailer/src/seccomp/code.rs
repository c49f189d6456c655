//! Instructions of filters, as the kernel has them (`linux/bpf_common.h`, `linux/seccomp.h`). Used twice:
//! when the rules are compiled, and for what only becomes known when a jail is made.

use seccompiler::sock_filter;

/// Where the number of a call is, in what is told of it.
pub const NUMBER: u32 = 0;
/// Where the architecture is.
pub const ARCHITECTURE: u32 = 4;
/// `linux/audit.h`.
pub const X86_64: u32 = 0xc000_003e;

/// Load a word.
pub const LOAD: u16 = 0x20;
/// Jump by `k`.
pub const JUMP: u16 = 0x05;
/// Jump by `jt` if it is so, and by `jf` if not.
pub const IF_EQUAL: u16 = 0x15;
/// The same.
pub const IF_NOT_BELOW: u16 = 0x35;
/// The same.
pub const IF_ANY_BIT: u16 = 0x45;
/// Answer `k`.
pub const RETURN: u16 = 0x06;

/// An answer: the process ends.
pub const KILL_PROCESS: u32 = 0x8000_0000;
/// An answer: the thread gets a signal.
pub const TRAP: u32 = 0x0003_0000;
/// An answer: the call fails, with the number that is added.
pub const ERRNO: u32 = 0x0005_0000;
/// An answer: the call is made.
pub const ALLOW: u32 = 0x7fff_0000;

/// An instruction.
pub const fn op(code: u16, jt: u8, jf: u8, k: u32) -> sock_filter {
    sock_filter { code, jt, jf, k }
}

/// Where the lower half of an argument is; the upper one lies behind it.
pub const fn argument(index: u8) -> u32 {
    16 + 8 * index as u32
}
