//! Networks, and sockets of the host.

use crate::calls::{Error, call, pointer, pointer_mut};
use crate::{Attempt, Outcome, any_must_fail, attempt, must_fail};

fn socket(family: i32, kind: i32, protocol: i32) -> Result<i64, Error> {
    call(
        libc::SYS_socket,
        &[family as u64, kind as u64, protocol as u64],
    )
}

/// A socket that is only harmful when it gets somewhere.
fn connect(family: i32, address: &[u8]) -> Outcome {
    let fd = match socket(family, libc::SOCK_STREAM, 0) {
        Ok(fd) => fd as u64,
        Err(err) => return Outcome::Refused(err.to_string()),
    };
    let address_at = address.as_ptr().expose_provenance() as u64;
    let result = call(libc::SYS_connect, &[fd, address_at, address.len() as u64]);
    let _ = call(libc::SYS_close, &[fd]);
    must_fail(result)
}

fn unix(path: &[u8]) -> Vec<u8> {
    let mut address = vec![libc::AF_UNIX as u8, 0];
    address.extend_from_slice(path);
    address
}

/// All attempts.
pub fn attempts() -> Vec<Attempt> {
    vec![
        attempt("connect to a port of the host", || {
            // The test listens there: 127.0.0.1:7469.
            connect(
                libc::AF_INET,
                &[2, 0, 0x1d, 0x2d, 127, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0],
            )
        }),
        attempt("listen on a port", || {
            let fd = match socket(libc::AF_INET, libc::SOCK_STREAM, 0) {
                Ok(fd) => fd as u64,
                Err(err) => return Outcome::Refused(err.to_string()),
            };
            let address = [2u8, 0, 0x1d, 0x2e, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
            must_fail(call(libc::SYS_bind, &[fd, pointer(&address), 16]))
        }),
        attempt("send a datagram to the world", || {
            let fd = match socket(libc::AF_INET, libc::SOCK_DGRAM, 0) {
                Ok(fd) => fd as u64,
                Err(err) => return Outcome::Refused(err.to_string()),
            };
            let address = [2u8, 0, 0, 53, 192, 0, 2, 1, 0, 0, 0, 0, 0, 0, 0, 0];
            let send = [fd, pointer(&address), 4, 0, pointer(&address), 16];
            must_fail(call(libc::SYS_sendto, &send))
        }),
        attempt("open a raw socket", || {
            must_fail(socket(libc::AF_INET, libc::SOCK_RAW, libc::IPPROTO_ICMP))
        }),
        attempt("open a packet socket", || {
            must_fail(socket(libc::AF_PACKET, libc::SOCK_RAW, 0x0300))
        }),
        attempt("see an interface of the host", || {
            let fd = match socket(libc::AF_INET, libc::SOCK_DGRAM, 0) {
                Ok(fd) => fd as u64,
                Err(err) => return Outcome::Refused(err.to_string()),
            };
            // SIOCGIFNAME of interfaces 2 to 64; 1 is the loopback that every network has.
            any_must_fail((2..64u32).map(|index| {
                let mut request = [0u8; 40];
                request[16..20].copy_from_slice(&index.to_ne_bytes());
                call(libc::SYS_ioctl, &[fd, 0x8910, pointer(&request)])
            }))
        }),
        attempt("change the network by netlink", || {
            let fd = match socket(libc::AF_NETLINK, libc::SOCK_RAW, 0) {
                Ok(fd) => fd as u64,
                Err(err) => return Outcome::Refused(err.to_string()),
            };
            // RTM_NEWLINK with NLM_F_REQUEST | NLM_F_ACK | NLM_F_CREATE, of kind nothing: the
            // answer says whether it would be let.
            let message = [32u32, 0x0405_0010, 1, 0, 0, 0, 0, 0];
            let _ = call(libc::SYS_sendto, &[fd, pointer(&message), 32, 0, 0, 0]);
            let mut answer = [0u32; 16];
            let _ = call(
                libc::SYS_recvfrom,
                &[fd, pointer_mut(&mut answer), 64, 0x40, 0, 0],
            );
            match std::hint::black_box(answer)[4] as i32 {
                0 => Outcome::Out("it is let".to_owned()),
                error => Outcome::Refused(std::io::Error::from_raw_os_error(-error).to_string()),
            }
        }),
        attempt("reach the hypervisor by vsock", || {
            // Port 7469 of the host that this one may be a guest of, and of the local one.
            let address = |cid: u32| {
                let mut bytes = [0u8; 16];
                bytes[0] = libc::AF_VSOCK as u8;
                bytes[4..8].copy_from_slice(&7469u32.to_ne_bytes());
                bytes[8..12].copy_from_slice(&cid.to_ne_bytes());
                bytes
            };
            match socket(libc::AF_VSOCK, libc::SOCK_STREAM, 0) {
                Err(err) => Outcome::Refused(err.to_string()),
                Ok(_) => match [1, 2].map(|cid| connect(libc::AF_VSOCK, &address(cid))) {
                    [Outcome::Refused(why), Outcome::Refused(_)] => Outcome::Refused(why),
                    _ => Outcome::Out("it is let".to_owned()),
                },
            }
        }),
        attempt("use the kernel's cryptography", || {
            must_fail(socket(libc::AF_ALG, libc::SOCK_SEQPACKET, 0))
        }),
        attempt("connect to a socket file of the host", || {
            // The test listens there.
            connect(libc::AF_UNIX, &unix(b"/tmp/tine-test-socket\0"))
        }),
        attempt("connect to an abstract socket of the host", || {
            // The test listens there.
            connect(libc::AF_UNIX, &unix(b"\0tine-test-socket"))
        }),
        attempt("make a network interface", || {
            let fd = match crate::calls::open("/dev/net/tun", libc::O_RDWR) {
                Ok(fd) => fd as u64,
                Err(err) => return Outcome::Refused(err.to_string()),
            };
            let mut request = [0u8; 40];
            request[..4].copy_from_slice(b"out0");
            request[16] = 2;
            must_fail(call(
                libc::SYS_ioctl,
                &[fd, libc::TUNSETIFF, pointer(&request)],
            ))
        }),
    ]
}
