//! A Linux guest behind the socket: running means that an exec is accepted, and what the agent
//! offers comes through.

use std::io::{BufRead, BufReader, Read, Write};
use std::time::Duration;

use serde_json::{Value, json};
use tine_guest_agent::frame::{self, Decoder, Stream};
use tine_tests::api::Vmm;
use tine_tests::linux::image;

/// One boot for all of it: it takes many seconds where guest kernels are interpreted.
#[test]
fn a_linux_guest_runs_commands_over_the_socket() {
    let (kernel, initramfs) = image();
    let vmm = Vmm::start([] as [&str; 0]);
    let disk = vmm.dir.path().join("disk.img");
    std::fs::File::create(&disk)
        .unwrap()
        .set_len(16 << 20)
        .unwrap();
    let config = json!({
        "kernel": kernel, "initrd": initramfs, "memory_mib": 128,
        "drives": [{"id": "scratch", "path": disk}],
    });
    vmm.put("/v1/config", &config).expect(204);
    vmm.start_machine().expect(204);
    let stream = vmm.connect();
    stream
        .set_read_timeout(Some(Duration::from_secs(300)))
        .unwrap();
    let wait = "GET /v1/machine?wait=running&timeout=300s HTTP/1.1\r\nConnection: close\r\n\r\n";
    let (mut reader, mut writer) = (stream.try_clone().unwrap(), stream);
    writer.write_all(wait.as_bytes()).unwrap();
    let mut answer = String::new();
    reader.read_to_string(&mut answer).unwrap();
    assert!(answer.contains(r#""state":"running""#), "{answer}");

    let exec = json!({"request_id": "one", "argv": ["sh", "-c", "echo out; echo err >&2; exit 3"]});
    let record = vmm.request("POST", "/v1/exec", Some(&exec.to_string()));
    let record = record.expect(200).json();
    assert_eq!(record["state"], "exited");
    assert_eq!(record["exit_code"], 3);
    assert_eq!(record["stdout"], "out\n");
    assert_eq!(record["stderr"], "err\n");
    assert_eq!(vmm.get("/v1/exec/one").expect(200).json()["exit_code"], 3);
    let bad = vmm.request("POST", "/v1/exec", Some(r#"{"request_id":"x","agv":[]}"#));
    assert!(bad.expect(400).body.contains("agv"));

    streams(&vmm);
    events(&vmm);

    let bytes = "x".repeat(300_000);
    let put = vmm.request("PUT", "/v1/files/content?path=/tmp/f", Some(&bytes));
    assert!(put.status < 300, "{put:?}");
    let got = vmm.get("/v1/files/content?path=/tmp/f").expect(200);
    assert!(got.body == bytes, "{} bytes", got.body.len());
    let missing = vmm.get("/v1/files/stat?path=/nowhere").expect(404).json();
    assert_eq!(missing["error"]["errno"], "ENOENT");
    assert!(vmm.get("/v1/processes").expect(200).json().is_array());

    vmm.patch("/vm", &json!({"state": "Paused"})).expect(204);
    vmm.get("/v1/processes").expect(409);
    vmm.patch("/vm", &json!({"state": "Resumed"})).expect(204);
    assert_eq!(vmm.state(), "running");

    let mut vmm = vmm;
    vmm.signal(libc::SIGTERM);
    assert!(vmm.wait().success());
    let last = vmm.usage().pop().unwrap();
    let reason = last.reason.unwrap();
    assert!(
        reason.contains("guest"),
        "it was asked to switch itself off: {reason}"
    );
}

/// What happens in the guest comes to those who follow.
fn events(vmm: &Vmm) {
    let mut follower = vmm.connect();
    let limit = Some(Duration::from_secs(120));
    follower.set_read_timeout(limit).unwrap();
    let follow = b"GET /v1/events HTTP/1.1\r\nHost: x\r\n\r\n";
    follower.write_all(follow).unwrap();
    let mut lines = BufReader::new(follower).lines();
    let mut next = || loop {
        let line = lines.next().expect("the stream goes on").unwrap();
        if !line.starts_with('{') {
            continue;
        }
        let event: Value = serde_json::from_str(&line).unwrap();
        // Of the host's disks and memory, at any time.
        if event["event"] != "warning" {
            break event;
        }
    };
    assert_eq!(next()["state"], "running");
    let exec = json!({"request_id": "told", "argv": ["sh", "-c", "kill -9 $$"]});
    vmm.request("POST", "/v1/exec", Some(&exec.to_string()))
        .expect(200);
    let event = next();
    assert_eq!(
        (&event["event"], &event["request_id"]),
        (&json!("exec"), &json!("told"))
    );
    assert_eq!(
        (&event["state"], &event["signal"]),
        (&json!("killed"), &json!(9))
    );
}

/// A command's streams over an upgraded connection.
fn streams(vmm: &Vmm) {
    let mut stream = vmm.connect();
    let body = r#"{"request_id":"two","argv":["cat"],"stdin":true}"#;
    let head = format!(
        "POST /v1/exec HTTP/1.1\r\nHost: x\r\nConnection: upgrade\r\nUpgrade: tine-stream/1\r\n\
         Content-Length: {}\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(head.as_bytes()).unwrap();
    let mut input = Vec::new();
    frame::encode(Stream::Stdin, b"hello", &mut input);
    frame::encode(Stream::Stdin, b"", &mut input);
    stream.write_all(&input).unwrap();
    let mut all = Vec::new();
    stream.read_to_end(&mut all).unwrap();
    let end = all.windows(4).position(|four| four == b"\r\n\r\n").unwrap();
    assert!(all.starts_with(b"HTTP/1.1 101"));
    let mut decoder = Decoder::new();
    decoder.push(&all[end + 4..]);
    let (mut output, mut last) = (Vec::new(), Vec::new());
    while let Some(frame) = decoder.next_frame().unwrap() {
        match frame.stream {
            Stream::Stdout => output.extend(frame.payload),
            _ => last = frame.payload,
        }
    }
    assert_eq!(output, b"hello");
    let record: serde_json::Value = serde_json::from_slice(&last).unwrap();
    assert_eq!(record["state"], "exited");
}
