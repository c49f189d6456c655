//! A machine by an SDK that others published for the known API, unmodified, with another program
//! in the place of the one it starts: hysn-firecracker-python (PyPI, `tests/sdk`).

use std::fs::{self, File};
use std::process::{Command, Stdio};

use tempfile::TempDir;
use tine_tests::api::tine_vmm;
use tine_tests::linux::image;
use tine_tests::python::{environment, sdk};
use tine_tests::sandbox::is_root;
use tine_tests::text;

const NAME: &str = "hysn-firecracker-python";

#[test]
fn a_linux_guest_boots_is_snapshotted_and_goes_on_with_its_disk() {
    let python = environment(NAME).join("bin/python");
    let (kernel, initramfs) = image();
    let dir = TempDir::new().unwrap();
    let disk = dir.path().join("disk.img");
    File::create(&disk).unwrap().set_len(24 << 20).unwrap();
    let made = Command::new("mkfs.ext4").arg("-q").arg(&disk).status();
    assert!(made.expect("mkfs.ext4; run ./setup").success());
    let (scratch, snapshot) = (dir.path().join("scratch"), dir.path().join("snapshot"));
    fs::create_dir(&scratch).unwrap();
    fs::create_dir(&snapshot).unwrap();
    let mut command = Command::new("unshare");
    if !is_root() {
        command.args(["--user", "--map-root-user"]);
    }
    // Whatever it starts ends with it.
    command.args(["--mount", "--net", "--pid", "--kill-child", "--mount-proc"]);
    command.args(["--", "sh"]).arg(sdk(NAME).join("sandbox.sh"));
    command.arg(&scratch).arg(tine_vmm());
    command.arg(python).arg(sdk(NAME).join("client.py"));
    command.arg(kernel).arg(initramfs).arg(&disk).arg(&snapshot);
    command
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .env("HOME", &scratch);
    let output = command.stdin(Stdio::null()).output();
    let output = output.expect("unshare can be started");
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{out}{err}");
    println!("{out}");
}
