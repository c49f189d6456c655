//! From numbers to places in a drawing, and the round numbers along an axis.

use maud::{Markup, html};

/// How wide drawings are, in their own units: letters of size 12 are well read on a phone then.
pub const WIDTH: f64 = 360.0;
/// Left and right of what is drawn.
pub const MARGIN: f64 = 10.0;

/// An axis.
pub struct Scale {
    from: f64,
    to: f64,
    start: f64,
    end: f64,
    log: bool,
}

impl Scale {
    /// For costs: from 0, so that lengths can be compared; by powers of ten if some are more than 30
    /// times as large as others.
    pub fn of(values: impl Iterator<Item = f64> + Clone, start: f64, end: f64) -> Self {
        let (smallest, largest) = range(values.clone());
        match smallest > 0.0 && largest > smallest * 30.0 {
            true => Self::log(smallest * 0.8, largest * 1.2, start, end),
            false => Self::from_nothing(values, start, end),
        }
    }

    /// For lengths that are laid end to end: from 0.
    pub fn from_nothing(values: impl Iterator<Item = f64>, start: f64, end: f64) -> Self {
        let largest = range(values).1;
        let to = if largest > 0.0 { largest * 1.06 } else { 1.0 };
        Self {
            from: 0.0,
            to,
            start,
            end,
            log: false,
        }
    }

    /// For amounts: equal factors are equal lengths, where they are positive.
    pub fn of_amounts(values: impl Iterator<Item = f64> + Clone, start: f64, end: f64) -> Self {
        let (smallest, largest) = range(values.clone());
        match smallest > 0.0 && largest >= smallest * 4.0 {
            true => Self::log(smallest, largest, start, end),
            false => Self::of(values, start, end),
        }
    }

    /// By factors.
    pub fn log(from: f64, to: f64, start: f64, end: f64) -> Self {
        let from = from.max(1e-9);
        let to = to.max(from * 1.01);
        Self {
            from,
            to,
            start,
            end,
            log: true,
        }
    }

    /// Where a number is drawn; at an end if it is beyond it.
    pub fn place(&self, value: f64) -> f64 {
        let part = match self.log {
            true => (value.max(1e-12) / self.from).ln() / (self.to / self.from).ln(),
            false => (value - self.from) / (self.to - self.from),
        };
        self.start + part.clamp(0.0, 1.0) * (self.end - self.start)
    }

    /// Round numbers on it, some three to seven.
    pub fn ticks(&self) -> Vec<f64> {
        if self.log {
            let decades = (self.to / self.from).log10();
            let steps: &[f64] = if decades > 2.5 {
                &[1.0]
            } else {
                &[1.0, 2.0, 5.0]
            };
            let first = self.from.log10().floor() as i32;
            let last = self.to.log10().ceil() as i32;
            let ticks = (first..=last).flat_map(|power| {
                let power = 10f64.powi(power);
                steps.iter().map(move |step| step * power)
            });
            return ticks
                .filter(|tick| (self.from..=self.to).contains(tick))
                .collect();
        }
        let rough = self.to / 4.0;
        let power = 10f64.powf(rough.log10().floor());
        let step = [1.0, 2.0, 2.5, 5.0, 10.0].map(|step| step * power);
        let step = step
            .into_iter()
            .find(|step| *step >= rough)
            .unwrap_or(power * 10.0);
        (0..=8)
            .map(|number| f64::from(number) * step)
            .filter(|tick| *tick <= self.to)
            .collect()
    }
}

fn range(values: impl Iterator<Item = f64>) -> (f64, f64) {
    values.fold((f64::INFINITY, 0.0), |(low, high), value| {
        (low.min(value), high.max(value))
    })
}

/// A number in few characters.
pub fn short(value: f64) -> String {
    let trimmed = |text: String| match text.contains('.') {
        true => text.trim_end_matches('0').trim_end_matches('.').to_owned(),
        false => text,
    };
    match value {
        value if value >= 1e12 => format!("{value:.0e}"),
        value if value >= 1e9 => trimmed(format!("{:.1}", value / 1e9)) + "G",
        value if value >= 1e6 => trimmed(format!("{:.1}", value / 1e6)) + "M",
        value if value >= 1e4 => trimmed(format!("{:.1}", value / 1e3)) + "k",
        value if value >= 1e2 => format!("{value:.0}"),
        value if value >= 1.0 => trimmed(format!("{value:.1}")),
        value => trimmed(format!("{value:.3}")),
    }
}

/// A coordinate.
pub fn at(value: f64) -> String {
    format!("{value:.1}")
}

/// The axis below a drawing that reaches from `top` to `bottom`.
pub fn axis_below(scale: &Scale, top: f64, bottom: f64, name: &str) -> Markup {
    html! {
        @for tick in scale.ticks() {
            @let x = scale.place(tick);
            line.grid x1=(at(x)) y1=(at(top)) x2=(at(x)) y2=(at(bottom)) {}
            text.tick x=(at(x)) y=(at(bottom + 14.0)) text-anchor=(anchor(x)) { (short(tick)) }
        }
        line.axis x1=(at(scale.start)) y1=(at(bottom)) x2=(at(scale.end)) y2=(at(bottom)) {}
        text.name x=(at(WIDTH / 2.0)) y=(at(bottom + 30.0)) text-anchor="middle" { (name) }
    }
}

/// No number is cut off at an edge.
fn anchor(x: f64) -> &'static str {
    match x {
        x if x < MARGIN + 12.0 => "start",
        x if x > WIDTH - MARGIN - 12.0 => "end",
        _ => "middle",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn costs_start_at_nothing_unless_they_differ_much() {
        let scale = Scale::of([2.0, 8.0].into_iter(), 0.0, 100.0);
        assert_eq!(scale.place(0.0), 0.0);
        assert_eq!(scale.ticks(), [0.0, 2.5, 5.0, 7.5]);
        let scale = Scale::of([1.0, 1000.0].into_iter(), 0.0, 100.0);
        assert_eq!(scale.ticks(), [1.0, 10.0, 100.0, 1000.0]);
        assert!(scale.place(10.0) > 25.0);
    }

    #[test]
    fn odd_numbers_stay_in_the_drawing() {
        for values in [&[0.0][..], &[0.0, 1e14], &[1e-14, 1e14], &[5.0, 5.0], &[]] {
            for scale in [
                Scale::of(values.iter().copied(), 0.0, 100.0),
                Scale::of_amounts(values.iter().copied(), 0.0, 100.0),
            ] {
                for value in values.iter().copied().chain([0.0, -1.0, f64::MAX]) {
                    let place = scale.place(value);
                    assert!(
                        (0.0..=100.0).contains(&place),
                        "{values:?}: {value} at {place}"
                    );
                }
                assert!(scale.ticks().len() < 40, "{values:?}");
            }
        }
    }

    #[test]
    fn numbers_are_short() {
        let shorts = [0.0, 0.05, 2.5, 10.0, 128.0, 8192.0, 12_500.0, 3e6].map(short);
        assert_eq!(
            shorts,
            ["0", "0.05", "2.5", "10", "128", "8192", "12.5k", "3M"]
        );
    }
}
