//! Everything that can be asked of a machine while its guest runs, on one machine: it works with
//! the filters on, and it is what the rules of `jail_rules` are derived from.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::process::Command;
use std::time::Duration;

use serde_json::{Value, json};
use tempfile::TempDir;
use tine_tests::api::{Vmm, tine_vmm};
use tine_tests::jail::require_root;
use tine_tests::linux::image;

const LONG: Duration = Duration::from_secs(600);

/// A command line as [`Vmm::command`] makes it, in a network of its own with the interface `tap0`.
fn command(dir: &TempDir) -> Command {
    let script = "ip tuntap add tap0 mode tap && ip link set tap0 up && \
                  ip addr add 172.16.0.1/24 dev tap0 && exec \"$@\"";
    let inner = Vmm::command(dir.path());
    let mut command = Command::new("unshare");
    command.args(["--net", "sh", "-c", script, "sh"]);
    command.arg(tine_vmm()).args(inner.get_args());
    command.stdin(std::process::Stdio::null());
    command.stdout(std::process::Stdio::piped());
    command.stderr(std::process::Stdio::piped());
    command
}

fn boot(dir: TempDir) -> Vmm {
    let (kernel, initramfs) = image();
    let path = |name: &str| dir.path().join(name);
    for name in ["a.img", "b.img", "c.img"] {
        std::fs::File::create(path(name))
            .unwrap()
            .set_len(32 << 20)
            .unwrap();
    }
    let (a, b, c) = (path("a.img"), path("b.img"), path("c.img"));
    let (vsock, metrics, log) = (path("vsock"), path("metrics"), path("log"));
    let child = command(&dir).spawn().expect("unshare can be started");
    let vmm = Vmm::adopt(child, dir);
    let limit = json!({"bandwidth": {"size": 4 << 20, "refill_time": 100}});
    for (what, body) in [
        ("/logger", json!({"log_path": log, "level": "Info"})),
        ("/metrics", json!({"metrics_path": metrics})),
        (
            "/boot-source",
            json!({"kernel_image_path": kernel, "initrd_path": initramfs}),
        ),
        (
            "/machine-config",
            json!({"vcpu_count": 1, "mem_size_mib": 128}),
        ),
        ("/vsock", json!({"guest_cid": 3, "uds_path": vsock})),
        (
            "/balloon",
            json!({"amount_mib": 0, "deflate_on_oom": true, "stats_polling_interval_s": 1}),
        ),
        ("/entropy", json!({})),
        ("/mmds", json!({"key": "value"})),
    ] {
        vmm.put(what, &body).expect(204);
    }
    for (id, path, read_only) in [("a", &a, false), ("b", &b, false), ("c", &c, true)] {
        let drive = json!({"drive_id": id, "path_on_host": path, "is_root_device": false,
            "is_read_only": read_only, "rate_limiter": limit, "cache_type": "Writeback"});
        vmm.put(&format!("/drives/{id}"), &drive).expect(204);
    }
    let net = json!({"iface_id": "eth0", "host_dev_name": "tap0", "rx_rate_limiter": limit});
    vmm.put("/network-interfaces/eth0", &net).expect(204);
    let mmds = json!({"network_interfaces": ["eth0"], "version": "V1"});
    vmm.put("/mmds/config", &mmds).expect(204);
    vmm.start_machine().expect(204);
    let answer = long(&vmm, "GET", "/v1/machine?wait=running&timeout=600s", "");
    assert!(answer.contains(r#""state":"running""#), "{answer}");
    vmm
}

/// A request that may take its time.
fn long(vmm: &Vmm, method: &str, path: &str, body: &str) -> String {
    let mut stream = vmm.connect();
    stream.set_read_timeout(Some(LONG)).unwrap();
    let head = format!(
        "{method} {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(head.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

/// Runs a shell script in the guest, which has to end with status 0.
fn sh(vmm: &Vmm, id: &str, script: &str) -> String {
    let exec = json!({"request_id": id, "argv": ["sh", "-c", script]}).to_string();
    let answer = long(vmm, "POST", "/v1/exec", &exec);
    let (_, body) = answer.split_once("\r\n\r\n").unwrap_or_default();
    let record: Value = serde_json::from_str(body).unwrap_or_else(|err| panic!("{err}: {answer}"));
    assert_eq!(record["exit_code"], 0, "{script}: {record}");
    record["stdout"].as_str().unwrap_or_default().to_owned()
}

#[test]
fn everything_that_can_be_asked_of_a_running_machine() {
    require_root();
    let vmm = boot(TempDir::new().unwrap());
    disks(&vmm);
    network(&vmm);
    memory(&vmm);
    sockets(&vmm);
    for (path, body) in [
        ("/mmds", json!({"key": "other"})),
        ("/actions", json!({"action_type": "FlushMetrics"})),
    ] {
        vmm.put(path, &body).expect(204);
    }
    vmm.patch("/mmds", &json!({"more": "1"})).expect(204);
    for path in [
        "/",
        "/version",
        "/vm/config",
        "/machine-config",
        "/mmds",
        "/balloon",
        "/v1/machine",
        "/v1/config",
        "/v1/metrics",
        "/v1/health",
        "/v1/processes",
    ] {
        let answer = long(&vmm, "GET", path, "");
        assert!(answer.starts_with("HTTP/1.1 200"), "{path}: {answer}");
    }
    vmm.patch("/vm", &json!({"state": "Paused"})).expect(204);
    vmm.patch("/vm", &json!({"state": "Resumed"})).expect(204);
    vmm.put("/actions", &json!({"action_type": "SendCtrlAltDel"}))
        .expect(204);
    let mut vmm = vmm;
    let start = std::time::Instant::now();
    while vmm.child.try_wait().unwrap().is_none() {
        assert!(start.elapsed() < LONG, "the guest goes on");
        std::thread::sleep(Duration::from_millis(20));
    }
    let (_, errors) = vmm.output();
    assert!(vmm.wait().success(), "{errors}");
}

fn disks(vmm: &Vmm) {
    sh(
        vmm,
        "write",
        "dd if=/dev/zero of=/dev/vda bs=64k count=64 conv=fsync; sync",
    );
    sh(
        vmm,
        "read",
        "dd if=/dev/vda of=/dev/null bs=64k count=64 iflag=direct; \
        dd if=/dev/vdc of=/dev/null bs=4k count=4",
    );
    sh(
        vmm,
        "discard",
        "busybox blkdiscard -o 0 -l 1048576 /dev/vda; true",
    );
    let other = vmm.dir.path().join("d.img");
    std::fs::File::create(&other)
        .unwrap()
        .set_len(16 << 20)
        .unwrap();
    // As after a machine that was killed, whose locks go a moment after it.
    let held = std::fs::File::open(&other).unwrap();
    held.lock().unwrap();
    let letting_go = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(100));
        drop(held);
    });
    let swap = json!({"drive_id": "b", "path_on_host": other,
        "rate_limiter": {"ops": {"size": 1000, "refill_time": 100}}});
    vmm.patch("/drives/b", &swap).expect(204);
    letting_go.join().unwrap();
    assert_eq!(sh(vmm, "size", "cat /sys/block/vdb/size").trim(), "32768");
}

fn network(vmm: &Vmm) {
    sh(
        vmm,
        "net",
        "busybox ip addr add 172.16.0.2/24 dev eth0; busybox ip link set eth0 up; \
        busybox ip route add 169.254.169.254 dev eth0; ping -c 1 -W 60 172.16.0.1 && \
        printf 'GET /key HTTP/1.0\\r\\n\\r\\n' | nc -w 60 169.254.169.254 80",
    );
    let patch = json!({"iface_id": "eth0",
        "tx_rate_limiter": {"bandwidth": {"size": 1 << 20, "refill_time": 100}}});
    vmm.patch("/network-interfaces/eth0", &patch).expect(204);
}

fn memory(vmm: &Vmm) {
    vmm.patch("/balloon", &json!({"amount_mib": 8})).expect(204);
    sh(vmm, "wait", "sleep 2");
    vmm.patch("/balloon", &json!({"amount_mib": 0})).expect(204);
    vmm.get("/balloon/statistics").expect(200);
    vmm.patch(
        "/balloon/statistics",
        &json!({"stats_polling_interval_s": 2}),
    )
    .expect(204);
}

/// A host program's way to a guest port, files both ways, and a guest port through the API.
fn sockets(vmm: &Vmm) {
    let mut stream = UnixStream::connect(vmm.dir.path().join("vsock")).unwrap();
    stream.set_read_timeout(Some(LONG)).unwrap();
    stream.write_all(b"CONNECT 1024\n").unwrap();
    let mut reader = BufReader::new(stream.try_clone().unwrap());
    let mut line = String::new();
    // Whether anybody listens there does not matter: it is the guest that answers.
    let _ = reader.read_line(&mut line);
    let bytes = "x".repeat(100_000);
    let put = long(vmm, "PUT", "/v1/files/content?path=/tmp/f", &bytes);
    assert!(put.starts_with("HTTP/1.1 2"), "{put}");
    let got = long(vmm, "GET", "/v1/files/content?path=/tmp/f", "");
    assert!(got.ends_with(&bytes[..1000]));
    sh(
        vmm,
        "serve",
        "(echo hello | busybox nc -l -p 8080 >/dev/null 2>&1 &) ; sleep 1",
    );
    let mut stream = vmm.connect();
    stream.set_read_timeout(Some(LONG)).unwrap();
    let head =
        "GET /v1/ports/8080 HTTP/1.1\r\nHost: x\r\nConnection: upgrade\r\nUpgrade: tcp\r\n\r\n";
    stream.write_all(head.as_bytes()).unwrap();
    let mut answer = [0; 12];
    stream.read_exact(&mut answer).unwrap();
    assert!(answer.starts_with(b"HTTP/1.1"), "{answer:?}");
}
