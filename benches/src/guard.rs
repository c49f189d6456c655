//! Whether this build is slower than an earlier one.
//!
//! The honest way is to have the earlier build take part: both meet the same moods of the machine,
//! in turn. What looks slower then is measured once more, and counts only if it does so again: of
//! some dozens of intervals with 95% confidence, one or two are wrong in every run. Where the earlier build
//! is gone, its report will do if both runs had the same peer: the ratios to it are compared, since
//! times of two runs say nothing about each other on a machine that others use as well.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use anyhow::{Context, bail, ensure};
use serde::{Deserialize, Serialize};

use crate::compare::{Measure, Verdict, distance, verdict};
use crate::contestant::BEFORE;
use crate::report::{self, Answer, Report};
use crate::stats::Interval;

/// The status that a run ends with if something is slower.
pub const SLOWER: u8 = 3;
/// A factor that is let pass: where the linker puts a function makes as much.
const LET_PASS: f64 = 1.05;

/// What to compare with.
pub enum Baseline {
    /// A `tine` that takes part.
    Build(PathBuf),
    /// What a run of it found.
    Report(Box<Report>),
}

/// What came of it.
#[derive(Debug, Serialize, Deserialize)]
pub struct Guard {
    /// What this build was compared with.
    pub against: String,
    /// How many measures of both there are.
    pub compared: usize,
    /// What is slower.
    pub slower: Vec<Finding>,
    /// What looked slower, but not when it was measured again.
    #[serde(default)]
    pub passed: Vec<Finding>,
    /// Of how many measures nothing could be said.
    pub undecided: usize,
}

/// A measure that got worse.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Finding {
    /// The question's name.
    pub question: String,
    /// The measure's.
    pub measure: String,
    /// Now, as a share of before.
    pub ratio: Interval,
}

impl Baseline {
    /// A directory with a `tine` in it, that program itself, or a report.
    pub fn open(path: &Path) -> anyhow::Result<Self> {
        let name = path.display();
        if path.is_dir() {
            let tine = path.join("tine");
            ensure!(
                tine.is_file(),
                "there is no tine in {name}: name the directory that an earlier build is in"
            );
            return Ok(Self::Build(tine));
        }
        let mut magic = [0; 4];
        let mut file = File::open(path).with_context(|| format!("cannot open {name}"))?;
        match file.read_exact(&mut magic) {
            Ok(()) if &magic == b"\x7fELF" => Ok(Self::Build(path.to_owned())),
            Err(err) if err.kind() != io::ErrorKind::UnexpectedEof => {
                Err(err).with_context(|| format!("cannot read {name}"))
            }
            _ => Ok(Self::Report(Box::new(report::read(path)?))),
        }
    }

    /// The program that takes part, if there is one.
    pub fn build(&self) -> Option<&Path> {
        match self {
            Self::Build(tine) => Some(tine),
            Self::Report(_) => None,
        }
    }
}

impl Guard {
    /// What came of it, in words.
    pub fn lines(&self) -> Vec<String> {
        let (against, compared) = (&self.against, self.compared);
        let mut lines = vec![match self.slower.len() {
            0 => format!("not slower than {against}: {compared} measures compared"),
            slower => format!("SLOWER than {against} in {slower} of {compared} measures"),
        }];
        let tell = |what: &str, findings: &[Finding]| -> Vec<String> {
            let line = |Finding {
                            question,
                            measure,
                            ratio,
                        }: &Finding| {
                let (value, low, high) = (ratio.value, ratio.low, ratio.high);
                format!("{question}, {measure}: {what}, {value:.3} times ({low:.3} to {high:.3})")
            };
            findings.iter().map(line).collect()
        };
        lines.extend(tell("slower", &self.slower));
        lines.extend(tell(
            "looked slower, but not when measured again",
            &self.passed,
        ));
        if self.undecided > 0 {
            let undecided = self.undecided;
            lines.push(format!(
                "{undecided} of them without a verdict: no difference beyond the noise"
            ));
        }
        lines
    }
}

/// Compares with an earlier build that took part. `again` measures questions once more.
pub fn against_build(
    answers: &[Answer],
    tine: &Path,
    again: impl FnOnce(&[String]) -> anyhow::Result<Vec<Answer>>,
) -> anyhow::Result<Guard> {
    let first = judged(answers, before);
    ensure!(
        !first.is_empty(),
        "none of these questions lets {BEFORE} take part: there is nothing to compare"
    );
    let mut guard = guard(&format!("{} in the same run", tine.display()), &first);
    if guard.slower.is_empty() {
        return Ok(guard);
    }
    let mut questions: Vec<String> = guard.slower.iter().map(|f| f.question.clone()).collect();
    questions.dedup();
    let second = judged(&again(&questions)?, before);
    let confirmed = |finding: &Finding| {
        let same = |other: &&Judged| {
            let (question, measure) = (&other.finding.question, &other.finding.measure);
            (question, measure) == (&finding.question, &finding.measure)
        };
        second.iter().find(same).is_some_and(|other| other.slower)
    };
    (guard.slower, guard.passed) = guard.slower.into_iter().partition(confirmed);
    Ok(guard)
}

/// Compares with an earlier report, by what both are against the same peers.
pub fn against_report(now: &Report, then: &Report) -> anyhow::Result<Guard> {
    let (kind, earlier) = (now.host.kind.name(), then.host.kind.name());
    if kind != earlier {
        bail!(
            "this is {kind}, and the baseline was measured on {earlier}: they cannot be compared"
        );
    }
    for monitor in now.monitors.iter().skip(1) {
        let same = then
            .monitors
            .iter()
            .find(|other| other.name == monitor.name);
        if let Some(other) = same.filter(|other| other.version != monitor.version) {
            let say = |version: &Option<String>| version.clone().unwrap_or("unknown".to_owned());
            let (name, then, now) = (&monitor.name, say(&other.version), say(&monitor.version));
            bail!("{name} was `{then}` in the baseline and is `{now}` here: take the same one");
        }
    }
    let judged = judged(&now.answers, |answer, measure| {
        let same = then
            .answers
            .iter()
            .find(|other| other.question == answer.question)?;
        let earlier = same
            .measures
            .iter()
            .find(|other| other.name == measure.name)?;
        ratio_of_ratios(measure, earlier)
    });
    ensure!(
        !judged.is_empty(),
        "the baseline and this run share no measure with the same --peer in both, and times of two \
         runs cannot be compared: name the earlier build's directory as --baseline instead"
    );
    Ok(guard(&format!("the report of {}", then.host.date), &judged))
}

struct Judged {
    finding: Finding,
    slower: bool,
    undecided: bool,
}

/// What can be compared, by the ratio and verdict that `compare` has for it.
fn judged(
    answers: &[Answer],
    compare: impl Fn(&Answer, &Measure) -> Option<(Interval, Verdict)>,
) -> Vec<Judged> {
    let measures = answers.iter().flat_map(|answer| {
        let pair = move |measure| (answer, measure);
        answer.measures.iter().map(pair)
    });
    let judge = |(answer, measure): (&Answer, &Measure)| {
        let (ratio, verdict) = compare(answer, measure)?;
        let good = verdict.good(measure.unit);
        // All of the interval has to be beyond: one and the same build was found slower otherwise.
        let nearest = distance(ratio.low).min(distance(ratio.high));
        Some(Judged {
            finding: Finding {
                question: answer.question.to_string(),
                measure: measure.name.to_string(),
                ratio,
            },
            slower: good == Some(false) && nearest >= distance(LET_PASS),
            undecided: good.is_none(),
        })
    };
    measures.filter_map(judge).collect()
}

fn before(_: &Answer, measure: &Measure) -> Option<(Interval, Verdict)> {
    let before = measure.comparisons.iter().find(|c| c.peer == BEFORE)?;
    Some((before.ratio, before.verdict))
}

/// With the first peer that took part both times.
fn ratio_of_ratios(now: &Measure, then: &Measure) -> Option<(Interval, Verdict)> {
    let pairs = now.comparisons.iter().filter(|c| c.peer != BEFORE);
    let (a, b) = pairs
        .filter_map(|a| Some((a, then.comparisons.iter().find(|b| b.peer == a.peer)?)))
        .find(|(a, b)| a.ratio.low > 0.0 && b.ratio.low > 0.0)?;
    let ratio = Interval {
        value: a.ratio.value / b.ratio.value,
        low: a.ratio.low / b.ratio.high,
        high: a.ratio.high / b.ratio.low,
    };
    let rounds = |measure: &Measure| measure.series.first().map_or(0, |s| s.summary.runs);
    let rounds = rounds(now).min(rounds(then));
    // The louder of the two.
    let loud = |noise: &&Interval| distance(noise.low).max(distance(noise.high));
    let noise = [&now.noise, &then.noise].into_iter().flatten();
    let noise = noise.max_by(|a, b| loud(a).total_cmp(&loud(b)));
    Some((ratio, verdict(rounds, &ratio, noise)))
}

fn guard(against: &str, judged: &[Judged]) -> Guard {
    let slower = judged.iter().filter(|judged| judged.slower);
    Guard {
        against: against.to_owned(),
        compared: judged.len(),
        slower: slower.map(|judged| judged.finding.clone()).collect(),
        passed: Vec::new(),
        undecided: judged.iter().filter(|judged| judged.undecided).count(),
    }
}

#[cfg(test)]
mod tests;
