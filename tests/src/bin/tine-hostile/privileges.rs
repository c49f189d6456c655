//! Rights that it has not.

use crate::calls::{call, pointer, pointer_mut};
use crate::{Attempt, Outcome, any_must_fail, attempt, must_fail};

/// All attempts.
pub fn attempts() -> Vec<Attempt> {
    vec![
        attempt("become another user", || {
            any_must_fail(
                [0u64, 1, 1001]
                    .into_iter()
                    .filter(|uid| *uid != own_uid())
                    .flat_map(|uid| {
                        [
                            call(libc::SYS_setuid, &[uid]),
                            call(libc::SYS_setresuid, &[uid, uid, uid]),
                        ]
                    }),
            )
        }),
        attempt("join another group", || {
            let groups = [0u32, 6];
            any_must_fail([
                call(libc::SYS_setgroups, &[2, pointer(&groups)]),
                call(libc::SYS_setgid, &[6]),
            ])
        }),
        attempt("have a capability", || {
            let header = [0x2008_0522u32, 0];
            let mut data = [0u32; 6];
            let result = call(
                libc::SYS_capget,
                &[pointer(&header), pointer_mut(&mut data)],
            );
            if let Err(err) = result {
                return Outcome::Refused(err.to_string());
            }
            match std::hint::black_box(data).iter().all(|word| *word == 0) {
                true => Outcome::Refused("there is none".to_owned()),
                false => Outcome::Out(format!("{data:x?}")),
            }
        }),
        attempt("get a capability back", || {
            let header = [0x2008_0522u32, 0];
            let data = [1u32 << 21, 1 << 21, 0, 0, 0, 0];
            must_fail(call(libc::SYS_capset, &[pointer(&header), pointer(&data)]))
        }),
        attempt("have a capability in the bounding set", || {
            any_must_fail((0..41u64).map(|capability| {
                match call(libc::SYS_prctl, &[libc::PR_CAPBSET_READ as u64, capability]) {
                    Ok(0) => call(libc::SYS_prctl, &[u64::MAX]),
                    other => other,
                }
            }))
        }),
        attempt("allow new privileges again", || {
            must_fail(call(
                libc::SYS_prctl,
                &[libc::PR_SET_NO_NEW_PRIVS as u64, 0],
            ))
        }),
        attempt("raise a limit", || {
            let more = [1u64 << 20, 1 << 20];
            any_must_fail(
                [libc::RLIMIT_NOFILE, libc::RLIMIT_CORE, libc::RLIMIT_NPROC]
                    .map(|kind| call(libc::SYS_prlimit64, &[0, kind.into(), pointer(&more), 0])),
            )
        }),
        attempt("have core dumps written", || {
            let more = [u64::MAX, u64::MAX];
            any_must_fail([
                call(
                    libc::SYS_prlimit64,
                    &[0, libc::RLIMIT_CORE.into(), pointer(&more), 0],
                ),
                call(
                    libc::SYS_setrlimit,
                    &[libc::RLIMIT_CORE.into(), pointer(&more)],
                ),
            ])
        }),
        attempt("change the host name", || {
            must_fail(call(
                libc::SYS_sethostname,
                &[crate::calls::text("host"), 4],
            ))
        }),
        attempt("set the clock", || {
            let time = [0u64, 0];
            any_must_fail([
                call(libc::SYS_settimeofday, &[pointer(&time), 0]),
                call(libc::SYS_clock_settime, &[0, pointer(&time)]),
            ])
        }),
        attempt("be scheduled in real time", || {
            let priority = 1u32;
            must_fail(call(
                libc::SYS_sched_setscheduler,
                &[0, 1, pointer(&priority)],
            ))
        }),
        attempt("lock more memory than is allowed", lock_memory),
        attempt("turn the filters off", || {
            // A filter that allows everything adds nothing.
            let program = [0x7fff_0000_0000_0006u64];
            let filter = (1u64, pointer(&program));
            let _ = call(libc::SYS_seccomp, &[1, 0, pointer(&filter)]);
            must_fail(call(libc::SYS_unshare, &[libc::CLONE_NEWUSER as u64]))
        }),
    ]
}

fn lock_memory() -> Outcome {
    let len = 256 << 20;
    let protection = (libc::PROT_READ | libc::PROT_WRITE) as u64;
    let flags = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS) as u64;
    let pages = call(libc::SYS_mmap, &[0, len, protection, flags, u64::MAX, 0]);
    let result = call(libc::SYS_mlock, &[pages.unwrap_or(0) as u64, len]);
    let _ = call(libc::SYS_munmap, &[pages.unwrap_or(0) as u64, len]);
    must_fail(result)
}

fn own_uid() -> u64 {
    // SAFETY: getauxval takes a number.
    unsafe { libc::getauxval(libc::AT_UID) }
}
