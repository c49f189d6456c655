//! Random traffic against a model: frames in, the same frames out, in order.

use proptest::prelude::*;
use tine_devices::testing::Buffer;
use virtio_bindings::virtio_ring::VIRTIO_RING_F_EVENT_IDX;

use super::driver::{Guest, MERGEABLE, TX, framed, pattern};

#[derive(Debug, Clone)]
enum Step {
    /// The host sends a frame of so many bytes.
    Host(usize),
    /// The guest sends one, cut after so many bytes.
    Guest(usize, usize),
    /// The guest offers buffers: how many, and how long.
    Post(usize, u32),
    /// The guest takes what it has got.
    Take,
    /// The event loop comes by.
    Run,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        3 => (0..3000usize).prop_map(Step::Host),
        1 => (20_000..65_000usize).prop_map(Step::Host),
        3 => (0..3000usize, 0..2000usize).prop_map(|(len, cut)| Step::Guest(len, cut)),
        5 => (1..8usize, 12..9000u32).prop_map(|(count, len)| Step::Post(count, len)),
        3 => Just(Step::Take),
        3 => Just(Step::Run),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn frames_arrive_once_whole_and_in_order(
        steps in prop::collection::vec(step(), 1..120),
        event_idx: bool,
    ) {
        let features = MERGEABLE | u64::from(event_idx) << VIRTIO_RING_F_EVENT_IDX;
        let mut guest = Guest::new(features);
        let (mut to_guest, mut received) = (Vec::new(), Vec::new());
        let (mut from_guest, mut sent) = (Vec::new(), Vec::new());
        let (mut posted, mut sending) = (0usize, 0usize);
        for (n, step) in steps.into_iter().enumerate() {
            match step {
                Step::Host(len) => {
                    let bytes = pattern(n, len);
                    guest.cable.push_raw(framed(&bytes));
                    to_guest.push(bytes);
                }
                Step::Guest(len, cut) if sending < 30 => {
                    let frame = framed(&pattern(n, len));
                    let (first, second) = frame.split_at(cut.min(frame.len()));
                    guest.driver.submit(TX, &[Buffer::Out(first), Buffer::Out(second)]);
                    guest.driver.kick(TX);
                    from_guest.push(frame);
                    sending += 1;
                }
                Step::Post(count, len) if posted + count <= 60 => {
                    guest.post(count, len);
                    posted += count;
                }
                Step::Take => {
                    posted -= take(&mut guest, &mut received);
                    sending -= guest.tx_used();
                }
                Step::Run => {
                    guest.driver.run_backend(0);
                }
                _ => {}
            }
            sent.extend(guest.cable.sent());
        }
        // Room for all that is left, in the end.
        for _ in 0..2000 {
            guest.settle();
            posted -= take(&mut guest, &mut received);
            if received.len() == to_guest.len() {
                break;
            }
            if posted < 60 {
                guest.post(1, 9000);
                posted += 1;
            }
        }
        sent.extend(guest.cable.sent());
        prop_assert!(received == to_guest, "{} of {}", received.len(), to_guest.len());
        prop_assert!(sent == from_guest);
        prop_assert!(!guest.driver.needs_reset());
        prop_assert!(!guest.driver.run_backend(0));
    }
}

/// Takes the frames there, and gives how many buffers they were in.
fn take(guest: &mut Guest, into: &mut Vec<Vec<u8>>) -> usize {
    let mut buffers = 0;
    while let Some((header, bytes)) = guest.received() {
        buffers += usize::from(header[10]) + 256 * usize::from(header[11]);
        into.push(bytes);
    }
    buffers
}
