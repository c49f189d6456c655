//! The agent after a restore, and around a copy of the disks, in a real guest. What a restore does to the guest's
//! vsock (a transport reset) is done without one here. One boot for all; a reset cuts every connection, so the tests
//! take turns.

use std::io::Write;
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};
use tine::agent::{Hellos, freeze, refresh, thaw};
use tine_guest_agent::octets::Octets;
use tine_guest_agent::refresh::{NewFile, Refresh};
use tine_guest_agent::{AGENT_PORT, STREAM_UPGRADE};
use tine_tests::linux::Guest;
use tine_tests::text;

fn guest() -> (MutexGuard<'static, ()>, &'static Guest) {
    static TURN: Mutex<()> = Mutex::new(());
    let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    (turn, Guest::shared())
}

fn soon() -> Instant {
    Instant::now() + Duration::from_secs(300)
}

/// A request for the next generation.
fn wanted() -> Refresh {
    static LAST: AtomicU64 = AtomicU64::new(0);
    Refresh {
        generation: LAST.fetch_add(1, Ordering::Relaxed) + 1,
        entropy: Octets(vec![0xa5; 48]),
        ..Refresh::default()
    }
}

#[test]
fn after_a_reset_a_refresh_makes_a_machine_of_its_own() {
    let (_turn, guest) = guest();
    let vsock = guest.machine.vsock();
    // A reader that does not read holds its command up ...
    let mut reader = vsock.connect(AGENT_PORT).unwrap();
    let script = "yes | head -c 2000000; echo done >/tmp/done";
    let body = json!({ "request_id": "held-up", "argv": ["sh", "-c", script] }).to_string();
    let head = format!(
        "POST /v1/exec HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: {STREAM_UPGRADE}\r\n\
         Content-Length: {}\r\n\r\n{body}",
        body.len()
    );
    reader.write_all(head.as_bytes()).unwrap();
    guest.out("date -s 2020-01-01");
    assert_eq!(guest.out("ls /tmp/done 2>/dev/null || echo held"), "held");
    let hellos = Hellos::listen(vsock).unwrap();
    vsock.transport_reset();
    let mut request = wanted();
    request.hostname = Some("child-4".to_owned());
    request.machine_id = Some("f".repeat(32));
    request.env = Some([("FROM".to_owned(), "the host".into())].into());
    request.files = vec![NewFile {
        path: "/etc/tine/greeting".into(),
        mode: Some(0o640),
        content: "hi".into(),
    }];
    let begun = Instant::now();
    let hello = refresh(vsock, &request, soon()).unwrap();
    println!("the refresh took {:?}", begun.elapsed());
    assert_eq!(hello.generation, request.generation);
    let shown = "cat /run/tine/generation /etc/machine-id; hostname; echo $FROM; \
                 cat /etc/tine/greeting; stat -c %a /etc/tine/greeting";
    let shown = guest.out(&format!("busybox sh -c '{shown}'"));
    assert_eq!(
        shown,
        format!(
            "{}\n{}\nchild-4\nthe host\nhi640",
            hello.generation,
            "f".repeat(32)
        )
    );
    // ... until it is known to be gone.
    let (status, record) = guest.ask("GET", "/v1/exec/held-up?wait", "");
    let record: Value = serde_json::from_str(&record).unwrap();
    assert_eq!(
        (status, &record["state"]),
        (200, &json!("exited")),
        "{record}"
    );
    assert_eq!(record["inherited"], true);
    drop(reader);
    // In its own time, maybe even before the refresh, the agent says hello as well; each time that it can.
    let (early, connection) = hellos.next().unwrap();
    drop(connection);
    let (again, connection) = hellos.next().unwrap();
    assert_eq!(
        (again.hellos, again.boot_id),
        (early.hellos + 1, hello.boot_id)
    );
    assert_eq!(again.generation, hello.generation);
    drop(connection);
}

/// Field case 40.
#[test]
fn the_clock_is_the_hosts_again() {
    let (_turn, guest) = guest();
    guest.out("date -s 2020-01-01");
    let now = || {
        SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap()
            .as_millis() as i128
    };
    refresh(guest.machine.vsock(), &wanted(), soon()).unwrap();
    let before = now();
    let (status, info) = guest.ask(
        "POST",
        "/v1/exec",
        &json!({ "request_id": "clock", "argv": ["touch", "/tmp/now"] }).to_string(),
    );
    assert_eq!(status, 200, "{info}");
    let after = now();
    let (_, info) = guest.ask("GET", "/v1/files/stat?path=/tmp/now", "");
    let info: Value = serde_json::from_str(&info).unwrap();
    let there = i128::from(info["modified_ms"].as_i64().unwrap());
    // The refresh's own way into the guest is what it lags behind.
    assert!(
        (before - 500..=after + 500).contains(&there),
        "{before} {there} {after}"
    );
}

#[test]
fn random_numbers_differ_though_all_else_is_equal() {
    let (_turn, guest) = guest();
    let read = || guest.out("head -c 16 /dev/urandom | md5sum");
    let mut request = wanted();
    refresh(guest.machine.vsock(), &request, soon()).unwrap();
    let one = read();
    request.entropy = Octets(vec![0x5a; 48]);
    refresh(guest.machine.vsock(), &request, soon()).unwrap();
    assert_ne!(one, read());
}

#[test]
fn a_frozen_disk_can_be_copied_and_writes_wait() {
    let (_turn, guest) = guest();
    let vsock = guest.machine.vsock();
    let image = guest.dir.path().join("writable.img");
    let made = Command::new("mkfs.ext4")
        .args(["-q", "-F", "-m", "0"])
        .arg(&image)
        .status();
    assert!(made.expect("mkfs.ext4 (package e2fsprogs)").success());
    guest.out("mkdir -p /disk && mount -t ext4 /dev/vda /disk && echo before >/disk/file");
    let frozen = freeze(vsock, Duration::from_secs(60), soon()).unwrap();
    assert_eq!(
        (frozen.frozen, frozen.synced),
        (vec!["/disk".into()], vec![])
    );
    let late = json!({ "request_id": "late", "argv": ["sh", "-c", "echo late >/disk/late"] });
    let (status, record) = guest.ask("POST", "/v1/exec?wait=3000", &late.to_string());
    assert_eq!(status, 202, "it cannot have ended: {record}");
    // Whole without its journal being replayed.
    let copy = guest.dir.path().join("copy.img");
    std::fs::copy(&image, &copy).unwrap();
    let checked = Command::new("e2fsck")
        .arg("-fn")
        .arg(&copy)
        .output()
        .unwrap();
    assert!(checked.status.success(), "{}", text(&checked.stdout));
    let dump = |name: &str| {
        let show = format!("cat {name}");
        let output = Command::new("debugfs")
            .arg("-R")
            .arg(show)
            .arg(&copy)
            .output()
            .unwrap();
        text(&output.stdout)
    };
    assert_eq!(
        (dump("/file"), dump("/late")),
        ("before\n".to_owned(), String::new())
    );
    assert!(thaw(vsock, soon()).unwrap().held);
    let (status, record) = guest.ask("GET", "/v1/exec/late?wait", "");
    let record: Value = serde_json::from_str(&record).unwrap();
    assert_eq!((status, &record["exit_code"]), (200, &json!(0)), "{record}");
    // Without anybody to thaw it, it thaws by itself.
    freeze(vsock, Duration::from_secs(5), soon()).unwrap();
    assert_eq!(
        guest.out("echo again >/disk/again && cat /disk/again"),
        "again"
    );
    assert!(!thaw(vsock, soon()).unwrap().held);
    guest.out("umount /disk");
}
