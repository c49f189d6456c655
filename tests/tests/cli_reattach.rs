//! A connection that breaks: the command runs once, and its output arrives once.

use std::io::{Read, Write};
use std::process::Stdio;

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

/// How much of the input arrived is not known, so nothing is guessed.
#[test]
fn input_that_may_be_lost_is_an_error_and_the_command_goes_on() {
    let place = Place::new();
    let (_agent, cutter) = place.agent_behind_cutter("m");
    let script = "read a; echo $a; read b; echo $b; exit 3";
    let words = [
        "exec",
        "-i",
        "--request-id",
        "in",
        "m",
        "--",
        "sh",
        "-c",
        script,
    ];
    let mut child = place.tine(words);
    let mut child = child.stdin(Stdio::piped()).spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    stdin.write_all(b"one\n").unwrap();
    read_until(child.stdout.as_mut().unwrap(), "one\n");
    cutter.cut();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let errors = text(&output.stderr);
    assert!(errors.contains("tine attach m in"), "{errors}");
    let mut child = place.tine(["attach", "-i", "m", "in"]);
    let mut child = child.stdin(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(b"two\n").unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(3));
    assert_eq!(text(&output.stdout), "one\ntwo\n");
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
