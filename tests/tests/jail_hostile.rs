//! A hostile program in the place of the monitor: it tries more than sixty ways out, and none is
//! one. It tries what the test itself has put outside: a port, sockets, a key, shared memory.

use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::net::TcpListener;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::chown;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::atomic::{AtomicU32, Ordering};

use tine_tests::jail::{Jails, copy, require_root, tine_jailer};
use tine_tests::text;

/// Whom the hostile program runs as.
const USER: u32 = 4242;

/// Ways that nothing but the filter closes. None of them leads out by itself: they are work for
/// who looks for a fault in the kernel.
const ONLY_THE_FILTER: [&str; 11] = [
    "be told of what happens to files",
    "hold on to another process",
    "start a process",
    "execute from memory",
    "have memory that is written and executed",
    "make written memory executable",
    "have all memory executable",
    "make an io_uring",
    "handle page faults of the kernel",
    "add a key",
    "change the local descriptor table",
];

/// What is open to anybody who is not in a jail.
const OPEN_OUTSIDE: [&str; 20] = [
    "open the host's /etc/passwd",
    "open a file of the host by `..`",
    "walk /proc",
    "walk /sys",
    "read the environment",
    "mount /proc",
    "make a user namespace",
    "make namespaces by clone3",
    "signal another process",
    "see shared memory of the host",
    "become another user",
    "have a capability",
    "start a process",
    "execute from memory",
    "have memory that is written and executed",
    "have a key of the launcher",
    "make an io_uring",
    "connect to a port of the host",
    "connect to a socket file of the host",
    "connect to an abstract socket of the host",
];

/// What is to be reached, on the host. One test at a time has it.
struct World {
    jails: Jails,
    jailer: PathBuf,
    _file: UnixListener,
    _abstract: UnixListener,
    /// Dropped last: it lets the next test in.
    _port: TcpListener,
}

impl World {
    fn new() -> Self {
        require_root();
        let port = loop {
            match TcpListener::bind("127.0.0.1:7469") {
                // Another test of this file has it.
                Err(err) if err.kind() == ErrorKind::AddrInUse => std::thread::yield_now(),
                other => break other.unwrap(),
            }
        };
        let path = "/tmp/tine-test-socket";
        let _ = std::fs::remove_file(path);
        let file = UnixListener::bind(path).unwrap();
        let anyone = std::os::unix::fs::PermissionsExt::from_mode(0o777);
        std::fs::set_permissions(path, anyone).unwrap();
        let address = SocketAddr::from_abstract_name("tine-test-socket").unwrap();
        let unnamed = UnixListener::bind_addr(&address).unwrap();
        // SAFETY: integers, and strings that live through the calls.
        unsafe {
            assert!(libc::shmget(0x7469_6e65, 4096, libc::IPC_CREAT | 0o666) >= 0);
            let (kind, name) = (c"user".as_ptr(), c"tine-test-key".as_ptr());
            // Into a session keyring of its own, which children inherit.
            libc::syscall(libc::SYS_keyctl, 1, 0);
            let key = libc::syscall(libc::SYS_add_key, kind, name, c"x".as_ptr(), 1, -3);
            assert!(key > 0, "{}", std::io::Error::last_os_error());
        }
        let jails = Jails::of(Path::new(env!("CARGO_BIN_EXE_tine-hostile")));
        // Where an ordinary user can execute it too.
        let jailer = copy(tine_jailer(), jails.dir.path());
        Self {
            _port: port,
            _file: file,
            _abstract: unnamed,
            jails,
            jailer,
        }
    }

    /// The program in a jail, with further arguments for the jailer and names of attempts.
    fn jailed(&self, user: bool, jailer: &[&str], attempts: &[&str]) -> Output {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let id = format!("h{}", NUMBER.fetch_add(1, Ordering::Relaxed));
        let jails = &self.jails;
        let base = match user {
            true => jails.dir.path().join("base-of-user"),
            false => jails.base(),
        };
        let mut command = match user {
            true => {
                std::fs::create_dir_all(&base).unwrap();
                chown(&base, Some(USER), Some(USER)).unwrap();
                let user = USER.to_string();
                let mut command = Command::new("setpriv");
                command.args(["--reuid", &user, "--regid", &user, "--clear-groups", "--"]);
                command.arg(&self.jailer);
                command
            }
            false => {
                let mut command = Command::new(&self.jailer);
                command.args(["--uid", "4242", "--gid", "4242"]);
                command
            }
        };
        command
            .args(["--id", &id, "--exec-file"])
            .arg(&jails.program);
        command.arg("--chroot-base-dir").arg(base);
        command.args(["--resource-limit", "fsize=1048576"]);
        command.args(jailer).arg("--").args(attempts);
        command.env("LEAKED", "yes").output().unwrap()
    }

    fn outside(&self, attempts: &[&str]) -> Output {
        let mut command = Command::new(&self.jails.program);
        command.args(["--id", "x"]).args(attempts).output().unwrap()
    }
}

impl Drop for World {
    fn drop(&mut self) {
        let _ = std::fs::remove_file("/tmp/tine-test-socket");
        // SAFETY: integers and null.
        unsafe {
            let id = libc::shmget(0x7469_6e65, 0, 0);
            libc::shmctl(id, libc::IPC_RMID, std::ptr::null_mut());
        }
    }
}

/// What came of each attempt: name and result.
fn results(output: &Output) -> Vec<(String, String)> {
    let all = text(&output.stdout);
    let split = |line: &str| {
        let (name, result) = line.split_once(": ").unwrap_or((line, ""));
        (name.to_owned(), result.to_owned())
    };
    all.lines().map(split).collect()
}

fn names(results: &[(String, String)], what: &str) -> BTreeSet<String> {
    let found = results
        .iter()
        .filter(|(_, result)| result.starts_with(what));
    found.map(|(name, _)| name.clone()).collect()
}

/// More than sixty attempts, and none got out.
fn all_refused(who: &str, output: &Output) {
    let results = results(output);
    let errors = text(&output.stderr);
    assert!(errors.is_empty(), "{who}: {errors}");
    let out = names(&results, "GOT OUT");
    assert!(out.is_empty(), "{who}: {out:?}");
    let (refused, not_here) = (names(&results, "refused"), names(&results, "not here"));
    assert_eq!(
        refused.len() + not_here.len(),
        results.len(),
        "{who}: {results:?}"
    );
    println!(
        "{who}: {} attempts refused, {} not here: {not_here:?}",
        refused.len(),
        not_here.len()
    );
    for (name, result) in &results {
        println!("  {name}: {result}");
    }
    assert!(refused.len() >= 60, "{who}: only {}", refused.len());
}

#[test]
fn nobody_gets_out_of_roots_jail() {
    let world = World::new();
    all_refused("root", &world.jailed(false, &["--new-pid-ns"], &[]));
    let traced = world.jailed(false, &["--new-pid-ns"], &["be traced"]);
    assert_eq!(names(&results(&traced), "refused").len(), 1, "{traced:?}");
    all_refused("root, same PID namespace", &world.jailed(false, &[], &[]));
    all_refused(
        "root, host network",
        &world.jailed(false, &["--host-network"], &[]),
    );
}

#[test]
fn nobody_gets_out_of_an_ordinary_users_jail() {
    let world = World::new();
    all_refused("user", &world.jailed(true, &["--new-pid-ns"], &[]));
    all_refused("user, same PID namespace", &world.jailed(true, &[], &[]));
}

#[test]
fn without_the_filter_everything_that_leads_out_is_closed_still() {
    let world = World::new();
    let known: BTreeSet<String> = ONLY_THE_FILTER.map(str::to_owned).into();
    for user in [false, true] {
        let output = world.jailed(user, &["--new-pid-ns", "--seccomp", "off"], &[]);
        let results = results(&output);
        let out = names(&results, "GOT OUT");
        let more: Vec<_> = out.difference(&known).collect();
        assert!(more.is_empty(), "as a user: {user}: {more:?}");
        assert!(names(&results, "refused").len() >= 60, "{output:?}");
        println!("without the filter, as a user {user}: {out:?}");
    }
}

/// The attempts are worth something: outside they succeed.
#[test]
fn outside_of_a_jail_the_attempts_succeed() {
    let world = World::new();
    for name in OPEN_OUTSIDE {
        let output = world.outside(&[name]);
        assert_eq!(
            names(&results(&output), "GOT OUT").len(),
            1,
            "{name}: {output:?}"
        );
    }
}

#[test]
fn memory_over_the_limit_ends_the_program() {
    let world = World::new();
    let (file, found) = memory_limit();
    println!("{file} {found}");
    let limit = format!("{file}=67108864");
    let name = "use memory without end";
    let output = world.jailed(false, &["--cgroup", &limit], &[name]);
    assert!(results(&output).is_empty(), "{output:?}");
    assert!(!output.status.success());
    // Without the limit it gets what it wants.
    let output = world.jailed(false, &[], &[name]);
    assert_eq!(names(&results(&output), "GOT OUT").len(), 1, "{output:?}");
}

/// The file that limits memory on this host, and where it was found.
fn memory_limit() -> (&'static str, &'static str) {
    let v1 = "/sys/fs/cgroup/memory/memory.limit_in_bytes";
    match Path::new(v1).exists() {
        true => ("memory.limit_in_bytes", v1),
        false => ("memory.max", "version 2"),
    }
}

#[test]
fn processes_over_the_limit_are_refused_without_a_filter_too() {
    let world = World::new();
    let name = "start threads without end";
    let jailer = ["--seccomp", "off", "--cgroup", "pids.max=16"];
    let output = world.jailed(false, &jailer, &[name]);
    let (_, result) = &results(&output)[0];
    let number: u32 = result
        .split_whitespace()
        .nth(2)
        .unwrap()
        .trim_end_matches(':')
        .parse()
        .unwrap();
    assert!(
        result.starts_with("refused: after") && number < 16,
        "{result}"
    );
}
