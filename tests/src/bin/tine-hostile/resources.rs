//! More than its share.

use crate::calls::{call, open};
use crate::{Attempt, Outcome, attempt};

/// All attempts.
pub fn attempts() -> Vec<Attempt> {
    vec![
        attempt("start threads without end", || {
            for number in 0..4096 {
                let builder = std::thread::Builder::new().stack_size(16 << 10);
                if let Err(err) = builder.spawn(|| {
                    loop {
                        std::thread::park()
                    }
                }) {
                    return Outcome::Refused(format!("after {number}: {err}"));
                }
            }
            Outcome::Out("there are 4096".to_owned())
        }),
        attempt("write a file without end", || {
            // The jail has been given `fsize=1048576`.
            let fd = match open("/run/file", libc::O_CREAT | libc::O_WRONLY) {
                Ok(fd) => fd as u64,
                Err(err) => return Outcome::Refused(err.to_string()),
            };
            // Too long a file is told by a signal, which means to be ended.
            let ignore = [1u64, 0, 0, 0];
            let action = crate::calls::pointer(&ignore);
            let _ = call(
                libc::SYS_rt_sigaction,
                &[libc::SIGXFSZ as u64, action, 0, 8],
            );
            match call(libc::SYS_pwrite64, &[fd, action, 8, 2 << 20]) {
                Ok(_) => Outcome::Out("it has 2 MiB".to_owned()),
                Err(err) => Outcome::Refused(err.to_string()),
            }
        }),
        attempt("open descriptors without end", || {
            for number in 0..100_000 {
                if let Err(err) = open("/", libc::O_PATH) {
                    return Outcome::Refused(format!("after {number}: {err}"));
                }
            }
            Outcome::Out("there are 100000".to_owned())
        }),
        Attempt {
            name: "use memory without end",
            run: || {
                // The jail has been given 64 MiB. Who has written 256 has got more.
                let mut all = Vec::new();
                for _ in 0..256 {
                    all.push(std::hint::black_box(vec![1u8; 1 << 20]));
                }
                Outcome::Out(format!("there are {} MiB", all.len()))
            },
            alone: true,
        },
    ]
}
