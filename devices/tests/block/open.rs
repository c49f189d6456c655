//! Opening a drive, or not.

use std::fs::File;
use std::path::Path;

use tine_devices::virtio::VirtioDevice;
use tine_devices::virtio::block::{Block, BlockConfig, BlockError};

use crate::driver::*;

fn refused(path: &Path) -> (BlockError, String) {
    let error = Block::open(&BlockConfig::new("root", path))
        .err()
        .expect("opened");
    let message = error.to_string();
    assert!(!message.contains('\n'), "{message}");
    (error, message)
}

#[test]
fn a_missing_file_is_named_with_the_reason() {
    let (error, message) = refused(Path::new("/x/y"));
    assert!(matches!(error, BlockError::Open { .. }));
    assert_eq!(
        message,
        r#"drive "root": cannot open /x/y: No such file or directory (os error 2)"#
    );
}

#[test]
fn what_is_no_disk_is_said_to_be_none() {
    let dir = tempfile::tempdir().unwrap();
    let fifo = dir.path().join("fifo");
    let made = std::process::Command::new("mkfifo").arg(&fifo).status();
    assert!(made.unwrap().success());
    let _socket = std::os::unix::net::UnixListener::bind(dir.path().join("socket")).unwrap();
    for (path, kind) in [
        (dir.path().to_owned(), "directory"),
        (fifo, "FIFO"),
        (dir.path().join("socket"), "socket"),
        ("/dev/null".into(), "character device"),
    ] {
        let (error, message) = refused(&path);
        assert!(matches!(error, BlockError::NotADisk { .. }));
        let expected = format!(
            "drive \"root\": {} is a {kind}, not an image file or block device",
            path.display()
        );
        assert_eq!(message, expected);
    }
}

#[test]
fn a_file_without_a_whole_sector_is_refused() {
    for size in [0, 1, 511] {
        let image = image(0);
        image.as_file().set_len(size).unwrap();
        let (error, message) = refused(image.path());
        assert!(matches!(error, BlockError::TooSmall { .. }));
        assert!(
            message.contains(&format!("holds {size} bytes")),
            "{message}"
        );
    }
}

#[test]
fn an_incomplete_last_sector_is_not_seen() {
    let image = image(8);
    image.as_file().set_len(3 * 512 + 511).unwrap();
    let mut guest = guest(&BlockConfig::new("root", image.path()));
    assert_eq!(u64::from_le_bytes(guest.config(0)), 3);
    assert_eq!(guest.read(2, 512).status, OK);
    assert_eq!(guest.read(3, 512).status, IO_ERROR);
}

#[test]
fn a_written_image_is_nobody_elses() {
    let image = image(8);
    let config = BlockConfig::new("root", image.path());
    let read_only = BlockConfig {
        read_only: true,
        ..config.clone()
    };
    let drive = Block::open(&config).unwrap();
    let message = Block::open(&config).err().expect("opened").to_string();
    let expected = format!(
        "drive \"root\": {} is in use by another machine: \
         it cannot be written while it is read or written",
        image.path().display()
    );
    assert_eq!(message, expected);
    let error = Block::open(&read_only).err().expect("opened");
    assert!(matches!(error, BlockError::InUse { .. }));
    // The lock ends with the drive, and readers share it.
    drop(drive);
    let readers = [Block::open(&read_only), Block::open(&read_only)];
    assert!(readers.iter().all(Result::is_ok));
    assert!(matches!(
        Block::open(&config),
        Err(BlockError::InUse { .. })
    ));
    drop(readers);
    assert!(Block::open(&config).is_ok());
}

#[test]
fn a_lock_that_is_about_to_go_is_waited_for() {
    let image = image(8);
    let held = image.reopen().unwrap();
    held.lock().unwrap();
    let letting_go = std::thread::spawn(move || {
        std::thread::sleep(std::time::Duration::from_millis(50));
        drop(held);
    });
    Block::open(&BlockConfig::new("root", image.path())).unwrap();
    letting_go.join().unwrap();
}

#[test]
fn a_serial_number_that_does_not_fit_is_refused() {
    let image = image(8);
    let config = BlockConfig {
        serial: Some("x".repeat(21)),
        ..BlockConfig::new("root", image.path())
    };
    let error = Block::open(&config).err().expect("opened");
    assert!(matches!(error, BlockError::Serial { .. }));
}

#[test]
fn a_long_id_or_one_with_odd_characters_is_no_harm() {
    for engine in ENGINES {
        let image = image(8);
        let config = BlockConfig {
            id: "a drive with a long name and a \0 and a \n in it".into(),
            ..config(image.path(), engine)
        };
        let mut guest = guest(&config);
        guest.assert_alive();
        assert_eq!(guest.write_zeroes(0, 1, 0).status, OK);
    }
}

#[test]
fn opening_starts_neither_ring_nor_thread_and_the_first_request_does() {
    let image = image(8);
    let device = Block::open(&BlockConfig::new("root", image.path())).unwrap();
    assert_eq!(device.backend().uses_io_uring(), None);
    assert_eq!(device.device_type(), 2);
    assert_eq!(device.queue_sizes(), [128]);
}

#[test]
fn a_file_cut_short_underneath_is_an_error_and_no_hang() {
    for engine in ENGINES {
        let image = image(64);
        let mut guest = guest(&config(image.path(), engine));
        let file = File::options().write(true).open(image.path()).unwrap();
        file.set_len(10 * 512 + 100).unwrap();
        for (sector, sectors) in [(10, 1), (9, 4), (20, 1), (0, 64)] {
            let answer = guest.read(sector, sectors * 512);
            assert_eq!((answer.status, answer.len), (IO_ERROR, 0), "{sector}");
        }
        assert_eq!(guest.read(9, 512).data, [9; 512]);
    }
}
