//! Pools with a Linux guest: each machine is handed out once and replaced, and whoever is killed leaves
//! nothing. One machine is booted, for the template.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::process::Command;
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde_json::Value;
use tine_tests::cli::{Place, read_until, signal, with_vmm};
use tine_tests::jail::seen::group;
use tine_tests::left::{self, Random, files};
use tine_tests::linux::image;
use tine_tests::{require_kvm, text};

struct Pools {
    place: Place,
}

impl Pools {
    fn tine(&self, args: &[&str]) -> Command {
        let mut tine = self.place.tine(args);
        tine.env("TINE_DATA_DIR", self.place.path("data"));
        tine
    }

    fn ok(&self, args: &[&str]) -> String {
        let output = self.tine(args).output().unwrap();
        assert!(output.status.success(), "{}", text(&output.stderr));
        assert_eq!(text(&output.stderr), "");
        text(&output.stdout)
    }

    fn fails(&self, args: &[&str]) -> String {
        let output = self.tine(args).output().unwrap();
        let errors = text(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{errors}");
        errors
    }

    /// What `tine pool ls` says of the only pool.
    fn pool(&self) -> Value {
        let list: Value = serde_json::from_str(&self.ok(&["pool", "ls", "--json"])).unwrap();
        list[0].clone()
    }

    fn ready(&self) -> HashSet<String> {
        let pool = self.pool();
        let ids = pool["ready"].as_array().into_iter().flatten();
        ids.map(|id| id.as_str().unwrap().to_owned()).collect()
    }

    fn wait_for(&self, count: usize) -> HashSet<String> {
        eventually(|| self.ready().len() == count);
        self.ready()
    }
}

/// As its namesake, with fewer looks: each is a process, and guests need the processors.
fn eventually(so: impl Fn() -> bool) {
    tine_tests::cli::eventually(|| {
        thread::sleep(Duration::from_millis(100));
        so()
    });
}

/// Seconds since 1970.
fn now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.unwrap().as_secs()
}

fn kill(pid: &Value) {
    let pid = pid.as_i64().unwrap().to_string();
    let killed = Command::new("kill").args(["-9", &pid]).status().unwrap();
    assert!(killed.success());
}

#[test]
fn machines_wait_are_handed_out_once_and_are_replaced() {
    require_kvm();
    with_vmm();
    image();
    let all = Pools {
        place: Place::new(),
    };
    let refused = all.fails(&["pool", "start", "-d", "web"]);
    assert!(refused.contains("there is no template web"), "{refused}");
    let build = [
        "template", "build", "web", "--memory", "128M", "-e", "WHO=me", "--run",
    ];
    let command = ["mkdir /run/t; echo one > /run/t/log"];
    all.ok(&[&build[..], &command].concat());
    let refused = all.fails(&["pool", "claim", "web"]);
    assert!(refused.contains("tine pool start web"), "{refused}");

    let start = ["pool", "start", "-d", "-n", "2", "--cgroup", "pids.max=77"];
    assert_eq!(all.ok(&[&start[..], &["web"]].concat()), "web\n");
    let refused = all.fails(&["pool", "start", "-d", "web"]);
    assert!(
        refused.contains("there is a pool of web already"),
        "{refused}"
    );
    // More at once than wait: each gets one of its own, and some wait for it.
    let claims: Vec<_> = (0..4)
        .map(|_| all.tine(&["pool", "claim", "web"]).spawn().unwrap())
        .collect();
    let mut claimed = HashSet::new();
    for claim in claims {
        let output = claim.wait_with_output().unwrap();
        assert!(output.status.success(), "{}", text(&output.stderr));
        let id = text(&output.stdout).trim_end().to_owned();
        assert!(claimed.insert(id.clone()), "{id} twice");
    }
    let ready = all.wait_for(2);
    assert!(ready.is_disjoint(&claimed));
    let mut seen = HashSet::new();
    for id in &claimed {
        let about: Value = serde_json::from_str(&all.ok(&["inspect", "--json", id])).unwrap();
        let group = group(about["pid"].as_i64().unwrap() as i32, "pids.max");
        let limit = fs::read_to_string(group.join("pids.max")).unwrap();
        assert_eq!(limit, "77\n");
        let script = "read name < /proc/sys/kernel/hostname; echo $name $WHO
            read log < /run/t/log; echo $log; echo more > /run/t/log
            read id < /etc/machine-id; read uuid < /proc/sys/kernel/random/uuid; echo $id $uuid";
        let out = all.ok(&["exec", id, "--", "sh", "-c", script]);
        let lines: Vec<&str> = out.lines().collect();
        assert_eq!(lines[..2], [format!("{id} me").as_str(), "one"]);
        assert!(
            lines[2].split(' ').all(|word| seen.insert(word.to_owned())),
            "{lines:?}"
        );
    }

    let log = all.place.run().join(".pools/web/pool.log");
    assert_eq!(fs::read_to_string(&log).unwrap(), "");

    // A pool that is killed is not missed: what waits can be claimed, and the next one goes on with it.
    kill(&all.pool()["pid"]);
    eventually(|| all.pool()["pid"].is_null());
    assert_eq!(all.ready(), ready);
    // Those that wait have lost the time, as after hours in which the host slept.
    let generation = "ls -i /run/tine/generation";
    let before: HashMap<&String, String> = ready
        .iter()
        .map(|id| {
            let script = format!("date -s '2020-01-02 03:04:05' > /dev/null; {generation}");
            (id, all.ok(&["exec", id, "--", "sh", "-c", &script]))
        })
        .collect();
    let third = all.ok(&["pool", "claim", "web"]).trim_end().to_owned();
    assert!(ready.contains(&third));
    let script = format!("date +%s; {generation}");
    let asked = now();
    let said = all.ok(&["exec", &third, "--", "sh", "-c", &script]);
    let (time, file) = said.split_once('\n').unwrap();
    let time: u64 = time.parse().unwrap();
    assert!((asked..=now()).contains(&time), "{asked} {time}");
    // It was told, with random bytes that no other has; its generation is the same.
    assert_ne!(file, before[&third]);
    assert!(
        all.fails(&["pool", "claim", "web@2"])
            .contains("no version 2")
    );
    assert_eq!(all.ok(&["pool", "start", "-d", "-n", "2", "web"]), "web\n");
    let next = all.wait_for(2);
    assert_eq!(next.intersection(&ready).count(), 1);

    // A machine that is killed while it waits is replaced.
    let victim = next.iter().next().unwrap();
    let inspected: Value = serde_json::from_str(&all.ok(&["inspect", "--json", victim])).unwrap();
    kill(&inspected["pid"]);
    eventually(|| !all.ready().contains(victim) && all.ready().len() == 2);
    assert!(!all.place.machines().contains(victim));

    // For one command; the machine ends with it, and with who has it.
    let before = all.ready();
    let file = all.place.path("brought");
    fs::write(&file, "along\n").unwrap();
    let file = format!("{}:/run/new/file", file.display());
    let run = [
        "run",
        "--template",
        "web",
        "--pool",
        "-e",
        "A=b",
        "--file",
        &file,
        "--",
        "sh",
        "-c",
    ];
    let script = "read line < /run/new/file; echo $line $A; read name < /proc/sys/kernel/hostname
        echo $name; exit 7";
    let output = all.tine(&[&run[..], &[script]].concat()).output().unwrap();
    assert_eq!(output.status.code(), Some(7), "{}", text(&output.stderr));
    let said = text(&output.stdout);
    let lines: Vec<&str> = said.lines().collect();
    assert!(lines[0] == "along b" && before.contains(lines[1]), "{said}");
    assert!(!all.place.machines().contains(lines[1]));
    all.wait_for(2);
    let mut killed = all.tine(
        &[
            &run[..],
            &["echo $(cat /proc/sys/kernel/hostname).; sleep 1000000"],
        ]
        .concat(),
    );
    let mut killed = killed.spawn().unwrap();
    let said = read_until(killed.stdout.as_mut().unwrap(), ".\n");
    let id = said.trim_end_matches(".\n");
    assert!(all.place.machines().contains(id));
    signal(&killed, libc::SIGKILL);
    killed.wait().unwrap();
    eventually(|| !all.place.machines().contains(id));

    // Another version takes the place of what waits.
    let old = all.wait_for(2);
    let one = all.place.path("data/templates/web/1/snapshot");
    let build = [
        "template",
        "build",
        "web",
        "--from",
        one.to_str().unwrap(),
        "--run",
    ];
    all.ok(&[&build[..], &["echo two > /run/t/log"]].concat());
    let new = all.ok(&["pool", "claim", "web"]).trim_end().to_owned();
    assert!(!old.contains(&new));
    assert_eq!(
        all.ok(&[
            "exec",
            &new,
            "--",
            "sh",
            "-c",
            "read log < /run/t/log; echo $log"
        ]),
        "two\n"
    );

    assert_eq!(fs::read_to_string(&log).unwrap(), "");

    // Killed while machines are on their way, and not started again: nothing of it is left in the end.
    kill(&all.pool()["pid"]);
    eventually(|| all.pool()["pid"].is_null());
    assert_eq!(all.ok(&["pool", "stop", "web"]), "web\n");
    let kept: HashSet<String> = claimed.into_iter().chain([third, new]).collect();
    assert_eq!(all.place.machines(), kept);
    assert_eq!(
        all.place.processes().len(),
        kept.len(),
        "{:?}",
        all.place.processes()
    );
    assert_eq!(
        fs::read_dir(all.place.run().join(".pools"))
            .unwrap()
            .count(),
        0
    );
    let ids: Vec<&str> = kept.iter().map(String::as_str).collect();
    all.ok(&[&["rm", "-f"][..], &ids].concat());
    assert_eq!(all.place.processes(), []);

    // At any moment, with some of its machines or without: whatever it was at, nothing is left, and what
    // they are made of is as it was.
    let templates = all.place.path("data/templates/web");
    let before = files(&templates);
    let mut random = Random::new();
    for round in 0..8 {
        all.ok(&["pool", "start", "-d", "-n", "3", "web"]);
        let pid = all.pool()["pid"].clone();
        // No event of it is waited for: the moment is to be another one each time.
        thread::sleep(random.within(Duration::from_millis(600)));
        let victims = all.place.processes();
        let victims = victims.into_iter().filter(|_| random.below(2) == 0);
        let victims: Vec<_> = victims.collect();
        if random.below(3) > 0 {
            kill(&pid);
        }
        victims.into_iter().for_each(|(pid, _)| left::kill(pid));
        all.ok(&["pool", "stop", "web"]);
        assert_eq!(all.place.processes(), [], "round {round}");
        assert_eq!(all.place.machines(), HashSet::new(), "round {round}");
        assert_eq!(files(&templates), before, "round {round}");
    }

    // Whose directory is removed under it ends.
    let mut pool = all.tine(&["pool", "start", "web"]).spawn().unwrap();
    read_until(pool.stdout.as_mut().unwrap(), "web\n");
    fs::remove_dir_all(all.place.run().join(".pools")).unwrap();
    let ended = pool.wait_with_output().unwrap();
    assert_eq!(ended.status.code(), Some(1));
    assert!(
        text(&ended.stderr).contains("is gone"),
        "{}",
        text(&ended.stderr)
    );
    assert_eq!(all.place.processes(), []);
}
