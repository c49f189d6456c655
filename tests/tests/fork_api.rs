//! Forks through the socket of `tine-vmm`, with bare-metal guests: copies go on by themselves, and what
//! is wrong at one end harms nobody at the other.

use std::fs::{self, File};
use std::io::{IoSlice, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use serde_json::json;
use tine_tests::api::{Answer, Vmm};

fn fork(vmm: &Vmm, count: u32) -> PathBuf {
    let answer = vmm.request(
        "POST",
        "/v1/fork",
        Some(&json!({ "count": count }).to_string()),
    );
    let forked = answer.expect(201).json();
    assert_eq!(forked["count"], count);
    assert!(forked["pause_us"].as_u64() > Some(0));
    forked["socket"].as_str().unwrap().into()
}

fn take(socket: &Path) -> (Vmm, Answer) {
    let vmm = Vmm::start([] as [&str; 0]);
    let answer = vmm.put("/v1/restore", &json!({ "fork": socket }));
    (vmm, answer)
}

fn until(what: &str, holds: impl Fn() -> bool) {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < Duration::from_secs(30), "{what}");
        thread::yield_now();
    }
}

#[test]
fn copies_go_on_and_so_does_the_machine() {
    let vmm = Vmm::running("counting");
    vmm.goes_on();
    let socket = fork(&vmm, 3);
    let copies: Vec<_> = (0..3).map(|_| take(&socket)).collect();
    for (copy, answer) in &copies {
        answer.clone().expect(204);
        copy.goes_on();
    }
    vmm.goes_on();
    until("the socket is gone with the last copy", || !socket.exists());
    let (_, late) = take(&socket);
    let late = late.expect(400).body;
    assert!(late.contains(socket.to_str().unwrap()), "{late}");
}

#[test]
fn a_copy_of_a_copy_needs_neither() {
    let vmm = Vmm::running("counting");
    let (copy, answer) = take(&fork(&vmm, 1));
    answer.expect(204);
    vmm.request("DELETE", "/v1/machine", None).expect(202);
    drop(vmm);
    copy.goes_on();
    let socket = fork(&copy, 2);
    let (first, answer) = take(&socket);
    answer.expect(204);
    drop(copy);
    first.goes_on();
    let dir = first.dir.path().join("snapshot");
    let taken = first.put("/v1/snapshots", &json!({ "path": dir }));
    taken.expect(201);
    let generation = tine_snapshot::Snapshot::open(&dir).unwrap();
    assert_eq!(generation.manifest().generation, 2);
    // The second copy was to come from a process that is gone.
    let (_, late) = take(&socket);
    late.expect(400);
}

#[test]
fn copies_do_not_wait_for_ever() {
    let vmm = Vmm::running("counting");
    let socket = vmm.dir.path().join("other.sock");
    let body = json!({ "socket": socket, "timeout_ms": 50 }).to_string();
    let answer = vmm.request("POST", "/v1/fork", Some(&body)).expect(201);
    assert_eq!(answer.json()["socket"], json!(socket));
    until("time is up", || !socket.exists());
    let live = json!({ "socket": vmm.socket() }).to_string();
    let refused = vmm
        .request("POST", "/v1/fork", Some(&live))
        .expect(400)
        .body;
    assert!(refused.contains("api.sock"), "{refused}");
    for (field, value) in [
        ("count", json!(0)),
        ("count", json!(10_001)),
        ("socket", json!("relative")),
        ("timeout_ms", json!(0)),
        ("other", json!(1)),
    ] {
        let body = json!({ field: value }).to_string();
        let refused = vmm
            .request("POST", "/v1/fork", Some(&body))
            .expect(400)
            .body;
        assert!(refused.contains(&format!("`{field}`")), "{refused}");
    }
    vmm.goes_on();
}

/// How long the process of a machine that was deleted takes to end.
fn end_of(mut vmm: Vmm) -> Duration {
    let start = Instant::now();
    vmm.request("DELETE", "/v1/machine", None).expect(202);
    assert_eq!(vmm.wait().code(), Some(0));
    start.elapsed()
}

#[test]
fn a_machine_that_is_deleted_waits_for_nobody_who_may_come() {
    let vmm = Vmm::running("counting");
    let sockets = [fork(&vmm, 3), fork(&vmm, 2)];
    // One has come, and another one is still to.
    let (copy, answer) = take(&sockets[1]);
    answer.expect(204);
    let took = end_of(vmm);
    assert!(took < Duration::from_secs(8), "{took:?}");
    copy.goes_on();
    for socket in sockets {
        assert!(!socket.exists());
    }
}

#[test]
fn nor_long_for_those_who_have_come_and_stay() {
    for all in [false, true] {
        let vmm = Vmm::running("counting");
        let socket = fork(&vmm, 3);
        let comers = (0..if all { 3 } else { 2 }).map(|_| UnixStream::connect(&socket).unwrap());
        let comers: Vec<_> = comers.collect();
        for comer in &comers {
            // It is served.
            comer
                .set_read_timeout(Some(Duration::from_secs(30)))
                .unwrap();
            assert_eq!((&*comer).read(&mut [0]).unwrap(), 1);
        }
        let took = end_of(vmm);
        assert!(took < Duration::from_secs(8), "{took:?}");
    }
}

#[test]
fn each_that_is_taken_gives_the_next_one_time() {
    let vmm = Vmm::running("counting");
    let limit = Duration::from_millis(2000);
    let body = json!({ "count": 3, "timeout_ms": limit.as_millis() as u64 }).to_string();
    let forked = vmm.request("POST", "/v1/fork", Some(&body)).expect(201);
    let socket = PathBuf::from(forked.json()["socket"].as_str().unwrap());
    let start = Instant::now();
    for _ in 0..3 {
        // Time is what this is about.
        thread::sleep(limit / 2);
        let (_, answer) = take(&socket);
        answer.expect(204);
    }
    assert!(start.elapsed() >= limit * 3 / 2);
}

#[test]
fn those_who_come_and_go_harm_nobody() {
    let vmm = Vmm::running("counting");
    let body = json!({ "count": 5, "timeout_ms": 2000 }).to_string();
    let forked = vmm.request("POST", "/v1/fork", Some(&body)).expect(201);
    let socket = PathBuf::from(forked.json()["socket"].as_str().unwrap());
    // Gone before it is served, or after; some may never be served, and time goes by for them too.
    while socket.exists() {
        drop(UnixStream::connect(&socket));
    }
    let (copy, answer) = take(&fork(&vmm, 1));
    answer.expect(204);
    copy.goes_on();
    vmm.goes_on();
}

#[test]
fn only_machines_that_run_or_stand_still() {
    let created = Vmm::start([] as [&str; 0]);
    let refused = created
        .request("POST", "/v1/fork", Some("{}"))
        .expect(409)
        .body;
    assert!(refused.contains("before starting"), "{refused}");
    let paused = Vmm::running("counting");
    paused
        .patch("/vm", &json!({ "state": "Paused" }))
        .expect(204);
    let socket = fork(&paused, 1);
    let (copy, answer) = take(&socket);
    answer.expect(204);
    copy.goes_on();
    assert_eq!(paused.state(), "paused");
    let both = json!({ "fork": socket, "snapshot": "/nowhere" });
    let vmm = Vmm::start([] as [&str; 0]);
    let refused = vmm.put("/v1/restore", &both).expect(400).body;
    assert!(refused.contains("`fork`"), "{refused}");
    let refused = vmm.put("/v1/restore", &json!({})).expect(400).body;
    assert!(refused.contains("`snapshot`"), "{refused}");
}

/// Answers one connection with bytes and descriptors.
fn serve(path: &Path, bytes: Vec<u8>, files: Vec<File>) -> thread::JoinHandle<()> {
    let _ = fs::remove_file(path);
    let listener = UnixListener::bind(path).unwrap();
    thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        if files.is_empty() {
            stream.write_all(&bytes).unwrap();
            return;
        }
        let fds: Vec<BorrowedFd<'_>> = files.iter().map(File::as_fd).collect();
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(250))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        assert!(control.push(SendAncillaryMessage::ScmRights(&fds)));
        let parts = [IoSlice::new(&bytes)];
        sendmsg(&stream, &parts, &mut control, SendFlags::empty()).unwrap();
    })
}

#[test]
fn what_makes_no_sense_is_refused_and_the_process_can_be_told_better() {
    let head = |count: u32| [b"TINEFORK".as_slice(), &count.to_le_bytes()].concat();
    let null = || File::open("/dev/null").unwrap();
    let regular = |content: &[u8]| {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(content).unwrap();
        file
    };
    let huge = tempfile::tempfile().unwrap();
    huge.set_len(1 << 40).unwrap();
    let real = {
        let vmm = Vmm::running("counting");
        fork(&vmm, 1)
    };
    assert!(!real.exists());
    let cases: Vec<(Vec<u8>, Vec<File>)> = vec![
        (Vec::new(), Vec::new()),
        (b"HTTP/1.1 200 OK\r\n\r\n".to_vec(), Vec::new()),
        (head(1), Vec::new()),
        (head(0), vec![null()]),
        (head(u32::MAX), vec![null()]),
        (head(2), vec![null()]),
        (head(1), vec![null(), null()]),
        (head(1)[..9].to_vec(), vec![null()]),
        (head(1), vec![null()]),
        (head(1), vec![regular(b"")]),
        (head(1), vec![regular(&[0xff; 4096])]),
        (head(1), vec![huge]),
        (head(200), (0..200).map(|_| null()).collect()),
    ];
    let vmm = Vmm::start([] as [&str; 0]);
    let fds = || {
        fs::read_dir(format!("/proc/{}/fd", vmm.child.id()))
            .unwrap()
            .count()
    };
    let mut settled = 0;
    for (n, (bytes, files)) in cases.into_iter().enumerate() {
        let path = vmm.dir.path().join("hostile.sock");
        let server = serve(&path, bytes, files);
        let refused = vmm
            .put("/v1/restore", &json!({ "fork": path }))
            .expect(400)
            .body;
        assert!(refused.contains("hostile.sock"), "{n}: {refused}");
        server.join().unwrap();
        if n == 0 {
            settled = fds();
        }
    }
    until("no descriptor is left", || fds() <= settled);
    assert_eq!(vmm.state(), "created");
    let good = Vmm::running("counting");
    let body = json!({ "fork": fork(&good, 1) });
    vmm.put("/v1/restore", &body).expect(204);
    vmm.goes_on();
}
