//! What does each of many machines cost that live at the same time, and what does one more?

use std::thread::sleep;
use std::time::Duration;

use super::herd::{self, Herd, Member};
use crate::compare::{Measure, Unit};
use crate::guest::Guest;
use crate::process::Launch;
use crate::questions::restore::Turn;
use crate::questions::snapshot::monitors;
use crate::questions::{Bench, MEMORY, Question, restore};
use crate::report::Answer;
use crate::stats::Summary;
use crate::{host, rounds, smaps};

/// The question.
pub const QUESTION: Question = Question {
    name: "density",
    for_root: false,
    answer,
};

const ABOUT: &str = "Machines (1 vCPU, 128 MiB) are restored one after the other from one snapshot that \
    the monitor itself took, each by a process of its own, until there are 1, 10, 100 and 1,000. The guest \
    sleeps, but for ten times a second, when it writes a byte: a figure counts when all of them have been \
    heard before and after it. PSS shares out what several have; private dirty is what each has alone, its \
    guest's memory included; the host's memory is what /proc/meminfo has less since there were 100, which \
    counts KVM's tables and the kernel's stacks as well, and whatever else the host does meanwhile. Processor time is \
    that of all threads over two seconds of such sleep. With so many alive, ten more are started, one at a \
    time: cold (process start to the first byte of a guest that ends at once), and by a restore (process \
    start to the vCPU being told to run).";

/// Machines that live at the same time.
const COUNTS: [usize; 4] = [1, 10, 100, 1000];
/// What one is supposed to need at most, in MiB, and what the host keeps: so many are not even tried
/// where there is not as much.
const EACH: u64 = 8;
const KEPT: u64 = 2048;
/// The host's own moods are larger than what fewer machines more need.
const SEEN_BY_HOST: usize = 900;
/// Rounds when nobody says otherwise.
const RUNS: usize = 6;
/// How long machines are looked at that do nothing.
const WINDOW: Duration = Duration::from_secs(2);
/// How many more are started.
const MORE: usize = 10;
const AXIS: &str = "machines alive";

/// What is told at each count.
#[derive(Default)]
struct Sample {
    pss: f64,
    dirty: f64,
    host: Option<f64>,
    idle: f64,
    cold: f64,
    restore: f64,
}

fn answer(bench: &Bench) -> anyhow::Result<Answer> {
    let contestants = monitors(bench, QUESTION.name);
    let available = host::available_memory();
    let fits = |count: &usize| *count as u64 * EACH + KEPT <= available;
    let counts: Vec<usize> = COUNTS.into_iter().filter(fits).collect();
    let mut about = ABOUT.to_owned();
    if counts.len() < COUNTS.len() {
        let most = counts.last().copied().unwrap_or_default();
        let limit = format!(
            " More than {most} were not tried here: {available} MiB of memory were available, and {EACH} \
             MiB for each and {KEPT} for the host would have been needed."
        );
        eprintln!("tine-bench: {}:{limit}", QUESTION.name);
        about.push_str(&limit);
    }
    herd::allow(counts.last().copied().unwrap_or_default())?;
    let turns = restore::turns(bench, &contestants, Guest::Beat, MEMORY)?;
    let launches = bench.launches(|monitor| Guest::Hello(monitor.reset()))?;
    // The launches are everybody's, the turns those of monitors with an API.
    let launches = launches
        .into_iter()
        .filter(|l| contestants.iter().any(|c| c.name == l.name));
    let turns: Vec<(Turn, Launch)> = turns.into_iter().zip(launches).collect();
    // A thousand machines need no warm-up.
    let runs = bench.runs(RUNS);
    let samples = rounds::run(QUESTION.name, &turns, 0, runs, |(turn, launch)| {
        once(turn, launch, &counts)
    })?;
    let mut measures = Vec::new();
    for (index, &count) in counts.iter().enumerate() {
        let mut measure = |curve, unit, field: fn(&Sample) -> f64| {
            let of =
                |samples: &Vec<Vec<Sample>>| samples.iter().map(|s| field(&s[index])).collect();
            let values = samples.iter().map(of).collect();
            let name = format!("{count} alive: {curve}");
            measures.push(Measure::new(name, unit, &contestants, values).at(
                curve,
                AXIS,
                count as f64,
            ));
        };
        measure("PSS of each", Unit::Kib, |s| s.pss);
        measure("private dirty memory of each", Unit::Kib, |s| s.dirty);
        if samples[0].iter().any(|s| s[index].host.is_some()) {
            let host = |s: &Sample| s.host.unwrap_or_default();
            measure("the host's memory for each", Unit::Kib, host);
        }
        measure(
            "processor time of each in a second of sleep",
            Unit::Micros,
            |s| s.idle,
        );
        measure("one more, cold", Unit::Millis, |s| s.cold);
        measure("one more, restored", Unit::Millis, |s| s.restore);
    }
    Ok(Answer {
        question: QUESTION.name.into(),
        about: about.into(),
        measures,
    })
}

/// One herd that grows.
fn once(turn: &Turn, launch: &Launch, counts: &[usize]) -> anyhow::Result<Vec<Sample>> {
    let most = counts.last().copied().unwrap_or_default();
    // One more for those that come and go.
    let dirs = herd::dirs(turn.dir(), most + 1)?;
    let mut available = host::available_memory();
    let mut herd = Herd::default();
    let mut samples = Vec::new();
    for &count in counts {
        let more = count - herd.len();
        for dir in &dirs[herd.len()..count] {
            herd.push(Member::start(turn, dir)?);
        }
        herd.wait_for_beats()?;
        let mut sample = costs(&mut herd)?;
        let before = std::mem::replace(&mut available, host::available_memory());
        let taken = before.saturating_sub(available) << 10;
        sample.host = (more >= SEEN_BY_HOST).then(|| taken as f64 / more as f64);
        let millis = |duration: Duration| duration.as_secs_f64() * 1e3;
        let mut cold = Vec::new();
        let mut restored = Vec::new();
        for _ in 0..MORE {
            let mut running = launch.start()?;
            let byte = running.wait_for_sign()?;
            cold.push(millis(byte - running.started));
            running.wait_for_end()?;
            restored.push(millis(Member::start(turn, &dirs[most])?.took));
        }
        sample.cold = Summary::of(&cold).median;
        sample.restore = Summary::of(&restored).median;
        herd.wait_for_beats()?;
        samples.push(sample);
    }
    Ok(samples)
}

/// What all of them need, shared out.
fn costs(herd: &mut Herd) -> anyhow::Result<Sample> {
    let each = 1.0 / herd.len() as f64;
    let time = |herd: &Herd| -> anyhow::Result<Duration> {
        herd.iter().map(|member| member.process.time()).sum()
    };
    let begin = time(herd)?;
    sleep(WINDOW);
    let spent = time(herd)?.saturating_sub(begin);
    let mut sample = Sample::default();
    for member in herd.iter() {
        let (pss, dirty) = smaps::sums_of_process(member.process.id())?;
        sample.pss += pss as f64 * each;
        sample.dirty += dirty as f64 * each;
    }
    sample.idle = spent.as_secs_f64() * 1e6 * each / WINDOW.as_secs_f64();
    Ok(sample)
}
