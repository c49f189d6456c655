//! Machines by SDKs that others published for the known API, unmodified, told another program's
//! path and nothing else: the crates fctools and firecracker-rs-sdk (`tests/sdk/rust`).

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use tempfile::TempDir;
use tine_tests::api::tine_vmm;
use tine_tests::linux::image;
use tine_tests::{guest, text};

/// The SDKs' program, built with what its lock file names.
fn clients() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| {
        // target/TARGET/PROFILE/deps/TEST
        let test = std::env::current_exe().expect("the test's own path");
        let target = test.ancestors().nth(3).expect("cargo's directories");
        let target = target.join("sdk");
        let status = Command::new(env!("CARGO"))
            .current_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("sdk/rust"))
            .args(["build", "--quiet", "--locked", "--target-dir"])
            .arg(&target)
            .status()
            .expect("cargo can be started");
        assert!(status.success(), "cargo cannot build the SDKs' program");
        let builds = target.join("x86_64-unknown-linux-gnu/debug");
        builds.join("tine-sdk-clients")
    })
}

/// Runs a scenario, which says how far it came.
fn scenario(name: &str, boot: &[&Path]) {
    let dir = TempDir::new().unwrap();
    let mut command = Command::new(clients());
    command.arg(name).arg(tine_vmm()).arg(dir.path()).args(boot);
    let output = command.output().expect("the program can be started");
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{name}: {out}{err}");
    println!("{out}");
}

#[test]
fn fctools_snapshots_a_linux_guest_and_it_goes_on() {
    let (kernel, initramfs) = image();
    scenario("fctools", &[kernel, initramfs]);
}

#[test]
fn fctools_boots_by_a_json_file() {
    scenario("fctools-json", &[&guest("speaking")]);
}

#[test]
fn firecracker_rs_sdk_snapshots_a_guest_and_it_goes_on() {
    scenario("firecracker-rs-sdk", &[&guest("speaking")]);
}
