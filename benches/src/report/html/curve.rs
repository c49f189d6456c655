//! What it costs for so much of something: a line per contestant through the medians.

use maud::{Markup, html};

use super::scale::{MARGIN, Scale, WIDTH, at, axis_below, short};
use super::tone::Tones;
use crate::compare::{Measure, Series};

const TOP: f64 = 22.0;
const BOTTOM: f64 = 220.0;
/// Where the upright axis stands: its numbers are left of it.
const LEFT: f64 = 46.0;

/// The drawing, and whose lines are in it.
pub fn plot(name: &str, axis: &str, points: &[&Measure], tones: &Tones) -> Markup {
    let places = points
        .iter()
        .filter_map(|measure| Some(measure.point.as_ref()?.x));
    let across = Scale::of_amounts(places, LEFT + 6.0, WIDTH - MARGIN - 4.0);
    let series = points.iter().flat_map(|measure| &measure.series);
    let told = series
        .clone()
        .flat_map(|s| [s.summary.min, s.summary.median, s.summary.p95]);
    let up = Scale::of(told, BOTTOM, TOP);
    let mut contestants: Vec<&str> = Vec::new();
    for series in series {
        if !contestants.contains(&series.contestant.as_str()) {
            contestants.push(&series.contestant);
        }
    }
    let unit = points[0].unit.name();
    html! {
        svg viewBox=(format!("0 0 {WIDTH} {}", BOTTOM + 38.0)) role="img"
            aria-label=(format!("{name}, in {unit}, by {axis}: medians of each contestant")) {
            (axis_below(&across, TOP, BOTTOM, axis))
            @for tick in up.ticks() {
                @let y = up.place(tick);
                line.grid x1=(at(LEFT)) y1=(at(y)) x2=(at(WIDTH - MARGIN)) y2=(at(y)) {}
                text.tick x=(at(LEFT - 5.0)) y=(at(y + 4.0)) text-anchor="end" { (short(tick)) }
            }
            text.name x="4" y="12" { (unit) }
            @for contestant in &contestants {
                (line(contestant, &of(points, contestant), &across, &up, tones))
            }
        }
        ul.legend {
            @for contestant in &contestants {
                li {
                    svg.swatch viewBox="0 0 30 12" aria-hidden="true" {
                        line class={ "curve " (tones.class(contestant)) } x1="1" x2="29" y1="6" y2="6" {}
                        (tones.mark(contestant, 15.0, 6.0))
                    }
                    " " (contestant)
                }
            }
        }
    }
}

/// A contestant's points, by where they stand.
fn of<'a>(points: &[&'a Measure], contestant: &str) -> Vec<(f64, &'a Series)> {
    let point = |measure: &&'a Measure| {
        let series = measure.series.iter().find(|s| s.contestant == contestant)?;
        Some((measure.point.as_ref()?.x, series))
    };
    let mut points: Vec<_> = points.iter().filter_map(point).collect();
    points.sort_by(|a, b| a.0.total_cmp(&b.0));
    points
}

fn line(
    contestant: &str,
    points: &[(f64, &Series)],
    across: &Scale,
    up: &Scale,
    tones: &Tones,
) -> Markup {
    let place = |(x, series): &(f64, &Series)| {
        format!(
            "{:.1},{:.1}",
            across.place(*x),
            up.place(series.summary.median)
        )
    };
    let places: Vec<String> = points.iter().map(place).collect();
    html! {
        g class=(tones.class(contestant)) {
            polyline.curve points=(places.join(" ")) {}
            @for (x, series) in points {
                @let (x, summary) = (across.place(*x), &series.summary);
                line.reach x1=(at(x)) x2=(at(x)) y1=(at(up.place(summary.min))) y2=(at(up.place(summary.p95))) {}
                (tones.mark(contestant, x, up.place(summary.median)))
            }
        }
    }
}
