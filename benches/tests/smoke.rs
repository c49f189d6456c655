//! The program as a whole, on the real `/dev/kvm`. It says nothing about figures: a measurement
//! is no test.

use std::path::Path;
use std::process::{Command, Output};

fn bench(dir: &Path, args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tine-bench"));
    command.arg("--tine").arg(tine_tests::tine()).args(args);
    command.args(["--runs", "2", "--warm-up", "0"]);
    command.env("TMPDIR", dir);
    command.output().expect("the program can be started")
}

#[test]
fn it_measures_tine_against_itself_and_leaves_nothing_behind() {
    let dir = tempfile::tempdir().unwrap();
    let temp = dir.path().join("tmp");
    std::fs::create_dir(&temp).unwrap();
    let json = dir.path().join("figures.json");
    let output = bench(
        &temp,
        &["cold-start", "memory", "--json", json.to_str().unwrap()],
    );
    let (stdout, stderr) = (
        tine_tests::text(&output.stdout),
        tine_tests::text(&output.stderr),
    );
    assert!(output.status.success(), "{stderr}");
    for part in [
        "start to first byte",
        "private dirty memory",
        "tine again",
        "noise",
    ] {
        assert!(stdout.contains(part), "{part}: {stdout}");
    }
    let json: serde_json::Value = serde_json::from_slice(&std::fs::read(json).unwrap()).unwrap();
    let byte = &json["answers"][0]["measures"][0]["series"][0]["values"];
    assert_eq!(byte.as_array().map(Vec::len), Some(2), "{json}");
    assert_eq!(std::fs::read_dir(temp).unwrap().count(), 0);
}

/// A run without a Tine: a saved report is all that it takes.
fn from(report: &Path, args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tine-bench"));
    command.arg("--from").arg(report).args(args);
    command.output().expect("the program can be started")
}

#[test]
fn a_report_is_given_out_again_without_measuring() {
    let dir = tempfile::tempdir().unwrap();
    let recorded = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/recorded.json");
    let files = ["a.html", "a.md", "a.json"].map(|name| dir.path().join(name));
    let [html, markdown, json] = files.each_ref().map(|file| file.to_str().unwrap());
    let args = ["--html", html, "--markdown", markdown, "--json", json];
    let output = from(&recorded, &args);
    assert!(
        output.status.success(),
        "{}",
        tine_tests::text(&output.stderr)
    );
    let read = |file: &str| std::fs::read_to_string(file).unwrap();
    assert!(read(html).starts_with("<!DOCTYPE html>") && read(html).ends_with("</html>"));
    assert!(read(markdown).contains("| firecracker |"));
    let value = |text: &str| serde_json::from_str::<serde_json::Value>(text).unwrap();
    assert_eq!(
        value(&read(json)),
        value(&std::fs::read_to_string(recorded).unwrap())
    );
}

#[test]
fn a_slowdown_ends_the_run_with_a_status_of_its_own() {
    let dir = tempfile::tempdir().unwrap();
    let report = |name: &str, ratio: f64| {
        let path = dir.path().join(name);
        let recorded = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/recorded.json");
        let mut json: serde_json::Value =
            serde_json::from_slice(&std::fs::read(recorded).unwrap()).unwrap();
        let measure = &mut json["answers"][0]["measures"][0];
        measure["series"][0]["summary"]["runs"] = 20.into();
        let interval = |value: f64| serde_json::json!({ "value": value, "low": value * 0.98, "high": value * 1.02 });
        measure["noise"] = interval(1.0);
        measure["comparisons"][0]["ratio"] = interval(ratio);
        std::fs::write(&path, json.to_string()).unwrap();
        path
    };
    let (before, slower) = (report("before.json", 0.25), report("slower.json", 0.35));
    let baseline = ["--baseline", before.to_str().unwrap()];
    let output = from(&slower, &baseline);
    let stdout = tine_tests::text(&output.stdout);
    assert_eq!(output.status.code(), Some(3), "{stdout}");
    assert!(
        stdout.contains("cold-start, start to first byte: slower, 1.400 times"),
        "{stdout}"
    );
    assert_eq!(from(&before, &baseline).status.code(), Some(0));
}

#[test]
fn an_earlier_build_takes_part() {
    let dir = tempfile::tempdir().unwrap();
    let build = tine_tests::tine();
    let build = build.parent().unwrap().to_str().unwrap();
    let output = bench(dir.path(), &["memory", "--baseline", build]);
    let stdout = tine_tests::text(&output.stdout);
    // Two rounds are too few to find anything slower.
    assert!(
        output.status.success(),
        "{}",
        tine_tests::text(&output.stderr)
    );
    assert!(stdout.contains("tine / tine before: "), "{stdout}");
    assert!(stdout.contains("3 measures compared"), "{stdout}");
}

#[test]
fn machines_at_once_are_counted_when_all_their_guests_run() {
    let dir = tempfile::tempdir().unwrap();
    let output = bench(dir.path(), &["burst"]);
    let stdout = tine_tests::text(&output.stdout);
    assert!(
        output.status.success(),
        "{}",
        tine_tests::text(&output.stderr)
    );
    assert!(stdout.contains("all of them running, ms"), "{stdout}");
    assert!(
        stdout.lines().any(|line| line.starts_with("  128 ")),
        "{stdout}"
    );
}

#[test]
fn guests_drive_their_devices() {
    let dir = tempfile::tempdir().unwrap();
    let output = bench(dir.path(), &["block", "vsock"]);
    let stdout = tine_tests::text(&output.stdout);
    assert!(
        output.status.success(),
        "{}",
        tine_tests::text(&output.stderr)
    );
    for part in [
        "write 128 KiB in a row",
        "into the guest, MiB/s",
        "64 bytes there and back",
    ] {
        assert!(stdout.contains(part), "{part}: {stdout}");
    }
}

/// Only root has a network of its own: for others the question is refused, in words.
#[test]
fn a_guest_drives_its_network() {
    let dir = tempfile::tempdir().unwrap();
    let output = bench(dir.path(), &["net"]);
    let (stdout, stderr) = (
        tine_tests::text(&output.stdout),
        tine_tests::text(&output.stderr),
    );
    match rustix::process::geteuid().is_root() {
        true => {
            assert!(output.status.success(), "{stderr}");
            assert!(
                stdout.contains("60 bytes there and back: median"),
                "{stdout}"
            );
        }
        false => assert!(
            stderr.contains("only root can make a TAP device"),
            "{stderr}"
        ),
    }
}

/// With neither tracer on the machine, what to install is said.
#[test]
fn a_start_is_taken_apart_by_a_tracer() {
    let dir = tempfile::tempdir().unwrap();
    let output = bench(dir.path(), &["cold-start", "--profile"]);
    let (stdout, stderr) = (
        tine_tests::text(&output.stdout),
        tine_tests::text(&output.stderr),
    );
    if !output.status.success() {
        assert!(stderr.contains("--profile needs"), "{stderr}");
        return;
    }
    let phase = |name: &str| {
        let row = stdout
            .lines()
            .find(|line| line.trim_start().starts_with(name));
        let row = row.unwrap_or_else(|| panic!("{name}: {stdout}"));
        let numbers: Vec<&str> = row.trim_start()[name.len()..].split_whitespace().collect();
        numbers[1].parse::<u32>().expect("a number of calls")
    };
    assert!(phase("the first call of KVM") > 10 && phase("the vCPU runs") > 30);
    assert!(
        phase("the guest's first byte is written") >= 2,
        "KVM_RUN and a write"
    );
}

#[test]
fn a_peer_that_fails_is_named_in_one_line() {
    let dir = tempfile::tempdir().unwrap();
    let output = bench(
        dir.path(),
        &["cold-start", "--peer", "other=/bin/false {kernel}"],
    );
    let stderr = tine_tests::text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    assert!(
        stderr.lines().last().unwrap().contains("other: "),
        "{stderr}"
    );
}
