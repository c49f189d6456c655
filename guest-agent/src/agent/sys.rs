//! System calls that no safe wrapper offers: signals, waiting with usage, vsock addresses, the loopback device.
//!
//! All `unsafe` of the agent is here and in [`super::exec::child`].

use std::io;
use std::mem::{size_of, zeroed};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::ptr::null_mut;

use tine_guest_agent::refresh::MAX_ENTROPY;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// The signals that the agent takes from its signal descriptor; all others stay blocked and are never seen.
const TAKEN: [i32; 6] = [
    libc::SIGCHLD,
    libc::SIGINT,
    libc::SIGTERM,
    libc::SIGUSR1,
    libc::SIGUSR2,
    libc::SIGPWR,
];

/// The end of a child.
#[derive(Debug, Clone, Copy)]
pub struct Exit {
    pub pid: i32,
    /// As `wait` gives it.
    pub status: i32,
    pub cpu_us: u64,
    pub max_memory_bytes: u64,
}

impl Exit {
    pub fn code(&self) -> Option<i32> {
        libc::WIFEXITED(self.status).then(|| libc::WEXITSTATUS(self.status))
    }

    pub fn signal(&self) -> Option<i32> {
        libc::WIFSIGNALED(self.status).then(|| libc::WTERMSIG(self.status))
    }
}

/// A descriptor in the loop.
pub type Watched = AsyncFd<OwnedFd>;

/// Puts a non-blocking descriptor into the loop.
pub fn watch(fd: OwnedFd, interest: Interest) -> io::Result<Watched> {
    // SAFETY: an owned descriptor stays the same open one until the value, which takes it out of the loop, is dropped;
    // nothing here gives it away before.
    Ok(unsafe { AsyncFd::register_with_interest(fd, interest) }?)
}

/// What has to be done first of all in the process, while it has one thread.
pub fn prepare() {
    block_signals();
    // SAFETY: settings of the allocator, made before there are other threads. One arena: each further one would cost
    // every new thread system calls and memory. Large buffers come from the heap and are kept, as mapping them anew
    // each time means page faults.
    unsafe {
        libc::mallopt(libc::M_ARENA_MAX, 1);
        libc::mallopt(libc::M_MMAP_THRESHOLD, 4 << 20);
        libc::mallopt(libc::M_TRIM_THRESHOLD, 1 << 20);
    }
}

/// Makes the agent the parent of orphans below it, as PID 1 is by nature.
pub fn become_subreaper() -> io::Result<()> {
    // SAFETY: no memory involved.
    check(unsafe { libc::prctl(libc::PR_SET_CHILD_SUBREAPER, 1) }).map(drop)
}

/// Keeps descriptors that the agent was started with from its commands.
pub fn close_on_exec_from(first: u32) -> io::Result<()> {
    // SAFETY: no memory involved; a flag of descriptors is set, none is closed.
    check(unsafe { libc::close_range(first, u32::MAX, libc::CLOSE_RANGE_CLOEXEC as i32) }).map(drop)
}

/// Whether any child is left, ended or not.
pub fn has_children() -> bool {
    // SAFETY: the result is plain data that lives through the call; nothing is taken.
    let result = unsafe {
        let mut info: libc::siginfo_t = zeroed();
        let options = libc::WEXITED | libc::WNOHANG | libc::WNOWAIT;
        libc::waitid(libc::P_ALL, 0, &mut info, options)
    };
    result == 0
}

/// Blocks every signal in this thread and, being called before there are others, in all later ones.
///
/// Children are started with shared memory, where a handler would be fatal, and a write to a closed stream must be an
/// error and not the end of PID 1. SIGPIPE is given its default back, because children inherit "ignored".
fn block_signals() {
    // SAFETY: plain calls with a set that lives through them; nothing else runs yet.
    unsafe {
        let mut all: libc::sigset_t = zeroed();
        libc::sigfillset(&mut all);
        libc::sigprocmask(libc::SIG_SETMASK, &all, null_mut());
        libc::signal(libc::SIGPIPE, libc::SIG_DFL);
    }
}

/// A non-blocking descriptor that gives the signals of interest.
pub fn signal_fd() -> io::Result<OwnedFd> {
    // SAFETY: the set lives through the calls; the descriptor is new and ours.
    unsafe {
        let mut set: libc::sigset_t = zeroed();
        libc::sigemptyset(&mut set);
        for signal in TAKEN {
            libc::sigaddset(&mut set, signal);
        }
        own(libc::signalfd(
            -1,
            &set,
            libc::SFD_CLOEXEC | libc::SFD_NONBLOCK,
        ))
    }
}

/// Bytes of one entry read from a signal descriptor; the signal's number is its first word.
pub const SIGNAL_ENTRY: usize = size_of::<libc::signalfd_siginfo>();

/// Takes the status of one ended child, whoever it is.
pub fn wait_any() -> Option<Exit> {
    // SAFETY: both results are plain data that live through the call.
    let (pid, status, usage) = unsafe {
        let mut status = 0;
        let mut usage: libc::rusage = zeroed();
        (
            libc::wait4(-1, &mut status, libc::WNOHANG, &mut usage),
            status,
            usage,
        )
    };
    let micros = |time: libc::timeval| time.tv_sec as u64 * 1_000_000 + time.tv_usec as u64;
    (pid > 0).then(|| Exit {
        pid,
        status,
        cpu_us: micros(usage.ru_utime) + micros(usage.ru_stime),
        max_memory_bytes: usage.ru_maxrss as u64 * 1024,
    })
}

/// Sends a signal; `pid` may be negative for a group, -1 for everybody but the caller and PID 1.
pub fn kill(pid: i32, signal: i32) -> io::Result<()> {
    // SAFETY: no memory involved.
    check(unsafe { libc::kill(pid, signal) }).map(drop)
}

/// Lets `limit` be the most descriptors that a program may ask for, as distributions do.
pub fn raise_descriptor_limit(limit: u64) {
    // SAFETY: the structure lives through the calls. Failing is harmless: the old limit stays.
    unsafe {
        let wanted = libc::rlimit {
            rlim_cur: 1024,
            rlim_max: limit,
        };
        libc::setrlimit(libc::RLIMIT_NOFILE, &wanted);
    }
}

/// Brings the loopback device up; the kernel gives it its addresses.
pub fn loopback_up() -> io::Result<()> {
    // SAFETY: the request is zeroed plain data with a terminated name; the socket is ours and closed on return.
    unsafe {
        let socket = own(libc::socket(
            libc::AF_INET,
            libc::SOCK_DGRAM | libc::SOCK_CLOEXEC,
            0,
        ))?;
        let mut request: libc::ifreq = zeroed();
        request.ifr_name[0] = b'l' as libc::c_char;
        request.ifr_name[1] = b'o' as libc::c_char;
        request.ifr_ifru.ifru_flags = (libc::IFF_UP | libc::IFF_RUNNING) as i16;
        check(libc::ioctl(
            socket.as_raw_fd(),
            libc::SIOCSIFFLAGS,
            &request,
        ))
        .map(drop)
    }
}

/// Gives the kernel's generator bytes that count as random, and has it use them from now on.
pub fn add_entropy(random: BorrowedFd<'_>, bytes: &[u8]) -> io::Result<()> {
    /// The kernel's `rand_pool_info`: how many random bits there are, how many bytes, and these.
    #[repr(C)]
    struct Pool {
        bits: i32,
        size: i32,
        bytes: [u8; MAX_ENTROPY],
    }
    let count = bytes.len().min(MAX_ENTROPY);
    let mut pool = Pool {
        bits: count as i32 * 8,
        size: count as i32,
        bytes: [0; MAX_ENTROPY],
    };
    pool.bytes[..count].copy_from_slice(&bytes[..count]);
    // SAFETY: the structure has as many bytes as it says, and lives through the call; the second call takes none.
    unsafe {
        check(libc::ioctl(
            random.as_raw_fd(),
            RND_ADD_ENTROPY,
            &raw const pool,
        ))?;
        check(libc::ioctl(random.as_raw_fd(), RND_RESEED_CRNG)).map(drop)
    }
}

/// `RNDADDENTROPY` and `RNDRESEEDCRNG` of <linux/random.h>.
const RND_ADD_ENTROPY: libc::Ioctl = 0x4008_5203;
const RND_RESEED_CRNG: libc::Ioctl = 0x5207;

/// Writes out a file system and holds writes to it; `dir` is any directory on it.
pub fn freeze(dir: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: the kernel ignores the argument of this request.
    check(unsafe { libc::ioctl(dir.as_raw_fd(), FREEZE, 0) }).map(drop)
}

/// Lets writes go on.
pub fn thaw(dir: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: the kernel ignores the argument of this request.
    check(unsafe { libc::ioctl(dir.as_raw_fd(), THAW, 0) }).map(drop)
}

/// `FIFREEZE` and `FITHAW` of <linux/fs.h>.
const FREEZE: libc::Ioctl = 0xc004_5877;
const THAW: libc::Ioctl = 0xc004_5878;

/// A vsock listener on every address of this guest.
pub fn vsock_listen(port: u32) -> io::Result<OwnedFd> {
    let socket = vsock_socket(libc::SOCK_NONBLOCK)?;
    let address = vsock_address(libc::VMADDR_CID_ANY, port);
    // SAFETY: the address is of the size given and lives through the call.
    unsafe {
        let fd = socket.as_raw_fd();
        check(libc::bind(
            fd,
            (&raw const address).cast(),
            size_of::<libc::sockaddr_vm>() as u32,
        ))?;
        check(libc::listen(fd, 128))?;
    }
    Ok(socket)
}

/// A vsock connection that is on its way: it can be written to once it is writable.
pub fn vsock_connect(cid: u32, port: u32) -> io::Result<OwnedFd> {
    let socket = vsock_socket(libc::SOCK_NONBLOCK)?;
    let address = vsock_address(cid, port);
    // SAFETY: the address is of the size given and lives through the call.
    let result = check(unsafe {
        let size = size_of::<libc::sockaddr_vm>() as u32;
        libc::connect(socket.as_raw_fd(), (&raw const address).cast(), size)
    });
    match result {
        Err(error) if error.raw_os_error() != Some(libc::EINPROGRESS) => Err(error),
        _ => Ok(socket),
    }
}

/// Accepts a connection, and says the peer's vsock address if it has one.
pub fn accept(listener: BorrowedFd<'_>) -> io::Result<(OwnedFd, Option<u32>)> {
    // SAFETY: the storage is large enough for any address and its size is given; the descriptor is new and ours.
    unsafe {
        let mut address: libc::sockaddr_storage = zeroed();
        let mut size = size_of::<libc::sockaddr_storage>() as u32;
        let flags = libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
        let fd = libc::accept4(
            listener.as_raw_fd(),
            (&raw mut address).cast(),
            &mut size,
            flags,
        );
        let socket = own(fd)?;
        let vsock = i32::from(address.ss_family) == libc::AF_VSOCK;
        let peer = vsock.then(|| {
            (&raw const address)
                .cast::<libc::sockaddr_vm>()
                .read()
                .svm_cid
        });
        Ok((socket, peer))
    }
}

fn vsock_socket(flags: i32) -> io::Result<OwnedFd> {
    // SAFETY: no memory involved; the descriptor is new and ours.
    unsafe {
        own(libc::socket(
            libc::AF_VSOCK,
            libc::SOCK_STREAM | libc::SOCK_CLOEXEC | flags,
            0,
        ))
    }
}

fn vsock_address(cid: u32, port: u32) -> libc::sockaddr_vm {
    // SAFETY: all zero bytes are a valid value of this plain structure.
    let mut address: libc::sockaddr_vm = unsafe { zeroed() };
    address.svm_family = libc::AF_VSOCK as u16;
    address.svm_cid = cid;
    address.svm_port = port;
    address
}

fn check(result: i32) -> io::Result<i32> {
    if result < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(result)
    }
}

/// # Safety
/// `fd` must be a descriptor that nothing else owns, or negative after a failed call.
unsafe fn own(fd: RawFd) -> io::Result<OwnedFd> {
    check(fd)?;
    // SAFETY: as the caller promises.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}
