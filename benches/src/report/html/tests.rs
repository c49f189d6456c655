//! The page as a whole, of made-up figures and of a report that was recorded.

use std::path::Path;

use super::*;
use crate::compare::Unit;
use crate::contestant::{CONTROL, Role};
use crate::profile::Profiles;
use crate::report::tests::sample;

/// A run of a debug build under load: its figures say nothing, its shape is real.
fn recorded() -> Report {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/recorded.json");
    crate::report::read(&path).unwrap()
}

/// Names that would be markup if a text were put in as it is.
const HOSTILE: &str = "<script>alert(1)</script>\"'&<img src=x onerror=alert(1)>";

fn hostile() -> Report {
    let mut report = recorded();
    let name = || HOSTILE.to_owned();
    report.host.cpu = name();
    report.host.kernel = name();
    report.host.date = name();
    for monitor in &mut report.monitors {
        (monitor.name, monitor.version, monitor.program) = (name(), Some(name()), Some(name()));
    }
    for answer in &mut report.answers {
        (answer.question, answer.about) = (name().into(), name().into());
        for measure in &mut answer.measures {
            measure.name = name().into();
            measure.part_of = measure.part_of.take().map(|_| name().into());
            if let Some(point) = &mut measure.point {
                (point.curve, point.axis) = (name().into(), name().into());
            }
            measure
                .series
                .iter_mut()
                .for_each(|series| series.contestant = name());
            measure
                .comparisons
                .iter_mut()
                .for_each(|other| other.peer = name());
        }
    }
    let finding = crate::guard::Finding {
        question: name(),
        measure: name(),
        ratio: crate::stats::Interval {
            value: 2.0,
            low: 1.5,
            high: 2.5,
        },
    };
    let phase = crate::profile::Phase {
        until: name().into(),
        millis: 1.0,
        calls: 1,
        minor: 0,
        major: 0,
        most: vec![(name(), 1)],
    };
    report.profile = Some(Profiles {
        tool: name().into(),
        profiles: vec![crate::profile::Profile {
            of: name().into(),
            contestant: name(),
            phases: vec![phase],
        }],
    });
    report.guard = Some(Guard {
        against: name(),
        compared: 1,
        slower: vec![finding.clone()],
        passed: vec![finding],
        undecided: 0,
    });
    report
}

#[test]
fn names_from_outside_are_text() {
    let page = render(&hostile());
    assert!(page.contains("&lt;script&gt;alert(1)&lt;/script&gt;"));
    assert!(
        !page.contains("<script") && !page.contains("<img"),
        "markup of a name"
    );
    // Within an attribute, a quote would end it.
    let labels: Vec<_> = page.split("aria-label=\"").skip(1).collect();
    assert!(labels.iter().any(|label| label.starts_with("&lt;script")));
    assert!(!page.contains("onerror=alert(1)>\""));
    // A second class of a tag is not looked at.
    let tags = page.split('<').filter_map(|tag| tag.split('>').next());
    for tag in tags {
        assert!(tag.matches(" class=\"").count() <= 1, "{tag}");
    }
    let tags = page.matches("<svg").count();
    assert_eq!(tags, page.matches("</svg>").count());
}

#[test]
fn the_page_needs_nothing_from_elsewhere() {
    let page = render(&recorded());
    for word in [
        "http://", "https://", "src=", "url(", "@import", "<script", "<link", "<iframe", "<object",
    ] {
        assert!(!page.contains(word), "{word}");
    }
    let links: Vec<_> = page.split("href=\"").skip(1).collect();
    assert!(!links.is_empty() && links.iter().all(|link| link.starts_with('#')));
    assert!(page.contains("default-src 'none'"));
    assert!(page.contains("width=device-width") && page.contains("prefers-color-scheme: dark"));
}

#[test]
fn every_measure_of_a_recorded_report_is_drawn_and_told() {
    let report = recorded();
    let page = render(&report);
    let escape = |text: &str| html! { (text) }.into_string();
    for answer in &report.answers {
        for group in groups(&answer.measures) {
            assert!(page.contains(&format!("<h3>{}</h3>", escape(&group.title()))));
            for row in group.grid().rows {
                for cell in row {
                    assert!(page.contains(&escape(&cell)), "{cell}");
                }
            }
        }
    }
    let groups = report
        .answers
        .iter()
        .map(|answer| groups(&answer.measures).len());
    let groups: usize = groups.sum();
    assert_eq!(page.matches("<div class=\"plot\"><svg").count(), groups);
    assert!(page.contains(report.host.kind.name()));
    assert!(groups > 3 && page.contains("<polyline") && page.contains("class=\"part\""));
}

#[test]
fn there_is_no_verdict_where_the_noise_is_larger() {
    let row = |name: &str, role, base: f64| {
        let values = (0..8).map(|round| base + f64::from(round % 3)).collect();
        (name.to_owned(), role, values)
    };
    let mut report = sample();
    let rows = |again| {
        vec![
            row("tine", Role::Subject, 20.0),
            row("other", Role::Peer, 24.0),
            row(CONTROL, Role::Control, again),
        ]
    };
    let mut render_with = |again| {
        let measure = Measure::of_rows("time", Unit::Millis, rows(again));
        report.answers[0].measures = vec![measure];
        render(&report)
    };
    let page = render_with(40.0);
    assert!(page.contains("no verdict: the difference is within the noise"));
    assert!(!page.contains("tine needs less") && !page.contains("badge good"));
    let page = render_with(20.0);
    assert!(page.contains("<span class=\"badge good\">tine needs less</span>"));
}

#[test]
fn odd_figures_break_no_drawing() {
    let mut report = recorded();
    for odd in [0.0, 1e-12, 9e14] {
        for measure in report
            .answers
            .iter_mut()
            .flat_map(|answer| &mut answer.measures)
        {
            for series in &mut measure.series {
                series.values[0] = odd;
                series.summary.min = odd.min(series.summary.min);
                series.summary.p95 = odd.max(series.summary.p95);
            }
            for comparison in &mut measure.comparisons {
                comparison.ratio.low = 0.0;
                comparison.ratio.high = 9e14;
            }
        }
        let page = render(&report);
        assert!(!page.contains("NaN") && !page.contains("=\"inf"), "{odd}");
    }
}
