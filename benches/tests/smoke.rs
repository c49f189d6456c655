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
