use super::*;

fn read(words: &[&str]) -> Result<Wanted, String> {
    let words = ["tine-jailer"].iter().chain(words);
    Wanted::of(words.map(|word| word.into()))
}

fn jail(words: &[&str]) -> Args {
    match read(words) {
        Ok(Wanted::Jail(args)) => *args,
        other => panic!("{words:?}: {other:?}"),
    }
}

#[test]
fn command_lines_of_the_known_jailer_are_understood() {
    let line = "--id 551e7604-e35c-42b3-b825-416853441234 --cgroup cpuset.mems=0 \
        --cgroup cpuset.cpus=0-1 --exec-file /usr/bin/vmm --uid 123 --gid 100 \
        --netns /var/run/netns/my_netns --daemonize --new-pid-ns --cgroup-version 1 \
        --parent-cgroup a/b --resource-limit fsize=250000000 --resource-limit no-file=1024 \
        --chroot-base-dir /srv/x -- --config-file vm.json --id -- x";
    let words: Vec<&str> = line.split_whitespace().collect();
    let config = jail(&words).config().unwrap();
    assert_eq!((config.uid, config.gid), (123, 100));
    assert_eq!(
        config.network,
        Network::Join("/var/run/netns/my_netns".into())
    );
    assert_eq!(config.cgroup.settings.len(), 2);
    assert_eq!(config.limits.open_files, 1024);
    assert!(config.daemonize && config.new_pid_ns);
    assert_eq!(
        config.arguments,
        ["--config-file", "vm.json", "--id", "--", "x"]
    );
}

#[test]
fn values_follow_or_are_joined_by_an_equals_sign() {
    let line = [
        "--id=a",
        "--exec-file",
        "/x",
        "--cgroup=io.max=8:0 rbps=1",
        "--keep-fd=3",
        "--keep-fd",
        "9",
        "--seccomp=trace:/t",
    ];
    let args = jail(&line);
    assert_eq!(args.id.as_str(), "a");
    assert_eq!(args.cgroup[0].value, "8:0 rbps=1");
    assert_eq!(args.keep_fd, [3, 9]);
    assert_eq!(args.trace_file.unwrap(), PathBuf::from("/t"));
    assert!(args.arguments.is_empty());
}

#[test]
fn what_makes_no_sense_is_named() {
    for (words, named) in [
        (&["--id"][..], "--id: its value"),
        (&["--id", "--gc"], "--id: its value"),
        (&["--id", "--"], "--id: its value"),
        (&["--id", "a", "--id", "b"], "--id: given twice"),
        (&["--id", "a/b"], "--id: \"a/b\": give 1 to 64"),
        (&["--exec-file", ""], "--exec-file: an empty path"),
        (&["--uid", "-1"], "--uid: \"-1\""),
        (&["--uid", ""], "--uid: \"\""),
        (&["--keep-fd", "2"], "--keep-fd: \"2\""),
        (&["--cgroup", "x"], "--cgroup: \"x\": give FILE=VALUE"),
        (&["--cgroup-version", "3"], "the versions are 1 and 2"),
        (&["--seccomp", "trace:"], "the modes are"),
        (&["--bind", "/a"], "--bind: \"/a\""),
        (&["--daemonize=yes"], "--daemonize"),
        (&["--frob"], "no option --frob"),
        (&["-x"], "no option -x"),
        (&["word"], "word: "),
        (&["--netns", "/n", "--host-network"], "give one of the two"),
        (&["--exec-file", "/x"], "--id is needed"),
        (&["--id", "a"], "--exec-file is needed"),
        (&["--gc", "--id", "a"], "--gc and --id"),
        (&["--dry-run", "--gc"], "--gc and --dry-run"),
        (&[], "is needed"),
    ] {
        let line = [words, &["--exec-file=/x", "--id=a"][..]].concat();
        let said = read(words).expect_err(&words.join(" "));
        assert!(said.contains(named), "{words:?}: {said}");
        // Unless it was the rest that was missing, more does not make it better.
        if !named.contains("needed") {
            read(&line).expect_err(&line.join(" "));
        }
    }
}

#[test]
fn what_is_asked_for_besides_jails() {
    assert!(matches!(read(&["--id", "a", "--help"]), Ok(Wanted::Help)));
    assert!(matches!(read(&["-h"]), Ok(Wanted::Help)));
    assert!(matches!(read(&["-V"]), Ok(Wanted::Version)));
    assert!(matches!(read(&["--version"]), Ok(Wanted::Version)));
    // Behind `--` they are the program's.
    let args = jail(&["--id", "a", "--exec-file", "/x", "--", "--help"]);
    assert_eq!(args.arguments, ["--help"]);
    match read(&["--gc"]) {
        Ok(Wanted::Collection(base)) => assert_eq!(base, PathBuf::from(DEFAULT_BASE)),
        other => panic!("{other:?}"),
    }
}

#[test]
fn the_help_names_every_default_as_it_is() {
    assert!(HELP.contains(&format!("[default: {DEFAULT_BASE}]")));
    assert!(HELP.lines().all(|line| line.chars().count() <= 100));
}
