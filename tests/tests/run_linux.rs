//! `tine run` with a Linux guest, as a user calls it: one boot a test.

use std::io::Write;
use std::process::{Command, Stdio};

use tine_tests::cli::{Place, with_vmm};
use tine_tests::linux::{debian, image};
use tine_tests::{run, text};

/// The options of a run with the built image, as its cache gives it.
fn linux(args: &[&str]) -> Command {
    let (kernel, initramfs) = image();
    let mut command = run(["--memory", "128M", "--timeout", "5m", "--kernel"]);
    command
        .arg(kernel)
        .arg("--initrd")
        .arg(initramfs)
        .args(args);
    command
}

#[test]
fn streams_status_environment_and_directory_pass_through() {
    let script = "cat; echo \"$GREETING from $(pwd)\" >&2; exit 7";
    let mut command = linux(&["-i", "-e", "GREETING=hello", "-w", "/tmp", "--timing", "--"]);
    command.args(["sh", "-c", script]).stdin(Stdio::piped());
    let mut child = command.spawn().unwrap();
    child
        .stdin
        .take()
        .unwrap()
        .write_all(b"hi\n\x00\xff")
        .unwrap();
    let output = child.wait_with_output().unwrap();
    let errors = text(&output.stderr);
    assert_eq!(output.status.code(), Some(7), "{errors}");
    assert_eq!(output.stdout, b"hi\n\x00\xff");
    assert!(errors.contains("hello from /tmp\n"), "{errors}");
    for phase in [
        "monitor set-up",
        "first guest instruction",
        "guest to agent",
        "command",
    ] {
        assert!(
            errors.contains(&format!("timing: {phase}")),
            "{phase} in {errors}"
        );
    }
}

/// Two runs of one kind of machine: at the latest the second goes on from where a guest had come to.
#[test]
fn a_machine_that_has_been_booted_before_is_not_booted_again() {
    let run = |words: &[&str]| {
        let mut command = linux(&["--timing"]);
        command.args(words).arg("--");
        let script = "cat /proc/sys/kernel/random/uuid; uname -r
            read wish < /proc/sys/vm/compaction_proactiveness; echo $wish";
        command.args(["sh", "-c", script]);
        let output = command.output().unwrap();
        let errors = text(&output.stderr);
        assert_eq!(output.status.code(), Some(0), "{errors}");
        (
            text(&output.stdout),
            errors.contains("timing: boot template"),
        )
    };
    let (first, _) = run(&[]);
    let (second, restored) = run(&[]);
    assert!(restored, "the first has left its template");
    let (third, restored) = run(&[]);
    assert!(restored);
    let lines = |text: &str| text.lines().map(str::to_owned).collect::<Vec<_>>();
    let (first, second, third) = (lines(&first), lines(&second), lines(&third));
    assert_eq!(
        (first[1].as_str(), first[1].as_str()),
        (second[1].as_str(), third[1].as_str())
    );
    assert!(
        first[0] != second[0] && second[0] != third[0],
        "random numbers are new"
    );
    assert_eq!(first[2], "0", "an idle guest's kernel is left alone");
}

/// A root file system with nothing of ours in it; what a command writes there stays.
#[test]
fn a_debian_root_runs_its_own_programs_and_keeps_what_they_write() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("root.ext4");
    // A copy of its own for this test; only the blocks in use are copied.
    let status = Command::new("cp")
        .arg("--sparse=always")
        .arg(debian())
        .arg(&root)
        .status();
    assert!(status.unwrap().success());
    let mut command = linux(&["--rootfs"]);
    command.arg(&root).args([
        "--",
        "sh",
        "-c",
        "cat /etc/os-release; echo kept > /root/file",
    ]);
    let output = command.output().unwrap();
    let (out, errors) = (text(&output.stdout), text(&output.stderr));
    assert_eq!(output.status.code(), Some(0), "{errors}");
    assert!(out.contains("PRETTY_NAME=\"Debian GNU/Linux 12"), "{out}");
    let check = Command::new("/sbin/e2fsck")
        .arg("-fn")
        .arg(&root)
        .output()
        .unwrap();
    assert!(check.status.success(), "{}", text(&check.stdout));
    let cat = Command::new("/sbin/debugfs")
        .args(["-R", "cat /root/file"])
        .arg(&root)
        .output();
    assert_eq!(text(&cat.unwrap().stdout), "kept\n");
}

/// A root file system that is only read is booted from once, until the image is another one.
#[test]
fn a_root_that_is_only_read_is_booted_from_once() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("root.ext4");
    let copied = Command::new("cp")
        .arg("--sparse=always")
        .arg(debian())
        .arg(&root)
        .status();
    assert!(copied.unwrap().success());
    let arg = format!("{},ro", root.display());
    let run = |limit: &str, words: &[&str]| {
        let (kernel, initramfs) = image();
        let mut command = run(["--memory", "128M", "--timing", "--rootfs", &arg]);
        command.args(["--timeout", limit, "--kernel"]).arg(kernel);
        command.arg("--initrd").arg(initramfs);
        // Another place than the other tests use at the same time.
        command
            .env("TINE_CACHE_DIR", dir.path())
            .args(words)
            .arg("--");
        let script = "read line < /etc/debian_version; echo $line; echo x > /root/x";
        command.args(["sh", "-c", script]).output().unwrap()
    };
    let from_template = |errors: &str| errors.contains("timing: boot template");
    let first = run("5m", &[]);
    let errors = text(&first.stderr);
    assert!(errors.contains("Read-only file system"), "{errors}");
    assert!(
        !from_template(&errors) && text(&first.stdout).starts_with("12"),
        "{errors}"
    );
    let second = run("5m", &[]);
    let errors = text(&second.stderr);
    assert!(
        from_template(&errors) && errors.contains("Read-only file system"),
        "{errors}"
    );
    assert_eq!(second.stdout, first.stdout);
    // In the cache there is nothing of the disk.
    let boot = dir.path().join("boot");
    let files = std::fs::read_dir(
        std::fs::read_dir(&boot)
            .unwrap()
            .next()
            .unwrap()
            .unwrap()
            .path(),
    );
    for file in files.unwrap() {
        let name = file.unwrap().file_name().into_string().unwrap();
        assert!(!name.contains("disk"), "{name}");
    }
    // One that is sound and of another machine, which says nothing of itself here: it is no error.
    let place = Place::new();
    with_vmm();
    let hang = tine_tests::guest("hang");
    let hang = hang.to_str().unwrap();
    let start = [
        "run",
        "-d",
        "--no-wait",
        "--memory",
        "64M",
        "--name",
        "other",
        "--kernel",
        hang,
    ];
    place.ok(start);
    place.ok(["snapshot", "--stop", "other", "snapshot"]);
    let key = std::fs::read_dir(&boot)
        .unwrap()
        .next()
        .unwrap()
        .unwrap()
        .path();
    std::fs::remove_dir_all(&key).unwrap();
    let copied = Command::new("cp")
        .arg("-r")
        .arg(place.path("snapshot"))
        .arg(&key)
        .status();
    assert!(copied.unwrap().success());
    let output = run("1s", &[]);
    let errors = text(&output.stderr);
    assert_eq!(output.status.code(), Some(124), "{errors}");
    assert!(from_template(&errors) && !key.exists(), "{errors}");
    // Not waited for: that they boot is what counts.
    let boots = |words: &[&str]| {
        let output = run("1s", words);
        let errors = text(&output.stderr);
        output.status.code() == Some(124) && !from_template(&errors)
    };
    assert!(boots(&["--cold"]));
    let file = std::fs::File::options().write(true).open(&root).unwrap();
    file.set_modified(std::time::SystemTime::now()).unwrap();
    assert!(boots(&[]));
}

/// A guest that ends under a command is an error that says so.
#[test]
fn a_guest_that_ends_before_its_command_is_an_error() {
    let output = linux(&["--", "sh", "-c", "busybox reboot -f; sleep 60"])
        .output()
        .unwrap();
    let errors = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{errors}");
    assert!(
        errors.starts_with("tine: the guest reset itself"),
        "{errors}"
    );
}
