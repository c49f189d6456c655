//! The host's side of a real TAP device: a network namespace, and a packet socket in it.

use std::fs::OpenOptions;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::process::Command;
use std::time::{Duration, Instant};

use tine_devices::virtio::net::HEADER_LEN;

/// The header that a packet socket gives and takes has no `num_buffers`.
const SHORT_HEADER: usize = HEADER_LEN - 2;
const PACKET_VNET_HDR: libc::c_int = 15;

/// Runs `test` on a thread in a network namespace of its own, where a TAP device is up.
pub fn in_namespace(tap: &str, test: impl FnOnce() + Send) {
    let run = || {
        // SAFETY: no memory is passed; the calling thread alone moves.
        let moved = unsafe { libc::unshare(libc::CLONE_NEWNET) };
        assert!(
            moved == 0,
            "cannot make a network namespace ({}): run the tests as root",
            io::Error::last_os_error()
        );
        ip(&format!("tuntap add {tap} mode tap"));
        ip(&format!("link set {tap} up"));
        test();
    };
    std::thread::scope(|scope| {
        if let Err(panic) = scope.spawn(run).join() {
            std::panic::resume_unwind(panic);
        }
    });
}

/// Waits until the kernel has noticed that the device is attached to: until then it drops what is
/// sent.
pub fn wait_for_carrier(tap: &str) {
    let until = Instant::now() + Duration::from_secs(10);
    let up = |shown: &str| shown.contains("LOWER_UP") && !shown.contains("qdisc noop ");
    while !up(&ip(&format!("-o link show {tap}"))) {
        assert!(Instant::now() < until, "{tap} does not come up");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Runs ip(8) in this thread's namespace and gives what it printed.
pub fn ip(arguments: &str) -> String {
    let output = Command::new("ip").args(arguments.split(' ')).output();
    let output = output.expect("ip(8) of iproute2 is installed");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success(),
        "ip {arguments}: {said} (is /dev/net/tun there, and the test run as root?)"
    );
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Attaches to a TUN or TAP device, making it if it is not there.
pub fn attach(name: &str, flags: libc::c_int) -> OwnedFd {
    let mut options = OpenOptions::new();
    let file = options.read(true).write(true).open("/dev/net/tun").unwrap();
    // SAFETY: all zeroes is a valid `ifreq`.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(name.bytes()) {
        *to = from as libc::c_char;
    }
    request.ifr_ifru.ifru_flags = flags as libc::c_short;
    // SAFETY: the request reads and writes an `ifreq`.
    let attached = unsafe { libc::ioctl(file.as_raw_fd(), libc::TUNSETIFF, &raw mut request) };
    assert_eq!(attached, 0, "{}", io::Error::last_os_error());
    file.into()
}

/// Sees and sends frames of an interface, with a virtio header.
pub struct PacketSocket(OwnedFd);

impl PacketSocket {
    pub fn on(interface: &str) -> Self {
        let name = std::ffi::CString::new(interface).unwrap();
        let protocol = (libc::ETH_P_ALL as u16).to_be();
        // SAFETY: no memory is passed, and the descriptor is new.
        let fd = unsafe {
            let fd = libc::socket(libc::AF_PACKET, libc::SOCK_RAW, libc::c_int::from(protocol));
            assert!(fd >= 0, "{}", io::Error::last_os_error());
            OwnedFd::from_raw_fd(fd)
        };
        // SAFETY: all zeroes is a valid address.
        let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
        address.sll_family = libc::AF_PACKET as u16;
        address.sll_protocol = protocol;
        // SAFETY: a NUL-terminated string.
        address.sll_ifindex = unsafe { libc::if_nametoindex(name.as_ptr()) } as libc::c_int;
        let on: libc::c_int = 1;
        let timeout = libc::timeval {
            tv_sec: 10,
            tv_usec: 0,
        };
        // SAFETY: each call reads as many bytes as it is told of a value that lives.
        unsafe {
            let bound = libc::bind(
                fd.as_raw_fd(),
                (&raw const address).cast(),
                size_of_val(&address) as u32,
            );
            assert_eq!(bound, 0, "{}", io::Error::last_os_error());
            for (level, option, value, len) in [
                (libc::SOL_PACKET, PACKET_VNET_HDR, (&raw const on).cast(), 4),
                (
                    libc::SOL_SOCKET,
                    libc::SO_RCVTIMEO,
                    (&raw const timeout).cast::<libc::c_void>(),
                    size_of_val(&timeout) as u32,
                ),
            ] {
                let set = libc::setsockopt(fd.as_raw_fd(), level, option, value, len);
                assert_eq!(set, 0, "{}", io::Error::last_os_error());
            }
        }
        Self(fd)
    }

    pub fn send(&self, header: &[u8; HEADER_LEN], bytes: &[u8]) {
        let mut frame = header[..SHORT_HEADER].to_vec();
        frame.extend(bytes);
        let sent = rustix::io::write(&self.0, &frame).unwrap();
        assert_eq!(sent, frame.len());
    }

    /// Waits for a frame that `is_ours` knows: header and bytes. What was sent here is seen too,
    /// and passed over.
    pub fn receive(&self, is_ours: impl Fn(&[u8]) -> bool) -> (Vec<u8>, Vec<u8>) {
        let mut frame = vec![0; 70_000];
        loop {
            // SAFETY: all zeroes is a valid address.
            let mut from: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
            let mut from_len = size_of_val(&from) as u32;
            // SAFETY: the buffers are valid for as many bytes as the call is told.
            let count = unsafe {
                libc::recvfrom(
                    self.0.as_raw_fd(),
                    frame.as_mut_ptr().cast(),
                    frame.len(),
                    0,
                    (&raw mut from).cast(),
                    &raw mut from_len,
                )
            };
            assert!(count >= 0, "no frame: {}", io::Error::last_os_error());
            let frame = &frame[..count as usize];
            if from.sll_pkttype != libc::PACKET_OUTGOING && is_ours(&frame[SHORT_HEADER..]) {
                let (header, bytes) = frame.split_at(SHORT_HEADER);
                return (header.to_vec(), bytes.to_vec());
            }
        }
    }
}
