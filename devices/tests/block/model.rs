//! Random requests against an array of bytes that they should be no different from.

use proptest::prelude::*;
use tine_devices::testing::{Buffer, FakeDriver};
use tine_devices::virtio::block::Block;
use virtio_bindings::virtio_blk::*;
use virtio_bindings::virtio_ring::VIRTIO_RING_F_EVENT_IDX;

use crate::driver::*;

const SECTORS: u64 = 96;

#[derive(Debug, Clone)]
enum Step {
    Read {
        sector: u64,
        cuts: Vec<u32>,
    },
    Write {
        sector: u64,
        sectors: u64,
        fill: u8,
    },
    Discard {
        sector: u64,
        sectors: u64,
    },
    WriteZeroes {
        sector: u64,
        sectors: u64,
        flags: u32,
    },
    Flush,
    Reset,
}

fn step() -> impl Strategy<Value = Step> {
    // Some of them reach over the end.
    let place = || (0..SECTORS + 4, 1..40u64);
    prop_oneof![
        4 => (0..SECTORS + 4, prop::collection::vec(1..3000u32, 1..6))
            .prop_map(|(sector, cuts)| Step::Read { sector, cuts }),
        4 => (place(), any::<u8>())
            .prop_map(|((sector, sectors), fill)| Step::Write { sector, sectors, fill }),
        1 => place().prop_map(|(sector, sectors)| Step::Discard { sector, sectors }),
        2 => (place(), 0..2u32)
            .prop_map(|((sector, sectors), flags)| Step::WriteZeroes { sector, sectors, flags }),
        1 => Just(Step::Flush),
        1 => Just(Step::Reset),
    ]
}

/// The bytes of a range, if it is in the drive.
fn span(model: &mut [u8], sector: u64, len: u64) -> Option<&mut [u8]> {
    let start = sector * 512;
    model.get_mut(start as usize..(start + len) as usize)
}

fn expected(found: bool) -> u8 {
    if found { OK } else { IO_ERROR }
}

fn run(guest: &mut FakeDriver, features: u64, model: &mut [u8], step: &Step) {
    match step {
        Step::Read { sector, cuts } => {
            let len: u32 = cuts.iter().sum();
            let whole = len.next_multiple_of(512);
            let mut buffers: Vec<_> = cuts.iter().map(|cut| Buffer::In(*cut)).collect();
            buffers.push(Buffer::In(whole - len));
            let answer = guest.request(VIRTIO_BLK_T_IN, *sector, &buffers);
            match span(model, *sector, u64::from(whole)) {
                Some(bytes) => {
                    assert_eq!((answer.status, answer.len), (OK, whole + 1));
                    assert!(answer.data == *bytes, "wrong data");
                }
                None => assert_eq!((answer.status, answer.len), (IO_ERROR, 0)),
            }
        }
        Step::Write {
            sector,
            sectors,
            fill,
        } => {
            let data: Vec<u8> = (0..sectors * 512)
                .map(|at| (at / 512) as u8 ^ fill)
                .collect();
            let bytes = span(model, *sector, sectors * 512);
            let status = expected(bytes.is_some());
            if let Some(bytes) = bytes {
                bytes.copy_from_slice(&data);
            }
            assert_eq!(guest.write(*sector, &data).status, status);
        }
        // A discarded range of a file reads as zeroes, with us: the hole is made or, where the
        // file system has none, the test has no model.
        Step::Discard { sector, sectors } => {
            let bytes = span(model, *sector, sectors * 512);
            let status = expected(bytes.is_some());
            if let Some(bytes) = bytes {
                bytes.fill(0);
            }
            assert_eq!(guest.discard(*sector, *sectors as u32).status, status);
        }
        Step::WriteZeroes {
            sector,
            sectors,
            flags,
        } => {
            let bytes = span(model, *sector, sectors * 512);
            let status = expected(bytes.is_some());
            if let Some(bytes) = bytes {
                bytes.fill(0);
            }
            let answer = guest.write_zeroes(*sector, *sectors as u32, *flags);
            assert_eq!(answer.status, status);
        }
        Step::Flush => assert_eq!(guest.flush().status, OK),
        Step::Reset => {
            guest.reset();
            guest.start(features);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_drive_is_an_array_of_bytes(
        steps in prop::collection::vec(step(), 1..60),
        event_idx in any::<bool>(),
        flush in any::<bool>(),
    ) {
        for engine in ENGINES {
            let image = image(SECTORS as usize);
            let mut model = std::fs::read(image.path()).unwrap();
            let mut features = u64::from(event_idx) << VIRTIO_RING_F_EVENT_IDX;
            features |= u64::from(flush) << VIRTIO_BLK_F_FLUSH;
            let device = Block::open(&config(image.path(), engine)).unwrap();
            let mut guest = FakeDriver::started(device, features);
            for step in &steps {
                run(&mut guest, features, &mut model, step);
            }
            drop(guest);
            prop_assert!(std::fs::read(image.path()).unwrap() == model, "the file differs");
        }
    }

    /// Writes to disjoint places, all in flight at once, on both ways of data.
    #[test]
    fn writes_side_by_side_do_not_touch_one_another(
        fills in prop::collection::vec(any::<u8>(), 1..20),
    ) {
        for engine in ENGINES {
            let image = image(SECTORS as usize);
            let mut guest = guest(&config(image.path(), engine));
            for (at, fill) in fills.iter().enumerate() {
                let data = [*fill; 1024];
                guest.send(VIRTIO_BLK_T_OUT, at as u64 * 2, &[Buffer::Out(&data)]);
            }
            guest.kick(0);
            for _ in &fills {
                prop_assert_eq!(Answer::from(guest.wait_used(0)).status, OK);
            }
            let content = std::fs::read(image.path()).unwrap();
            for (at, fill) in fills.iter().enumerate() {
                prop_assert!(content[at * 1024..(at + 1) * 1024] == [*fill; 1024]);
            }
        }
    }
}
