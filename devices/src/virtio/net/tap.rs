//! A TAP device of the host. A leaf with `unsafe` in it.
//!
//! System calls: `openat`, `ioctl` and, by name, `socket` and `close` when it is opened; `ioctl`
//! when a driver starts (a vCPU's thread); `readv` and `writev` for frames (the event loop's).

use std::ffi::CString;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::fs::OpenOptionsExt;

use rustix::fs::OFlags;

use super::{Backend, Buffers, HEADER_LEN, NetConfig, NetError, Offloads, TapSource};

/// Frames with the virtio header in front, and nothing else.
const FLAGS: libc::c_int = libc::IFF_TAP | libc::IFF_NO_PI | libc::IFF_VNET_HDR;

/// The backend over a TAP device.
pub struct Tap {
    file: File,
}

impl Tap {
    /// Attaches to the device that the configuration names, or takes over its descriptor. The
    /// device itself (up or down, addresses, MTU, bridge) stays as the host has it.
    pub fn open(config: NetConfig) -> Result<Self, NetError> {
        let id = config.id;
        let file = match config.host {
            TapSource::Name(tap) => attach(&id, &tap)?,
            TapSource::Fd(fd) => adopt(&id, File::from(fd))?,
        };
        let header_len = HEADER_LEN as libc::c_int;
        // SAFETY: this request reads an integer through the pointer, which is valid.
        unsafe {
            ioctl(
                &file,
                libc::TUNSETVNETHDRSZ,
                (&raw const header_len).cast_mut(),
            )
        }
        .map_err(|source| NetError::Os {
            interface: id,
            action: "set the header size of the TAP device",
            source,
        })?;
        let mut tap = Self { file };
        // Until a driver says otherwise it takes plain frames only.
        let _ = tap.set_offloads(Offloads::default());
        Ok(tap)
    }
}

impl Backend for Tap {
    fn receive(&mut self, into: Buffers<'_>) -> io::Result<usize> {
        let list = into.iovecs();
        // SAFETY: the list is valid for the call, and each entry is memory that its owner keeps
        // mapped, may be written, and is not covered by a Rust reference.
        let count = unsafe {
            libc::readv(
                self.file.as_raw_fd(),
                list.as_ptr(),
                list.len() as libc::c_int,
            )
        };
        usize::try_from(count).map_err(|_| io::Error::last_os_error())
    }

    fn send(&mut self, frame: Buffers<'_>) -> io::Result<()> {
        let list = frame.iovecs();
        // SAFETY: as for reading; the kernel only reads what the entries point to.
        let count = unsafe {
            libc::writev(
                self.file.as_raw_fd(),
                list.as_ptr(),
                list.len() as libc::c_int,
            )
        };
        match count {
            0.. => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }

    fn set_offloads(&mut self, offloads: Offloads) -> io::Result<()> {
        let mut flags = 0;
        for (on, flag) in [
            (offloads.checksum, libc::TUN_F_CSUM),
            (offloads.tso4, libc::TUN_F_TSO4),
            (offloads.tso6, libc::TUN_F_TSO6),
            (offloads.ecn, libc::TUN_F_TSO_ECN),
        ] {
            flags |= if on { flag } else { 0 };
        }
        // SAFETY: this request takes an integer in place of a pointer.
        unsafe {
            ioctl::<libc::c_void>(
                &self.file,
                libc::TUNSETOFFLOAD,
                std::ptr::without_provenance_mut(flags as usize),
            )
        }
    }

    fn event(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

fn attach(id: &str, tap: &str) -> Result<File, NetError> {
    let (interface, name) = (id.to_owned(), tap.to_owned());
    let fits = !tap.is_empty() && tap.len() < libc::IFNAMSIZ && tap != "." && tap != "..";
    let plain = |byte: u8| byte.is_ascii_graphic() && !matches!(byte, b'/' | b':' | b'%');
    if !fits || !tap.bytes().all(plain) {
        return Err(NetError::Name {
            interface,
            tap: name,
        });
    }
    // Attaching to a device that is not there would make one, of no use to anyone.
    let c_name = CString::new(tap).expect("no NUL in a checked name");
    // SAFETY: a NUL-terminated string that outlives the call.
    if unsafe { libc::if_nametoindex(c_name.as_ptr()) } == 0 {
        return Err(NetError::Missing {
            interface,
            tap: name,
        });
    }
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .custom_flags(libc::O_NONBLOCK)
        .open("/dev/net/tun")
        .map_err(|source| NetError::Tun {
            interface: id.to_owned(),
            source,
        })?;
    let mut request = empty_request();
    request.ifr_ifru.ifru_flags = FLAGS as libc::c_short;
    for (to, from) in request.ifr_name.iter_mut().zip(tap.bytes()) {
        *to = from as libc::c_char;
    }
    // SAFETY: this request reads and writes an `ifreq` through the pointer, which is valid.
    let attached = unsafe { ioctl(&file, libc::TUNSETIFF, &raw mut request) };
    let tap = name;
    attached.map_err(|source| match source.raw_os_error() {
        Some(libc::EBUSY) => NetError::Busy { interface, tap },
        Some(libc::EPERM | libc::EACCES) => NetError::Denied { interface, tap },
        Some(libc::EINVAL) => NetError::NotATap { interface, tap },
        _ => NetError::Os {
            interface,
            action: "attach to the TAP device",
            source,
        },
    })?;
    Ok(file)
}

/// Checks that the descriptor is what it has to be, and that nothing waits on it.
fn adopt(id: &str, file: File) -> Result<File, NetError> {
    let interface = || id.to_owned();
    let mut request = empty_request();
    // SAFETY: this request writes an `ifreq` through the pointer, which is valid.
    unsafe { ioctl(&file, libc::TUNGETIFF, &raw mut request) }.map_err(|_| {
        NetError::NotATapFd {
            interface: interface(),
        }
    })?;
    // SAFETY: the kernel has filled this member; every bit pattern is valid in it.
    let flags = libc::c_int::from(unsafe { request.ifr_ifru.ifru_flags });
    if flags & (FLAGS | libc::IFF_TUN) != FLAGS {
        return Err(NetError::NotATapFd {
            interface: interface(),
        });
    }
    let set_flags = || {
        let flags = rustix::fs::fcntl_getfl(&file)?;
        rustix::fs::fcntl_setfl(&file, flags | OFlags::NONBLOCK)
    };
    set_flags().map_err(|source| NetError::Os {
        interface: interface(),
        action: "make the TAP device's descriptor non-blocking",
        source: source.into(),
    })?;
    Ok(file)
}

fn empty_request() -> libc::ifreq {
    // SAFETY: all zeroes is a valid `ifreq`: an empty name, and a union of plain data.
    unsafe { std::mem::zeroed() }
}

/// # Safety
///
/// `argument` is what the request expects: a pointer to what it reads or writes, or an integer.
unsafe fn ioctl<T>(file: &File, request: libc::Ioctl, argument: *mut T) -> io::Result<()> {
    // SAFETY: the caller's promise; the descriptor is open.
    match unsafe { libc::ioctl(file.as_raw_fd(), request, argument) } {
        0.. => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
