//! `tine-vmm` as a process: sockets, signals, records, arguments.

use std::os::unix::process::ExitStatusExt;
use std::process::Command;

use serde_json::json;
use tine_tests::api::{Vmm, tine_vmm};
use tine_tests::{guest, text};

/// Field case 50.
#[test]
fn a_dead_socket_is_replaced_and_a_live_one_refused_by_name() {
    let mut vmm = Vmm::running("hang");
    let second = Vmm::command(vmm.dir.path()).output().unwrap();
    assert_eq!(second.status.code(), Some(1));
    let message = text(&second.stderr);
    assert!(
        message.contains("api.sock") && message.contains("in use"),
        "{message}"
    );
    vmm.get("/").expect(200);
    vmm.signal(libc::SIGKILL);
    assert_eq!(vmm.wait().signal(), Some(libc::SIGKILL));
    assert!(vmm.socket().exists());
    let again = Vmm::command(vmm.dir.path()).spawn().unwrap();
    vmm.child = again;
    let start = std::time::Instant::now();
    while std::os::unix::net::UnixStream::connect(vmm.socket()).is_err() {
        assert!(start.elapsed().as_secs() < 10);
    }
    assert_eq!(vmm.state(), "created");
}

#[test]
fn a_signal_ends_a_machine_in_good_order() {
    for name in ["hang", "spin"] {
        for number in [libc::SIGTERM, libc::SIGINT, libc::SIGHUP] {
            let mut vmm = Vmm::running(name);
            vmm.signal(number);
            assert_eq!(vmm.wait().code(), Some(0), "{name} {number}");
            assert!(!vmm.socket().exists());
            let last = vmm.usage().pop().unwrap();
            assert_eq!(last.event, "ended");
            assert_eq!(
                last.reason.unwrap(),
                format!("the process got signal {number}")
            );
        }
    }
}

#[test]
fn a_deletion_is_recorded_before_it_is_answered_and_never_undone() {
    let mut vmm = Vmm::running("spin");
    let answer = vmm
        .request("DELETE", "/v1/machine", None)
        .expect(202)
        .json();
    assert_eq!(answer["durable"], true);
    let accepted = answer["accepted_at"].as_str().unwrap().to_owned();
    assert_eq!(vmm.wait().code(), Some(0));
    let records = vmm.usage();
    let deletion = records.last().unwrap().deletion.clone().unwrap();
    assert_eq!(deletion.accepted_at, accepted);
    assert!(deletion.released_at.is_some());
    let deleting = records.iter().find(|r| r.event == "deleting").unwrap();
    assert_eq!(
        deleting.usage,
        records.last().unwrap().usage,
        "metering stops at the acceptance"
    );
    let again = Vmm::command(vmm.dir.path()).output().unwrap();
    assert_eq!(again.status.code(), Some(4));
    assert!(text(&again.stderr).contains(&accepted));
    assert_eq!(vmm.usage().len(), records.len());
}

#[test]
fn a_deletion_that_was_cut_short_is_finished_instead_of_running() {
    let dir = tempfile::tempdir().unwrap();
    // As a process leaves it that was killed right after it had accepted.
    let accepted = r#"{"accepted_at":"2026-01-01T00:00:00.000000Z","released_at":null}"#;
    std::fs::write(dir.path().join("deleted.json"), accepted).unwrap();
    let file = dir.path().join("config.json");
    let config = json!({"boot-source": {"kernel_image_path": guest("hang")}});
    std::fs::write(&file, config.to_string()).unwrap();
    let output = Vmm::command(dir.path())
        .arg("--config-file")
        .arg(&file)
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(4));
    assert!(!dir.path().join("api.sock").exists());
    let last = tine::usage::read(dir.path()).unwrap().pop().unwrap();
    assert_eq!(last.event, "deleted");
    let deletion = last.deletion.unwrap();
    assert_eq!(deletion.accepted_at, "2026-01-01T00:00:00.000000Z");
    assert!(deletion.released_at.is_some());
}

#[test]
fn usage_survives_a_kill() {
    let mut vmm = Vmm::running("spin");
    vmm.patch("/vm", &json!({"state": "Paused"})).expect(204);
    vmm.signal(libc::SIGKILL);
    vmm.wait();
    let events: Vec<_> = vmm.usage().into_iter().map(|r| r.event).collect();
    assert_eq!(events, ["created", "starting", "paused"]);
}

#[test]
fn a_configuration_file_starts_the_machine_with_or_without_an_api() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("config.json");
    let console = dir.path().join("console");
    let config = json!({
        "boot-source": {"kernel_image_path": guest("hello"), "boot_args": "quiet"},
        "machine-config": {"vcpu_count": 2, "mem_size_mib": 64},
        "serial": {"serial_out_path": console},
        "drives": [], "network-interfaces": [], "balloon": null,
    });
    std::fs::write(&file, config.to_string()).unwrap();
    let output = Command::new(tine_vmm())
        .args(["--no-api", "--config-file"])
        .arg(&file)
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert_eq!(std::fs::read(&console).unwrap(), b"A");
    let output = Vmm::command(dir.path())
        .arg("--config-file")
        .arg(&file)
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    for (section, message) in [
        (json!({"kernel_path": "x"}), "`kernel_path`"),
        (json!({"kernel_image_path": "/nowhere"}), "/nowhere"),
    ] {
        let config = json!({"boot-source": section});
        std::fs::write(&file, config.to_string()).unwrap();
        let output = Vmm::command(dir.path())
            .arg("--config-file")
            .arg(&file)
            .output()
            .unwrap();
        assert_eq!(output.status.code(), Some(1));
        assert!(
            text(&output.stderr).contains(message),
            "{}",
            text(&output.stderr)
        );
        assert!(!dir.path().join("api.sock").exists());
    }
}

#[test]
fn the_boot_timer_tells_the_log() {
    let dir = tempfile::tempdir().unwrap();
    let log = dir.path().join("log");
    let vmm = Vmm::start_in(dir, ["--boot-timer", "--log-path", log.to_str().unwrap()]);
    vmm.boot_source("boottimer");
    vmm.start_machine().expect(204);
    let mut vmm = vmm;
    assert!(vmm.wait().success());
    let log = std::fs::read_to_string(log).unwrap();
    assert!(log.contains("Guest-boot-time ="), "{log}");
}

#[test]
fn metrics_go_to_the_file_of_the_arguments() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("metrics");
    let words = ["--metrics-path", path.to_str().unwrap()];
    let vmm = Vmm::start_in(dir, words);
    vmm.put("/metrics", &json!({"metrics_path": "/tmp/other"}))
        .expect(400);
    vmm.boot_source("hang");
    vmm.start_machine().expect(204);
    vmm.put("/actions", &json!({"action_type": "FlushMetrics"}))
        .expect(204);
    let line = std::fs::read_to_string(path).unwrap();
    let line: serde_json::Value = serde_json::from_str(&line).unwrap();
    assert_eq!(line["state"]["starting"], 1.0);
}

#[test]
fn arguments_that_make_no_sense_are_refused() {
    let long = format!("/tmp/{}", "x".repeat(120));
    for (args, status, message) in [
        (vec!["--what"], 2, "--what"),
        (vec!["--no-api"], 2, "--config-file"),
        (vec!["--id", "a/b"], 2, "letters"),
        (vec!["--level", "Loud"], 2, "Loud"),
        (vec!["--enable-pci"], 2, "virtio-mmio"),
        (vec!["--seccomp-filter", "f"], 2, "--seccomp-filter: "),
        (vec!["--show-log-origin"], 2, "--show-log-origin: "),
        (vec!["--module", "m"], 2, "--module: "),
        (vec!["--start-time-us", "soon"], 2, "--start-time-us"),
        (vec!["--describe-snapshot", "/dev/null"], 2, "/dev/null"),
        (vec!["--api-sock", &long], 1, "107"),
        (
            vec![
                "--run-dir",
                "/nowhere",
                "--api-sock",
                "/tmp/tine-nowhere.sock",
            ],
            1,
            "/nowhere",
        ),
    ] {
        let output = Command::new(tine_vmm()).args(&args).output().unwrap();
        assert_eq!(output.status.code(), Some(status), "{args:?}");
        let errors = text(&output.stderr);
        assert!(errors.contains(message), "{args:?}: {errors}");
    }
    let output = Command::new(tine_vmm()).arg("--version").output().unwrap();
    assert!(text(&output.stdout).starts_with("tine-vmm 0."));
}

#[test]
fn how_long_the_start_took_is_a_metric_for_who_says_when_it_began() {
    // SAFETY: all bytes of a timespec may be zero, and the call fills it.
    let mut now: libc::timespec = unsafe { std::mem::zeroed() };
    // SAFETY: the pointer is to a timespec that lives.
    let read = unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut now) };
    assert_eq!(read, 0);
    let start = now.tv_sec * 1_000_000 + now.tv_nsec / 1000;
    let start = format!("--start-time-us={}", start - 2_000_000);
    let cpu = ["--start-time-cpu-us=0", "--parent-cpu-time-us=7000000"];
    let vmm = Vmm::start([start.as_str(), cpu[0], cpu[1]]);
    let text = vmm.get("/v1/metrics").expect(200).body;
    let value = |name: &str| -> f64 {
        let line = text.lines().find_map(|line| line.strip_prefix(name));
        line.expect(&text).trim().parse().expect("a number")
    };
    assert!(
        (2.0..60.0).contains(&value("tine_startup_seconds ")),
        "{text}"
    );
    assert!(
        (7.0..60.0).contains(&value("tine_startup_cpu_seconds ")),
        "{text}"
    );
}

#[test]
fn snapshots_say_of_which_version_they_are() {
    let version = |args: &[&str]| {
        let output = Command::new(tine_vmm()).args(args).output().unwrap();
        assert!(output.status.success(), "{}", text(&output.stderr));
        text(&output.stdout)
    };
    assert_eq!(version(&["--snapshot-version"]), "v1.0.0\n");
    let vmm = Vmm::running("hang");
    vmm.patch("/vm", &json!({"state": "Paused"})).expect(204);
    let (state, memory) = (vmm.dir.path().join("state"), vmm.dir.path().join("memory"));
    let create = json!({"snapshot_path": state, "mem_file_path": memory});
    vmm.put("/snapshot/create", &create).expect(204);
    let state = state.to_str().unwrap();
    assert_eq!(version(&["--describe-snapshot", state]), "v1.0.0\n");
}
