//! Parts of a whole: a bar per contestant, its parts one after the other, numbered as in the list.

use maud::{Markup, html};

use super::dots::short_name;
use super::scale::{MARGIN, Scale, WIDTH, at, axis_below};
use super::tone::Tones;
use crate::compare::Measure;

const ROW: f64 = 46.0;
/// Colours of parts.
const SHADES: usize = 8;
/// A narrower part has no number in it.
const NUMBERED: f64 = 12.0;

/// The drawing, and what its numbers are.
pub fn plot(name: &str, parts: &[&Measure], tones: &Tones) -> Markup {
    let contestants: Vec<&str> = parts[0]
        .series
        .iter()
        .map(|s| s.contestant.as_str())
        .collect();
    let bars: Vec<Vec<f64>> = contestants
        .iter()
        .map(|name| medians(parts, name))
        .collect();
    let totals = bars.iter().map(|bar| bar.iter().sum());
    let scale = Scale::from_nothing(totals, MARGIN, WIDTH - MARGIN);
    let bottom = ROW * bars.len() as f64 + 4.0;
    let unit = parts[0].unit;
    html! {
        svg viewBox=(format!("0 0 {WIDTH} {}", bottom + 38.0)) role="img"
            aria-label=(format!("{name}: medians of its parts, in {}", unit.name())) {
            (axis_below(&scale, 4.0, bottom, unit.name()))
            @for (number, (contestant, bar)) in contestants.iter().zip(&bars).enumerate() {
                @let top = ROW * number as f64;
                g class=(tones.class(contestant)) {
                    text.label x=(at(MARGIN)) y=(at(top + 14.0)) { (short_name(contestant)) }
                    text.value x=(at(WIDTH - MARGIN)) y=(at(top + 14.0)) text-anchor="end" {
                        "sum " (unit.number(bar.iter().sum()))
                    }
                }
                (segments(parts, bar, &scale, top + 20.0))
            }
        }
        ol.legend {
            @for (number, part) in parts.iter().enumerate() {
                li { span class=(format!("swatch p{}", number % SHADES)) { (number + 1) } " " (part.name) }
            }
        }
    }
}

fn segments(parts: &[&Measure], bar: &[f64], scale: &Scale, top: f64) -> Markup {
    let mut from = 0.0;
    let segments = bar.iter().map(|median| {
        let start = from;
        from += median;
        (scale.place(start), scale.place(from), median)
    });
    let segments: Vec<_> = segments.collect();
    html! {
        @for (number, (start, end, median)) in segments.into_iter().enumerate() {
            g class=(format!("p{}", number % SHADES)) {
                title { (parts[number].name) ": " (parts[number].unit.number(*median)) }
                rect.part x=(at(start)) y=(at(top)) width=(at((end - start).max(0.5))) height="20" {}
                @if end - start >= NUMBERED {
                    text.number x=(at(f64::midpoint(start, end))) y=(at(top + 14.5)) text-anchor="middle" {
                        (number + 1)
                    }
                }
            }
        }
    }
}

fn medians(parts: &[&Measure], contestant: &str) -> Vec<f64> {
    let median = |part: &&Measure| {
        let series = part.series.iter().find(|s| s.contestant == contestant);
        series.map_or(0.0, |series| series.summary.median)
    };
    parts.iter().map(median).collect()
}
