//! What does a jail cost, one at a time and many at once?

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::{Context, bail, ensure};

use crate::compare::{Measure, Unit};
use crate::contestant::Contestant;
use crate::mounts;
use crate::process::{self, Launch};
use crate::program;
use crate::questions::{Bench, Question, column};
use crate::report::Answer;

/// The question.
pub const QUESTION: Question = Question {
    name: "jail",
    for_root: true,
    answer,
};

const ABOUT: &str = "A jailer makes a jail for a static program that writes one byte, in a file as large \
    as its monitor's: a PID namespace of its own, no cgroup, jails on a file system in memory. Times run from just before the first process is started to \
    the byte on its standard output. Bare is the program without a jail. Then with 500 mounts on the \
    host, one at a time, and 100 at once: of those, the value of a round is its median or its 95th \
    percentile. Needs root; the mounts are the benchmark's own.";

const RUNS: usize = 20;
/// Mounts of the host, beside its own.
const MOUNTS: usize = 500;
/// Jails at once.
const MANY: usize = 100;
/// Whom the program runs as.
const USER: &str = "4242";

struct Sample {
    bare: f64,
    jailed: f64,
}

struct Crowd {
    alone: f64,
    median: f64,
    p95: f64,
}

/// A jailer that takes part.
struct Jailer {
    name: String,
    program: PathBuf,
    /// What is jailed.
    jailed: PathBuf,
    base: PathBuf,
    stderr: PathBuf,
}

fn answer(bench: &Bench) -> anyhow::Result<Answer> {
    ensure!(
        rustix::process::geteuid().is_root(),
        "the question `jail` makes jails and mounts: run it as root, or ask another one"
    );
    let place = mounts::Private::enter(bench.dir())?;
    let (mut contestants, mut jailers) = (Vec::new(), Vec::new());
    for contestant in &bench.contestants {
        match jailer(contestant, place.dir())? {
            Some(jailer) => {
                contestants.push(contestant.clone());
                jailers.push(jailer);
            }
            None if contestant.role.is_compared_with() => {
                eprintln!("tine-bench: {} has no jailer beside it", contestant.name);
            }
            None => bail!(
                "there is no tine-jailer: build it with `cargo build --release -p tine-jailer`"
            ),
        }
    }
    let alone = bench.rounds("jail", &jailers, RUNS, |jailer| {
        Ok(Sample {
            bare: jailer.times(1, false)?[0],
            jailed: jailer.times(1, true)?[0],
        })
    })?;
    place.add(MOUNTS)?;
    let crowd = bench.rounds("jails", &jailers, RUNS, |jailer| {
        let alone = jailer.times(1, true)?[0];
        let mut times = jailer.times(MANY, true)?;
        times.sort_by(f64::total_cmp);
        Ok(Crowd {
            alone,
            median: times[MANY / 2 - 1],
            p95: times[MANY * 95 / 100 - 1],
        })
    })?;
    let measure = |name, values| Measure::new(name, Unit::Millis, &contestants, values);
    Ok(Answer {
        question: QUESTION.name.into(),
        about: ABOUT.into(),
        measures: vec![
            measure("bare start to first byte", column(&alone, |s| s.bare)),
            measure("jailed start to first byte", column(&alone, |s| s.jailed)),
            measure("what the jail adds", column(&alone, |s| s.jailed - s.bare)),
            measure("jailed, 500 mounts", column(&crowd, |s| s.alone)),
            measure(
                "100 at once, 500 mounts: median",
                column(&crowd, |s| s.median),
            ),
            measure("100 at once, 500 mounts: p95", column(&crowd, |s| s.p95)),
        ],
    })
}

/// The jailer beside a monitor, if it has one: ours is called after ours, the known one simply that.
fn jailer(contestant: &Contestant, dir: &Path) -> anyhow::Result<Option<Jailer>> {
    let monitor = &contestant.monitor.program;
    let beside = ["tine-jailer", "jailer"].map(|name| monitor.with_file_name(name));
    let Some(program) = beside.into_iter().find(|path| path.is_file()) else {
        return Ok(None);
    };
    let dir = dir.join(contestant.name.replace(' ', "-"));
    fs::create_dir(&dir).context("cannot make a directory for jails")?;
    let size = fs::metadata(monitor)
        .context("cannot look at a monitor")?
        .len();
    let base = dir.join("base");
    fs::create_dir(&base).context("cannot make a directory for jails")?;
    Ok(Some(Jailer {
        name: contestant.name.clone(),
        program,
        jailed: program::write(&dir, size)?,
        base,
        stderr: dir.join("stderr"),
    }))
}

impl Jailer {
    fn launch(&self, jailed: bool) -> Launch {
        static NUMBER: AtomicUsize = AtomicUsize::new(0);
        let id = format!("bench-{}", NUMBER.fetch_add(1, Ordering::Relaxed));
        let words = ["--id", &id, "--uid", USER, "--gid", USER, "--new-pid-ns"];
        let mut arguments: Vec<std::ffi::OsString> = words.map(Into::into).into();
        arguments.extend(["--exec-file".into(), self.jailed.clone().into()]);
        arguments.extend(["--chroot-base-dir".into(), self.base.clone().into()]);
        let (program, arguments) = match jailed {
            true => (self.program.clone(), arguments),
            false => (self.jailed.clone(), Vec::new()),
        };
        Launch {
            name: self.name.clone(),
            program,
            arguments,
            stderr: self.stderr.clone(),
        }
    }

    /// Starts `count` at once and returns how long each took, in milliseconds. What is left of them
    /// is removed, which is in nobody's time.
    fn times(&self, count: usize, jailed: bool) -> anyhow::Result<Vec<f64>> {
        let launches: Vec<Launch> = (0..count).map(|_| self.launch(jailed)).collect();
        let mut running = Vec::with_capacity(count);
        for launch in &launches {
            running.push(launch.start()?);
        }
        let signs = process::wait_for_signs(&mut running)?;
        let started = running.iter().map(|one| one.started);
        let times = started
            .zip(signs)
            .map(|(from, to)| (to - from).as_secs_f64() * 1e3);
        let times = times.collect();
        for one in running {
            one.wait_for_end()?;
        }
        for entry in fs::read_dir(&self.base)? {
            fs::remove_dir_all(entry?.path()).context("cannot remove a jail's directory")?;
        }
        Ok(times)
    }
}
