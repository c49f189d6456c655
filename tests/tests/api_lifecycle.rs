//! A machine's life over the API: configuration, start, pause, end, deletion, and what is refused
//! when.

use std::io::{BufRead, BufReader, Write};
use std::thread;
use std::time::Duration;

use serde_json::json;
use tine_tests::api::Vmm;
use tine_tests::guest;

#[test]
fn a_machine_is_configured_started_paused_and_resumed() {
    let vmm = Vmm::start(["--id", "m-1"]);
    let instance = vmm.get("/").expect(200).json();
    assert_eq!(instance["id"], "m-1");
    assert_eq!(instance["state"], "Not started");
    assert_eq!(vmm.state(), "created");
    vmm.boot_source("hang");
    vmm.start_machine().expect(204);
    assert_eq!(vmm.get("/").json()["state"], "Running");
    assert_eq!(vmm.state(), "starting", "no agent has answered");
    vmm.patch("/vm", &json!({"state": "Paused"})).expect(204);
    assert_eq!(vmm.get("/").json()["state"], "Paused");
    vmm.patch("/vm", &json!({"state": "Paused"})).expect(204);
    assert_eq!(vmm.state(), "paused");
    vmm.patch("/vm", &json!({"state": "Resumed"})).expect(204);
    assert_eq!(vmm.state(), "starting");
}

#[test]
fn what_comes_too_early_or_too_late_is_refused_and_changes_nothing() {
    let vmm = Vmm::start([] as [&str; 0]);
    for early in ["Paused", "Resumed"] {
        let fault = vmm.patch("/vm", &json!({"state": early})).expect(400);
        assert!(fault.fault().contains("before starting"));
    }
    let flush = json!({"action_type": "FlushMetrics"});
    vmm.put("/actions", &flush).expect(400);
    let fault = vmm.start_machine().expect(400).fault();
    assert!(fault.contains("boot source"), "{fault}");
    vmm.boot_source("hang");
    vmm.start_machine().expect(204);
    let before = vmm.get("/vm/config").body;
    let late = [
        ("/boot-source", json!({"kernel_image_path": guest("hello")})),
        (
            "/machine-config",
            json!({"vcpu_count": 1, "mem_size_mib": 64}),
        ),
        ("/vsock", json!({"guest_cid": 5, "uds_path": "/tmp/x"})),
        ("/entropy", json!({})),
        ("/serial", json!({})),
        ("/logger", json!({"level": "Info"})),
        ("/metrics", json!({"metrics_path": "/tmp/x"})),
        ("/balloon", json!({"amount_mib": 0, "deflate_on_oom": true})),
        ("/actions", json!({"action_type": "InstanceStart"})),
    ];
    for (path, body) in late {
        let fault = vmm.put(path, &body).expect(400).fault();
        assert!(fault.contains("after starting"), "{path}: {fault}");
    }
    let config = json!({"kernel": guest("hello")});
    let error = vmm.put("/v1/config", &config).expect(409).json();
    assert_eq!(error["error"]["code"], "wrong_state");
    assert_eq!(vmm.get("/vm/config").body, before);
}

#[test]
fn what_no_machine_has_is_refused_by_its_name() {
    let vmm = Vmm::start([] as [&str; 0]);
    let body = json!({"id": "pmem0"}).to_string();
    for (method, path, name) in [
        ("PUT", "/cpu-config", "CPU templates"),
        ("PUT", "/pmem/pmem0", "pmem devices"),
        ("PATCH", "/pmem/pmem0", "pmem devices"),
        ("PUT", "/hotplug/memory", "memory hotplug"),
        ("PATCH", "/hotplug/memory", "memory hotplug"),
        ("GET", "/hotplug/memory", "memory hotplug"),
    ] {
        let body = Some(body.as_str()).filter(|_| method != "GET");
        let fault = vmm.request(method, path, body).expect(400).fault();
        let words = format!(
            "{name} {} not supported",
            if name.ends_with('s') { "are" } else { "is" }
        );
        assert!(fault.starts_with(&words), "{method} {path}: {fault}");
    }
}

/// Field case 47.
#[test]
fn a_misspelt_field_is_named_and_changes_nothing() {
    let vmm = Vmm::start([] as [&str; 0]);
    let before = vmm.get("/machine-config").body;
    let body = json!({"vcpu_count": 3, "mem_size_mbi": 3906});
    let fault = vmm.put("/machine-config", &body).expect(400).fault();
    assert!(fault.contains("`mem_size_mbi`"), "{fault}");
    assert!(fault.contains("`mem_size_mib`"), "what there is: {fault}");
    assert_eq!(vmm.get("/machine-config").body, before);
}

/// Field case 4, as far as the API goes.
#[test]
fn a_kernel_that_cannot_be_booted_leaves_room_for_a_better_one() {
    let vmm = Vmm::start([] as [&str; 0]);
    let bad = vmm.dir.path().join("bad-kernel");
    std::fs::write(&bad, "no kernel").unwrap();
    let source = json!({"kernel_image_path": bad});
    vmm.put("/boot-source", &source).expect(204);
    let fault = vmm.start_machine().expect(400).fault();
    assert!(fault.contains("bad-kernel"), "{fault}");
    assert_eq!(vmm.state(), "created");
    vmm.boot_source("hang");
    vmm.start_machine().expect(204);
}

#[test]
fn a_guest_that_ends_in_good_order_ends_the_process() {
    for name in ["hello", "poweroff"] {
        let mut vmm = Vmm::running(name);
        assert!(vmm.wait().success(), "{name}");
        assert!(!vmm.socket().exists(), "{name}");
        let last = vmm.usage().pop().unwrap();
        assert_eq!(last.event, "ended");
        assert!(last.reason.unwrap().contains("the guest"), "{name}");
    }
}

#[test]
fn a_guest_that_crashes_fails_the_machine_and_says_how() {
    let mut vmm = Vmm::running("triplefault");
    assert_eq!(vmm.wait().code(), Some(1));
    let (_, errors) = vmm.output();
    assert!(errors.contains("triple fault"), "{errors}");
    let last = vmm.usage().pop().unwrap();
    assert_eq!(last.event, "failed");
    assert!(last.reason.unwrap().contains("triple fault"));
}

#[test]
fn the_end_of_a_machine_ends_those_who_wait_for_another_state() {
    let vmm = Vmm::running("hang");
    thread::scope(|scope| {
        let waits: Vec<_> = (0..5)
            .map(|_| scope.spawn(|| vmm.get("/v1/machine?wait=running&timeout=60s")))
            .collect();
        let deleted = scope.spawn(|| vmm.get("/v1/machine?wait=deleted"));
        thread::sleep(Duration::from_millis(100));
        vmm.request("DELETE", "/v1/machine", None).expect(202);
        for wait in waits {
            let error = wait.join().unwrap().expect(409).json();
            assert_eq!(error["error"]["code"], "wrong_state");
        }
        let deleted = deleted.join().unwrap().expect(200).json();
        assert_eq!(deleted["state"], "deleted");
    });
}

#[test]
fn a_wait_is_over_in_time() {
    let vmm = Vmm::start([] as [&str; 0]);
    vmm.get("/v1/machine?wait=created").expect(200);
    let error = vmm.get("/v1/machine?wait=running&timeout=50ms").expect(408);
    assert_eq!(error.json()["error"]["state"], "created");
    for bad in ["wait=stopped", "wait=running&timeout=soon", "wiat=running"] {
        vmm.get(&format!("/v1/machine?{bad}")).expect(400);
    }
}

#[test]
fn requests_for_the_agent_name_the_state_at_once() {
    let vmm = Vmm::running("hang");
    let body = r#"{"request_id":"r","argv":["true"]}"#;
    let error = vmm.request("POST", "/v1/exec", Some(body)).expect(409);
    assert_eq!(error.json()["error"]["state"], "starting");
    vmm.get("/v1/files/list?path=/").expect(409);
}

#[test]
fn events_tell_of_each_state_and_end_with_the_machine() {
    let vmm = Vmm::start([] as [&str; 0]);
    let mut stream = vmm.connect();
    stream
        .write_all(b"GET /v1/events HTTP/1.1\r\nHost: x\r\n\r\n")
        .unwrap();
    let mut lines = BufReader::new(stream).lines().map(Result::unwrap);
    let mut next = || {
        let line = lines.find(|line| line.starts_with('{'))?;
        let event: serde_json::Value = serde_json::from_str(&line).unwrap();
        assert_eq!(event["event"], "state");
        Some(event["state"].as_str().unwrap().to_owned())
    };
    assert_eq!(next().as_deref(), Some("created"));
    vmm.boot_source("hang");
    vmm.start_machine().expect(204);
    assert_eq!(next().as_deref(), Some("starting"));
    vmm.patch("/vm", &json!({"state": "Paused"})).expect(204);
    assert_eq!(next().as_deref(), Some("paused"));
    vmm.request("DELETE", "/v1/machine", None).expect(202);
    assert_eq!(next().as_deref(), Some("deleting"));
    assert_eq!(next().as_deref(), Some("deleted"));
    assert_eq!(next(), None);
}

#[test]
fn a_drive_goes_on_with_another_image_under_a_running_machine() {
    let vmm = Vmm::start([] as [&str; 0]);
    let image = |name: &str, len: u64| {
        let path = vmm.dir.path().join(name);
        std::fs::File::create(&path).unwrap().set_len(len).unwrap();
        path
    };
    let (first, second) = (image("first.img", 1 << 20), image("second.img", 2 << 20));
    let drive = json!({
        "drive_id": "a", "is_root_device": false, "path_on_host": first,
        "rate_limiter": {"ops": {"size": 10, "refill_time": 100}},
    });
    vmm.put("/drives/a", &drive).expect(204);
    vmm.boot_source("hang");
    vmm.start_machine().expect(204);
    let locked = |path: &std::path::Path| {
        let file = std::fs::File::open(path).unwrap();
        file.try_lock_shared().is_err()
    };
    assert!(locked(&first) && !locked(&second));
    let swap = json!({"drive_id": "a", "path_on_host": second});
    vmm.patch("/drives/a", &swap).expect(204);
    assert!(!locked(&first) && locked(&second));
    let missing = json!({"drive_id": "a", "path_on_host": "/nowhere"});
    let fault = vmm.patch("/drives/a", &missing).expect(400).fault();
    assert!(fault.contains("/nowhere"), "{fault}");
    assert!(locked(&second), "the old image stays");
    std::fs::OpenOptions::new()
        .write(true)
        .open(&second)
        .unwrap()
        .set_len(4 << 20)
        .unwrap();
    vmm.patch("/drives/a", &json!({"drive_id": "a"}))
        .expect(204);
    vmm.patch("/drives/b", &json!({"drive_id": "b"}))
        .expect(400);
    let config = vmm.get("/vm/config").expect(200).json();
    assert_eq!(config["drives"][0]["path_on_host"], json!(second));
    assert_eq!(config["drives"][0]["rate_limiter"]["ops"]["size"], 10);
}

#[test]
fn metrics_are_written_when_asked() {
    let vmm = Vmm::start(["--id", "m2"]);
    let path = vmm.dir.path().join("metrics");
    let metrics = json!({"metrics_path": path, "emit_id": true, "properties": {"zone": "a"}});
    vmm.put("/metrics", &metrics).expect(204);
    vmm.put("/metrics", &metrics).expect(400);
    vmm.boot_source("hang");
    vmm.start_machine().expect(204);
    vmm.put("/actions", &json!({"action_type": "FlushMetrics"}))
        .expect(204);
    let line = std::fs::read_to_string(&path).unwrap();
    let value: serde_json::Value = serde_json::from_str(&line).unwrap();
    assert_eq!(value["id"], "m2");
    assert_eq!(value["properties"]["zone"], "a");
    assert_eq!(value["state"]["starting"], 1.0);
    let text = vmm.get("/v1/metrics").expect(200).body;
    assert!(
        text.contains("tine_state{state=\"starting\"} 1\n"),
        "{text}"
    );
}

#[test]
fn v1_config_says_all_in_one_request_and_reads_back_the_same() {
    let vmm = Vmm::start([] as [&str; 0]);
    let disk = vmm.dir.path().join("disk.img");
    std::fs::File::create(&disk).unwrap().set_len(4096).unwrap();
    let config = json!({
        "vcpus": 2, "memory_mib": 64, "kernel": guest("linux64"), "initrd": guest("hello"),
        "cmdline": "one=1 -- two", "console": vmm.dir.path().join("console"),
        "drives": [{"id": "r", "path": disk, "read_only": true, "root": true,
                    "serial": "s", "cache": "writeback", "engine": "thread"}],
        "network": [],
        "vsock": {"guest_cid": 7, "uds_path": null},
    });
    vmm.put("/v1/config", &config).expect(204);
    assert_eq!(vmm.get("/v1/config").expect(200).json(), config);
    vmm.start_machine().expect(204);
    let mut vmm = vmm;
    assert!(vmm.wait().success());
    let console = std::fs::read(vmm.dir.path().join("console")).unwrap();
    let words = tine_tests::text(&console[16 + 4096..]);
    assert!(
        words.contains(" tine.root=/dev/vda tine.rootflags=ro "),
        "{words}"
    );
    assert!(words.contains(" one=1 root=/dev/vda ro -- two"), "{words}");
}
