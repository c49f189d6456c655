//! Ten thousand requests of all kinds, many of them cut off somewhere, leave the process as it
//! was.

use std::io::{Read, Write};
use std::net::Shutdown;
use std::thread;
use std::time::{Duration, Instant};

use tine_tests::api::Vmm;

const REQUESTS: usize = 10_000;

/// Numbers that look random, the same in every run.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005);
        self.0 = self.0.wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % bound
    }
}

fn request(method: &str, path: &str, body: &str) -> Vec<u8> {
    let length = body.len();
    format!("{method} {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {length}\r\n\r\n{body}").into()
}

fn kinds() -> Vec<Vec<u8>> {
    let mut kinds = vec![
        request("GET", "/", ""),
        request("GET", "/v1/machine", ""),
        request("GET", "/vm/config", ""),
        request("GET", "/v1/metrics", ""),
        request("GET", "/v1/events", ""),
        request("GET", "/v1/machine?wait=running&timeout=20ms", ""),
        request("GET", "/nowhere", ""),
        request("POST", "/v1/exec", r#"{"request_id":"r","argv":["true"]}"#),
        request(
            "PUT",
            "/machine-config",
            r#"{"vcpu_count":1,"mem_size_mib":1}"#,
        ),
        request("PATCH", "/vm", r#"{"state":"Paused"}"#),
        request("PATCH", "/vm", r#"{"state":"Resumed"}"#),
        request("PUT", "/mmds", r#"{"a":{"b":"c"}}"#),
        request("PUT", "/actions", "{nonsense"),
        b"nonsense\r\n\r\n".to_vec(),
        b"GET / HTTP/1.1\r\nContent-Length: 99999999999999999999\r\n\r\n".to_vec(),
    ];
    kinds.push(kinds[..4].concat());
    kinds
}

/// Descriptors, threads, resident KiB.
fn figures(pid: u32) -> (usize, usize, u64) {
    let count = |what| {
        std::fs::read_dir(format!("/proc/{pid}/{what}"))
            .unwrap()
            .count()
    };
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:"));
    let resident = line.and_then(|line| line.split_ascii_whitespace().nth(1));
    (
        count("fd"),
        count("task"),
        resident.unwrap().parse().unwrap(),
    )
}

fn storm(vmm: &Vmm, seed: u64, requests: usize) {
    let (kinds, mut numbers) = (kinds(), Numbers(seed));
    let mut open = Vec::new();
    for _ in 0..requests {
        let kind = &kinds[numbers.below(kinds.len())];
        let mut stream = vmm.connect();
        let cut = match numbers.below(2) {
            0 => kind.len(),
            _ => numbers.below(kind.len()),
        };
        // The server may have closed already, for want of room.
        let _ = stream.write_all(&kind[..cut]);
        match numbers.below(4) {
            0 => drop(stream.shutdown(Shutdown::Write)),
            // Nobody answers half a request.
            1 if cut == kind.len() => drop(stream.read(&mut [0; 64])),
            _ => {}
        }
        // Some stay open for a while.
        open.push(stream);
        if open.len() > 20 {
            open.swap_remove(numbers.below(20));
        }
    }
}

/// From four clients at the same time.
fn storms(vmm: &Vmm, requests: usize) {
    thread::scope(|scope| {
        for seed in 0..4 {
            scope.spawn(move || storm(vmm, seed, requests / 4));
        }
    });
}

#[test]
fn ten_thousand_requests_cut_at_random_leave_nothing_behind() {
    let vmm = Vmm::running("hang");
    // What is made once and kept, such as buffers and the threads for files, is not a leak.
    storms(&vmm, REQUESTS / 4);
    thread::sleep(Duration::from_millis(500));
    let before = figures(vmm.child.id());
    storms(&vmm, REQUESTS);
    vmm.get("/").expect(200);
    let start = Instant::now();
    loop {
        let after = figures(vmm.child.id());
        let settled = after.0 <= before.0 && after.1 <= before.1;
        if settled && after.2 < before.2 + 2048 {
            return;
        }
        assert!(
            start.elapsed() < Duration::from_secs(40),
            "descriptors, threads, KiB: {before:?}, then {after:?}"
        );
        thread::sleep(Duration::from_millis(200));
    }
}
