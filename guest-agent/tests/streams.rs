//! Commands seen live.

mod common;

use std::time::Duration;

use common::{Agent, request};
use serde_json::json;
use tine_guest_agent::frame::Stream;

#[test]
fn both_outputs_separate_and_complete() {
    let agent = Agent::start();
    for size in [97 * 1024, 4 << 20] {
        let script = format!(
            "head -c {size} /dev/zero | tr '\\0' a & head -c {size} /dev/zero | tr '\\0' b >&2; wait"
        );
        let whole = agent.stream(&["sh", "-c", &script], json!({})).finish();
        assert_eq!(whole.control.len(), 2);
        assert_eq!(whole.control[0]["state"], "running");
        assert_eq!(whole.record()["exit_code"], 0);
        assert_eq!(whole.stdout.len(), size);
        assert_eq!(whole.stderr.len(), size);
        assert!(whole.stdout.iter().all(|byte| *byte == b'a'));
        assert!(whole.stderr.iter().all(|byte| *byte == b'b'));
    }
    assert!(agent.peak_memory() < 16 << 20, "{}", agent.peak_memory());
}

#[test]
fn a_command_that_fails_to_start_has_a_record_alone() {
    let agent = Agent::start();
    let whole = agent.stream(&["/no/such"], json!({})).finish();
    assert_eq!(whole.control.len(), 1);
    assert_eq!(whole.record()["exit_code"], 127);
}

#[test]
fn input_and_its_end() {
    let agent = Agent::start();
    let mut live = agent.stream(&["cat"], json!({ "stdin": true }));
    assert_eq!(live.control()["state"], "running");
    live.send(Stream::Stdin, b"\x00\xff");
    let frame = live.frame().unwrap();
    assert_eq!(
        (frame.stream, frame.payload.as_slice()),
        (Stream::Stdout, &b"\x00\xff"[..])
    );
    let data = vec![7; 300_000];
    let sender = live.conn.try_clone().unwrap();
    let sent = data.clone();
    let thread = std::thread::spawn(move || {
        let mut out = Vec::new();
        tine_guest_agent::frame::encode(Stream::Stdin, &sent, &mut out);
        tine_guest_agent::frame::encode(Stream::Stdin, b"", &mut out);
        std::io::Write::write_all(&mut &sender, &out).unwrap();
    });
    let whole = live.finish();
    thread.join().unwrap();
    assert_eq!(whole.stdout, data);
    assert_eq!(whole.record()["exit_code"], 0);
}

/// The pipe of a command that does not read takes 64 KiB; the rest is on its way when the connection ends.
#[test]
fn input_that_was_not_taken_is_dropped_with_its_connection() {
    let agent = Agent::start();
    let flag = agent.dir().join("flag");
    let script = format!(
        "until [ -e {} ]; do sleep 0.01; done; exec cat",
        flag.display()
    );
    let body = request(&["sh", "-c", &script], json!({ "stdin": true }));
    let id = body["request_id"].as_str().unwrap().to_owned();
    let mut first = agent.upgrade("/v1/exec", &body);
    assert_eq!(first.control()["stdin_offset"], 0);
    let data: Vec<u8> = (0..50_000u32).flat_map(u32::to_le_bytes).collect();
    first.send(Stream::Stdin, &data[..100_000]);
    assert_eq!(first.control(), json!({ "stdin_offset": 65536 }));
    // Neither cut nor closed: it still has 34,464 bytes and an end to give.
    first.send(Stream::Stdin, b"");
    let attach = format!("/v1/exec/{id}/attach");
    let mut second = agent.upgrade(&attach, &json!({ "take_stdin": true }));
    assert_eq!(second.control()["stdin_offset"], 65536);
    // A viewer changes nothing about that.
    let mut viewer = agent.upgrade(&attach, &json!({}));
    viewer.control();
    std::fs::write(&flag, "").unwrap();
    first.send(Stream::Stdin, b"late");
    second.send(Stream::Stdin, &data[65536..]);
    second.send(Stream::Stdin, b"");
    let whole = second.finish();
    assert_eq!(whole.record()["exit_code"], 0);
    assert!(whole.stdout == data, "{} bytes", whole.stdout.len());
    let told = &whole.control[whole.control.len() - 2];
    assert!(told["stdin_offset"].as_u64() >= Some(3 * 65536), "{told}");
}

#[test]
fn input_that_nobody_reads_counts_as_taken() {
    let agent = Agent::start();
    let flag = agent.dir().join("flag");
    let script = format!(
        "exec <&-; until [ -e {} ]; do sleep 0.01; done",
        flag.display()
    );
    let more = json!({ "stdin": true });
    let mut live = agent.stream(&["sh", "-c", &script], more);
    live.control();
    for _ in 0..10 {
        live.send(Stream::Stdin, &[1; 30_000]);
    }
    while live.control()["stdin_offset"].as_u64() < Some(4 * 65536) {}
    std::fs::write(&flag, "").unwrap();
    assert_eq!(live.finish().record()["exit_code"], 0);
}

#[test]
fn a_slow_reader_slows_the_command() {
    let agent = Agent::start();
    let count = agent.dir().join("count");
    // Writes 64 MiB and says how far it has come.
    let script = format!(
        "i=0; while [ $i -lt 1024 ]; do head -c 65536 /dev/zero; i=$((i+1)); echo $i > {}; done",
        count.display()
    );
    let mut live = agent.stream(&["sh", "-c", &script], json!({}));
    live.control();
    // Wait until it has come to a stop.
    let mut last = String::new();
    loop {
        std::thread::sleep(Duration::from_millis(300));
        let now = std::fs::read_to_string(&count).unwrap_or_default();
        if now == last && !now.is_empty() {
            break;
        }
        last = now;
    }
    assert!(
        last.trim().parse::<u32>().unwrap() < 64,
        "{last} pieces without a reader"
    );
    let whole = live.finish();
    assert_eq!(whole.stdout.len(), 64 << 20);
    assert!(agent.peak_memory() < 16 << 20, "{}", agent.peak_memory());
}

#[test]
fn a_terminal_with_a_size_that_changes() {
    let agent = Agent::start();
    let script = "tty >/dev/null && echo yes; stty size; trap 'stty size; exit 5' WINCH; echo go; \
                  while :; do sleep 0.05; done";
    let more = json!({ "tty": { "rows": 11, "cols": 77 } });
    let mut live = agent.stream(&["sh", "-c", script], more);
    live.control();
    let mut seen = Vec::new();
    while !seen.ends_with(b"go\r\n") {
        seen.extend(live.frame().unwrap().payload);
    }
    assert_eq!(String::from_utf8_lossy(&seen), "yes\r\n11 77\r\ngo\r\n");
    live.send(Stream::Control, br#"{"resize":{"rows":40,"cols":100}}"#);
    let whole = live.finish();
    assert_eq!(whole.stdout, b"40 100\r\n");
    assert_eq!(whole.record()["exit_code"], 5);
}

#[test]
fn a_terminal_ends_with_its_command_though_children_stay() {
    let agent = Agent::start();
    let more = json!({ "tty": { "rows": 2, "cols": 2 } });
    let script = "trap '' HUP; sleep 300 & echo $TERM; exit 3";
    let whole = agent.stream(&["sh", "-c", script], more).finish();
    assert_eq!(whole.stdout, b"xterm-256color\r\n");
    assert_eq!(whole.record()["exit_code"], 3);
}

#[test]
fn control_d_ends_a_terminals_input() {
    let agent = Agent::start();
    let mut live = agent.stream(&["cat"], json!({ "tty": { "rows": 2, "cols": 20 } }));
    live.send(Stream::Stdin, b"hi\n");
    live.send(Stream::Stdin, b"");
    let whole = live.finish();
    assert_eq!(whole.stdout, b"hi\r\nhi\r\n");
    assert_eq!(whole.record()["exit_code"], 0);
}

#[test]
fn signals_reach_the_process_group() {
    let agent = Agent::start();
    let mut live = agent.stream(
        &["sh", "-c", "trap 'exit 9' USR1; echo go; sleep 300 & wait"],
        json!({}),
    );
    live.control();
    live.frame().unwrap();
    live.send(Stream::Control, br#"{"signal":10}"#);
    assert_eq!(live.finish().record()["exit_code"], 9);
}

#[test]
fn detached_and_attached_again_with_what_was_missed() {
    let agent = Agent::start();
    let body = request(
        &[
            "sh",
            "-c",
            "echo one; read x; echo two $x; read y; echo three $y",
        ],
        json!({ "stdin": true }),
    );
    let id = body["request_id"].as_str().unwrap().to_owned();
    let mut live = agent.upgrade("/v1/exec", &body);
    live.control();
    assert_eq!(live.frame().unwrap().payload, b"one\n");
    live.send(Stream::Stdin, b"a\n");
    assert_eq!(live.frame().unwrap().payload, b"two a\n");
    live.shut();
    let path = format!("/v1/exec/{id}/attach");
    let mut live = agent.upgrade(&path, &json!({ "stdout_offset": 4 }));
    let started = live.control();
    assert_eq!(started["stdout_offset"], 4);
    assert_eq!(live.frame().unwrap().payload, b"two a\n");
    live.send(Stream::Stdin, b"b\n");
    let whole = live.finish();
    assert_eq!(whole.stdout, b"three b\n");
    // After its end all that is kept can be had again.
    let whole = agent.upgrade(&path, &json!({})).finish();
    assert_eq!(whole.stdout, b"one\ntwo a\nthree b\n");
    assert_eq!(whole.record()["exit_code"], 0);
}

#[test]
fn a_replay_that_begins_later_says_so() {
    let agent = Agent::start();
    let body = request(
        &[
            "sh",
            "-c",
            "head -c 300000 /dev/zero | tr '\\0' a; echo end",
        ],
        json!({}),
    );
    let id = body["request_id"].as_str().unwrap().to_owned();
    let whole = agent.upgrade("/v1/exec", &body).finish();
    assert_eq!(whole.stdout.len(), 300_004);
    let whole = agent
        .upgrade(&format!("/v1/exec/{id}/attach"), &json!({}))
        .finish();
    let offset = whole.control[0]["stdout_offset"].as_u64().unwrap();
    assert_eq!(offset, 300_004 - 65_536);
    assert_eq!(whole.stdout.len(), 65_536);
    assert!(whole.stdout.ends_with(b"end\n"));
}

#[test]
fn frames_that_are_none_end_the_connection_alone() {
    let agent = Agent::start();
    let mut live = agent.stream(&["sh", "-c", "read x; echo $x"], json!({ "stdin": true }));
    let id = live.control()["request_id"].as_str().unwrap().to_owned();
    std::io::Write::write_all(&mut live.conn, &[9; 64]).unwrap();
    assert!(live.frame().is_none());
    let mut live = agent.upgrade(&format!("/v1/exec/{id}/attach"), &json!({}));
    live.send(Stream::Stdin, b"still\n");
    assert_eq!(live.finish().stdout, b"still\n");
}
