//! schemathesis (PyPI) makes requests of `vmm/openapi.yaml`, valid and not, and holds the answers of
//! a live process to it: bounded in time, and away from the host's files.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::json;
use tine_tests::api::Vmm;
use tine_tests::python::{environment, sdk};
use tine_tests::sandbox::process;
use tine_tests::text;

/// How long each run makes requests, and from where chance begins. Other requests than the last
/// time's should not be what a change fails by; `TINE_SCHEMATHESIS=SECONDS,SEED` goes on from there.
const SECONDS_AND_SEED: &str = "40,1";

/// Lets it loose on a process, which has to be there and to answer afterwards.
fn run(vmm: &mut Vmm, phases: &str) {
    let python = environment("schemathesis");
    let description: PathBuf = Path::new(env!("CARGO_MANIFEST_DIR")).join("../vmm/openapi.yaml");
    let asked = std::env::var("TINE_SCHEMATHESIS");
    let asked = asked.unwrap_or_else(|_| SECONDS_AND_SEED.to_owned());
    let (seconds, seed) = asked.split_once(',').expect("SECONDS,SEED");
    let output = Command::new(python.join("bin/schemathesis"))
        .arg("--no-color")
        .arg("--config-file")
        .arg(sdk("schemathesis").join("schemathesis.toml"))
        .arg("run")
        .arg(description)
        .args(["--url", "http://localhost", "--phases", phases])
        .args(["--request-timeout", "20", "--continue-on-failure"])
        .args(["--max-time", seconds, "--seed", seed])
        .env("SCHEMATHESIS_HOOKS", "hooks")
        .env("PYTHONPATH", sdk("schemathesis"))
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .env("TINE_API_SOCK", vmm.socket())
        .current_dir(vmm.dir.path())
        .output()
        .expect("schemathesis can be started");
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    println!("{out}");
    assert!(output.status.success(), "{out}{err}");
    assert!(out.contains("Test cases:"), "it made no request: {out}");
    assert!(vmm.child.try_wait().unwrap().is_none(), "the process ended");
    vmm.get("/").expect(200);
}

#[test]
fn a_process_that_is_configured_answers_as_described() {
    let mut vmm = process();
    run(&mut vmm, "examples,coverage,fuzzing,stateful");
}

#[test]
fn a_process_whose_machine_has_started_answers_as_described() {
    let mut vmm = process();
    let machine = json!({"vcpu_count": 1, "mem_size_mib": 32});
    vmm.put("/machine-config", &machine).expect(204);
    let drive = json!({
        "drive_id": "scratch", "is_root_device": false, "path_on_host": "/srv/disk.img",
    });
    vmm.put("/drives/scratch", &drive).expect(204);
    let balloon = json!({
        "amount_mib": 0, "deflate_on_oom": true, "stats_polling_interval_s": 1,
        "free_page_hinting": true, "free_page_reporting": true,
    });
    vmm.put("/balloon", &balloon).expect(204);
    vmm.put("/metrics", &json!({"metrics_path": "/srv/metrics"}))
        .expect(204);
    vmm.boot_source("hang");
    vmm.start_machine().expect(204);
    run(&mut vmm, "examples,coverage,fuzzing");
}
