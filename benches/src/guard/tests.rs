//! Of made-up figures.

use super::*;
use crate::compare::Unit;
use crate::contestant::Role;
use crate::host::Kind;
use crate::report::tests::sample;

/// Eight rounds around `base`, three per cent up and down.
fn rounds(base: f64) -> Vec<f64> {
    (0..8)
        .map(|round| base * (1.0 + 0.01 * f64::from(round % 4)))
        .collect()
}

fn answers(unit: Unit, now: f64, then: f64, again: f64) -> Vec<Answer> {
    let row = |name: &str, role, base| (name.to_owned(), role, rounds(base));
    let rows = vec![
        row("tine", Role::Subject, now),
        row(BEFORE, Role::Before, then),
        row("tine again", Role::Control, again),
    ];
    vec![Answer {
        question: "how".into(),
        about: "Made up.".into(),
        measures: vec![Measure::of_rows("time", unit, rows)],
    }]
}

fn tried(first: Vec<Answer>, second: Vec<Answer>) -> Guard {
    against_build(&first, Path::new("/old/tine"), |questions| {
        assert_eq!(questions, ["how"]);
        Ok(second)
    })
    .unwrap()
}

#[test]
fn a_slowdown_that_is_seen_twice_is_told() {
    let slow = || answers(Unit::Millis, 12.0, 10.0, 12.0);
    let guard = tried(slow(), slow());
    assert_eq!(guard.slower.len(), 1);
    assert!((guard.slower[0].ratio.value - 1.2).abs() < 0.01);
    let guard = tried(slow(), answers(Unit::Millis, 10.0, 10.0, 10.0));
    assert_eq!((guard.slower.len(), guard.passed.len()), (0, 1));
}

#[test]
fn what_is_as_good_or_better_is_not_measured_again() {
    for answers in [
        answers(Unit::Millis, 10.0, 10.0, 10.0),
        answers(Unit::Millis, 8.0, 10.0, 8.0),
        // Within what is let pass.
        answers(Unit::Millis, 10.4, 10.0, 10.4),
        // It differs as much from itself.
        answers(Unit::Millis, 12.0, 10.0, 14.5),
        // More is better.
        answers(Unit::MibPerSecond, 12.0, 10.0, 12.0),
    ] {
        let never = |_: &[String]| -> anyhow::Result<Vec<Answer>> { panic!("measured again") };
        let guard = against_build(&answers, Path::new("/old/tine"), never).unwrap();
        assert!(guard.slower.is_empty(), "{answers:?}");
        assert_eq!(guard.compared, 1);
    }
}

#[test]
fn a_throughput_that_falls_is_a_slowdown() {
    let slow = || answers(Unit::MibPerSecond, 8.0, 10.0, 8.0);
    assert_eq!(tried(slow(), slow()).slower.len(), 1);
}

/// A report whose Tine takes `time` where its peer takes 80.
fn report(time: f64) -> Report {
    let mut report = sample();
    let rows = vec![
        ("tine".to_owned(), Role::Subject, rounds(time)),
        ("other".to_owned(), Role::Peer, rounds(80.0)),
        ("tine again".to_owned(), Role::Control, rounds(time)),
    ];
    report.answers[0].measures = vec![Measure::of_rows("time", Unit::Millis, rows)];
    report
}

#[test]
fn reports_are_compared_by_their_ratios_to_the_same_peer() {
    let slower = against_report(&report(30.0), &report(20.0)).unwrap();
    assert_eq!(slower.slower.len(), 1);
    assert!((slower.slower[0].ratio.value - 1.5).abs() < 0.01);
    // A machine twice as slow as the other slows the peer as well.
    let mut machine = report(20.0);
    for measure in &mut machine.answers[0].measures {
        for series in &mut measure.series {
            series.values.iter_mut().for_each(|value| *value *= 2.0);
        }
    }
    assert!(
        against_report(&machine, &report(20.0))
            .unwrap()
            .slower
            .is_empty()
    );
    assert!(
        against_report(&report(15.0), &report(20.0))
            .unwrap()
            .slower
            .is_empty()
    );
}

#[test]
fn reports_that_share_nothing_are_refused() {
    let mut elsewhere = report(20.0);
    elsewhere.host.kind = match elsewhere.host.kind {
        Kind::Ordinary => Kind::Software,
        Kind::Software => Kind::Ordinary,
    };
    let err = against_report(&report(20.0), &elsewhere).unwrap_err();
    assert!(err.to_string().contains("cannot be compared"), "{err}");
    let mut alone = report(20.0);
    alone.answers[0].measures[0].comparisons.clear();
    let err = against_report(&report(20.0), &alone).unwrap_err();
    assert!(err.to_string().contains("--baseline"), "{err}");
    let mut other = report(20.0);
    other.monitors[1].version = Some("other 2.0".to_owned());
    let err = against_report(&report(20.0), &other).unwrap_err();
    assert!(err.to_string().contains("other 2.0"), "{err}");
}

#[test]
fn a_baseline_is_a_directory_a_program_or_a_report() {
    let dir = tempfile::tempdir().unwrap();
    let err = Baseline::open(dir.path()).err().unwrap();
    assert!(err.to_string().contains("there is no tine in"), "{err}");
    let own = std::env::current_exe().unwrap();
    assert_eq!(Baseline::open(&own).unwrap().build(), Some(own.as_path()));
    let tine = dir.path().join("tine");
    std::fs::copy("/bin/true", &tine).unwrap();
    let open = Baseline::open(dir.path()).unwrap();
    assert_eq!(open.build(), Some(tine.as_path()));
    let json = dir.path().join("report.json");
    std::fs::write(&json, serde_json::to_string(&sample()).unwrap()).unwrap();
    assert!(Baseline::open(&json).unwrap().build().is_none());
    for text in ["", "nonsense"] {
        std::fs::write(&json, text).unwrap();
        assert!(Baseline::open(&json).is_err());
    }
}
