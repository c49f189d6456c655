//! Machines that stay: `tine run -d`, `ps`, `inspect`, `logs`, `events`, `rm`, with the real
//! `tine-vmm` and bare-metal guests, which have no agent.

use std::io::Read;
use std::os::unix::fs::symlink;
use std::process::Command;

use serde_json::Value;
use tine_tests::api::tine_vmm;
use tine_tests::cli::{Place, eventually, read_until, signal, with_vmm};
use tine_tests::{guest, host, text, tine};

fn place() -> Place {
    with_vmm();
    Place::new()
}

/// The command line of a machine with a bare-metal guest that stays.
fn start(place: &Place, name: &str, kernel: &str, more: &[&str]) -> Command {
    place.bare(name, &guest(kernel), more)
}

fn started(place: &Place, name: &str, kernel: &str) {
    let output = start(place, name, kernel, &[]).output().unwrap();
    assert_eq!(text(&output.stderr), "");
    assert_eq!(text(&output.stdout), format!("{name}\n"));
}

fn list(place: &Place, more: &[&str]) -> Vec<(String, String)> {
    let words = ["ps", "--json"].iter().chain(more);
    let all: Vec<Value> = serde_json::from_str(&place.ok(words)).unwrap();
    let word = |value: &Value| value.as_str().unwrap().to_owned();
    all.iter()
        .map(|one| (word(&one["id"]), word(&one["state"])))
        .collect()
}

#[test]
fn a_machine_stays_is_listed_and_is_removed_with_its_process() {
    let place = place();
    started(&place, "one", "hang");
    assert_eq!(
        list(&place, &[]),
        [("one".to_owned(), "starting".to_owned())]
    );
    let table = place.ok(["ps"]);
    assert!(table.starts_with("ID   STATE     SINCE"), "{table}");
    let plain = place.ok(["inspect", "one"]);
    assert!(plain.contains("\nstate "), "{plain}");
    eventually(|| place.ok(["logs", "one"]) == "A");
    let refused = place.fails(1, ["rm", "one"]);
    assert!(refused.contains("tine rm -f one"), "{refused}");
    let pid = place.pid("one");
    assert_eq!(place.ok(["rm", "-f", "one"]), "one\n");
    assert!(!place.run().join("one").exists());
    // SAFETY: kill with signal 0 only asks whether there is such a process.
    let gone = unsafe { libc::kill(pid, 0) } != 0 || is_zombie(pid);
    assert!(gone);
    assert_eq!(list(&place, &["-a"]), []);
    let unknown = place.fails(1, ["rm", "one"]);
    assert!(unknown.contains("no machine one"), "{unknown}");
}

/// Where nobody waits for orphans, what has ended is still in the table.
fn is_zombie(pid: i32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit(") ")
        .next()
        .is_some_and(|rest| rest.starts_with('Z'))
}

#[test]
fn an_id_is_given_once_and_made_up_when_it_is_not_given() {
    let place = place();
    started(&place, "same", "hang");
    let output = start(&place, "same", "hang", &[]).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let error = text(&output.stderr);
    assert!(error.contains("there is a machine same already"), "{error}");
    assert_eq!(list(&place, &[]).len(), 1, "the first one is as it was");
    let mut made_up = place.tine(["run", "-d", "--no-wait", "--json", "--kernel"]);
    let output = made_up.arg(guest("hang")).output().unwrap();
    let made_up: Value = serde_json::from_slice(&output.stdout).unwrap();
    let id = made_up["id"].as_str().unwrap();
    assert_eq!(id.len(), 8);
    assert!(made_up["socket"].as_str().unwrap().ends_with("api.sock"));
    place.ok(["rm", "-f", id, "same"]);
    for bad in ["A", "", "a/b"] {
        place.fails(2, ["run", "-d", "--name", bad]);
    }
}

#[test]
fn a_machine_whose_process_is_killed_is_dead_and_can_be_removed() {
    let place = place();
    started(&place, "victim", "spin");
    // SAFETY: kill takes two integers, and the process is the machine's own.
    let killed = unsafe { libc::kill(place.pid("victim"), libc::SIGKILL) };
    assert_eq!(killed, 0);
    let dead = [("victim".to_owned(), "dead".to_owned())];
    eventually(|| list(&place, &[]) == dead);
    let gone = place.fails(1, ["exec", "victim", "--", "true"]);
    assert!(gone.contains("does not run any more"), "{gone}");
    let again = start(&place, "victim", "hang", &[]).output().unwrap();
    assert!(text(&again.stderr).contains("tine rm victim"));
    assert_eq!(place.ok(["logs", "victim"]), "A");
    place.ok(["inspect", "victim"]);
    place.ok(["rm", "victim"]);
    assert_eq!(list(&place, &["-a"]), []);
}

/// A machine's process can put anything into its directory.
#[test]
fn what_a_machine_puts_in_the_place_of_its_files_is_neither_followed_nor_waited_for() {
    // Where it waits it ends with status 124.
    let words = ["timeout".into(), "30".into(), tine().into()];
    let place = place().launched_by(words.to_vec());
    let dir = place.run().join("bad");
    std::fs::create_dir(&dir).unwrap();
    let secret = place.path("secret");
    std::fs::write(&secret, "nobody's business\n").unwrap();
    symlink(&secret, dir.join("console.log")).unwrap();
    let refused = place.fails(1, ["logs", "bad"]);
    assert!(refused.contains("a symbolic link"), "{refused}");
    std::fs::remove_file(dir.join("console.log")).unwrap();
    for file in ["console.log", "usage.jsonl", "machine.json", "deleted.json"] {
        host(&["mkfifo", dir.join(file).to_str().unwrap()]);
    }
    let dead = [("bad".to_owned(), "dead".to_owned())];
    assert_eq!(list(&place, &[]), dead);
    for command in ["logs", "start"] {
        let refused = place.fails(1, [command, "bad"]);
        assert!(refused.contains("a FIFO"), "{refused}");
    }
    place.ok(["inspect", "bad"]);
    place.ok(["gc"]);
    assert_eq!(list(&place, &["-a"]), []);
}

/// `tine run -d` is killed after it has started a process, and before that has a machine.
#[test]
fn a_process_without_a_machine_goes_with_who_was_to_make_one() {
    let place = place();
    started(&place, "runs", "hang");
    // What a start that has come to its end leaves: nothing.
    assert!(!place.run().join("runs/begun").exists());
    let processes = ["left", "made", "own"].map(|id| {
        let dir = place.run().join(id);
        std::fs::create_dir(&dir).unwrap();
        if id != "own" {
            std::fs::write(dir.join("begun"), "").unwrap();
        }
        let mut command = Command::new(tine_vmm());
        command.args(["--id", id, "--run-dir"]).arg(&dir);
        command.arg("--api-sock").arg(dir.join("api.sock"));
        let process = command.spawn().unwrap();
        eventually(|| std::os::unix::net::UnixStream::connect(dir.join("api.sock")).is_ok());
        process
    });
    let [mut left, made, own] = processes;
    // Somebody is at work there.
    let lock = std::fs::File::open(place.run().join("made")).unwrap();
    lock.lock_shared().unwrap();
    let gone = format!("{}\n", place.run().join("left").display());
    assert_eq!(place.ok(["gc", "--dry-run"]), gone);
    assert!(left.try_wait().unwrap().is_none());
    assert_eq!(place.ok(["gc"]), gone);
    assert!(left.wait().unwrap().success(), "it was told to end");
    let states = [
        ("made", "created"),
        ("own", "created"),
        ("runs", "starting"),
    ];
    assert_eq!(
        list(&place, &[]),
        states.map(|(id, state)| (id.to_owned(), state.to_owned()))
    );
    place.ok(["rm", "-f", "made", "own", "runs"]);
    for mut process in [made, own] {
        process.wait().unwrap();
    }
}

#[test]
fn a_guest_that_switches_itself_off_is_listed_only_when_asked_for() {
    let place = place();
    started(&place, "off", "poweroff");
    let ended = [("off".to_owned(), "ended".to_owned())];
    eventually(|| list(&place, &["-a"]) == ended);
    assert_eq!(list(&place, &[]), []);
    place.ok(["rm", "off"]);
}

#[test]
fn a_start_that_fails_leaves_nothing_and_says_why() {
    let place = place();
    let mut command = place.tine(["run", "-d", "--no-wait", "--kernel", "/etc/passwd"]);
    let output = command.output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("neither an ELF kernel"));
    // This one is waited for, and has no agent that could answer.
    std::fs::write(place.path("initrd"), "none").unwrap();
    let mut command = place.tine(["run", "-d", "--initrd", "initrd", "--timeout", "300ms"]);
    let output = command.arg("--kernel").arg(guest("hang")).output().unwrap();
    assert_eq!(output.status.code(), Some(124), "{}", text(&output.stderr));
    assert!(text(&output.stderr).contains("console: A"));
    let mut command = place.tine(["run", "-d", "--initrd", "initrd", "--kernel"]);
    let output = command.arg(guest("triplefault")).output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{}", text(&output.stderr));
    assert_eq!(std::fs::read_dir(place.run()).unwrap().count(), 0);
}

#[test]
fn an_interrupted_start_leaves_nothing() {
    let place = place();
    std::fs::write(place.path("initrd"), "none").unwrap();
    let mut command = place.tine(["run", "-d", "--name", "slow", "--initrd", "initrd"]);
    let mut child = command.arg("--kernel").arg(guest("hang")).spawn().unwrap();
    eventually(|| !list(&place, &[]).is_empty());
    signal(&child, libc::SIGTERM);
    assert_eq!(child.wait().unwrap().code(), Some(143));
    assert_eq!(std::fs::read_dir(place.run()).unwrap().count(), 0);
}

#[test]
fn events_and_followed_logs_end_with_the_machine() {
    let place = place();
    started(&place, "m", "hang");
    let mut events = place.tine(["events", "m"]).spawn().unwrap();
    let mut logs = place.tine(["logs", "-f", "m"]).spawn().unwrap();
    let mut forward = place.tine(["forward", "m", "0:80"]).spawn().unwrap();
    read_until(events.stdout.as_mut().unwrap(), "state starting\n");
    read_until(logs.stdout.as_mut().unwrap(), "A");
    read_until(forward.stdout.as_mut().unwrap(), "m:80\n");
    place.ok(["rm", "-f", "m"]);
    let mut rest = String::new();
    events
        .stdout
        .take()
        .unwrap()
        .read_to_string(&mut rest)
        .unwrap();
    assert!(rest.contains("state deleting\n"), "{rest}");
    assert!(events.wait().unwrap().success());
    assert!(logs.wait().unwrap().success());
    assert_eq!(forward.wait().unwrap().code(), Some(1));
}

#[test]
fn the_place_must_be_the_users_own() {
    use std::os::unix::fs::PermissionsExt;
    let place = place();
    let open = std::fs::Permissions::from_mode(0o777);
    std::fs::set_permissions(place.run(), open).unwrap();
    let output = start(&place, "m", "hang", &[]).output().unwrap();
    assert!(text(&output.stderr).contains("nobody else can write"));
    let long = place.path("x".repeat(100));
    let mut command = start(&place, "m", "hang", &[]);
    let output = command.env("TINE_RUN_DIR", long).output().unwrap();
    assert!(text(&output.stderr).contains("107"));
}

#[test]
fn shells_are_completed_and_every_command_has_examples() {
    let place = Place::new();
    for shell in ["bash", "zsh", "fish"] {
        let script = place.ok(["completion", shell]);
        assert!(script.contains("forward") && script.len() > 1000, "{shell}");
    }
    let all = [
        "run",
        "ps",
        "exec",
        "attach",
        "kill",
        "cp",
        "forward",
        "logs",
        "events",
        "inspect",
        "rm",
        "completion",
    ];
    for command in all {
        let help = place.ok([command, "--help"]);
        assert!(help.contains(&format!("  tine {command}")), "{help}");
    }
}
