//! The system calls of memory that another process serves (userfaultfd(2), linux/userfaultfd.h). A
//! leaf with `unsafe` in it.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};

const API: u64 = 0xaa;
/// Pages of a memfd can be served: UFFD_FEATURE_MISSING_SHMEM.
const MISSING_SHMEM: u64 = 1 << 5;
/// UFFDIO_REGISTER_MODE_MISSING.
const MISSING: u64 = 1;
/// UFFD_EVENT_PAGEFAULT.
const PAGE_FAULT: u8 = 0x12;
/// Bytes of `struct uffd_msg`.
const MESSAGE: usize = 32;
/// Messages that are read at once.
const MESSAGES: usize = 64;

const fn request(direction: u64, number: u64, size: usize) -> libc::Ioctl {
    ((direction << 30) | ((size as u64) << 16) | (API << 8) | number) as libc::Ioctl
}
const UFFDIO_API: libc::Ioctl = request(3, 0x3f, size_of::<[u64; 3]>());
const UFFDIO_REGISTER: libc::Ioctl = request(3, 0x00, size_of::<[u64; 4]>());
const UFFDIO_UNREGISTER: libc::Ioctl = request(2, 0x01, size_of::<[u64; 2]>());
const UFFDIO_WAKE: libc::Ioctl = request(2, 0x02, size_of::<[u64; 2]>());
const UFFDIO_COPY: libc::Ioctl = request(3, 0x03, size_of::<[u64; 5]>());
const USERFAULTFD_IOC_NEW: libc::Ioctl = request(0, 0x00, 0);

/// A descriptor that says which pages of this process's memory are missed.
///
/// # Errors
///
/// Where the system has none, or gives none to this user: root, whoever may open /dev/userfaultfd,
/// and everybody when vm.unprivileged_userfaultfd is 1 can have one.
pub fn open() -> io::Result<OwnedFd> {
    // SAFETY: the call takes flags alone, and a descriptor that it returns is new.
    let made = unsafe { libc::syscall(libc::SYS_userfaultfd, libc::O_CLOEXEC | libc::O_NONBLOCK) };
    let fd = match made {
        fd if fd >= 0 => fd as i32,
        _ => open_device()?,
    };
    // SAFETY: the descriptor is new and owned by nobody else.
    let fd = unsafe { OwnedFd::from_raw_fd(fd) };
    let mut api = [API, MISSING_SHMEM, 0];
    control(&fd, UFFDIO_API, &mut api)?;
    Ok(fd)
}

fn open_device() -> io::Result<i32> {
    let device = File::open("/dev/userfaultfd")?;
    // SAFETY: the request takes flags alone, and a descriptor that it returns is new.
    match unsafe {
        libc::ioctl(
            device.as_raw_fd(),
            USERFAULTFD_IOC_NEW,
            libc::O_CLOEXEC | libc::O_NONBLOCK,
        )
    } {
        fd if fd >= 0 => Ok(fd),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Has `fd` tell of the pages that are missed in a mapping. Whoever touches one waits.
pub fn register(fd: &OwnedFd, at: *mut u8, len: u64) -> io::Result<()> {
    control(fd, UFFDIO_REGISTER, &mut [at as u64, len, MISSING, 0])
}

/// Ends that: a page that is missed is zero from now on.
pub fn unregister(fd: &OwnedFd, at: *mut u8, len: u64) -> io::Result<()> {
    control(fd, UFFDIO_UNREGISTER, &mut [at as u64, len])
}

/// Puts `page` where it is missed, and wakes who waits for it. One that is there already stays, which is
/// `false`: two threads have missed it at the same time.
pub fn copy(fd: &OwnedFd, to: u64, page: &[u8]) -> io::Result<bool> {
    let len = page.len() as u64;
    let mut argument = [to, page.as_ptr() as u64, len, 0, 0];
    match control(fd, UFFDIO_COPY, &mut argument) {
        Err(err) if err.kind() == io::ErrorKind::AlreadyExists => {
            control(fd, UFFDIO_WAKE, &mut [to, len]).map(|()| false)
        }
        result => result.map(|()| true),
    }
}

fn control<const N: usize>(
    fd: &OwnedFd,
    request: libc::Ioctl,
    argument: &mut [u64; N],
) -> io::Result<()> {
    // SAFETY: every request here has the size of its argument in it, which is the array's. The
    // kernel reads and writes it, and the page that UFFDIO_COPY names lives through the call; where
    // it is put is another process's memory, or missing in this one's.
    match unsafe { libc::ioctl(fd.as_raw_fd(), request, argument.as_mut_ptr()) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// The addresses that are missed now, as the kernel tells them; none when nobody waits.
pub fn missed(fd: &OwnedFd) -> io::Result<Vec<u64>> {
    let mut bytes = [0; MESSAGE * MESSAGES];
    let count = match File::from(fd.as_fd().try_clone_to_owned()?).read(&mut bytes) {
        Err(err) if err.kind() == io::ErrorKind::WouldBlock => 0,
        read => read?,
    };
    let messages = bytes[..count].chunks_exact(MESSAGE);
    let faults = messages.filter(|message| message[0] == PAGE_FAULT);
    // `arg.pagefault` begins behind 8 bytes of head: flags, and the address.
    let address = |message: &[u8]| u64::from_le_bytes(message[16..24].try_into().expect("8 bytes"));
    Ok(faults.map(address).collect())
}

/// Reads a byte of each page of a mapping, so that all of them come.
///
/// # Safety
///
/// The range must be mapped for as long as the call takes. Others may write to it meanwhile.
pub unsafe fn touch(at: *const u8, len: u64, page: u64) {
    for offset in (0..len).step_by(page as usize) {
        // SAFETY: the byte is in the range, which the caller answers for; what it holds is not used.
        unsafe { at.add(offset as usize).read_volatile() };
    }
}
