//! The control queue. It knows one command: the driver has announced itself to the network, as it
//! was asked to.

use virtio_bindings::virtio_net::{
    VIRTIO_NET_CTRL_ANNOUNCE, VIRTIO_NET_CTRL_ANNOUNCE_ACK, VIRTIO_NET_ERR, VIRTIO_NET_OK,
};
use vm_memory::Bytes;

use super::rx::Pause;
use crate::virtio::{Chain, VirtQueue};

const COMMANDS_PER_EVENT: usize = 16;
/// Descriptors looked at in one chain; a command of a known kind has three.
const MAX_DESCRIPTORS: usize = 64;

/// Answers commands. `acknowledged` is called when the driver has announced itself.
pub(super) fn run(queue: &mut VirtQueue, mut acknowledged: impl FnMut()) -> Pause {
    let mut left = COMMANDS_PER_EVENT;
    queue.drain(|queue, chain| {
        if left == 0 {
            queue.undo_pop();
            return false;
        }
        left -= 1;
        let head = chain.head_index();
        let known = (
            VIRTIO_NET_CTRL_ANNOUNCE as u8,
            VIRTIO_NET_CTRL_ANNOUNCE_ACK as u8,
        );
        let (command, answer_at) = parse(queue, chain);
        let status = match command == Some(known) {
            true => VIRTIO_NET_OK,
            false => VIRTIO_NET_ERR,
        };
        let answered = answer_at.is_some_and(|at| queue.mem().write_obj(status as u8, at).is_ok());
        if answered && status == VIRTIO_NET_OK {
            acknowledged();
        }
        queue.push_used(head, u32::from(answered));
        true
    });
    queue.notify();
    match left {
        0 => Pause::Share,
        _ => Pause::Empty,
    }
}

/// Class and command, and where the answer goes: the first byte that may be written.
fn parse(queue: &VirtQueue, chain: Chain) -> (Option<(u8, u8)>, Option<vm_memory::GuestAddress>) {
    let mut header = [0; 2];
    let mut filled = 0;
    let mut answer_at = None;
    for descriptor in chain.take(MAX_DESCRIPTORS) {
        if descriptor.len() == 0 {
            continue;
        }
        if descriptor.is_write_only() {
            answer_at = Some(descriptor.addr());
            break;
        }
        let count = (descriptor.len() as usize).min(header.len() - filled);
        let part = &mut header[filled..filled + count];
        if queue.mem().read_slice(part, descriptor.addr()).is_err() {
            break;
        }
        filled += count;
    }
    let [class, command] = header;
    ((filled == 2).then_some((class, command)), answer_at)
}
