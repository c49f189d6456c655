//! Case 14: what no driver should ask. The drive answers with an error, or drops the request and
//! counts it; it lives, and the image is as before.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use tine_devices::testing::{Buffer, FakeDriver, MEMORY_LEN};
use tine_devices::virtio::block::{Block, BlockConfig, BlockStats, Engine};
use virtio_bindings::virtio_blk::*;
use virtio_bindings::virtio_ring::{VRING_DESC_F_INDIRECT, VRING_DESC_F_NEXT, VRING_DESC_F_WRITE};

use crate::driver::*;

const NEXT: u16 = VRING_DESC_F_NEXT as u16;
const WRITE: u16 = VRING_DESC_F_WRITE as u16;
const INDIRECT: u16 = VRING_DESC_F_INDIRECT as u16;

/// A guest with a fresh image of 64 sectors; afterwards the drive has to read, and the image to be
/// what it was.
fn unharmed(what: impl Fn(&mut FakeDriver, &Arc<BlockStats>, Engine)) {
    for engine in ENGINES {
        let image = image(64);
        let before = std::fs::read(image.path()).unwrap();
        let device = Block::open(&config(image.path(), engine)).unwrap();
        let stats = device.stats().clone();
        let mut guest = FakeDriver::started(device, FLUSH);
        what(&mut guest, &stats, engine);
        guest.assert_alive();
        assert!(!guest.needs_reset());
        assert_eq!(std::fs::read(image.path()).unwrap(), before);
    }
}

/// The chain is handed back with nothing written, and counted.
fn assert_dropped(guest: &mut FakeDriver, stats: &BlockStats, chain: &[Buffer]) {
    let before = stats.malformed.load(Ordering::Relaxed);
    let head = guest.submit(0, chain);
    guest.kick(0);
    let used = guest.wait_used(0);
    assert_eq!((used.head, used.len), (head, 0));
    assert_eq!(stats.malformed.load(Ordering::Relaxed), before + 1);
}

#[test]
fn sectors_beyond_the_end_or_all_numbers_are_errors() {
    unharmed(|guest, stats, _| {
        let sectors = [
            64,
            65,
            u64::MAX / 512,
            u64::MAX / 512 + 1,
            u64::MAX - 1,
            u64::MAX,
        ];
        for sector in sectors {
            assert_eq!(guest.read(sector, 512).status, IO_ERROR, "{sector}");
            assert_eq!(guest.write(sector, &[1; 512]).status, IO_ERROR, "{sector}");
            assert_eq!(guest.discard(sector, 1).status, IO_ERROR, "{sector}");
            assert_eq!(
                guest.write_zeroes(sector, 1, 1).status,
                IO_ERROR,
                "{sector}"
            );
        }
        assert_eq!(guest.read(63, 1024).status, IO_ERROR);
        assert_eq!(guest.write(63, &[1; 1024]).status, IO_ERROR);
        assert_eq!(guest.discard(63, 2).status, IO_ERROR);
        assert_eq!(guest.write_zeroes(0, u32::MAX, 0).status, IO_ERROR);
        let refused = 4 * sectors.len() as u64 + 4;
        assert_eq!(stats.errors.load(Ordering::Relaxed), refused);
    });
}

#[test]
fn data_that_is_no_whole_number_of_sectors_is_an_error() {
    unharmed(|guest, _, _| {
        for len in [1, 511, 513, 1023] {
            let answer = guest.read(0, len);
            assert_eq!((answer.status, answer.len), (IO_ERROR, 0), "{len}");
            let data = vec![1; len as usize];
            assert_eq!(guest.write(0, &data).status, IO_ERROR, "{len}");
        }
        // No data at all is a whole number.
        assert_eq!(guest.request(VIRTIO_BLK_T_IN, 0, &[]).status, OK);
        assert_eq!(guest.request(VIRTIO_BLK_T_OUT, 64, &[]).status, OK);
        assert_eq!(guest.request(VIRTIO_BLK_T_OUT, 65, &[]).status, IO_ERROR);
    });
}

#[test]
fn data_outside_memory_is_an_error() {
    unharmed(|guest, _, _| {
        let end = MEMORY_LEN as u64;
        for addr in [0xffff_ffff_ffff_ff00, u64::MAX, end, end - 511, 1 << 40] {
            for (kind, flags) in [
                (VIRTIO_BLK_T_IN, WRITE),
                (VIRTIO_BLK_T_OUT, 0),
                (VIRTIO_BLK_T_GET_ID, WRITE),
                (VIRTIO_BLK_T_DISCARD, 0),
                (VIRTIO_BLK_T_WRITE_ZEROES, 0),
            ] {
                let len = 512;
                let data = [Buffer::Raw { addr, len, flags }];
                // A serial number is shorter than the buffer: it may just fit.
                let fits = kind == VIRTIO_BLK_T_GET_ID && addr == end - 511;
                let expected = if fits { OK } else { IO_ERROR };
                let answer = guest.request(kind, 0, &data);
                assert_eq!(answer.status, expected, "{kind} {addr:#x}");
            }
        }
    });
}

#[test]
fn data_in_the_wrong_direction_is_an_error() {
    unharmed(|guest, _, _| {
        let into_read = [Buffer::Out(&[1; 512])];
        assert_eq!(
            guest.request(VIRTIO_BLK_T_IN, 0, &into_read).status,
            IO_ERROR
        );
        let both = [Buffer::Out(&[1; 512]), Buffer::In(512)];
        assert_eq!(guest.request(VIRTIO_BLK_T_IN, 0, &both).status, IO_ERROR);
        assert_eq!(guest.request(VIRTIO_BLK_T_OUT, 0, &both).status, IO_ERROR);
        let from_write = [Buffer::In(512)];
        assert_eq!(
            guest.request(VIRTIO_BLK_T_OUT, 0, &from_write).status,
            IO_ERROR
        );
        // Read and written parts in the wrong order, and the header last.
        let wrong_order = [Buffer::In(512), Buffer::Out(&[1; 512])];
        assert_eq!(
            guest.request(VIRTIO_BLK_T_OUT, 0, &wrong_order).status,
            IO_ERROR
        );
        guest.submit(
            0,
            &[Buffer::In(1), Buffer::Out(&header(VIRTIO_BLK_T_FLUSH, 0))],
        );
        guest.kick(0);
        assert_eq!(Answer::from(guest.wait_used(0)).status, IO_ERROR);
    });
}

#[test]
fn a_header_that_is_short_or_not_in_memory_is_an_error() {
    unharmed(|guest, _, _| {
        let header = header(VIRTIO_BLK_T_IN, 0);
        for len in [0, 1, 8, 15] {
            guest.submit(0, &[Buffer::Out(&header[..len]), Buffer::In(1)]);
            guest.kick(0);
            let answer = Answer::from(guest.wait_used(0));
            assert_eq!((answer.status, answer.len), (IO_ERROR, 1), "{len}");
        }
        guest.submit(0, &[Buffer::In(513)]);
        guest.kick(0);
        assert_eq!(Answer::from(guest.wait_used(0)).status, IO_ERROR);
        for addr in [0xffff_ffff_ffff_ff00, u64::MAX, MEMORY_LEN as u64 - 8] {
            for len in [16, 512, u32::MAX - 1] {
                let raw = Buffer::Raw {
                    addr,
                    len,
                    flags: 0,
                };
                guest.submit(0, &[raw, Buffer::In(1)]);
                guest.kick(0);
                assert_eq!(Answer::from(guest.wait_used(0)).status, IO_ERROR);
            }
        }
    });
}

#[test]
fn a_chain_without_a_place_for_the_status_is_dropped() {
    unharmed(|guest, stats, _| {
        let header = header(VIRTIO_BLK_T_OUT, 0);
        let raw = |addr, len, flags| Buffer::Raw { addr, len, flags };
        let out = || Buffer::Out(&header);
        assert_dropped(guest, stats, &[out()]);
        assert_dropped(guest, stats, &[out(), Buffer::Out(&[1; 512])]);
        assert_dropped(guest, stats, &[raw(0, 0, 0)]);
        assert_dropped(guest, stats, &[out(), raw(0x1000, 0, WRITE)]);
        assert_dropped(guest, stats, &[out(), raw(MEMORY_LEN as u64, 1, WRITE)]);
        assert_dropped(guest, stats, &[out(), raw(u64::MAX, 1, WRITE)]);
        assert_dropped(guest, stats, &[out(), raw(u64::MAX, 2, WRITE)]);
        assert_dropped(
            guest,
            stats,
            &[out(), raw(0xffff_ffff_ffff_ff00, 512, WRITE)],
        );
        // Longer than a chain may be: its end is not looked for.
        let quarter = || raw(0, 1 << 30, WRITE);
        let chain = [
            out(),
            quarter(),
            quarter(),
            quarter(),
            quarter(),
            Buffer::In(1),
        ];
        assert_dropped(guest, stats, &chain);
    });
}

#[test]
fn a_chain_that_loops_or_leaves_its_table_is_dropped() {
    unharmed(|guest, stats, _| {
        let header = header(VIRTIO_BLK_T_IN, 0);
        // The last buffer of each says that another follows: the header again, one that is not
        // in the table, and itself.
        for next in [0u16, 64, 65, u16::MAX] {
            let before = stats.malformed.load(Ordering::Relaxed);
            let chain = [Buffer::Out(&header), Buffer::In(512), Buffer::In(1)];
            let head = guest.submit(0, &chain);
            let last = (head + 2) % 64;
            let next = if next == 0 { head } else { next };
            guest.set_descriptor(0, last, 0x1000, 1, WRITE | NEXT, next);
            guest.kick(0);
            let used = guest.wait_used(0);
            assert_eq!((used.head, used.len), (head, 0));
            assert_eq!(stats.malformed.load(Ordering::Relaxed), before + 1);
            let head = guest.submit(0, &[Buffer::In(1)]);
            guest.set_descriptor(0, head, 0x1000, 0, WRITE | NEXT, head);
            guest.kick(0);
            assert_eq!(guest.wait_used(0).len, 0);
        }
    });
}

#[test]
fn a_bad_indirect_table_is_dropped() {
    unharmed(|guest, stats, _| {
        let raw = |addr, len, flags| Buffer::Raw { addr, len, flags };
        for (addr, len) in [
            (0x1000, 0),
            (0x1000, 15),
            (0x1000, 17),
            (MEMORY_LEN as u64, 16),
            (u64::MAX - 15, 16),
            (0xffff_ffff_ffff_ff00, 512),
            (0x1000, u32::MAX - 15),
            (0x1000, 1 << 21),
        ] {
            assert_dropped(guest, stats, &[raw(addr, len, INDIRECT)]);
        }
        // A table in a table.
        let chain = [Buffer::Out(&[0; 16]), raw(0x1000, 16, INDIRECT)];
        let before = stats.malformed.load(Ordering::Relaxed);
        guest.submit_indirect(0, &chain);
        guest.kick(0);
        assert_eq!(guest.wait_used(0).len, 0);
        assert_eq!(stats.malformed.load(Ordering::Relaxed), before + 1);
    });
}

#[test]
fn giant_chains_are_errors_or_dropped() {
    unharmed(|guest, stats, _| {
        for (segments, answered) in [(126, true), (127, true), (1000, true), (4000, false)] {
            let header = header(VIRTIO_BLK_T_IN, 0);
            let mut chain = vec![Buffer::Out(&header)];
            chain.extend((0..segments).map(|_| Buffer::In(512)));
            chain.push(Buffer::In(1));
            let before = stats.malformed.load(Ordering::Relaxed);
            guest.submit_indirect(0, &chain);
            guest.kick(0);
            let used = guest.wait_used(0);
            assert_eq!(used.len, 0);
            match answered {
                true => assert_eq!(used.data.last(), Some(&IO_ERROR), "{segments}"),
                false => assert_eq!(stats.malformed.load(Ordering::Relaxed), before + 1),
            }
        }
    });
}

#[test]
fn a_range_of_the_wrong_length_is_an_error() {
    unharmed(|guest, _, _| {
        for kind in [VIRTIO_BLK_T_DISCARD, VIRTIO_BLK_T_WRITE_ZEROES] {
            let two = [range(0, 1, 0), range(1, 1, 0)].concat();
            for len in [0, 1, 15, 17, 32] {
                let data = [Buffer::Out(&two[..len])];
                assert_eq!(guest.request(kind, 0, &data).status, IO_ERROR, "{len}");
            }
            let empty = range(64, 0, 0);
            let data = [Buffer::Out(&empty)];
            assert_eq!(guest.request(kind, 0, &data).status, OK);
        }
    });
}

#[test]
fn an_impossible_head_or_available_index_asks_for_a_reset_and_no_more() {
    for wrong in [0, 1] {
        let image = image(64);
        let mut guest = guest(&BlockConfig::new("root", image.path()));
        guest.assert_alive();
        match wrong {
            0 => guest.make_available(0, 64),
            _ => guest.set_available_index(0, 1000),
        }
        guest.kick(0);
        assert!(guest.needs_reset());
        guest.reset();
        guest.start(FLUSH);
        guest.assert_alive();
    }
}
