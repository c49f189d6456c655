//! All values of a measure: a row per contestant, a dot per round.

use maud::{Markup, html};

use super::scale::{MARGIN, Scale, WIDTH, at, axis_below};
use super::tone::Tones;
use crate::compare::{Measure, Series};

const ROW: f64 = 46.0;
/// More dots than this are one blot: that many are drawn, evenly by rank.
const DOTS: usize = 300;

/// The drawing.
pub fn plot(measure: &Measure, tones: &Tones) -> Markup {
    let series = &measure.series;
    let values = series
        .iter()
        .flat_map(|series| series.values.iter().copied());
    let scale = Scale::of(values, MARGIN, WIDTH - MARGIN);
    let bottom = ROW * series.len() as f64 + 4.0;
    let unit = measure.unit.name();
    let about = format!("{}: all values of each contestant, in {unit}", measure.name);
    html! {
        svg viewBox=(format!("0 0 {WIDTH} {}", bottom + 38.0)) role="img" aria-label=(about) {
            (axis_below(&scale, 4.0, bottom, unit))
            @for (number, series) in series.iter().enumerate() {
                (row(measure, series, tones, &scale, ROW * number as f64))
            }
        }
    }
}

fn row(measure: &Measure, series: &Series, tones: &Tones, scale: &Scale, top: f64) -> Markup {
    let summary = &series.summary;
    let middle = top + 31.0;
    let median = scale.place(summary.median);
    let told = format!("median {}", measure.unit.number(summary.median));
    let class = tones.class(&series.contestant);
    html! {
        g class=(class) {
            title { (series.contestant) ": " (told) ", p95 " (measure.unit.number(summary.p95)) }
            text.label x=(at(MARGIN)) y=(at(top + 14.0)) { (short_name(&series.contestant)) }
            text.value x=(at(WIDTH - MARGIN)) y=(at(top + 14.0)) text-anchor="end" { (told) }
            line.reach x1=(at(scale.place(summary.min))) x2=(at(scale.place(summary.p95)))
                       y1=(at(middle)) y2=(at(middle)) {}
            @for (number, value) in chosen(&series.values).into_iter().enumerate() {
                // Up and down a little, so that equal values can be told apart.
                @let shift = ((number as f64 * 0.618).fract() - 0.5) * 15.0;
                circle.dot cx=(at(scale.place(value))) cy=(at(middle + shift)) r="2.4" {}
            }
            line.median x1=(at(median)) x2=(at(median)) y1=(at(middle - 11.0)) y2=(at(middle + 11.0)) {}
        }
    }
}

fn chosen(values: &[f64]) -> Vec<f64> {
    if values.len() <= DOTS {
        return values.to_vec();
    }
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let last = sorted.len() - 1;
    (0..DOTS)
        .map(|number| sorted[number * last / (DOTS - 1)])
        .collect()
}

/// What fits beside a number.
pub fn short_name(name: &str) -> String {
    const LONGEST: usize = 34;
    match name.chars().count() > LONGEST {
        true => name.chars().take(LONGEST - 1).chain(['…']).collect(),
        false => name.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_of_many_dots_are_drawn_both_ends_among_them() {
        let values: Vec<f64> = (0..10_000).rev().map(f64::from).collect();
        let dots = chosen(&values);
        assert_eq!((dots.len(), dots[0], dots[DOTS - 1]), (DOTS, 0.0, 9999.0));
        assert_eq!(chosen(&[2.0, 1.0]), [2.0, 1.0]);
    }

    #[test]
    fn long_names_are_cut_between_characters() {
        assert_eq!(short_name(&"ä".repeat(40)).chars().count(), 34);
        assert_eq!(short_name("tine"), "tine");
    }
}
