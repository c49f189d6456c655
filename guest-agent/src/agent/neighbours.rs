//! The link addresses of other hosts that the kernel has learnt.
//!
//! A machine that was restored may be on another network, or on the same one with another gateway:
//! until the kernel notices, which takes it half a minute, what it sends goes to an address that
//! nobody has.

use std::io;

use super::netlink::{HEADER, Kernel};

const NEW: u16 = 28;
const DELETE: u16 = 29;
const GET: u16 = 30;
/// Family, interface, state, flags, kind.
const BODY: usize = 12;
/// Where in a message its state is.
const STATE: usize = HEADER + 8;
/// States of what was told to the kernel, and not learnt.
const KEPT: u16 = 0x40 | 0x80;

/// Forgets what was learnt. The kernel asks again when it has something to send.
pub fn forget() -> io::Result<()> {
    let kernel = Kernel::open()?;
    for neighbour in kernel.list(GET, &[0; BODY], NEW)? {
        if is_learnt(&neighbour) {
            // The kernel may have forgotten it by itself.
            let _ = kernel.ask(DELETE, 0, &neighbour[HEADER..]);
        }
    }
    Ok(())
}

fn is_learnt(neighbour: &[u8]) -> bool {
    let state = neighbour.get(STATE..STATE + 2);
    state.is_some_and(|state| u16::from_ne_bytes([state[0], state[1]]) & KEPT == 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_told_is_kept() {
        let neighbour = |state: u16| {
            let mut message = vec![0; HEADER + BODY];
            message[STATE..STATE + 2].copy_from_slice(&state.to_ne_bytes());
            message
        };
        for (state, learnt) in [(0x02, true), (0x80, false), (0x40, false), (0x04, true)] {
            assert_eq!(is_learnt(&neighbour(state)), learnt, "{state}");
        }
        assert!(!is_learnt(&[0; HEADER]));
    }

    #[test]
    fn the_kernel_here_has_a_list() {
        Kernel::open().unwrap().list(GET, &[0; BODY], NEW).unwrap();
    }
}
