//! What the jailer does not take, and what it says of it.

use std::fs;
use std::path::Path;
use std::process::Command;

use tine_tests::jail::machine::{groups, jails, start, walk};
use tine_tests::jail::tine_jailer;
use tine_tests::text;

#[test]
fn a_program_that_cannot_run_in_a_jail_is_refused_and_leaves_nothing() {
    let jails = jails();
    let shell = fs::canonicalize("/bin/sh").unwrap();
    for (program, reason) in [
        (&b"this is no program"[..], "ELF"),
        (&fs::read(shell).unwrap(), "statically"),
    ] {
        fs::write(&jails.program, program).unwrap();
        for arguments in [&["--new-pid-ns"][..], &["--daemonize"], &[]] {
            let output = jails.command("a").args(arguments).output().unwrap();
            assert_eq!(output.status.code(), Some(1), "{arguments:?}");
            let message = text(&output.stderr);
            assert!(message.contains(reason), "{message}");
            assert_eq!(message.lines().count(), 1, "{message}");
            assert!(!jails.of_id("a").exists(), "{arguments:?}");
        }
    }
}

/// A file that ends in the middle of its code: the kernel refuses it where nothing else is left.
#[test]
fn a_program_that_the_kernel_refuses_is_told_of() {
    let jails = jails();
    let mut bytes = fs::read(&jails.program).unwrap();
    // The kind of file: neither a program nor anything else.
    bytes[16] = 0;
    fs::write(&jails.program, bytes).unwrap();
    for arguments in [&["--new-pid-ns"][..], &["--daemonize"], &[]] {
        let output = jails.command("a").args(arguments).output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{arguments:?} {output:?}");
        assert!(
            text(&output.stderr).contains("execute the program"),
            "{output:?}"
        );
        assert!(jails.collect().status.success());
        assert!(!jails.of_id("a").exists(), "{arguments:?}");
    }
}

#[test]
fn limits_are_read_back_and_bad_ones_leave_nothing() {
    let jails = jails();
    for (setting, reason) in [
        ("pids.nothing=1", "pids.nothing"),
        ("pids.max=many", "many"),
        ("nothing.max=1", "no controller"),
    ] {
        let output = start(
            &jails,
            "bad-limit",
            &["--cgroup", "pids.max=64", "--cgroup", setting],
        );
        let message = text(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{message}");
        assert!(message.contains(reason), "{message}");
        assert!(!jails.of_id("bad-limit").exists());
    }
    assert!(groups("tine-vmm/bad-limit").is_empty());
}

#[test]
fn what_makes_no_sense_is_refused_in_one_line() {
    let jails = jails();
    let base = jails.base();
    let link = jails.dir.path().join("link");
    std::os::unix::fs::symlink(&jails.program, &link).unwrap();
    let open = jails.dir.path().join("open");
    fs::create_dir(&open).unwrap();
    let anyone = std::os::unix::fs::PermissionsExt::from_mode(0o777);
    fs::set_permissions(&open, anyone).unwrap();
    let hard = jails.dir.path().join("hard");
    fs::write(&hard, "x").unwrap();
    fs::hard_link(&hard, jails.dir.path().join("hard2")).unwrap();
    let run = |program: &Path, base: &Path, more: &[&str]| {
        let mut command = Command::new(tine_jailer());
        command
            .args(["--id", "a", "--uid", "1", "--gid", "1", "--exec-file"])
            .arg(program);
        command.arg("--chroot-base-dir").arg(base).args(more);
        let output = command.output().unwrap();
        assert!(!output.status.success());
        let message = text(&output.stderr);
        assert!(!message.contains("panicked"), "{message}");
        message
    };
    let program = jails.program.as_path();
    assert!(run(&link, &base, &[]).contains("symbolic link"));
    assert!(run(&hard, &base, &[]).contains("hard link"));
    assert!(run(program, &open, &[]).contains("go-w"));
    assert!(run(program, Path::new("/nowhere"), &[]).contains("/nowhere"));
    assert!(run(Path::new("/nowhere"), &base, &[]).contains("/nowhere"));
    assert!(run(program, &base, &["--netns", "/etc/hostname"]).contains("no network namespace"));
    assert!(run(program, &base, &["--bind", "/nowhere:/x"]).contains("/nowhere"));
    assert_eq!(walk(&base).count(), 0);
    for wrong in [
        &["--id", "a/b"][..],
        &["--cgroup", "x"],
        &["--cgroup-version", "3"],
    ] {
        let output = jails.command("x").args(wrong).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{wrong:?}");
    }
}

#[test]
fn a_dry_run_prints_the_plan_and_does_nothing() {
    let jails = jails();
    let output = jails
        .command("a")
        .args(["--new-pid-ns", "--dry-run"])
        .output()
        .unwrap();
    assert!(output.status.success());
    let plan = text(&output.stdout);
    for word in [
        "pivot_root",
        "Landlock",
        "user 4242",
        "drop all capabilities",
    ] {
        assert!(plan.contains(word), "{word}: {plan}");
    }
    assert_eq!(fs::read_dir(jails.base()).unwrap().count(), 0);
    assert!(!Path::new("/run/tine-jailer").exists());
}
