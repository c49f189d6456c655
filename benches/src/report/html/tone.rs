//! Which colour and mark a contestant has: the same all over the page. Colour is never alone: rows have
//! names, curves have marks.

use maud::{Markup, html};

use crate::contestant::CONTROL;
use crate::report::Report;

/// How many colours there are.
const TONES: usize = 7;

/// Everybody's colour.
pub struct Tones<'a>(Vec<&'a str>);

impl<'a> Tones<'a> {
    /// In the order in which contestants come.
    pub fn of(report: &'a Report) -> Self {
        let mut names: Vec<&str> = Vec::new();
        let monitors = report.monitors.iter().map(|monitor| monitor.name.as_str());
        let measures = report.answers.iter().flat_map(|answer| &answer.measures);
        let series = measures.flat_map(|measure| &measure.series);
        for name in monitors.chain(series.map(|series| series.contestant.as_str())) {
            if name != CONTROL && !names.contains(&name) {
                names.push(name);
            }
        }
        Self(names)
    }

    fn number(&self, contestant: &str) -> usize {
        // The control is the subject.
        self.0
            .iter()
            .position(|name| *name == contestant)
            .unwrap_or(0)
    }

    /// The class of what is drawn for a contestant.
    pub fn class(&self, contestant: &str) -> String {
        let again = if contestant == CONTROL { " again" } else { "" };
        format!("c{}{again}", self.number(contestant) % TONES)
    }

    /// A mark at a place of a curve.
    pub fn mark(&self, contestant: &str, x: f64, y: f64) -> Markup {
        let points = |corners: &[(f64, f64)]| {
            let corner = |(dx, dy): &(f64, f64)| format!("{:.1},{:.1}", x + dx, y + dy);
            corners.iter().map(corner).collect::<Vec<_>>().join(" ")
        };
        let class = format!("mark {}", self.class(contestant));
        html! {
            @match self.number(contestant) % 4 {
                0 => { circle class=(class) cx=(format!("{x:.1}")) cy=(format!("{y:.1}")) r="3.6" {} }
                1 => { polygon class=(class)
                       points=(points(&[(-3.4, -3.4), (3.4, -3.4), (3.4, 3.4), (-3.4, 3.4)])) {} }
                2 => { polygon class=(class) points=(points(&[(0.0, -4.4), (4.2, 3.4), (-4.2, 3.4)])) {} }
                _ => { polygon class=(class)
                       points=(points(&[(0.0, -4.6), (4.6, 0.0), (0.0, 4.6), (-4.6, 0.0)])) {} }
            }
        }
    }
}
