//! Cases from the field about commands and files, and the promise that a request runs once, in a real guest by the
//! machine's own socket. The numbers are the cases'; ARCHITECTURE.md has a table of them.

use std::collections::HashSet;
use std::io::Write;
use std::net::Shutdown;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tine_guest_agent::octets::decode_base64;
use tine_tests::api::Vmm;
use tine_tests::linux::image;
use tine_tests::streams::{Whole, upgrade};

/// Where guest kernels are interpreted and processors shared, a command takes seconds.
const PATIENCE: Duration = Duration::from_secs(300);

/// One boot for all: it takes many seconds where guest kernels are interpreted, and the machine is to be removed
/// whatever happens.
#[test]
fn cases_from_the_field_in_a_real_guest() {
    let guest = Guest::boot();
    let cases: [Case; 12] = [
        ("60: a background child", background_children),
        ("61: a time limit", a_time_limit_ends_the_tree),
        ("64: no zombies", orphans_are_reaped),
        ("65: a signal", a_signal_is_reported),
        ("67, 68: no start", what_cannot_be_started_says_why),
        ("70: side by side", a_long_command_holds_up_no_other),
        ("71: bytes", bytes_are_exact),
        ("72: input", no_input_is_empty_input),
        ("50 clients", one_request_of_fifty_clients_runs_once),
        ("77: files", files_of_all_sizes_arrive),
        ("69: much output", much_output_streamed_and_collected),
        ("memory", the_agents_memory_is_bounded),
    ];
    for (name, case) in cases {
        let begun = Instant::now();
        case(&guest);
        println!("{name}: {:.1?}", begun.elapsed());
    }
}

/// What a case is called, and what it does.
type Case = (&'static str, fn(&Guest));

struct Guest(Vmm);

impl Guest {
    fn boot() -> Self {
        let (kernel, initramfs) = image();
        let vmm = Vmm::start([] as [&str; 0]);
        let config = json!({ "kernel": kernel, "initrd": initramfs, "memory_mib": 192 });
        vmm.put("/v1/config", &config).expect(204);
        vmm.start_machine().expect(204);
        vmm.wait_until_running();
        Self(vmm)
    }

    /// A request with an id of its own.
    fn request(argv: &[&str], more: Value) -> Value {
        static NUMBER: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let mut request = json!({ "request_id": format!("case-{number}"), "argv": argv });
        for (name, value) in more.as_object().expect("fields") {
            request[name] = value.clone();
        }
        request
    }

    /// Runs a command to its end.
    fn exec(&self, argv: &[&str], more: Value) -> Value {
        let request = Self::request(argv, more).to_string();
        let answer = self.0.guest_request("POST", "/v1/exec", request.as_bytes());
        answer.expect(200).json()
    }

    fn sh(&self, script: &str, more: Value) -> Value {
        self.exec(&["sh", "-c", script], more)
    }

    /// Runs a command as a stream, with input if there is some.
    fn stream(&self, argv: &[&str], input: Option<&[u8]>) -> Whole {
        let request = Self::request(argv, json!({ "stdin": input.is_some() }));
        let mut stream = self.0.connect();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.write_all(&upgrade("/v1/exec", &request)).unwrap();
        if let Some(input) = input {
            Whole::feed(&mut stream, input);
        }
        Whole::read(&mut stream)
    }

    fn processes(&self) -> Vec<Value> {
        let answer = self.0.guest_request("GET", "/v1/processes", b"");
        answer.expect(200).json().as_array().unwrap().clone()
    }

    /// Processes whose command line has this in it.
    fn running(&self, words: &str) -> usize {
        let has = |process: &&Value| process["command"].as_str().unwrap().contains(words);
        self.processes().iter().filter(has).count()
    }

    /// The agent's peak of resident memory, in KiB.
    fn agents_peak(&self) -> u64 {
        let status = self.0.guest_bytes("/v1/files/content?path=/proc/1/status");
        let status = String::from_utf8(status).unwrap();
        let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
        peak.unwrap()
            .trim()
            .trim_end_matches(" kB")
            .parse()
            .unwrap()
    }

    fn put_file(&self, path: &str, mode: &str, content: &[u8]) {
        let target = format!("/v1/files/content?path={path}&mode={mode}");
        self.0.guest_request("PUT", &target, content).expect(200);
    }
}

/// Exact bytes of a record's output.
fn output(record: &Value, name: &str) -> Vec<u8> {
    let text = record[name].as_str().unwrap();
    match record[format!("{name}_encoding")].as_str().unwrap() {
        "utf-8" => text.as_bytes().to_vec(),
        "base64" => decode_base64(text).unwrap(),
        other => panic!("{other}"),
    }
}

fn background_children(guest: &Guest) {
    let begun = Instant::now();
    let record = guest.sh("sleep 3001 & echo hi", json!({}));
    assert_eq!(
        (&record["stdout"], &record["exit_code"]),
        (&json!("hi\n"), &json!(0))
    );
    assert!(begun.elapsed() < Duration::from_secs(3000));
    assert_eq!(guest.running("sleep 3001"), 1, "it is kept");
    let record = guest.sh("sleep 3002 & echo hi", json!({ "background": "kill" }));
    assert_eq!(
        (&record["stdout"], &record["exit_code"]),
        (&json!("hi\n"), &json!(0))
    );
    assert_eq!(guest.running("sleep 3002"), 0, "it is killed");
}

fn a_time_limit_ends_the_tree(guest: &Guest) {
    let record = guest.sh("sleep 3003 & wait", json!({ "timeout_ms": 50 }));
    assert_eq!(record["state"], "timed_out", "{record}");
    // Time enough for the output where guests are interpreted: the limit counts from the acceptance.
    let script = "echo so far; setsid sleep 3003 & wait";
    let record = guest.sh(script, json!({ "timeout_ms": 10_000 }));
    assert_eq!(record["state"], "timed_out", "{record}");
    assert_eq!(record["stdout"], "so far\n");
    assert!(record["reason"].as_str().unwrap().contains("10000 ms"));
    assert_eq!(guest.running("sleep 3003"), 0);
    assert_eq!(guest.0.state(), "running");
}

fn orphans_are_reaped(guest: &Guest) {
    // A hundred times a shell that ends before its child, which the agent then gets.
    let script = "i=0; while [ $i -lt 100 ]; do (sleep 0.1 &); i=$((i+1)); done";
    let record = guest.sh(script, json!({}));
    assert_eq!(record["exit_code"], 0, "{record}");
    let begun = Instant::now();
    while guest.running("sleep 0.1") > 0 {
        assert!(begun.elapsed() < PATIENCE);
    }
    let zombies: Vec<Value> = guest
        .processes()
        .into_iter()
        .filter(|process| process["state"] == "Z")
        .collect();
    assert!(zombies.is_empty(), "{zombies:?}");
}

fn a_signal_is_reported(guest: &Guest) {
    let record = guest.sh("kill -9 $$", json!({}));
    assert_eq!(
        (&record["state"], &record["signal"]),
        (&json!("killed"), &json!(9))
    );
    // As a shell says it: 128 and the number.
    let record = guest.sh("sh -c 'kill -9 $$'; exit $?", json!({}));
    assert_eq!(
        (&record["state"], &record["exit_code"]),
        (&json!("exited"), &json!(137))
    );
}

fn what_cannot_be_started_says_why(guest: &Guest) {
    guest.put_file("/tmp/script", "755", b"#!/no/such/interpreter -x\n");
    guest.put_file("/tmp/plain", "644", b"echo hi\n");
    for (program, code, word) in [
        ("no-such-program", 127, "no-such-program"),
        ("/no/such/program", 127, "/no/such/program"),
        ("/tmp/script", 127, "/no/such/interpreter"),
        ("/tmp/plain", 126, "/tmp/plain"),
        ("/tmp", 126, "/tmp"),
    ] {
        let record = guest.exec(&[program], json!({}));
        assert_eq!(
            (&record["state"], &record["exit_code"]),
            (&json!("failed"), &json!(code))
        );
        let reason = record["reason"].as_str().unwrap();
        assert!(reason.contains(word), "{reason}");
    }
    let record = guest.exec(&["true"], json!({ "cwd": "/no/such/place" }));
    assert_eq!(record["state"], "failed");
    let reason = record["reason"].as_str().unwrap();
    assert!(reason.contains("/no/such/place"), "{reason}");
}

fn a_long_command_holds_up_no_other(guest: &Guest) {
    let long = Guest::request(&["sleep", "3004"], json!({}));
    let body = long.to_string();
    let answer = guest
        .0
        .guest_request("POST", "/v1/exec?wait=false", body.as_bytes());
    answer.expect(202);
    assert_eq!(guest.sh("echo beside", json!({}))["stdout"], "beside\n");
    let path = format!("/v1/exec/{}", long["request_id"].as_str().unwrap());
    assert_eq!(guest.0.get(&path).expect(200).json()["state"], "running");
    let ended = guest
        .0
        .guest_request("DELETE", &path, b"")
        .expect(200)
        .json();
    assert_eq!(ended["state"], "killed");
}

fn bytes_are_exact(guest: &Guest) {
    let record = guest.sh("printf '\\xff'", json!({}));
    assert_eq!(record["stdout_encoding"], "base64");
    assert_eq!(output(&record, "stdout"), b"\xff");
    // Two bytes a character, and cut within one.
    let text = "\u{e9}".repeat(40_000).into_bytes();
    let text = &text[..(64 << 10) + 1];
    guest.put_file("/tmp/text", "644", text);
    let record = guest.exec(&["cat", "/tmp/text"], json!({}));
    assert!(output(&record, "stdout") == text);
    let whole = guest.stream(&["cat", "/tmp/text"], None);
    assert!(whole.stdout == text, "{} bytes", whole.stdout.len());
    // Whole characters stay text.
    let script = "head -c 65536 /tmp/text";
    let record = guest.sh(script, json!({}));
    assert_eq!(record["stdout_encoding"], "utf-8");
    assert!(output(&record, "stdout") == text[..64 << 10]);
}

fn no_input_is_empty_input(guest: &Guest) {
    let record = guest.exec(&["cat"], json!({}));
    assert_eq!(
        (&record["stdout"], &record["exit_code"]),
        (&json!(""), &json!(0))
    );
    let four = b"\x00\x01\x02\xff";
    let whole = guest.stream(&["wc", "-c"], Some(four));
    assert_eq!(whole.stdout.trim_ascii(), b"4");
    let input = json!({ "input": { "base64": "AAEC/w==" } });
    let record = guest.exec(&["wc", "-c"], input);
    assert_eq!(record["stdout"].as_str().unwrap().trim(), "4");
}

/// Small numbers that look random and are the same in every run.
struct Dice(u64);

impl Dice {
    fn below(&mut self, most: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % most
    }
}

/// Fifty clients send the same at once, plainly or for a stream; most connections are cut somewhere, within the
/// request or while the answer is waited for, and those clients come again until they know the result.
fn one_request_of_fifty_clients_runs_once(guest: &Guest) {
    let script = "echo ran >> /tmp/once; sleep 1; echo done; exit 5";
    let request = json!({ "request_id": "fifty", "argv": ["sh", "-c", script] });
    let body = request.to_string();
    let plain = format!(
        "POST /v1/exec HTTP/1.1\r\nHost: x\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    );
    let streamed = upgrade("/v1/exec", &request);
    let start = std::sync::Barrier::new(50);
    let client = |number: u64| {
        let mut dice = Dice(number.wrapping_mul(0x9e37_79b9_7f4a_7c15) + 1);
        let mut cuts = 0;
        start.wait();
        loop {
            let bytes = match dice.below(2) {
                0 => plain.as_bytes(),
                _ => streamed.as_slice(),
            };
            let mut stream = guest.0.connect();
            let fate = dice.below(4);
            if cuts >= 4 || fate == 3 {
                break;
            }
            if fate == 0 {
                // Within the request.
                let part = dice.below(bytes.len() as u64) as usize;
                let _ = stream.write_all(&bytes[..part]);
            } else {
                // While the answer is waited for.
                let _ = stream.write_all(bytes);
                let wait = Duration::from_millis(1 + dice.below(400));
                stream.set_read_timeout(Some(wait)).unwrap();
                let _ = std::io::Read::read(&mut stream, &mut [0; 64]);
            }
            let _ = stream.shutdown(Shutdown::Both);
            cuts += 1;
        }
        // And now to the end.
        let answer = guest.0.guest_request("POST", "/v1/exec", body.as_bytes());
        (cuts, answer.expect(200).json())
    };
    let answers: Vec<(u32, Value)> = std::thread::scope(|scope| {
        let clients: Vec<_> = (0..50)
            .map(|number| scope.spawn(move || client(number)))
            .collect();
        clients
            .into_iter()
            .map(|client| client.join().unwrap())
            .collect()
    });
    let cuts: u32 = answers.iter().map(|(cuts, _)| cuts).sum();
    assert!(cuts > 50, "only {cuts} connections were cut");
    let records: HashSet<String> = answers
        .iter()
        .map(|(_, record)| record.to_string())
        .collect();
    assert_eq!(records.len(), 1, "{records:?}");
    assert_eq!(answers[0].1["exit_code"], 5);
    assert_eq!(answers[0].1["stdout"], "done\n");
    let record = guest.exec(&["cat", "/tmp/once"], json!({}));
    assert_eq!(record["stdout"], "ran\n", "exactly once");
    // Another request of that name is refused, and does not run either.
    let other = json!({ "request_id": "fifty", "argv": ["touch", "/tmp/twice"] }).to_string();
    guest
        .0
        .guest_request("POST", "/v1/exec", other.as_bytes())
        .expect(409);
    guest.0.get("/v1/files/stat?path=/tmp/twice").expect(404);
}

/// Bytes that differ from place to place.
fn content(len: usize) -> Vec<u8> {
    let mut dice = Dice(len as u64 + 1);
    let mut bytes: Vec<u8> = (0..len / 8 + 1)
        .flat_map(|_| dice.below(u64::MAX).to_le_bytes())
        .collect();
    bytes.truncate(len);
    bytes
}

/// More than the agent may hold in memory; `TINE_LARGE=1` makes it the 32 MiB of the case, which takes
/// a minute more where guest kernels are interpreted.
fn largest() -> usize {
    match std::env::var_os("TINE_LARGE") {
        Some(_) => 32 << 20,
        None => 17 << 20,
    }
}

fn files_of_all_sizes_arrive(guest: &Guest) {
    // What came before is not counted.
    assert_eq!(
        guest.sh("echo 5 > /proc/1/clear_refs", json!({}))["exit_code"],
        0
    );
    for len in [18 << 10, 19 << 10, largest()] {
        let bytes = content(len);
        guest.put_file("/tmp/data", "600", &bytes);
        let sum = guest.sh("sha256sum /tmp/data", json!({}));
        let said = sum["stdout"].as_str().unwrap();
        assert_eq!(said.split(' ').next().unwrap(), sha256(&bytes), "{len}");
    }
    let kib = guest.agents_peak();
    println!("the agent's peak with files: {kib} KiB");
    assert!(kib < 16 << 10, "{kib} KiB");
    // The same way back, once.
    let back = guest
        .0
        .guest_bytes("/v1/files/content?path=/tmp/data&length=1048576");
    assert!(
        back == content(largest())[..1 << 20],
        "{} bytes",
        back.len()
    );
}

fn sha256(bytes: &[u8]) -> String {
    let mut command = Command::new("sha256sum");
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("sha256sum");
    child.stdin.take().unwrap().write_all(bytes).unwrap();
    let output = child.wait_with_output().unwrap();
    String::from_utf8(output.stdout)
        .unwrap()
        .split(' ')
        .next()
        .unwrap()
        .to_owned()
}

/// Of the file that is there.
fn much_output_streamed_and_collected(guest: &Guest) {
    let bytes = content(largest());
    for len in [97 << 10, 4 << 20] {
        let script = format!("head -c {len} /tmp/data & head -c {len} /tmp/data >&2; wait");
        let whole = guest.stream(&["sh", "-c", &script], None);
        assert_eq!(whole.record["exit_code"], 0);
        assert!(
            whole.stdout == bytes[..len],
            "{} of {len}",
            whole.stdout.len()
        );
        assert!(
            whole.stderr == bytes[..len],
            "{} of {len}",
            whole.stderr.len()
        );
        let limit = 1 << 20;
        let record = guest.sh(&script, json!({}));
        for name in ["stdout", "stderr"] {
            assert!(
                output(&record, name) == bytes[..len.min(limit)],
                "{name} {len}"
            );
            assert_eq!(record[format!("{name}_truncated")], len > limit);
        }
    }
}

/// The records' output is bounded by 6 MiB, and the answers above are made of it.
fn the_agents_memory_is_bounded(guest: &Guest) {
    let kib = guest.agents_peak();
    println!("the agent's peak: {kib} KiB");
    assert!(kib < 24 << 10, "{kib} KiB");
}
