//! Machines' processes as the library starts them: alone, out of one snapshot, out of one machine, and
//! what is left of those that fail or are dropped.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde_json::json;
use tempfile::TempDir;
use tine::client::{ExecRequest, Machine, argv};
use tine::launch::{LaunchError, Launched, Launcher, NewMachine};
use tine_tests::api::tine_vmm;
use tine_tests::linux::image;
use tine_tests::{guest, require_kvm};

struct Place {
    dir: TempDir,
    launcher: Launcher,
}

impl Place {
    fn new() -> Self {
        require_kvm();
        let dir = TempDir::new().expect("a directory");
        let launcher = Launcher::new(tine_vmm(), dir.path().join("machines"));
        Self { dir, launcher }
    }

    /// For guests without an agent.
    fn bare() -> Self {
        let place = Self::new();
        let launcher = place.launcher.clone().wait_for_agents(false);
        Self { launcher, ..place }
    }

    /// The machines that have a directory.
    fn machines(&self) -> Vec<String> {
        let entries = fs::read_dir(self.dir.path().join("machines")).into_iter();
        let names = entries.flatten().map(|entry| entry.unwrap().file_name());
        let mut names: Vec<String> = names.map(|name| name.into_string().unwrap()).collect();
        names.sort();
        names
    }

    /// A bare-metal guest that writes its counter all the time.
    async fn counting(&self, id: &str) -> Launched {
        let machine = self.launcher.start(id).await.unwrap();
        let boot = json!({ "kernel_image_path": guest("counting") });
        machine.put("/boot-source", &boot).await.unwrap();
        let action = json!({ "action_type": "InstanceStart" });
        machine.put("/actions", &action).await.unwrap();
        goes_on(&machine).await;
        machine
    }
}

/// Waits until the guest has worked some more, and found no fault: it would have ended.
async fn goes_on(machine: &Launched) {
    let start = Instant::now();
    let (before, _) = cpu_us(machine).await;
    loop {
        let (now, state) = cpu_us(machine).await;
        if now >= before + 20_000 {
            assert_eq!(state, "starting", "a guest without an agent");
            return;
        }
        assert!(
            start.elapsed() < Duration::from_secs(60),
            "{}",
            machine.said()
        );
        tokio::task::yield_now().await;
    }
}

async fn cpu_us(machine: &Machine) -> (u64, String) {
    let status = machine.status().await.unwrap();
    (
        status.more["usage"]["cpu_us"].as_u64().unwrap(),
        status.state,
    )
}

fn named(ids: &[&str]) -> Vec<NewMachine> {
    ids.iter().map(|id| NewMachine::bare(id)).collect()
}

fn runtime() -> tokio::runtime::Runtime {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    builder.enable_all().build().unwrap()
}

fn is_there(pid: u32) -> bool {
    Path::new(&format!("/proc/{pid}")).exists()
}

#[test]
fn copies_of_a_machine_and_of_a_snapshot() {
    runtime().block_on(async {
        let place = Place::bare();
        let parent = place.counting("parent").await;
        let copies = place.launcher.fork(&parent, named(&["a", "b", "c"])).await;
        let copies: Vec<Launched> = copies.unwrap().into_iter().map(Result::unwrap).collect();
        let snapshot = place.dir.path().join("snapshot");
        parent.snapshot(&snapshot, false).await.unwrap();
        // They need neither the machine that they come from nor its directory.
        let pid = parent.pid();
        drop(parent);
        assert!(!is_there(pid));
        for (copy, id) in copies.iter().zip(["a", "b", "c"]) {
            assert_eq!(copy.id(), id);
            goes_on(copy).await;
        }
        let restored = place
            .launcher
            .restore_all(&snapshot, named(&["d", "e"]))
            .await;
        for machine in restored.unwrap() {
            goes_on(&machine.unwrap()).await;
        }
        assert_eq!(
            place.machines(),
            ["a", "b", "c"],
            "what was dropped is gone"
        );
        // From outside too it is a machine.
        let other = Machine::connect(copies[0].socket()).await.unwrap();
        assert_eq!(other.status().await.unwrap().id, "a");
        drop(copies);
        assert!(place.machines().is_empty());
    });
}

#[test]
fn one_that_fails_leaves_the_others_and_nothing_of_itself() {
    runtime().block_on(async {
        let place = Place::bare();
        let parent = place.counting("parent").await;
        let copies = place
            .launcher
            .fork(&parent, named(&["a", "parent", "b"]))
            .await;
        let copies = copies.unwrap();
        assert_eq!(copies[0].as_ref().unwrap().id(), "a");
        let taken = copies[1].as_ref().unwrap_err();
        assert!(matches!(taken, LaunchError::Directory { .. }), "{taken}");
        assert!(taken.to_string().contains("exists"), "{taken}");
        assert_eq!(copies[2].as_ref().unwrap().id(), "b");
        // Its place was not touched, and what nobody took is not kept for anybody.
        goes_on(&parent).await;
        assert_eq!(place.machines(), ["a", "b", "parent"]);
        let socket = parent.dir().join("fork.sock");
        assert!(!socket.exists());
        // A guest without an agent can be told nothing, and each says so.
        let told = vec![NewMachine::named("x"), NewMachine::bare("y")];
        let told = place.launcher.fork(&parent, told).await.unwrap();
        let refused = told[0].as_ref().unwrap_err().to_string();
        assert!(refused.contains("machine x: "), "{refused}");
        assert!(refused.contains("no agent"), "{refused}");
        goes_on(told[1].as_ref().unwrap()).await;
        assert_eq!(place.machines(), ["a", "b", "parent", "y"]);
    });
}

#[test]
fn what_cannot_be_started_says_why_and_leaves_nothing() {
    runtime().block_on(async {
        let place = Place::bare();
        for id in ["", "..", "a/b", "A", &"a".repeat(65)] {
            let err = place.launcher.start(id).await.unwrap_err();
            assert!(matches!(err, LaunchError::Id { .. }), "{id:?}: {err}");
        }
        let twice = place
            .launcher
            .restore_all("/nowhere", named(&["a", "a"]))
            .await;
        let twice = twice.unwrap_err().to_string();
        assert!(twice.contains("twice"), "{twice}");
        let nowhere = place
            .launcher
            .restore("/nowhere", NewMachine::bare("a"))
            .await;
        let nowhere = nowhere.unwrap_err().to_string();
        assert!(nowhere.contains("/nowhere"), "{nowhere}");

        let machines = place.dir.path().join("machines");
        let none = Launcher::new("/nowhere/tine-vmm", &machines);
        let err = none.start("a").await.unwrap_err();
        assert!(matches!(err, LaunchError::Program { .. }), "{err}");
        let other = Launcher::new("/bin/ls", &machines);
        let err = other.start("a").await.unwrap_err();
        assert!(matches!(err, LaunchError::Ended { .. }), "{err}");
        // In the words of the program.
        assert!(err.to_string().contains("--api-sock"), "{err}");
        assert!(place.machines().is_empty());

        let file = place.dir.path().join("file");
        fs::write(&file, "").unwrap();
        let err = Launcher::new(tine_vmm(), file.join("x")).start("a").await;
        let err = err.unwrap_err().to_string();
        assert!(err.contains("Not a directory"), "{err}");
    });
}

#[test]
fn the_end_is_told_and_a_detached_one_stays() {
    runtime().block_on(async {
        let place = Place::bare();
        let machine = place.counting("a").await;
        let early = tokio::time::timeout(Duration::from_millis(50), machine.ended()).await;
        assert!(early.is_err(), "it runs");
        machine.delete().await.unwrap();
        let ended = tokio::time::timeout(Duration::from_secs(30), machine.ended()).await;
        ended.expect("in time").unwrap();
        drop(machine);
        assert!(place.machines().is_empty());

        let machine = place.counting("b").await;
        let machine = machine.detach();
        assert_eq!(machine.status().await.unwrap().id, "b");
        assert_eq!(place.machines(), ["b"]);
        machine.delete().await.unwrap();
    });
}

#[test]
fn copies_of_a_linux_guest_are_machines_of_their_own() {
    runtime().block_on(async {
        let place = Place::new();
        let (kernel, initrd) = image();
        let parent = place.launcher.start("parent").await.unwrap();
        let config = json!({ "memory_mib": 128, "kernel": kernel, "initrd": initrd });
        parent.put("/v1/config", &config).await.unwrap();
        let vsock = json!({ "guest_cid": 3, "uds_path": parent.dir().join("vsock") });
        parent.put("/vsock", &vsock).await.unwrap();
        let action = json!({ "action_type": "InstanceStart" });
        parent.put("/actions", &action).await.unwrap();
        let limit = Duration::from_secs(300);
        parent.wait_until_running(limit).await.unwrap();
        let snapshot: PathBuf = place.dir.path().join("snapshot");
        parent.snapshot(&snapshot, false).await.unwrap();

        let ids = ["one_1", "one_2"].map(NewMachine::named).to_vec();
        let copies = place.launcher.fork(&parent, ids).await.unwrap();
        let restored = NewMachine::named("two");
        let restored = place.launcher.restore(&snapshot, restored).await;
        let mut seen = std::collections::HashSet::new();
        for copy in copies.into_iter().chain([restored]) {
            let copy = copy.unwrap();
            let request = ExecRequest {
                argv: argv(["sh", "-c", "hostname; cat /etc/machine-id"]),
                ..Default::default()
            };
            let record = copy.run(request).await.unwrap();
            let (name, machine_id) = record.stdout.trim().split_once('\n').unwrap();
            assert_eq!(name, copy.id().replace('_', "-"));
            assert!(seen.insert(machine_id.to_owned()), "{machine_id} twice");
        }
    });
}
