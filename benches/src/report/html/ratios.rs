//! All comparisons at a glance: the ratio to each peer with its interval, on one scale.

use maud::{Markup, html};

use super::badge;
use super::scale::{MARGIN, Scale, WIDTH, at, short};
use crate::compare::{Comparison, Measure};
use crate::report::Report;

const HEIGHT: f64 = 22.0;
/// Ratios beyond these are drawn at the edge: they are told in numbers as well.
const SMALLEST: f64 = 0.02;
const LARGEST: f64 = 50.0;

/// A row per comparison. Points of curves and parts of a whole have tables of their own.
pub fn glance(report: &Report) -> Markup {
    let answers = report.answers.iter().map(|answer| {
        let plain = answer
            .measures
            .iter()
            .filter(|m| m.point.is_none() && m.part_of.is_none());
        let rows = plain.flat_map(|measure| measure.comparisons.iter().map(move |c| (measure, c)));
        (answer.question.as_ref(), rows.collect::<Vec<_>>())
    });
    let answers: Vec<(&str, Vec<(&Measure, &Comparison)>)> =
        answers.filter(|(_, rows)| !rows.is_empty()).collect();
    if answers.is_empty() {
        return html! {};
    }
    let ratios = answers
        .iter()
        .flat_map(|(_, rows)| rows)
        .map(|(_, c)| &c.ratio);
    let low = ratios
        .clone()
        .fold(0.5, |low: f64, ratio| low.min(ratio.low))
        .max(SMALLEST);
    let high = ratios
        .fold(2.0, |high: f64, ratio| high.max(ratio.high))
        .min(LARGEST);
    let scale = Scale::log(low * 0.9, high * 1.1, MARGIN, WIDTH - MARGIN);
    html! {
        section {
            h2 { "At a glance" }
            p.about {
                "The ratio of Tine to each peer, round by round, with its 95% interval. The grey band is the \
                 noise: what Tine differs from itself by."
            }
            @for (question, rows) in &answers {
                h3.small { (question) }
                @for (measure, comparison) in rows { (row(measure, comparison, &scale)) }
            }
            (axis(&scale))
        }
    }
}

fn row(measure: &Measure, comparison: &Comparison, scale: &Scale) -> Markup {
    let ratio = &comparison.ratio;
    let class = match comparison.verdict.good(measure.unit) {
        Some(true) => "better",
        Some(false) => "worse",
        None => "undecided",
    };
    let middle = HEIGHT / 2.0;
    let (low, value, high) = (
        scale.place(ratio.low),
        scale.place(ratio.value),
        scale.place(ratio.high),
    );
    html! {
        div.ratio {
            div.what { (measure.name) " " span.peer { "/ " (comparison.peer) } }
            svg viewBox=(format!("0 0 {WIDTH} {HEIGHT}")) role="img"
                aria-label=(format!("ratio {:.3}, {:.3} to {:.3}", ratio.value, ratio.low, ratio.high)) {
                @if let Some(noise) = &measure.noise {
                    @let (from, to) = (scale.place(noise.low), scale.place(noise.high));
                    rect.noise x=(at(from)) y="2" width=(at((to - from).max(1.0))) height=(at(HEIGHT - 4.0)) {}
                }
                @for tick in scale.ticks() {
                    line.grid x1=(at(scale.place(tick))) x2=(at(scale.place(tick))) y1="0" y2=(at(HEIGHT)) {}
                }
                line.one x1=(at(scale.place(1.0))) x2=(at(scale.place(1.0))) y1="0" y2=(at(HEIGHT)) {}
                g class=(class) {
                    line.span x1=(at(low)) x2=(at(high)) y1=(at(middle)) y2=(at(middle)) {}
                    circle.ratio-mark cx=(at(value)) cy=(at(middle)) r="4.5" {}
                }
            }
            div.told {
                b { (format!("{:.3}", ratio.value)) } " "
                (badge(comparison.verdict, measure))
            }
        }
    }
}

fn axis(scale: &Scale) -> Markup {
    html! {
        div.ratio {
            div.what {}
            svg viewBox=(format!("0 0 {WIDTH} 36")) aria-hidden="true" {
                @for tick in scale.ticks() {
                    text.tick x=(at(scale.place(tick))) y="12" text-anchor="middle" { (short(tick)) }
                }
                text.name x=(at(WIDTH / 2.0)) y="30" text-anchor="middle" { "ratio of Tine to the peer" }
            }
            div.told {}
        }
    }
}
