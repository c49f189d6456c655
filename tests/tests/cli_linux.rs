//! The command line with a Linux guest: one machine that stays, booted once, and everything that a
//! user does with it.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::process::Stdio;

use serde_json::Value;
use tine_tests::cli::{Place, eventually, read_until, signal, with_vmm};
use tine_tests::linux::image;
use tine_tests::text;

/// One test, as its machine takes many seconds to boot where guests are interpreted, and is to be
/// removed whatever happens.
#[test]
fn a_machine_that_stays_is_used_like_a_computer() {
    with_vmm();
    let place = Place::new();
    boot(&place);
    is_listed_as_running(&place);
    commands_have_their_statuses(&place);
    a_request_runs_once(&place);
    the_first_command_can_be_attached_to(&place);
    files_go_there_and_back(&place);
    ports_are_forwarded(&place);
    a_command_has_a_terminal(&place);
    time_is_up_for_the_whole_tree(&place);
    place.ok(["rm", "-f", "lin"]);
    assert_eq!(place.ok(["ps", "-a", "--json"]).trim(), "[]");
}

fn boot(place: &Place) {
    let (kernel, initramfs) = image();
    let mut command = place.tine(["run", "-d", "--name", "lin", "--memory", "128M", "--kernel"]);
    command.arg(kernel).arg("--initrd").arg(initramfs);
    command.args(["-e", "A=b", "--", "sh", "-c"]);
    command.arg("echo main $A; read x; while [ ! -e /tmp/end ]; do sleep 0.1; done; exit 3");
    let output = command.output().unwrap();
    assert_eq!(text(&output.stderr), "");
    assert_eq!(text(&output.stdout), "lin\n");
}

fn inspect(place: &Place) -> Value {
    serde_json::from_str(&place.ok(["inspect", "--json", "lin"])).unwrap()
}

fn is_listed_as_running(place: &Place) {
    let table = place.ok(["ps"]);
    assert!(table.contains("lin  running"), "{table}");
    let machine = inspect(place);
    assert_eq!(machine["state"], "running");
    assert_eq!(machine["execs"][0]["request_id"], "main");
    assert!(machine["health"]["memory"]["total_bytes"].as_u64() > Some(0));
    place.ok(["logs", "lin"]);
}

fn commands_have_their_statuses(place: &Place) {
    let sh = |script| ["exec", "lin", "--", "sh", "-c", script];
    let output = place.output(sh("printf 'a\\0\\377'; echo b >&2; exit 7"));
    assert_eq!(output.status.code(), Some(7));
    assert_eq!(
        (output.stdout, output.stderr),
        (b"a\0\xff".to_vec(), b"b\n".to_vec())
    );
    assert_eq!(place.fails(137, sh("kill -9 $$")), "");
    place.fails(127, ["exec", "lin", "--", "no-such-program"]);
    let data: Vec<u8> = (0..75_000u32).flat_map(u32::to_le_bytes).collect();
    let mut child = place.tine(["exec", "-i", "lin", "--", "cat"]);
    let mut child = child.stdin(Stdio::piped()).spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let sent = data.clone();
    let feed = std::thread::spawn(move || stdin.write_all(&sent).unwrap());
    let output = child.wait_with_output().unwrap();
    feed.join().unwrap();
    assert!(
        output.stdout == data,
        "{} {}",
        output.status,
        text(&output.stderr)
    );
}

fn a_request_runs_once(place: &Place) {
    let script = "echo x >> /tmp/count; cat /tmp/count";
    for _ in 0..3 {
        let words = [
            "exec",
            "--request-id",
            "once",
            "lin",
            "--",
            "sh",
            "-c",
            script,
        ];
        assert_eq!(place.ok(words), "x\n");
    }
}

fn the_first_command_can_be_attached_to(place: &Place) {
    let mut child = place.tine(["attach", "lin", "main"]).spawn().unwrap();
    read_until(child.stdout.as_mut().unwrap(), "main b\n");
    place.ok(["exec", "lin", "--", "touch", "/tmp/end"]);
    assert_eq!(child.wait().unwrap().code(), Some(3));
    place.fails(3, ["attach", "lin", "main"]);
}

fn files_go_there_and_back(place: &Place) {
    let data: Vec<u8> = (0..200_000u32).flat_map(u32::to_le_bytes).collect();
    std::fs::create_dir_all(place.path("tree/sub")).unwrap();
    std::fs::write(place.path("tree/sub/data"), &data).unwrap();
    place.ok(["cp", "tree", "lin:/tmp/"]);
    place.ok(["cp", "lin:/tmp/tree", "back"]);
    assert!(std::fs::read(place.path("back/sub/data")).unwrap() == data);
    let script = "stat -c %u:%g /tmp/tree/sub/data";
    let owner = ["exec", "lin", "--", "sh", "-c", script];
    assert_eq!(place.ok(owner), "0:0\n");
}

fn ports_are_forwarded(place: &Place) {
    let script = "exec nc -ll -p 7 -e cat";
    let server = [
        "exec",
        "--request-id",
        "server",
        "lin",
        "--",
        "sh",
        "-c",
        script,
    ];
    let mut server = place.tine(server).spawn().unwrap();
    let mut forward = place
        .tine(["forward", "--json", "lin", "0:7"])
        .spawn()
        .unwrap();
    let line = read_until(forward.stdout.as_mut().unwrap(), "\n");
    let line: Value = serde_json::from_str(&line).unwrap();
    let port = line["host_port"].as_u64().unwrap() as u16;
    // The server takes a moment to listen.
    eventually(|| {
        let mut client = TcpStream::connect(("127.0.0.1", port)).unwrap();
        let mut back = Vec::new();
        client.write_all(b"hello").is_ok()
            && client.shutdown(Shutdown::Write).is_ok()
            && client.read_to_end(&mut back).is_ok()
            && back == b"hello"
    });
    signal(&forward, libc::SIGINT);
    assert_eq!(forward.wait().unwrap().code(), Some(130));
    place.ok(["kill", "lin", "server"]);
    server.wait().unwrap();
}

fn a_command_has_a_terminal(place: &Place) {
    let said = place.ok(["exec", "-t", "lin", "--", "sh", "-c", "tty; stty size"]);
    assert!(said.starts_with("/dev/pts/"), "{said}");
    assert!(said.ends_with("24 80\r\n"), "{said}");
}

fn time_is_up_for_the_whole_tree(place: &Place) {
    let script = "setsid sleep 777 & echo hi; wait";
    let words = [
        "exec",
        // Long enough for a shell to start where guest kernels are interpreted.
        "--timeout",
        "10s",
        "lin",
        "--",
        "sh",
        "-c",
        script,
    ];
    let output = place.output(words);
    assert_eq!(
        (output.status.code(), text(&output.stdout)),
        (Some(124), "hi\n".to_owned())
    );
    let left = place.ok(["exec", "lin", "--", "sh", "-c", "ps"]);
    assert!(!left.contains("sleep 777"), "{left}");
}
