//! A connection that breaks: the command runs once, and its output arrives once.

use std::fs::File;
use std::io::{Read, Write};
use std::process::{Command, Stdio};

use tine_tests::cli::{Place, eventually, read_until};
use tine_tests::text;

#[test]
fn no_byte_is_lost_or_doubled_wherever_it_is_cut() {
    let place = Place::new();
    let (_agent, cutter) = place.agent_behind_cutter("m");
    let count = place.path("count");
    // Numbers on both outputs: a lost or doubled piece shows. Slow enough that what is written
    // while no connection stands is kept.
    let script = format!(
        "echo x >> {}; i=0; while [ $i -lt 2000 ]; do echo out $i; echo err $i >&2; i=$((i+1)); \
         [ $((i%50)) = 0 ] && sleep 0.01; done; exit 6",
        count.display()
    );
    let lines = |word: &str| -> String { (0..2000).map(|i| format!("{word} {i}\n")).collect() };
    for bytes in [2500, 4099, 16_001] {
        cutter.cut_down_after(bytes);
        std::fs::write(&count, "").unwrap();
        let before = cutter.connections();
        let output = place.output(["exec", "m", "--", "sh", "-c", &script]);
        assert_eq!(output.status.code(), Some(6), "{}", text(&output.stderr));
        assert!(text(&output.stdout) == lines("out"), "cut every {bytes}");
        assert!(text(&output.stderr) == lines("err"), "cut every {bytes}");
        assert_eq!(std::fs::read(&count).unwrap(), b"x\n");
        assert!(cutter.connections() > before + 1, "it was cut");
    }
}

#[test]
fn a_request_that_may_not_have_arrived_is_sent_again_and_runs_once() {
    let place = Place::new();
    let (_agent, cutter) = place.agent_behind_cutter("m");
    let count = place.path("count");
    let script = format!("echo x >> {}; echo hi", count.display());
    // The answer's head never comes, the request may have.
    cutter.cut_down_after(20);
    let child = place
        .tine(["exec", "m", "--", "sh", "-c", &script])
        .spawn()
        .unwrap();
    eventually(|| cutter.connections() >= 3);
    // And now the request is cut in the middle.
    cutter.cut_down_after(usize::MAX);
    cutter.cut_up_after(100);
    let seen = cutter.connections();
    eventually(|| cutter.connections() >= seen + 2);
    cutter.cut_up_after(usize::MAX);
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert_eq!(output.stdout, b"hi\n");
    assert_eq!(std::fs::read(&count).unwrap(), b"x\n");
}

#[test]
fn a_silent_command_survives_a_line_that_is_away_for_a_while() {
    let place = Place::new();
    let (_agent, cutter) = place.agent_behind_cutter("m");
    let flag = place.path("flag");
    let script = format!(
        "echo go; while [ ! -e {} ]; do sleep 0.05; done; echo end",
        flag.display()
    );
    let mut child = place
        .tine(["exec", "m", "--", "sh", "-c", &script])
        .spawn()
        .unwrap();
    let mut stdout = child.stdout.take().unwrap();
    read_until(&mut stdout, "go\n");
    cutter.refuse(true);
    cutter.cut();
    let seen = cutter.connections();
    eventually(|| cutter.connections() >= seen + 4);
    std::fs::write(&flag, "").unwrap();
    cutter.refuse(false);
    let mut rest = String::new();
    stdout.read_to_string(&mut rest).unwrap();
    assert_eq!(rest, "end\n");
    assert!(child.wait().unwrap().success());
}

#[test]
fn a_machine_that_goes_away_is_an_error_at_once() {
    let place = Place::new();
    let agent = place.agent("m");
    let mut child = place
        .tine(["exec", "m", "--", "sh", "-c", "echo go; sleep 2"])
        .spawn()
        .unwrap();
    read_until(child.stdout.as_mut().unwrap(), "go\n");
    drop(agent);
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let errors = text(&output.stderr);
    assert!(errors.contains("does not run any more"), "{errors}");
}

/// Cut again and again in the middle of the input, while much of it is on its way.
#[test]
fn input_goes_on_where_the_command_has_got_to() {
    let place = Place::new();
    let (_agent, cutter) = place.agent_behind_cutter("m");
    let data: Vec<u8> = (0..500_000u32).flat_map(u32::to_le_bytes).collect();
    let sum = {
        let file = place.path("data");
        std::fs::write(&file, &data).unwrap();
        text(
            &Command::new("cksum")
                .stdin(File::open(file).unwrap())
                .output()
                .unwrap()
                .stdout,
        )
    };
    // The last one takes its input in pieces, so that a good part of it waits on the connection.
    let slow = "while head -c 20000 > part; [ -s part ]; do cat part; sleep 0.001; done | cksum";
    for (up, script) in [(61_007, "cksum"), (300_001, "cksum"), (150_000, slow)] {
        cutter.cut_up_after(up);
        let before = cutter.connections();
        let workdir = place.path("");
        let words = [
            "exec",
            "-i",
            "-w",
            workdir.to_str().unwrap(),
            "m",
            "--",
            "sh",
            "-c",
            script,
        ];
        let mut child = place.tine(words).stdin(Stdio::piped()).spawn().unwrap();
        let mut stdin = child.stdin.take().unwrap();
        let sent = data.clone();
        let feed = std::thread::spawn(move || stdin.write_all(&sent).unwrap());
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success(), "{}", text(&output.stderr));
        feed.join().unwrap();
        assert_eq!(text(&output.stdout), sum, "cut every {up}");
        assert!(cutter.connections() > before + 2, "it was cut");
    }
}

/// The command waits for its input all the while, and gets what was typed before and after.
#[test]
fn a_line_that_is_away_for_a_while_takes_no_input_with_it() {
    let place = Place::new();
    let (_agent, cutter) = place.agent_behind_cutter("m");
    let script = "read a; echo $a; read b; read c; echo $b $c; exit 3";
    let mut child = place.tine(["exec", "-i", "m", "--", "sh", "-c", script]);
    let mut child = child.stdin(Stdio::piped()).spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    stdin.write_all(b"one\n").unwrap();
    read_until(child.stdout.as_mut().unwrap(), "one\n");
    cutter.refuse(true);
    cutter.cut();
    stdin.write_all(b"two\n").unwrap();
    let seen = cutter.connections();
    eventually(|| cutter.connections() >= seen + 3);
    cutter.refuse(false);
    stdin.write_all(b"three\n").unwrap();
    drop(stdin);
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(3), "{}", text(&output.stderr));
    assert_eq!(text(&output.stdout), "two three\n");
}

#[test]
fn output_that_is_not_kept_is_told_as_lost() {
    let place = Place::new();
    let (_agent, cutter) = place.agent_behind_cutter("m");
    let script = "echo go; sleep 0.3; head -c 500000 /dev/zero; echo end";
    let mut child = place
        .tine(["exec", "m", "--", "sh", "-c", script])
        .spawn()
        .unwrap();
    read_until(child.stdout.as_mut().unwrap(), "go\n");
    cutter.refuse(true);
    cutter.cut();
    let seen = cutter.connections();
    // The command writes all that meanwhile, and nobody reads.
    eventually(|| cutter.connections() >= seen + 8);
    cutter.refuse(false);
    let output = child.wait_with_output().unwrap();
    let errors = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{errors}");
    assert!(
        errors.contains("bytes of the command's output were lost"),
        "{errors}"
    );
    assert!(output.stdout.ends_with(b"end\n"));
}
