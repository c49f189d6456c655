//! Talking to the kernel about the network (rtnetlink(7)).

use std::io;
use std::os::fd::OwnedFd;

use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socket_with,
};

/// An error, or that there was none.
const ERROR: u16 = 2;
const DONE: u16 = 3;
const REQUEST: u16 = 1;
const ANSWER: u16 = 4;
const DUMP: u16 = 0x300;
/// With a request for something new: whether or not it is there.
pub const PUT: u16 = 0x500;
/// Length, type, flags, sequence number, sender.
pub const HEADER: usize = 16;
/// The kernel's parts of a list are no longer.
const PART: usize = 32 << 10;
/// More than the kernel keeps of anything that is asked for here: a thousand.
const MOST: usize = 4096;

/// The kernel's end.
pub struct Kernel(OwnedFd);

impl Kernel {
    /// Begins.
    pub fn open() -> io::Result<Self> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        // Protocol 0 of this family is rtnetlink.
        let socket = socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, None)?;
        Ok(Self(socket))
    }

    /// Asks for a list, and gives its messages of a kind, whole.
    pub fn list(&self, request: u16, body: &[u8], kind: u16) -> io::Result<Vec<Vec<u8>>> {
        send(&self.0, &message(request, DUMP, body), SendFlags::empty())?;
        let mut found = Vec::new();
        let mut part = vec![0; PART];
        // A list is answered at once: there is nothing to wait for.
        while found.len() < MOST {
            let (len, _) = recv(&self.0, &mut part[..], RecvFlags::empty())?;
            if !take(&part[..len.min(PART)], kind, &mut found) {
                break;
            }
        }
        Ok(found)
    }

    /// Has something done.
    pub fn ask(&self, kind: u16, flags: u16, body: &[u8]) -> io::Result<()> {
        send(
            &self.0,
            &message(kind, ANSWER | flags, body),
            SendFlags::empty(),
        )?;
        let mut answer = [0; 1024];
        let (len, _) = recv(&self.0, &mut answer[..], RecvFlags::empty())?;
        let answer = &answer[..len.min(answer.len())];
        let (Some(&kind), Some(error)) = (
            answer.get(4..6).and_then(<[u8]>::first_chunk),
            answer.get(HEADER..HEADER + 4).and_then(<[u8]>::first_chunk),
        ) else {
            return Err(io::ErrorKind::UnexpectedEof.into());
        };
        match (u16::from_ne_bytes(kind), i32::from_ne_bytes(*error)) {
            (ERROR, 0) => Ok(()),
            (ERROR, error) => Err(Errno::from_raw_os_error(error.saturating_neg()).into()),
            _ => Err(io::ErrorKind::InvalidData.into()),
        }
    }
}

/// A request.
fn message(kind: u16, flags: u16, body: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(HEADER + body.len());
    bytes.extend(((HEADER + body.len()) as u32).to_ne_bytes());
    bytes.extend(kind.to_ne_bytes());
    bytes.extend((REQUEST | flags).to_ne_bytes());
    bytes.extend([0; 8]);
    bytes.extend(body);
    bytes
}

/// Appends an attribute to a request's body.
pub fn attribute(body: &mut Vec<u8>, kind: u16, data: &[u8]) {
    body.extend(((4 + data.len()) as u16).to_ne_bytes());
    body.extend(kind.to_ne_bytes());
    body.extend(data);
    body.resize(body.len().next_multiple_of(4), 0);
}

/// Takes a part of a list; says whether another one follows.
fn take(mut part: &[u8], kind: u16, found: &mut Vec<Vec<u8>>) -> bool {
    while let Some(header) = part.get(..HEADER) {
        let number = |at: usize| u16::from_ne_bytes([header[at], header[at + 1]]);
        let len = u32::from_ne_bytes([header[0], header[1], header[2], header[3]]) as usize;
        let Some(message) = part.get(..len).filter(|_| len >= HEADER) else {
            return false;
        };
        match number(4) {
            this if this == kind => found.push(message.to_vec()),
            // The end, an error, or nothing at all.
            ..=DONE => return false,
            _ => {}
        }
        part = part.get(len.next_multiple_of(4)..).unwrap_or_default();
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    const KIND: u16 = 28;

    fn part(kind: u16, rest: &[u8]) -> Vec<u8> {
        let mut bytes = message(kind, 0, rest);
        bytes.resize(bytes.len().next_multiple_of(4), 0);
        bytes
    }

    #[test]
    fn a_list_is_taken_to_its_end() {
        let mut found = Vec::new();
        let parts = [
            part(KIND, b"one"),
            part(KIND + 1, b"other"),
            part(KIND, b"two"),
        ];
        assert!(take(&parts.concat(), KIND, &mut found), "more may follow");
        assert!(!take(&part(DONE, b""), KIND, &mut found));
        let ends: Vec<_> = found.iter().map(|message| &message[HEADER..]).collect();
        assert_eq!(ends, [b"one", b"two"]);
    }

    #[test]
    fn lengths_that_lie_end_the_list() {
        for len in [0, 1, 15, 20, 1000, u32::MAX] {
            let mut part = part(KIND, b"");
            part[..4].copy_from_slice(&len.to_ne_bytes());
            let mut found = Vec::new();
            assert!(!take(&part, KIND, &mut found), "{len}");
            assert!(found.is_empty(), "{len}");
        }
    }

    #[test]
    fn attributes_end_at_multiples_of_four() {
        let mut body = Vec::new();
        attribute(&mut body, 7, b"abcde");
        attribute(&mut body, 8, b"");
        let wanted = [&9u16.to_ne_bytes()[..], &7u16.to_ne_bytes(), b"abcde\0\0\0"].concat();
        assert_eq!(body[..12], wanted);
        assert_eq!(
            body[12..],
            [4u16.to_ne_bytes(), 8u16.to_ne_bytes()].concat()
        );
    }

    #[test]
    fn the_kernel_here_says_why_not() {
        // A link that nobody has (RTM_SETLINK).
        let mut body = vec![0; 16];
        body[4..8].copy_from_slice(&i32::MAX.to_ne_bytes());
        let refused = Kernel::open().unwrap().ask(19, 0, &body).unwrap_err();
        let known = [Errno::NODEV, Errno::PERM].map(|error| error.raw_os_error());
        assert!(
            known.contains(&refused.raw_os_error().unwrap()),
            "{refused}"
        );
    }
}
