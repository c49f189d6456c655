//! A Linux guest: what it finds, and what commands in it give. One boot for all.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;

use tine_guest_agent::exec::State;
use tine_guest_agent::octets::Octets;
use tine_tests::linux::{DISK_LEN, Guest, argv};
use tine_tests::text;

#[test]
fn a_command_gives_its_output_and_its_exit_code() {
    let ran = Guest::shared().sh("echo out; echo err >&2; exit 7");
    assert_eq!(
        (ran.stdout.as_slice(), ran.stderr.as_slice()),
        (&b"out\n"[..], &b"err\n"[..])
    );
    assert_eq!(
        (ran.record.state, ran.record.exit_code),
        (State::Exited, Some(7))
    );
}

#[test]
fn standard_input_arrives_whole_and_ends() {
    let bytes: Vec<u8> = (0..100_000u32).map(|n| (n ^ n >> 8) as u8).collect();
    let ran = Guest::shared().exec(argv(["cat"]), &bytes);
    assert_eq!(ran.record.exit_code, Some(0));
    assert!(ran.stdout == bytes, "{} bytes came back", ran.stdout.len());
}

/// Field case 72: no standard input is an empty one.
#[test]
fn without_standard_input_a_reader_ends_at_once() {
    let ran = Guest::shared().exec(argv(["cat"]), b"");
    assert_eq!((ran.record.exit_code, ran.stdout.len()), (Some(0), 0));
    let ran = Guest::shared().exec(argv(["wc", "-c"]), b"\x00\x01\x02\xff");
    assert_eq!(text(&ran.stdout).trim(), "4");
}

/// Field case 65.
#[test]
fn a_signal_is_reported_as_one() {
    let ran = Guest::shared().sh("kill -9 $$");
    assert_eq!(
        (ran.record.state, ran.record.signal),
        (State::Killed, Some(9))
    );
}

/// Field cases 67 and 68.
#[test]
fn what_cannot_be_started_is_told_as_a_shell_does() {
    let guest = Guest::shared();
    let missing = guest.exec(argv(["no-such-program"]), b"").record;
    assert_eq!(
        (missing.state, missing.exit_code),
        (State::Failed, Some(127))
    );
    assert!(missing.reason.unwrap().contains("no-such-program"));
    let directory = guest.exec(argv(["/tmp"]), b"").record;
    assert_eq!(
        (directory.state, directory.exit_code),
        (State::Failed, Some(126))
    );
    let mut request = argv(["true"]);
    request.cwd = Some(Octets(b"/no/such/place".to_vec()));
    let record = guest.exec(request, b"").record;
    assert_eq!(record.state, State::Failed);
    assert!(record.reason.unwrap().contains("/no/such/place"));
}

#[test]
fn environment_directory_and_user_are_what_was_asked_for() {
    let mut request = argv(["sh", "-c", "echo $GREETING; pwd; id -u; id -g"]);
    request
        .env
        .insert("GREETING".to_owned(), Octets(b"hello world".to_vec()));
    request.cwd = Some(Octets(b"/tmp".to_vec()));
    request.user = Some("1234:567".to_owned());
    let ran = Guest::shared().exec(request, b"");
    assert_eq!(
        text(&ran.stdout),
        "hello world\n/tmp\n1234\n567\n",
        "{}",
        text(&ran.stderr)
    );
}

#[test]
fn the_machine_is_the_one_configured() {
    let guest = Guest::shared();
    assert_eq!(guest.out("nproc"), "1");
    let kib: u64 = guest
        .out("sed -n 's/^MemTotal: *\\([0-9]*\\) kB/\\1/p' /proc/meminfo")
        .parse()
        .unwrap();
    assert!((90 << 10..128 << 10).contains(&kib), "{kib} KiB of 128 MiB");
    let devices = guest.out("cat /sys/bus/virtio/devices/*/device");
    assert_eq!(
        devices, "0x0002\n0x0002\n0x0013\n0x0004",
        "two drives, vsock, rng"
    );
    assert_eq!(guest.out("cat /sys/block/vda/ro /sys/block/vdb/ro"), "0\n1");
}

#[test]
fn what_programs_expect_is_mounted() {
    let mounts = Guest::shared().out("cut -d' ' -f2,3 /proc/mounts");
    for mount in [
        "/proc proc",
        "/sys sysfs",
        "/dev/pts devpts",
        "/sys/fs/cgroup cgroup2",
    ] {
        assert!(
            mounts.lines().any(|line| line == mount),
            "{mount} in {mounts}"
        );
    }
    assert_eq!(Guest::shared().out("ls /sys/class/net"), "lo");
}

#[test]
fn what_the_guest_writes_and_syncs_is_in_the_image() {
    let guest = Guest::shared();
    guest.out("yes tine | dd of=/dev/vda bs=4k count=4 seek=16 iflag=fullblock conv=fsync 2>&1");
    let mut image = std::fs::File::open(guest.dir.path().join("writable.img")).unwrap();
    let mut bytes = vec![0; 24 * 4096];
    image.read_exact(&mut bytes).unwrap();
    let (before, written) = bytes.split_at(16 * 4096);
    assert!(before.iter().all(|byte| *byte == 0));
    assert!(
        written[..4 * 4096]
            .iter()
            .zip(b"tine\n".iter().cycle())
            .all(|(a, b)| a == b)
    );
    assert!(written[4 * 4096..].iter().all(|byte| *byte == 0));
}

/// Field case 12.
#[test]
fn a_read_only_drive_stays_as_it_is() {
    let guest = Guest::shared();
    let ran = guest.sh("echo x | dd of=/dev/vdb bs=512 count=1 conv=sync,fsync");
    assert_ne!(ran.record.exit_code, Some(0));
    let image = std::fs::read(guest.dir.path().join("read-only.img")).unwrap();
    assert_eq!(image.len() as u64, DISK_LEN);
    assert!(image.iter().all(|byte| *byte == 0));
    assert_eq!(
        guest.out("dd if=/dev/vdb bs=64k count=1 2>/dev/null | wc -c"),
        "65536"
    );
}

#[test]
fn entropy_comes_from_the_host() {
    let guest = Guest::shared();
    assert_eq!(
        guest.out("cat /sys/class/misc/hw_random/rng_current"),
        "virtio_rng.0"
    );
    let one = guest.out("dd if=/dev/hwrng bs=32 count=1 2>/dev/null | md5sum");
    let two = guest.out("dd if=/dev/hwrng bs=32 count=1 2>/dev/null | md5sum");
    assert_ne!(one, two);
}

#[test]
fn acpi_shows_the_generation_id_and_the_power_button() {
    let devices = Guest::shared().out("cat /sys/bus/acpi/devices/*/path");
    for device in [
        "\\_SB_.VGEN",
        "\\_SB_.PWRB",
        "\\_SB_.GED_",
        "\\_SB_.V003",
        "\\_SB_.COM1",
    ] {
        assert!(
            devices.lines().any(|line| line == device),
            "{device} in {devices}"
        );
    }
}

#[test]
fn a_host_client_reaches_a_guest_port_through_the_socket_file() {
    let path = Guest::shared().dir.path().join("vsock");
    let mut client = UnixStream::connect(&path).unwrap();
    client.write_all(b"CONNECT 1024\n").unwrap();
    let mut reader = BufReader::new(client.try_clone().unwrap());
    let mut line = String::new();
    reader.read_line(&mut line).unwrap();
    assert!(line.starts_with("OK "), "{line:?}");
    let request = b"GET /v1/health HTTP/1.1\r\nHost: agent\r\nConnection: close\r\n\r\n";
    client.write_all(request).unwrap();
    let mut answer = String::new();
    reader.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    // Nobody listens on this one: the connection ends without an OK.
    let mut refused = UnixStream::connect(&path).unwrap();
    refused.write_all(b"CONNECT 4242\n").unwrap();
    let mut nothing = Vec::new();
    let _ = refused.read_to_end(&mut nothing);
    assert!(nothing.is_empty(), "{}", text(&nothing));
}

#[test]
fn a_paused_machine_goes_on_where_it_was() {
    let guest = Guest::shared();
    guest.machine.pause();
    guest.machine.resume();
    assert_eq!(guest.out("echo still here"), "still here");
}
