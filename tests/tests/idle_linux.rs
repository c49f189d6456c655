//! Linux guests that nothing is asked of: neither they nor their monitors do anything, so that a host can hold
//! many. One machine is booted, or goes on from where one like it had come to.

use std::collections::HashMap;
use std::fs;
use std::thread;
use std::time::Duration;

use tine_tests::cli::{Place, with_vmm};
use tine_tests::linux::image;
use tine_tests::require_kvm;

/// Longer than a minute: what a guest's kernel does by the clock it does twice a second (compaction) or once a minute
/// (reseeding, connections that have timed out), and timers of a minute may be 5.12 s late.
const STRETCH: Duration = Duration::from_secs(70);
/// What came before may have something left to do, in a kernel that is interpreted and on a busy host.
const STRETCHES: usize = 3;
/// More than the host's KVM does for a vCPU at rest, less than a tenth of what a guest needs for one wake-up where its
/// kernel is interpreted (15 ms and more).
const REST: Duration = Duration::from_millis(1);

/// The processor time that each thread of a process has had.
fn threads(pid: i32) -> HashMap<(u32, String), Duration> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    let used = tasks.map(|task| {
        let dir = task.unwrap().path();
        let id = dir.file_name().unwrap().to_str().unwrap().parse().unwrap();
        let name = fs::read_to_string(dir.join("comm")).unwrap();
        // Nanoseconds on a processor come first (Linux, Documentation/scheduler/sched-stats.rst).
        let figures = fs::read_to_string(dir.join("schedstat")).unwrap();
        let nanos = figures.split(' ').next().unwrap().parse().unwrap();
        ((id, name.trim().to_owned()), Duration::from_nanos(nanos))
    });
    used.collect()
}

/// Names of the threads that did more than rest between two looks. Once a minute `tine-vmm`, the controller, writes
/// down what the machine has used.
fn busy(
    before: &HashMap<(u32, String), Duration>,
    after: &HashMap<(u32, String), Duration>,
) -> Vec<String> {
    let grown = after.iter().filter_map(|(thread, used)| {
        let grown = *used - before.get(thread).copied().unwrap_or_default();
        let allowed = match thread.1.as_str() {
            "tine-vmm" => 20 * REST,
            "vcpu0" => REST,
            _ => Duration::ZERO,
        };
        (grown > allowed).then(|| format!("{}: {grown:?}", thread.1))
    });
    grown.collect()
}

#[test]
fn nothing_runs_in_an_idle_machine_or_its_copy() {
    require_kvm();
    with_vmm();
    image();
    let place = Place::new();
    place.ok(["run", "-d", "--name", "first", "--memory", "128M"]);
    place.ok(["exec", "first", "--", "true"]);
    place.ok(["fork", "--name", "copy", "first"]);
    let pids = [place.pid("first"), place.pid("copy")];
    let mut seen = Vec::new();
    for _ in 0..STRETCHES {
        let before = pids.map(threads);
        thread::sleep(STRETCH);
        let after = pids.map(threads);
        assert!(
            after[0].keys().any(|(_, name)| name == "vcpu0"),
            "{:?}",
            after[0]
        );
        let found: [_; 2] = std::array::from_fn(|n| busy(&before[n], &after[n]));
        if found.iter().all(Vec::is_empty) {
            return;
        }
        seen.push(found);
    }
    panic!("each time something ran: {seen:?}");
}
