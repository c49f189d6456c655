//! `tine exec` and `tine attach`: streams, statuses, names of requests.

use std::io::Write;
use std::process::Stdio;

use tine_tests::cli::{Place, read_until, signal};
use tine_tests::text;

fn sh(script: &str) -> [&str; 6] {
    ["exec", "m", "--", "sh", "-c", script]
}

#[test]
fn outputs_are_separate_and_the_status_is_the_commands_own() {
    let place = Place::new();
    let _agent = place.agent("m");
    let output = place.output(sh("printf 'a\\0\\377'; echo b >&2; exit 7"));
    assert_eq!(output.status.code(), Some(7));
    assert_eq!(output.stdout, b"a\0\xff");
    assert_eq!(output.stderr, b"b\n");
}

#[test]
fn ends_are_told_as_a_shell_tells_them() {
    let place = Place::new();
    let _agent = place.agent("m");
    assert_eq!(place.fails(137, sh("kill -9 $$")), "");
    let missing = place.fails(127, ["exec", "m", "--", "no-such-program"]);
    assert!(missing.contains("no-such-program"), "{missing}");
    place.fails(126, ["exec", "m", "--", "/etc/passwd"]);
    let elsewhere = ["exec", "-w", "/no/such/dir", "m", "--", "true"];
    let error = place.fails(126, elsewhere);
    assert!(error.contains("/no/such/dir"), "{error}");
    let late = place.fails(124, ["exec", "--timeout", "50ms", "m", "--", "sleep", "60"]);
    assert!(late.contains("50 ms"), "{late}");
}

#[test]
fn large_streams_pass_both_ways_unchanged() {
    let place = Place::new();
    let _agent = place.agent("m");
    let data: Vec<u8> = (0..3_000_000u32).flat_map(u32::to_le_bytes).collect();
    let mut child = place.tine(["exec", "-i", "m", "--", "cat"]);
    let mut child = child.stdin(Stdio::piped()).spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let sent = data.clone();
    let feed = std::thread::spawn(move || stdin.write_all(&sent).unwrap());
    let output = child.wait_with_output().unwrap();
    feed.join().unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert!(output.stdout == data, "{} bytes", output.stdout.len());
}

#[test]
fn without_i_there_is_no_input() {
    let place = Place::new();
    let _agent = place.agent("m");
    let mut child = place.tine(["exec", "m", "--", "cat"]);
    let child = child.stdin(Stdio::piped()).spawn().unwrap();
    assert_eq!(child.wait_with_output().unwrap().stdout, b"");
}

#[test]
fn environment_directory_and_user_are_passed() {
    let place = Place::new();
    let _agent = place.agent("m");
    let mut words = vec![
        "exec", "-e", "A=b c", "-w", "/tmp", "-u", "65534", "m", "--",
    ];
    words.extend(["sh", "-c", "echo $A; pwd; id -u"]);
    assert_eq!(place.ok(words), "b c\n/tmp\n65534\n");
}

#[test]
fn a_request_id_runs_once_and_answers_each_time() {
    let place = Place::new();
    let _agent = place.agent("m");
    let count = place.path("count");
    let script = format!("echo x >> {}; echo out; exit 3", count.display());
    let words = [
        "exec",
        "--request-id",
        "r.1",
        "m",
        "--",
        "sh",
        "-c",
        &script,
    ];
    for _ in 0..3 {
        let output = place.output(words);
        assert_eq!(
            (output.status.code(), text(&output.stdout).as_str()),
            (Some(3), "out\n")
        );
    }
    assert_eq!(std::fs::read(&count).unwrap(), b"x\n");
    let other = place.fails(1, ["exec", "--request-id", "r.1", "m", "--", "true"]);
    assert!(other.contains("r.1"), "{other}");
    place.fails(2, ["exec", "--request-id", "a/b", "m", "--", "true"]);
}

#[test]
fn json_is_the_record() {
    let place = Place::new();
    let _agent = place.agent("m");
    let script = "printf '\\377'; echo e >&2; exit 4";
    let output = place.output(["exec", "--json", "m", "--", "sh", "-c", script]);
    assert_eq!(output.status.code(), Some(4));
    let record: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(record["state"], "exited");
    assert_eq!(record["stdout"], "/w==");
    assert_eq!(record["stdout_encoding"], "base64");
    assert_eq!(record["stderr"], "e\n");
}

#[test]
fn signals_go_to_the_command() {
    let place = Place::new();
    let _agent = place.agent("m");
    for (number, name) in [(libc::SIGINT, "INT"), (libc::SIGTERM, "TERM")] {
        let script = format!("trap 'echo got {name}; exit 9' {name}; echo go; sleep 60 & wait");
        let mut child = place.tine(sh(&script)).spawn().unwrap();
        let mut stdout = child.stdout.take().unwrap();
        read_until(&mut stdout, "go\n");
        signal(&child, number);
        read_until(&mut stdout, &format!("got {name}\n"));
        assert_eq!(child.wait().unwrap().code(), Some(9));
    }
}

#[test]
fn a_reader_that_goes_away_ends_the_command_as_in_a_pipeline() {
    let place = Place::new();
    let _agent = place.agent("m");
    let mut child = place.tine(["exec", "m", "--", "yes"]).spawn().unwrap();
    let mut stdout = child.stdout.take().unwrap();
    read_until(&mut stdout, "y\ny\n");
    drop(stdout);
    assert_eq!(child.wait().unwrap().code(), Some(128 + libc::SIGPIPE));
}

#[test]
fn attaching_shows_what_was_missed_and_goes_on() {
    let place = Place::new();
    let _agent = place.agent("m");
    let script = "echo one; read x; echo two $x; exit 5";
    let words = [
        "exec",
        "-i",
        "--request-id",
        "a",
        "m",
        "--",
        "sh",
        "-c",
        script,
    ];
    let mut first = place.tine(words);
    let mut first = first.stdin(Stdio::piped()).spawn().unwrap();
    read_until(first.stdout.as_mut().unwrap(), "one\n");
    first.kill().unwrap();
    first.wait().unwrap();
    let mut second = place.tine(["attach", "-i", "m", "a"]);
    let mut second = second.stdin(Stdio::piped()).spawn().unwrap();
    second.stdin.take().unwrap().write_all(b"in\n").unwrap();
    let output = second.wait_with_output().unwrap();
    assert_eq!(text(&output.stdout), "one\ntwo in\n");
    assert_eq!(output.status.code(), Some(5));
    // And when it has ended.
    let again = place.output(["attach", "m", "a"]);
    assert_eq!(
        (again.status.code(), again.stdout),
        (Some(5), output.stdout)
    );
    let unknown = place.fails(1, ["attach", "m", "b"]);
    assert!(unknown.contains('b'), "{unknown}");
}

#[test]
fn kill_ends_a_command_or_signals_it() {
    let place = Place::new();
    let _agent = place.agent("m");
    for (words, code) in [
        (vec!["kill", "m", "k1"], 143),
        (vec!["kill", "-s", "KILL", "m", "k2"], 137),
    ] {
        let id = words[words.len() - 1];
        let script = "echo go; exec sleep 60";
        let run = ["exec", "--request-id", id, "m", "--", "sh", "-c", script];
        let mut child = place.tine(run).spawn().unwrap();
        read_until(child.stdout.as_mut().unwrap(), "go\n");
        place.ok(&words);
        assert_eq!(child.wait().unwrap().code(), Some(code));
    }
}

#[test]
fn unknown_machines_are_told_with_those_there_are() {
    let place = Place::new();
    let none = place.fails(1, ["exec", "web", "--", "true"]);
    assert_eq!(
        none,
        "tine: there is no machine web, nor any other: `tine run -d` starts one\n"
    );
    let _agent = place.agent("m");
    let other = place.fails(1, ["exec", "web", "--", "true"]);
    assert_eq!(other, "tine: there is no machine web: there are m\n");
    std::fs::create_dir(place.run().join("gone")).unwrap();
    let gone = place.fails(1, ["exec", "gone", "--", "true"]);
    assert!(gone.contains("tine rm gone"), "{gone}");
    place.fails(2, ["exec", "../m", "--", "true"]);
}
