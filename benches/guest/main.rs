//! `tine-bench-guest PORT PROGRAM...`: what the benchmark has done inside its guest.
//!
//! Listens on a vsock port. Each connection's first byte says what it is for:
//!
//! | byte | does |
//! |---|---|
//! | `e` | for every request (4 bytes of length, then as many bytes) answers 4 bytes of length taken from its head and as many bytes: a round trip without work |
//! | `s` | for every two bytes (`f` or `v`, and the number of a PROGRAM) starts the program, waits for its end and answers the nanoseconds that took (8 bytes): `f` by fork and exec, `v` by vfork and exec |
//! | `i`, `I` | takes bytes to their end and answers one byte; `I` writes them to [`FILE`] |
//! | `o`, `O` | sends as many bytes as the next 8 say; `O` reads them from [`FILE`] |
//!
//! Numbers are little-endian. Single-threaded and small: what it forks is cheap to fork.

use std::ffi::CString;
use std::io::{self, Read, Write};
use std::mem::zeroed;
use std::os::fd::{FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::process::ExitCode;
use std::ptr::{null, null_mut};
use std::time::Instant;

/// Where `I` writes to and `O` reads from.
const FILE: &str = "/bench/pumped";

/// Bytes moved at once: what the agent moves.
const CHUNK: usize = 64 << 10;

fn main() -> ExitCode {
    match serve() {
        Ok(()) => ExitCode::SUCCESS,
        Err(err) => {
            eprintln!("tine-bench-guest: {err}");
            ExitCode::FAILURE
        }
    }
}

fn serve() -> io::Result<()> {
    let usage = || io::Error::other("usage: tine-bench-guest PORT PROGRAM...");
    let mut arguments = std::env::args_os().skip(1);
    let port = arguments.next().and_then(|port| port.into_string().ok());
    let port = port.and_then(|port| port.parse().ok()).ok_or_else(usage)?;
    let programs = arguments.map(|program| CString::new(program.into_vec()));
    let programs: Vec<CString> = programs.collect::<Result<_, _>>()?;
    let listener = listen(port)?;
    loop {
        let mut peer = accept(&listener)?;
        // Each in a process of its own, so that one that waits holds up no other.
        // SAFETY: the process has one thread.
        match unsafe { libc::fork() } {
            0 => return attend(&mut peer, &programs),
            pid if pid < 0 => return Err(io::Error::last_os_error()),
            _ => {}
        }
    }
}

fn attend(peer: &mut Socket, programs: &[CString]) -> io::Result<()> {
    let mut mode = [0];
    peer.read_exact(&mut mode)?;
    match mode[0] {
        b'e' => echo(peer),
        b's' => start_programs(peer, programs),
        b'i' => take(peer, None),
        b'I' => take(peer, Some(Socket::create(FILE)?)),
        b'o' => give(peer, None),
        b'O' => give(peer, Some(Socket::open(FILE)?)),
        other => Err(io::Error::other(format!("nothing is known as {other}"))),
    }
}

fn take(peer: &mut Socket, mut file: Option<Socket>) -> io::Result<()> {
    let mut buffer = vec![0; CHUNK];
    loop {
        let count = match peer.read(&mut buffer)? {
            0 => break,
            count => count,
        };
        if let Some(file) = &mut file {
            file.write_all(&buffer[..count])?;
        }
    }
    peer.write_all(b".")
}

fn give(peer: &mut Socket, mut file: Option<Socket>) -> io::Result<()> {
    let mut left = [0; 8];
    peer.read_exact(&mut left)?;
    let mut left = u64::from_le_bytes(left);
    let mut buffer = vec![0x5a; CHUNK];
    while left > 0 {
        let count = left.min(CHUNK as u64) as usize;
        if let Some(file) = &mut file {
            file.read_exact(&mut buffer[..count])?;
        }
        peer.write_all(&buffer[..count])?;
        left -= count as u64;
    }
    Ok(())
}

fn echo(peer: &mut Socket) -> io::Result<()> {
    let mut buffer = vec![0; CHUNK];
    loop {
        // In one read where it came in one piece, as the agent's requests do.
        let mut have = 0;
        let (asked, answer) = loop {
            match peer.read(&mut buffer[have..])? {
                0 => return Ok(()),
                count => have += count,
            }
            if have >= 8 {
                let word = |at: usize| {
                    let bytes = [buffer[at], buffer[at + 1], buffer[at + 2], buffer[at + 3]];
                    u32::from_le_bytes(bytes) as usize
                };
                if have >= word(0) {
                    break (word(0), word(4));
                }
            }
        };
        if asked > CHUNK || answer > CHUNK {
            return Err(io::Error::other("too much is asked for"));
        }
        peer.write_all(&buffer[..answer])?;
    }
}

fn start_programs(peer: &mut Socket, programs: &[CString]) -> io::Result<()> {
    let mut order = [0; 2];
    loop {
        match peer.read_exact(&mut order) {
            Err(err) if err.kind() == io::ErrorKind::UnexpectedEof => return Ok(()),
            result => result?,
        }
        let program = programs.get(usize::from(order[1]));
        let program = program.ok_or_else(|| io::Error::other("there is no such program"))?;
        let begun = Instant::now();
        let pid = match order[0] {
            b'f' => fork_and_exec(program)?,
            _ => vfork_and_exec(program)?,
        };
        let mut status = 0;
        // SAFETY: the status lives through the call.
        if unsafe { libc::waitpid(pid, &mut status, 0) } != pid || status != 0 {
            return Err(io::Error::other(format!("{program:?} ended with {status}")));
        }
        let nanos = begun.elapsed().as_nanos() as u64;
        peer.write_all(&nanos.to_le_bytes())?;
    }
}

fn fork_and_exec(program: &CString) -> io::Result<i32> {
    let argv = [program.as_ptr(), null()];
    let env = [null()];
    // SAFETY: the process has one thread; the child makes two system calls on strings that were made before.
    unsafe {
        match libc::fork() {
            0 => {
                libc::execve(program.as_ptr(), argv.as_ptr(), env.as_ptr());
                libc::_exit(127)
            }
            pid if pid < 0 => Err(io::Error::last_os_error()),
            pid => Ok(pid),
        }
    }
}

/// By `posix_spawn`, which shares memory with the child until it has executed the program.
fn vfork_and_exec(program: &CString) -> io::Result<i32> {
    let argv = [program.as_ptr().cast_mut(), null_mut()];
    let env = [null_mut()];
    let mut pid = 0;
    // SAFETY: all strings and arrays live through the call; no attributes, no actions.
    let errno = unsafe {
        let (actions, attributes) = (null(), null());
        let program = program.as_ptr();
        libc::posix_spawn(
            &mut pid,
            program,
            actions,
            attributes,
            argv.as_ptr(),
            env.as_ptr(),
        )
    };
    match errno {
        0 => Ok(pid),
        errno => Err(io::Error::from_raw_os_error(errno)),
    }
}

/// A socket, read and written as a file; or a file.
type Socket = std::fs::File;

fn listen(port: u32) -> io::Result<OwnedFd> {
    // SAFETY: the address is of the size given and lives through the calls; the descriptor is new and ours.
    unsafe {
        let fd = libc::socket(libc::AF_VSOCK, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0);
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        let socket = OwnedFd::from_raw_fd(fd);
        let mut address: libc::sockaddr_vm = zeroed();
        address.svm_family = libc::AF_VSOCK as u16;
        address.svm_cid = libc::VMADDR_CID_ANY;
        address.svm_port = port;
        let size = size_of::<libc::sockaddr_vm>() as u32;
        let bound = libc::bind(fd, (&raw const address).cast(), size);
        if bound < 0 || libc::listen(fd, 16) < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(socket)
    }
}

fn accept(listener: &OwnedFd) -> io::Result<Socket> {
    use std::os::fd::AsRawFd;
    // SAFETY: no address is asked for; the descriptor is new and ours.
    unsafe {
        let fd = libc::accept4(
            listener.as_raw_fd(),
            null_mut(),
            null_mut(),
            libc::SOCK_CLOEXEC,
        );
        match fd {
            fd if fd < 0 => Err(io::Error::last_os_error()),
            fd => Ok(Socket::from_raw_fd(fd)),
        }
    }
}
