//! The link addresses of other hosts that the kernel has learnt (rtnetlink(7)).
//!
//! A machine that was restored may be on another network, or on the same one with another gateway:
//! until the kernel notices, which takes it half a minute, what it sends goes to an address that
//! nobody has.

use std::io;
use std::os::fd::OwnedFd;

use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socket_with,
};

const DONE: u16 = 3;
const NEW_NEIGHBOUR: u16 = 28;
const DELETE_NEIGHBOUR: u16 = 29;
const GET_NEIGHBOURS: u16 = 30;
const REQUEST: u16 = 1;
const DUMP: u16 = 0x300;
/// Length, type, flags, sequence number, sender.
const HEADER: usize = 16;
/// Family, interface, state, flags, kind.
const BODY: usize = 12;
/// Where in a message its state is.
const STATE: usize = HEADER + 8;
/// States of what was told to the kernel, and not learnt.
const KEPT: u16 = 0x40 | 0x80;
/// The kernel's parts of a list are no longer.
const PART: usize = 32 << 10;
/// More than the kernel keeps, a thousand.
const MOST: usize = 4096;

/// Forgets what was learnt. The kernel asks again when it has something to send.
pub fn forget() -> io::Result<()> {
    let kernel = kernel()?;
    for message in learnt(&kernel)? {
        // The kernel may have forgotten it by itself.
        let _ = send(&kernel, &message, SendFlags::empty());
    }
    Ok(())
}

fn kernel() -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    // Protocol 0 of this family is rtnetlink.
    Ok(socket_with(
        AddressFamily::NETLINK,
        SocketType::RAW,
        flags,
        None,
    )?)
}

/// A request to forget for each neighbour that was learnt.
fn learnt(kernel: &OwnedFd) -> io::Result<Vec<Vec<u8>>> {
    let mut request = [0; HEADER + BODY];
    request[..4].copy_from_slice(&((HEADER + BODY) as u32).to_ne_bytes());
    request[4..6].copy_from_slice(&GET_NEIGHBOURS.to_ne_bytes());
    request[6..8].copy_from_slice(&(REQUEST | DUMP).to_ne_bytes());
    send(kernel, &request, SendFlags::empty())?;
    let mut found = Vec::new();
    let mut part = vec![0; PART];
    // A list is answered at once: there is nothing to wait for.
    while found.len() < MOST {
        let (len, _) = recv(kernel, &mut part[..], RecvFlags::empty())?;
        if !take(&part[..len.min(PART)], &mut found) {
            break;
        }
    }
    Ok(found)
}

/// Takes a part of the list; says whether another one follows.
fn take(mut part: &[u8], found: &mut Vec<Vec<u8>>) -> bool {
    while let Some(header) = part.get(..HEADER) {
        let number = |at: usize| u16::from_ne_bytes([header[at], header[at + 1]]);
        let len = u32::from_ne_bytes([header[0], header[1], header[2], header[3]]) as usize;
        let Some(message) = part.get(..len).filter(|_| len >= HEADER) else {
            return false;
        };
        match number(4) {
            NEW_NEIGHBOUR if len >= HEADER + BODY => {
                let state = u16::from_ne_bytes([message[STATE], message[STATE + 1]]);
                if state & KEPT == 0 {
                    let mut request = message.to_vec();
                    request[4..6].copy_from_slice(&DELETE_NEIGHBOUR.to_ne_bytes());
                    request[6..8].copy_from_slice(&REQUEST.to_ne_bytes());
                    found.push(request);
                }
            }
            // The end, an error, or nonsense.
            DONE..=NEW_NEIGHBOUR | ..DONE => return false,
            _ => {}
        }
        part = part.get(len.next_multiple_of(4)..).unwrap_or_default();
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(kind: u16, state: u16, rest: &[u8]) -> Vec<u8> {
        let len = HEADER + BODY + rest.len();
        let mut bytes = vec![0; HEADER + BODY];
        bytes[..4].copy_from_slice(&(len as u32).to_ne_bytes());
        bytes[4..6].copy_from_slice(&kind.to_ne_bytes());
        bytes[STATE..STATE + 2].copy_from_slice(&state.to_ne_bytes());
        bytes.extend(rest);
        bytes.resize(len.next_multiple_of(4), 0);
        bytes
    }

    #[test]
    fn what_was_learnt_is_forgotten_and_the_rest_kept() {
        let mut found = Vec::new();
        let part = [
            message(NEW_NEIGHBOUR, 0x02, b"one"),
            message(NEW_NEIGHBOUR, 0x80, b"permanent"),
            message(NEW_NEIGHBOUR, 0x40, b"loopback"),
            message(NEW_NEIGHBOUR, 0x04, b"stale"),
        ];
        assert!(take(&part.concat(), &mut found), "more may follow");
        assert!(!take(&message(DONE, 0, b""), &mut found));
        let kinds: Vec<_> = found.iter().map(|m| (m[4], m[6], m[28])).collect();
        assert_eq!(kinds, [(29, 1, b'o'), (29, 1, b's')]);
    }

    #[test]
    fn lengths_that_lie_end_the_list() {
        for len in [0, 1, 15, 17, 1000, u32::MAX] {
            let mut part = message(NEW_NEIGHBOUR, 2, b"");
            part[..4].copy_from_slice(&len.to_ne_bytes());
            let mut found = Vec::new();
            assert!(!take(&part, &mut found), "{len}");
            assert!(found.is_empty(), "{len}");
        }
    }

    #[test]
    fn the_kernel_here_has_a_list() {
        learnt(&kernel().unwrap()).unwrap();
    }
}
