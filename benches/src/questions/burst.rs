//! How long do many restores at once take?

use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use super::herd::{self, Herd, Member, Vacant};
use super::inside;
use crate::api::Api;
use crate::compare::{Measure, Unit};
use crate::contestant::Role;
use crate::guest::Guest;
use crate::questions::restore::Turn;
use crate::questions::snapshot::monitors;
use crate::questions::{Bench, MEMORY, Question, column, restore};
use crate::report::Answer;
use crate::stats::Summary;

/// The question.
pub const QUESTION: Question = Question {
    name: "burst",
    for_root: false,
    answer,
};

const ABOUT: &str = "1, 8, 32 and 128 machines (1 vCPU, 128 MiB) at once, each restored by a process of its \
    own from one snapshot that the monitor itself took. From just before the first of as many threads \
    starts its process until the last machine's vCPU has been told to run, which the answer to the \
    request says; and of each machine, from just before its process is started. `Processes started ahead`: \
    the same from the moment at which processes that were started before, and wait, are told what to be \
    (Tine) or asked at their sockets (Firecracker). `In one process`: Tine's library restores them in the \
    process of the benchmark, from just before the snapshot is opened; Firecracker, which knows no such \
    thing, by processes as before. The guest sleeps, but \
    for ten times a second: a round counts when all of them have been heard.";

/// Machines at once.
const COUNTS: [usize; 4] = [1, 8, 32, 128];
/// Rounds when nobody says otherwise.
const RUNS: usize = 10;
const AXIS: &str = "machines at once";

/// Milliseconds.
struct Sample {
    all: f64,
    median: f64,
    p95: f64,
    p99: f64,
}

fn answer(bench: &Bench) -> anyhow::Result<Answer> {
    let contestants = monitors(bench, QUESTION.name);
    let most = COUNTS[COUNTS.len() - 1];
    herd::allow(most)?;
    let turns = restore::turns(bench, &contestants, Guest::Beat, MEMORY)?;
    let mut measures = Vec::new();
    for way in [Way::Process, Way::Ahead, Way::Inside] {
        // The library is this program's own: an earlier build's processes have nothing to do with it.
        let part = contestants.iter().zip(&turns);
        let part = part.filter(|(one, _)| way != Way::Inside || one.role != Role::Before);
        let (part, turns): (Vec<_>, Vec<_>) = part.map(|(one, turn)| (one.clone(), turn)).unzip();
        let words = way.words();
        for count in COUNTS {
            let title = format!("burst of {count}{words}");
            let samples = bench.rounds(&title, &turns, RUNS, |turn| once(turn, count, way))?;
            let mut measure = |what, field: fn(&Sample) -> f64| {
                let (curve, values) = (format!("{what}{words}"), column(&samples, field));
                let name = format!("{count} at once: {curve}");
                let measure = Measure::new(name, Unit::Millis, &part, values);
                measures.push(measure.at(curve, AXIS, count as f64));
            };
            measure("all of them running", |sample| sample.all);
            measure("a machine, median", |sample| sample.median);
            measure("a machine, p95", |sample| sample.p95);
            measure("a machine, p99", |sample| sample.p99);
        }
    }
    Ok(Answer {
        question: QUESTION.name.into(),
        about: ABOUT.into(),
        measures,
    })
}

/// How machines come to be.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    /// Each by a process that is started for it.
    Process,
    /// Each by a process that was started before.
    Ahead,
    /// All in one process, where a monitor can do that.
    Inside,
}

impl Way {
    /// What is said of it in a measure's name.
    fn words(self) -> &'static str {
        match self {
            Way::Process => "",
            Way::Ahead => ", processes started ahead",
            Way::Inside => ", in one process",
        }
    }
}

fn once(turn: &Turn, count: usize, way: Way) -> anyhow::Result<Sample> {
    let (took, all) = match way {
        Way::Inside if turn.program().api() == Api::Tine => inside::restore(turn, count)?,
        _ => processes(turn, count, way == Way::Ahead)?,
    };
    let millis = |duration: Duration| duration.as_secs_f64() * 1e3;
    let took: Vec<f64> = took.into_iter().map(millis).collect();
    let Summary {
        median, p95, p99, ..
    } = Summary::of(&took);
    let all = millis(all);
    Ok(Sample {
        all,
        median,
        p95,
        p99,
    })
}

/// How long each and all took, as processes.
fn processes(turn: &Turn, count: usize, ahead: bool) -> anyhow::Result<(Vec<Duration>, Duration)> {
    let dirs: Vec<PathBuf> = herd::dirs(turn.dir(), count)?;
    let (members, all) = match ahead {
        false => at_once(&dirs, |dir| Member::start(turn, dir))?,
        true => {
            let vacant = dirs.iter().map(|dir| Vacant::start(turn, dir));
            let vacant = vacant.collect::<anyhow::Result<Vec<_>>>()?;
            at_once(vacant, |vacant| vacant.restore(turn))?
        }
    };
    let mut herd = Herd::default();
    members.into_iter().for_each(|member| herd.push(member));
    herd.wait_for_beats()?;
    Ok((herd.iter().map(|member| member.took).collect(), all))
}

/// Does `what` with each, on a thread of its own, and tells how long it took until all was done.
fn at_once<T: Send>(
    all: impl IntoIterator<Item = T>,
    what: impl Fn(T) -> anyhow::Result<Member> + Sync,
) -> anyhow::Result<(Vec<Member>, Duration)> {
    let start = Instant::now();
    let members = thread::scope(|scope| {
        let what = &what;
        let threads = all.into_iter().map(|one| scope.spawn(move || what(one)));
        let threads: Vec<_> = threads.collect();
        let join = threads.into_iter().map(|thread| match thread.join() {
            Ok(member) => member,
            Err(_) => anyhow::bail!("a thread failed"),
        });
        join.collect::<anyhow::Result<Vec<_>>>()
    })?;
    Ok((members, start.elapsed()))
}
