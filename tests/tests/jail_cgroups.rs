//! Cgroups on hosts that this one is not: a Linux guest is the jailer's host, with version 2 alone, with version 1
//! alone, with a part of version 2 handed over to an ordinary user and without.

use std::fs;
use std::path::{Path, PathBuf};

use tine_tests::cli::{Place, with_vmm};
use tine_tests::host;
use tine_tests::jail::tine_jailer;
use tine_tests::linux::image;

/// Waits for nothing for ever, as a monitor may (ppoll).
const WAITER: &str = ".globl _start
_start: mov $271, %eax
xor %edi, %edi
xor %esi, %esi
xor %edx, %edx
xor %r10d, %r10d
syscall
jmp _start
";

/// What all scripts begin with. `jail ID ARGS` makes a jail, `inside ID` says which process is in it, `ends ID` ends
/// it and has removed what it leaves, `there GROUP` says whether there is such a group.
const WORDS: &str = "cd /sys/fs/cgroup
jail() {
    id=$1; shift
    tine-jailer --id $id --exec-file /bin/waiter --uid 1001 --gid 1001 --chroot-base-dir /base \"$@\" 2>&1
}
inside() { cat /base/waiter/$1/root/waiter.pid; }
ends() {
    pid=$(inside $1); kill -9 $pid; wait
    while [ -d /proc/$pid ]; do :; done
    tine-jailer --gc --chroot-base-dir /base
}
there() { if [ -d $1 ]; then echo $1 is there; else echo no $1; fi; }
";

/// A root file system with a shell, the jailer, the program above, and a user `u`.
fn root(place: &Place) -> PathBuf {
    let dir = place.path("root");
    for name in [
        "bin", "dev", "etc", "proc", "sys", "run", "tmp", "base", "home",
    ] {
        fs::create_dir_all(dir.join(name)).unwrap();
    }
    let path = |path: &Path| path.to_str().unwrap().to_owned();
    let source = place.path("waiter.S");
    fs::write(&source, WAITER).unwrap();
    let bin = dir.join("bin");
    host(&[
        "cc",
        "-nostdlib",
        "-static",
        "-o",
        &path(&bin.join("waiter")),
        &path(&source),
    ]);
    host(&[
        "strip",
        "-o",
        &path(&bin.join("tine-jailer")),
        &path(tine_jailer()),
    ]);
    let busybox = host(&["sh", "-c", "command -v busybox"]);
    fs::copy(busybox.trim(), bin.join("busybox")).unwrap();
    std::os::unix::fs::symlink("busybox", bin.join("sh")).unwrap();
    fs::write(
        dir.join("etc/passwd"),
        "root:x:0:0::/:/bin/sh\nu:x:1001:1001::/:/bin/sh\n",
    )
    .unwrap();
    fs::write(dir.join("etc/group"), "root:x:0:\nu:x:1001:\n").unwrap();
    let disk = place.path("root.img");
    fs::File::create(&disk)
        .and_then(|file| file.set_len(48 << 20))
        .unwrap();
    // Whoever runs this: there it is root's.
    host(&[
        "mkfs.ext4",
        "-q",
        "-E",
        "root_owner=0:0",
        "-d",
        &path(&dir),
        &path(&disk),
    ]);
    disk
}

/// One guest for all, since a boot takes longest.
#[test]
fn hosts_of_other_kinds() {
    with_vmm();
    image();
    let place = Place::new();
    let disk = root(&place);
    place.ok([
        "run",
        "-d",
        "--name",
        "host",
        "--memory",
        "128M",
        "--rootfs",
        disk.to_str().unwrap(),
    ]);
    let sh = |script: &str| {
        let script = format!("{WORDS}{script}");
        place.ok(["exec", "host", "--", "sh", "-c", &script])
    };
    sh("chown -R 0:0 /base /bin; chown 1001:1001 /home");
    version_2_alone(&sh);
    what_version_2_does_not_allow(&sh);
    a_part_that_was_handed_over(&sh);
    what_was_not_handed_over(&sh);
    version_1_alone(&sh);
    place.ok(["rm", "-f", "host"]);
}

fn version_2_alone(sh: &dyn Fn(&str) -> String) {
    let said = sh("echo [$(cat cgroup.subtree_control)]
        jail a --new-pid-ns --daemonize --cgroup memory.max=16M --cgroup pids.max=8
        cd waiter/a; cat memory.max pids.max pids.current
        pid=$(inside a); cat /proc/$pid/cgroup
        [ $(cat cgroup.procs) = $pid ] && [ $(cat memory.current) -gt 0 ] && echo it is in it
        cat /sys/fs/cgroup/cgroup.subtree_control ../cgroup.subtree_control
        cd ../..; ends a; there waiter; there /base/waiter/a");
    let lines: Vec<&str> = said.lines().collect();
    let wanted = [
        "[]",
        "16777216",
        "8",
        "1",
        "0::/waiter/a",
        "it is in it",
        "memory pids",
        "memory pids",
        "no waiter",
        "no /base/waiter/a",
    ];
    assert_eq!(lines, wanted);
    // Without a new process the group is entered; the groups above it are somebody else's, and stay.
    let said = sh("mkdir -p one/two
        jail b --parent-cgroup one/two --cgroup pids.max=9 --cgroup cgroup.max.depth=0 < /dev/null > /tmp/b &
        until [ -s /base/waiter/b/root/waiter.pid ]; do [ -d /proc/$! ] || { cat /tmp/b; exit 1; }; done
        cat /proc/$(inside b)/cgroup one/two/b/pids.max one/two/b/cgroup.max.depth
        ends b; there one/two; there one/two/b; rmdir one/two one");
    assert_eq!(
        said,
        "0::/one/two/b\n9\n0\none/two is there\nno one/two/b\n"
    );
}

fn what_version_2_does_not_allow(sh: &dyn Fn(&str) -> String) {
    let said = sh("jail c --new-pid-ns --cgroup rdma.max=1; echo $?
        jail c --new-pid-ns --cgroup-version 1 --cgroup pids.max=8; echo $?
        jail c --new-pid-ns --cgroup pids.max=8 --cgroup memory.max=much; echo $?
        mkdir busy; sleep 1000 < /dev/null > /dev/null 2>&1 & echo $! > busy/cgroup.procs
        jail c --new-pid-ns --parent-cgroup busy --cgroup memory.max=16M; echo $?
        jail c --new-pid-ns --parent-cgroup busy --cgroup pids.max=8; echo $?
        kill $!; there busy/c; there waiter; there /base/waiter/c");
    let lines: Vec<&str> = said.lines().collect();
    assert_eq!(lines.len(), 13, "{said}");
    for (at, reason) in [
        (0, "no controller \"rdma\""),
        (2, "version 2 has it: leave --cgroup-version out"),
        (
            4,
            "cannot write \"much\" to /sys/fs/cgroup/waiter/c/memory.max",
        ),
        (6, "/sys/fs/cgroup/busy: processes are in it"),
        (8, "/sys/fs/cgroup/busy: processes are in it"),
    ] {
        assert!(lines[at].contains(reason), "{}", lines[at]);
        assert_eq!(lines[at + 1], "1", "{said}");
    }
    assert_eq!(lines[10..], ["no busy/c", "no waiter", "no /base/waiter/c"]);
}

/// As a user, from the group that is given.
const AS_USER: &str = "user() {
    group=$1; shift
    sh -c \"echo 0 > $group/cgroup.procs && exec su u -c \\\"$*\\\"\" 2>&1
}
echo '+memory +pids' > cgroup.subtree_control
line='tine-jailer --id d --exec-file /bin/waiter --chroot-base-dir /home --new-pid-ns --daemonize'
limits='--cgroup memory.max=16M --cgroup pids.max=8'
";

fn a_part_that_was_handed_over(sh: &dyn Fn(&str) -> String) {
    let said = sh(&format!(
        "{AS_USER}mkdir -p own/shell
        chown 1001:1001 own own/cgroup.procs own/cgroup.subtree_control own/cgroup.threads
        user own/shell $line $limits; echo $?
        pid=$(cat /home/waiter/d/root/waiter.pid); cat /proc/$pid/cgroup
        cd own/waiter/d; cat memory.max pids.max; [ $(cat cgroup.procs) = $pid ] && echo it is in it
        kill -9 $pid; while [ -d /proc/$pid ]; do :; done
        cd /sys/fs/cgroup; user own/shell tine-jailer --gc --chroot-base-dir /home
        there own/waiter; there /home/waiter/d"
    ));
    let lines: Vec<&str> = said.lines().collect();
    let wanted = [
        "0",
        "0::/own/waiter/d",
        "16777216",
        "8",
        "it is in it",
        "no own/waiter",
        "no /home/waiter/d",
    ];
    assert_eq!(lines, wanted);
}

fn what_was_not_handed_over(sh: &dyn Fn(&str) -> String) {
    let said = sh(&format!(
        "{AS_USER}mkdir -p roots/shell alone
        user roots/shell $line $limits; echo $?
        chown -R 1001:1001 alone; user alone $line $limits; echo $?
        there roots/waiter; there waiter; there /home/waiter/d"
    ));
    let lines: Vec<&str> = said.lines().collect();
    assert_eq!(lines.len(), 7, "{said}");
    for at in [0, 2] {
        assert!(
            lines[at].contains("the host has handed that over"),
            "{said}"
        );
        assert_eq!(lines[at + 1], "1", "{said}");
    }
    assert_eq!(
        lines[4..],
        ["no roots/waiter", "no waiter", "no /home/waiter/d"]
    );
}

fn version_1_alone(sh: &dyn Fn(&str) -> String) {
    let script = format!(
        "{WORDS}cd /; umount /sys/fs/cgroup; mount -t tmpfs none /sys/fs/cgroup; cd /sys/fs/cgroup
        mkdir cpuset; mount -t cgroup -o cpuset none cpuset || exit 1
        jail e --new-pid-ns --cgroup memory.max=16M; echo $?
        jail e --new-pid-ns --cgroup-version 2; echo $?
        jail e --new-pid-ns --daemonize --cgroup cpuset.cpus=0; echo $?
        pid=$(inside e); grep cpuset: /proc/$pid/cgroup | cut -d: -f3
        cd cpuset/waiter/e; cat cpuset.cpus cpuset.mems; [ $(cat tasks) = $pid ] && echo it is in it
        cd ../..; ends e; there waiter; cd ..; umount cpuset"
    );
    let said = sh(&format!(
        "unshare -m sh -c '{}'",
        script.replace('\'', "'\\''")
    ));
    let lines: Vec<&str> = said.lines().collect();
    assert_eq!(lines.len(), 10, "{said}");
    assert!(lines[0].contains("no controller \"memory\""), "{said}");
    assert!(lines[2].contains("no cgroups of version 2"), "{said}");
    let wanted = ["0", "/waiter/e", "0", "0", "it is in it", "no waiter"];
    assert_eq!(lines[4..], wanted);
}
