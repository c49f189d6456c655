//! Bad input gets one line that names the thing and the reason, and leaves nothing behind.

use std::io::Write;
use std::os::unix::net::UnixListener;
use std::process::Command;

use tempfile::{NamedTempFile, TempDir};
use tine_tests::{boot, fail_with, finish, guest, run, succeed, text, tine};

#[test]
fn a_missing_kernel_is_named() {
    let message = fail_with(1, run(["--kernel", "/nowhere/vmlinux"]));
    assert!(message.contains("/nowhere/vmlinux"), "{message}");
    assert!(message.contains("No such file"), "{message}");
}

#[test]
fn a_directory_is_no_kernel_and_no_initrd() {
    let message = fail_with(1, run(["--kernel", "/etc"]));
    assert!(
        message.contains("/etc") && message.contains("directory"),
        "{message}"
    );
    let mut command = boot("hello");
    command.args(["--initrd", "/etc"]);
    let message = fail_with(1, command);
    assert!(
        message.contains("initrd /etc") && message.contains("directory"),
        "{message}"
    );
}

#[test]
fn a_device_is_no_kernel() {
    let message = fail_with(1, run(["--kernel", "/dev/zero"]));
    assert!(message.contains("device"), "{message}");
}

/// Field case 4: what is no kernel is refused; the next try with a good one works.
#[test]
fn a_file_that_is_no_kernel_is_refused_and_a_good_one_boots_after_it() {
    let mut file = NamedTempFile::new().unwrap();
    file.write_all(b"#!/bin/sh\necho no kernel\n").unwrap();
    let mut command = run(["--kernel"]);
    command.arg(file.path());
    let message = fail_with(1, command);
    assert!(message.contains("neither an ELF"), "{message}");
    let good = std::fs::read(guest("hello")).unwrap();
    // Inside the ELF header, the program headers, and the code at 0x1000.
    for len in [10, 64, 100, 0x1003] {
        std::fs::write(file.path(), &good[..len]).unwrap();
        let mut command = run(["--kernel"]);
        command.arg(file.path());
        let message = fail_with(1, command);
        assert!(message.contains("cannot boot"), "{len}: {message}");
    }
    assert_eq!(succeed(boot("hello")), b"A");
}

#[test]
fn an_initrd_that_does_not_fit_is_refused_with_the_room_there_is() {
    let initrd = NamedTempFile::new().unwrap();
    initrd.as_file().set_len(64 << 20).unwrap();
    let mut command = boot("hello");
    command.arg("--initrd").arg(initrd.path());
    let message = fail_with(1, command);
    assert!(
        message.contains("does not fit") && message.contains("64 MiB"),
        "{message}"
    );
}

#[test]
fn drives_that_cannot_be_had_are_named() {
    for (path, reason) in [("/nowhere/disk.img", "No such file"), ("/etc", "directory")] {
        let mut command = boot("hello");
        command.args(["--disk", path]);
        let message = fail_with(1, command);
        assert!(
            message.contains(path) && message.contains(reason),
            "{message}"
        );
    }
}

#[test]
fn two_machines_cannot_write_one_drive() {
    let disk = NamedTempFile::new().unwrap();
    disk.as_file().set_len(1 << 20).unwrap();
    let mut first = boot("hang");
    first.arg("--disk").arg(disk.path());
    let mut first = first.spawn().unwrap();
    std::io::Read::read_exact(first.stdout.as_mut().unwrap(), &mut [0]).unwrap();
    let mut second = boot("hello");
    second.arg("--disk").arg(disk.path());
    let message = fail_with(1, second);
    assert!(message.contains(disk.path().to_str().unwrap()), "{message}");
    first.kill().unwrap();
    first.wait().unwrap();
}

#[test]
fn impossible_machines_are_refused() {
    for (option, value, word) in [
        ("--vcpus", "0", "vCPUs"),
        ("--vcpus", "255", "vCPUs"),
        ("--memory", "0", "memory"),
        ("--memory", "16M", "32"),
        ("--memory", "9999T", "memory"),
        ("--memory", "33000001K", "1 MiB"),
    ] {
        let mut command = run(["--kernel"]);
        command.arg(guest("hello")).args([option, value]);
        let message = fail_with(1, command);
        assert!(message.contains(word), "{option} {value}: {message}");
    }
}

#[test]
fn a_command_line_over_the_limit_is_refused() {
    let mut command = boot("hello");
    command.arg("--cmdline").arg("x".repeat(2048));
    let message = fail_with(1, command);
    assert!(message.contains("2047"), "{message}");
}

#[test]
fn too_many_drives_are_refused() {
    let disk = NamedTempFile::new().unwrap();
    disk.as_file().set_len(1 << 20).unwrap();
    let mut command = boot("hello");
    for _ in 0..16 {
        command
            .arg("--disk")
            .arg(format!("{},ro", disk.path().display()));
    }
    let message = fail_with(1, command);
    assert!(message.contains("16 drives: give 15"), "{message}");
}

#[test]
fn words_that_make_no_sense_are_a_usage_error() {
    for args in [
        &["--no-such-option"][..],
        &["--memory", "much"],
        &["--vcpus", "many"],
        &["--timeout", "soon"],
        &["--disk", ""],
        &["uname"],
    ] {
        let output = finish(run(args));
        let message = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{args:?}: {message}");
        assert!(message.starts_with("error: "), "{message}");
    }
}

#[test]
fn a_missing_image_says_how_to_get_one() {
    let cache = TempDir::new().unwrap();
    let mut command = run(["--", "true"]);
    command.env("TINE_CACHE_DIR", cache.path());
    let message = fail_with(1, command);
    assert!(message.contains("guest-agent/image/build"), "{message}");
}

/// In a private mount namespace where something else stands at /dev/kvm.
fn with_kvm_replaced(by: &str, as_user: Option<&str>) -> Command {
    let mut command = Command::new("unshare");
    let user = as_user.map_or(String::new(), |user| {
        format!("setpriv --reuid {user} --regid {user} --clear-groups --no-new-privs ")
    });
    command.args(["--mount", "--propagation", "private", "--", "sh", "-c"]);
    command.arg(format!(
        "{by} && exec {user}\"$0\" run --kernel \"$1\" --console stdout"
    ));
    command.arg(tine()).arg(guest("hello"));
    command
}

#[test]
fn without_dev_kvm_the_reason_and_the_next_step_are_told() {
    let message = fail_with(1, with_kvm_replaced("mount -t tmpfs none /dev", None));
    assert!(message.contains("/dev/kvm does not exist"), "{message}");
}

#[test]
fn without_rights_to_dev_kvm_the_reason_and_the_next_step_are_told() {
    // The programs have to be reachable for the other user: copies in a world-readable place.
    let dir = tempfile::Builder::new().tempdir_in("/tmp").unwrap();
    let public = |path: &std::path::Path, name: &str| {
        let copy = dir.path().join(name);
        std::fs::copy(path, &copy).unwrap();
        copy
    };
    let (program, kernel) = (public(tine(), "tine"), public(&guest("hello"), "kernel"));
    let mut command = Command::new("setpriv");
    command.args(["--reuid", "65534", "--regid", "65534", "--clear-groups"]);
    command
        .arg(program)
        .args(["run", "--console", "stdout", "--kernel"])
        .arg(kernel);
    let message = fail_with(1, command);
    assert!(
        message.contains("no permission to use /dev/kvm"),
        "{message}"
    );
}

#[test]
fn a_socket_is_no_kernel() {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("socket");
    let _listener = UnixListener::bind(&path).unwrap();
    let mut command = run(["--kernel"]);
    command.arg(&path);
    let message = fail_with(1, command);
    assert!(message.contains(path.to_str().unwrap()), "{message}");
}
