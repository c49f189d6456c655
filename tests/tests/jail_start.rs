//! Machines in jails: their start, and the jail that they find themselves in.

use std::fs;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::json;
use tine_tests::guest;
use tine_tests::jail::machine::{boot, connect, jails, request, start, walk};
use tine_tests::jail::seen::{is_jailed, mounts, namespace, status};
use tine_tests::jail::{copy, many_mounts, tine_jailer};
use tine_tests::text;

#[test]
fn a_machine_boots_in_a_jail_that_is_what_it_says() {
    let jails = jails();
    let started = start(&jails, "a", &["--cgroup", "pids.max=64"]);
    assert!(
        started.status.success() && started.stderr.is_empty(),
        "{started:?}"
    );
    boot(&jails, "a");
    let pid = jails.pid("a");
    is_jailed(pid, 4242, 4243);
    assert_eq!(status(pid, "Groups"), "");
    assert_eq!(mounts(pid), ["/", "/dev"]);
    let limits = fs::read_to_string(format!("/proc/{pid}/limits")).unwrap();
    let core = limits
        .lines()
        .find(|line| line.starts_with("Max core file size"))
        .unwrap();
    assert_eq!(core.split_whitespace().nth(4), Some("0"), "{core}");
    // Dumpable processes belong to their user there, others to root.
    assert_eq!(
        fs::metadata(format!("/proc/{pid}/environ")).unwrap().uid(),
        0
    );
    let groups = fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap();
    assert!(groups.contains("/tine-vmm/a"), "{groups}");
}

#[test]
fn a_hundred_at_once_on_a_host_with_five_hundred_mounts() {
    let jails = jails();
    let mounts = jails.dir.path().join("mounts");
    fs::create_dir(&mounts).unwrap();
    let tmpfs = c"tmpfs".as_ptr();
    let place = std::ffi::CString::new(mounts.to_str().unwrap()).unwrap();
    // SAFETY: C strings that live through the call.
    let mounted = unsafe { libc::mount(tmpfs, place.as_ptr(), tmpfs, 0, std::ptr::null()) };
    assert_eq!(mounted, 0);
    many_mounts(&mounts, 500);
    let ids: Vec<String> = (0..100).map(|number| format!("n{number}")).collect();
    let start = |id: &String| {
        let mut command = jails.command(id);
        command.args([
            "--daemonize",
            "--new-pid-ns",
            "--",
            "--api-sock",
            "/run/api.sock",
        ]);
        command.spawn().unwrap()
    };
    let children: Vec<_> = ids.iter().map(start).collect();
    for (id, mut child) in ids.iter().zip(children) {
        assert!(child.wait().unwrap().success(), "{id}");
    }
    for id in &ids {
        assert!(request(&jails, id, "GET", "/", "").contains(&format!(r#""id":"{id}""#)));
    }
    // None of the host's mounts is in any of them.
    for id in &ids {
        let mounts = fs::read_to_string(format!("/proc/{}/mountinfo", jails.pid(id))).unwrap();
        assert_eq!(mounts.lines().count(), 2, "{mounts}");
        jails.kill(id);
    }
    assert!(jails.collect().status.success());
    assert_eq!(walk(&jails.base()).count(), 0);
    // SAFETY: a C string.
    unsafe { libc::umount2(place.as_ptr(), libc::MNT_DETACH) };
}

#[test]
fn an_ordinary_user_has_a_jail_with_kvm_in_it() {
    let jails = jails();
    // A node that the user may open, where nobody else sees it.
    let script = "mknod /run/kvm c 10 232 && chmod 666 /run/kvm && mount --bind /run/kvm /dev/kvm";
    assert!(
        Command::new("sh")
            .args(["-c", script])
            .status()
            .unwrap()
            .success()
    );
    let jailer = copy(tine_jailer(), jails.dir.path());
    std::os::unix::fs::chown(jails.base(), Some(4242), Some(4242)).unwrap();
    let status = Command::new("setpriv")
        .args(["--reuid", "4242", "--regid", "4242", "--clear-groups", "--"])
        .arg(jailer)
        .args(["--id", "u", "--daemonize", "--new-pid-ns", "--exec-file"])
        .arg(&jails.program)
        .arg("--chroot-base-dir")
        .arg(jails.base())
        .args(["--", "--api-sock", "/run/api.sock"])
        .status();
    assert!(status.unwrap().success());
    boot(&jails, "u");
    let pid = jails.pid("u");
    assert_eq!(status_of(pid), "4242 4242 4242 4242 0000000000000000");
}

fn status_of(pid: i32) -> String {
    format!("{} {}", status(pid, "Uid"), status(pid, "CapBnd"))
}

#[test]
fn the_program_keeps_the_jailers_number_when_nothing_else_is_asked_for() {
    let jails = jails();
    let mut command = jails.command("same");
    command.args(["--", "--api-sock", "/run/api.sock"]);
    let mut child = command.spawn().unwrap();
    connect(&jails, "same");
    assert_eq!(jails.pid("same"), child.id() as i32);
    // SAFETY: integers; the child has not been waited for.
    unsafe { libc::kill(child.id() as i32, libc::SIGTERM) };
    assert!(
        child.wait().unwrap().success(),
        "the status is the program's own"
    );
}

/// A host with both versions has controllers in either.
#[test]
fn a_controller_of_version_2_takes_the_machine_from_its_first_moment() {
    let root = ["/sys/fs/cgroup/unified", "/sys/fs/cgroup"]
        .into_iter()
        .find(|root| Path::new(root).join("cgroup.controllers").exists());
    let root = Path::new(root.expect("this host has cgroups of version 2"));
    let controllers = fs::read_to_string(root.join("cgroup.controllers")).unwrap();
    let setting = match controllers.contains("hugetlb") {
        true => "hugetlb.2MB.max=0",
        false => "pids.max=64",
    };
    let jails = jails();
    let started = start(
        &jails,
        "v2",
        &["--cgroup", setting, "--parent-cgroup", "tine-test/x"],
    );
    assert!(started.status.success(), "{started:?}");
    let groups = fs::read_to_string(format!("/proc/{}/cgroup", jails.pid("v2"))).unwrap();
    assert!(groups.contains("0::/tine-test/x/v2"), "{groups}");
    let (file, value) = setting.split_once('=').unwrap();
    let set = fs::read_to_string(root.join("tine-test/x/v2").join(file)).unwrap();
    assert_eq!(set.trim(), value);
    jails.kill("v2");
    assert!(jails.collect().status.success());
    assert!(!root.join("tine-test/x/v2").exists());
    // The groups above were named by the launcher, and are its.
    fs::remove_dir(root.join("tine-test/x")).unwrap();
    fs::remove_dir(root.join("tine-test")).unwrap();
}

/// As in a container: the leader of the launcher's session is in no PID namespace of its own.
#[test]
fn a_launcher_whose_sessions_leader_is_out_of_sight_makes_jails() {
    let jails = jails();
    let plain = jails.command("a");
    let mut command = Command::new("unshare");
    command.args(["--pid", "--fork", "--kill-child", "--mount-proc"]);
    command.arg(plain.get_program()).args(plain.get_args());
    let mut launcher = command
        .args(["--daemonize", "--", "--version"])
        .spawn()
        .unwrap();
    assert!(launcher.wait().unwrap().success());
    // The number in the jail's file was of that namespace, and must not be taken for one of this.
    let collected = jails.collect();
    if !collected.status.success() {
        // Who is in a namespace of its own, as in a container, cannot tell that the other one is over.
        let said = text(&collected.stderr);
        assert!(said.contains("written in another PID namespace"), "{said}");
        fs::remove_file(jails.of_id("a").join("jail")).unwrap();
        fs::remove_dir_all(jails.of_id("a")).unwrap();
        assert!(jails.collect().status.success());
    }
    assert!(!jails.of_id("a").exists());
}

#[test]
fn files_and_descriptors_are_handed_over_and_a_network_is_joined() {
    let jails = jails();
    let mut sleeper = Command::new("unshare")
        .args(["--net", "sleep", "1000"])
        .spawn()
        .unwrap();
    let own = namespace("self", "net");
    let start_time = Instant::now();
    while namespace(sleeper.id(), "net") == own {
        assert!(start_time.elapsed() < Duration::from_secs(20));
        std::thread::yield_now();
    }
    let kernel = guest("spin");
    let bind = format!("{}:/images/kernel", kernel.display());
    let network = format!("/proc/{}/ns/net", sleeper.id());
    let file = fs::File::open("/etc/hostname").unwrap();
    // SAFETY: integers: the copy, which is not closed by exec, has a number that nobody uses.
    assert_eq!(unsafe { libc::dup2(file.as_raw_fd(), 77) }, 77);
    let arguments = ["--bind", &bind, "--netns", &network, "--keep-fd", "77"];
    let started = start(&jails, "a", &arguments);
    assert!(started.status.success(), "{started:?}");
    let pid = jails.pid("a");
    assert_eq!(namespace(pid, "net"), namespace(sleeper.id(), "net"));
    let kept = fs::read_link(format!("/proc/{pid}/fd/77")).unwrap();
    assert_eq!(kept, Path::new("/etc/hostname"));
    let source = json!({"kernel_image_path": "/images/kernel"}).to_string();
    let put = request(&jails, "a", "PUT", "/boot-source", &source);
    assert!(put.contains("204"), "{put}");
    sleeper.kill().unwrap();
    sleeper.wait().unwrap();
    // SAFETY: the copy made above.
    unsafe { libc::close(77) };
}
