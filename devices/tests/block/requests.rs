//! What a well-behaved driver gets.

use std::os::unix::fs::MetadataExt;

use tine_devices::testing::{Buffer, FakeDriver};
use tine_devices::virtio::VirtioDevice;
use tine_devices::virtio::block::{Block, BlockConfig, Cache, SEG_MAX};
use virtio_bindings::virtio_blk::*;

use crate::driver::*;

#[test]
fn reads_give_the_files_bytes_and_their_exact_length() {
    for engine in ENGINES {
        let image = image(64);
        let mut guest = guest(&config(image.path(), engine));
        for (sector, sectors) in [(0, 1), (63, 1), (5, 3), (0, 64)] {
            let answer = guest.read(sector, sectors * 512);
            let expected: Vec<u8> = (0..sectors)
                .flat_map(|n| [(sector as u32 + n) as u8; 512])
                .collect();
            assert_eq!(answer.status, OK);
            assert_eq!(answer.data, expected);
            assert_eq!(answer.len, sectors * 512 + 1);
        }
    }
}

#[test]
fn writes_are_in_the_file_when_they_complete() {
    for engine in ENGINES {
        let image = image(8);
        let mut guest = guest(&config(image.path(), engine));
        let answer = guest.write(3, &[0xaa; 1024]);
        assert_eq!((answer.status, answer.len), (OK, 1));
        let content = std::fs::read(image.path()).unwrap();
        assert_eq!(content.len(), 8 * 512);
        assert_eq!(content[3 * 512..5 * 512], [0xaa; 1024]);
        assert_eq!(content[2 * 512..3 * 512], [2; 512]);
        assert_eq!(content[5 * 512..6 * 512], [5; 512]);
    }
}

#[test]
fn a_request_may_be_cut_into_buffers_in_any_way() {
    for engine in ENGINES {
        let image = image(8);
        let mut guest = guest(&config(image.path(), engine));
        // The header in two, the data in three with one of no length, and the status in the same
        // buffer as the last of the data.
        let header = header(VIRTIO_BLK_T_IN, 2);
        let chain = [
            Buffer::Out(&header[..7]),
            Buffer::Out(&header[7..]),
            Buffer::In(100),
            Buffer::In(0),
            Buffer::In(412),
            Buffer::In(513),
        ];
        guest.submit(0, &chain);
        guest.kick(0);
        let answer = Answer::from(guest.wait_used(0));
        assert_eq!((answer.status, answer.len), (OK, 1025));
        assert_eq!(answer.data, [[2; 512], [3; 512]].concat());
        // And the header in the same buffer as the data out.
        let mut bytes = self::header(VIRTIO_BLK_T_OUT, 1).to_vec();
        bytes.extend([9; 512]);
        guest.submit(0, &[Buffer::Out(&bytes), Buffer::In(1)]);
        guest.kick(0);
        assert_eq!(Answer::from(guest.wait_used(0)).status, OK);
        assert_eq!(guest.read(1, 512).data, [9; 512]);
    }
}

#[test]
fn as_many_segments_as_announced_are_served() {
    for engine in ENGINES {
        let image = image(128);
        let mut guest = guest(&config(image.path(), engine));
        assert_eq!(guest.config::<4>(12), SEG_MAX.to_le_bytes());
        // The fake guest's ring is shorter than the device's: an indirect table has room.
        let segments = SEG_MAX as usize;
        let answer = guest.indirect(VIRTIO_BLK_T_IN, 0, segments);
        assert_eq!((answer.status, answer.len), (OK, SEG_MAX * 512 + 1));
        assert_eq!(answer.data[512 * 100..512 * 101], [100; 512]);
        let answer = guest.indirect(VIRTIO_BLK_T_IN, 0, segments + 1);
        assert_eq!((answer.status, answer.len), (IO_ERROR, 0));
        guest.assert_alive();
    }
}

#[test]
fn many_requests_at_once_all_complete() {
    for engine in ENGINES {
        let image = image(64);
        let mut guest = guest(&config(image.path(), engine));
        let heads: Vec<u16> = (0..21)
            .map(|n| guest.send(VIRTIO_BLK_T_IN, n, &[Buffer::In(512)]))
            .collect();
        guest.kick(0);
        let mut answered = Vec::new();
        for _ in &heads {
            let used = guest.wait_used(0);
            let number = heads.iter().position(|head| *head == used.head).unwrap();
            assert_eq!(used.data[..512], [number as u8; 512]);
            answered.push(used.head);
        }
        answered.sort_unstable();
        assert_eq!(answered, heads);
    }
}

#[test]
fn a_flush_succeeds_and_is_counted() {
    for engine in ENGINES {
        let image = image(8);
        let device = Block::open(&config(image.path(), engine)).unwrap();
        let stats = device.stats().clone();
        let mut guest = FakeDriver::started(device, FLUSH);
        guest.write(0, &[1; 512]);
        let answer = guest.flush();
        assert_eq!((answer.status, answer.len), (OK, 1));
        assert_eq!(stats.flushes.load(std::sync::atomic::Ordering::Relaxed), 1);
    }
}

/// Case 11.
#[test]
fn a_flush_of_a_read_only_drive_succeeds() {
    for engine in ENGINES {
        let image = image(8);
        let config = BlockConfig {
            read_only: true,
            ..config(image.path(), engine)
        };
        let mut guest = guest(&config);
        assert_eq!(guest.flush().status, OK);
        guest.assert_alive();
    }
}

/// Case 12, and the same for everything else that changes a drive.
#[test]
fn a_write_to_a_read_only_drive_is_an_error_and_changes_nothing() {
    for engine in ENGINES {
        let image = image(8);
        let before = std::fs::read(image.path()).unwrap();
        let config = BlockConfig {
            read_only: true,
            ..config(image.path(), engine)
        };
        let device = Block::open(&config).unwrap();
        assert_ne!(device.features() & 1 << VIRTIO_BLK_F_RO, 0);
        assert_eq!(device.features() & 1 << VIRTIO_BLK_F_DISCARD, 0);
        let mut guest = FakeDriver::started(device, 1 << VIRTIO_BLK_F_RO);
        for answer in [
            guest.write(0, &[0xff; 512]),
            guest.discard(0, 8),
            guest.write_zeroes(0, 8, 1),
        ] {
            assert_eq!((answer.status, answer.len), (IO_ERROR, 1));
        }
        guest.assert_alive();
        assert_eq!(std::fs::read(image.path()).unwrap(), before);
    }
}

#[test]
fn a_discard_gives_the_images_room_back() {
    for engine in ENGINES {
        let image = image(2048);
        let mut guest = guest(&config(image.path(), engine));
        let before = image.as_file().metadata().unwrap();
        assert_eq!(guest.discard(8, 2032).status, OK);
        let after = image.as_file().metadata().unwrap();
        assert!(after.blocks() < before.blocks());
        assert_eq!(after.len(), before.len());
        assert_eq!(guest.read(0, 4096).data[7 * 512..], [7; 512]);
    }
}

#[test]
fn written_zeroes_read_as_zeroes() {
    for engine in ENGINES {
        for flags in [0, VIRTIO_BLK_WRITE_ZEROES_FLAG_UNMAP] {
            let image = image(64);
            let mut guest = guest(&config(image.path(), engine));
            let answer = guest.write_zeroes(3, 20, flags);
            assert_eq!((answer.status, answer.len), (OK, 1));
            let data = guest.read(2, 22 * 512).data;
            assert_eq!(data[..512], [2; 512]);
            assert_eq!(data[512..21 * 512], [0; 20 * 512]);
            assert_eq!(data[21 * 512..], [23; 512]);
        }
    }
}

/// tmpfs knows holes, but no ranges of zeroes.
#[test]
fn zeroes_are_written_out_where_the_file_system_has_no_other_way() {
    for engine in ENGINES {
        let image = tempfile::NamedTempFile::new_in("/dev/shm").unwrap();
        std::fs::write(image.path(), [7; 2048 * 512]).unwrap();
        let mut guest = guest(&config(image.path(), engine));
        assert_eq!(guest.write_zeroes(1, 2046, 0).status, OK);
        assert_eq!(guest.write_zeroes(0, 1, 1).status, OK);
        let content = std::fs::read(image.path()).unwrap();
        assert!(content[..2047 * 512].iter().all(|byte| *byte == 0));
        assert_eq!(content[2047 * 512..], [7; 512]);
    }
}

#[test]
fn unknown_flags_of_a_range_are_unsupported() {
    let image = image(64);
    let mut guest = guest(&BlockConfig::new("root", image.path()));
    let unmapping_discard = range(0, 8, 1);
    let data = [Buffer::Out(&unmapping_discard)];
    let answer = guest.request(VIRTIO_BLK_T_DISCARD, 0, &data);
    assert_eq!(answer.status, UNSUPPORTED);
    assert_eq!(guest.write_zeroes(0, 8, 2).status, UNSUPPORTED);
    assert_eq!(guest.read(1, 512).data, [1; 512]);
}

#[test]
fn an_unknown_request_is_unsupported() {
    let image = image(8);
    let mut guest = guest(&BlockConfig::new("root", image.path()));
    for kind in [2, 3, 5, 14, 15, 24, 0x8000_0000, u32::MAX] {
        let answer = guest.request(kind, 0, &[Buffer::In(512)]);
        // Nothing was written into the data, so the driver may rely on nothing in it.
        assert_eq!((answer.status, answer.len), (UNSUPPORTED, 0), "{kind}");
        let answer = guest.request(kind, 0, &[Buffer::Out(&[1; 512])]);
        assert_eq!((answer.status, answer.len), (UNSUPPORTED, 1), "{kind}");
    }
    guest.assert_alive();
}

#[test]
fn the_serial_number_is_the_one_given_or_the_id() {
    let image = image(8);
    for (serial, expected) in [
        (None, &b"root"[..]),
        (Some("disk-7"), b"disk-7"),
        (Some("exactly-twenty-bytes"), b"exactly-twenty-bytes"),
    ] {
        let config = BlockConfig {
            serial: serial.map(str::to_owned),
            ..BlockConfig::new("root", image.path())
        };
        let mut guest = guest(&config);
        let answer = guest.request(VIRTIO_BLK_T_GET_ID, 0, &[Buffer::In(20)]);
        assert_eq!((answer.status, answer.len), (OK, 21));
        assert_eq!(answer.data[..expected.len()], *expected);
        assert!(answer.data[expected.len()..].iter().all(|byte| *byte == 0));
        // Less and more room than there is a number for.
        let answer = guest.request(VIRTIO_BLK_T_GET_ID, 0, &[Buffer::In(4)]);
        assert_eq!((answer.status, answer.len), (OK, 5));
        assert_eq!(answer.data, expected[..4]);
        let answer = guest.request(VIRTIO_BLK_T_GET_ID, 0, &[Buffer::In(64)]);
        assert_eq!((answer.status, answer.len), (OK, 20));
    }
}

#[test]
fn flushes_are_not_offered_by_a_drive_that_nobody_wants_back() {
    let image = image(8);
    let config = BlockConfig {
        cache: Cache::Unsafe,
        ..BlockConfig::new("root", image.path())
    };
    let device = Block::open(&config).unwrap();
    assert_eq!(device.features() & FLUSH, 0);
    let mut guest = FakeDriver::started(device, 0);
    assert_eq!(guest.flush().status, OK);
}

#[test]
fn the_configuration_space_says_what_the_drive_can_do() {
    let image = image(24);
    let guest = guest(&BlockConfig::new("root", image.path()));
    assert_eq!(u64::from_le_bytes(guest.config(0)), 24);
    assert_eq!(u32::from_le_bytes(guest.config(20)), 512);
    assert_eq!(guest.config(24), [3u8, 0]);
    for at in [36, 48] {
        assert!(u32::from_le_bytes(guest.config(at)) > 0, "most sectors");
        assert_eq!(u32::from_le_bytes(guest.config(at + 4)), 1, "ranges");
    }
    assert_eq!(guest.config(60), [0u8; 8], "nothing behind it");
}
