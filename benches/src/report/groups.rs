//! Measures that belong together: parts of a whole, points of a curve. All forms of the report show
//! such a group as one table.

use super::text;
use crate::compare::{Comparison, Measure, Unit};
use crate::contestant::CONTROL;
use crate::profile::{Phase, Profile};

/// What is shown together.
pub enum Group<'a> {
    /// A measure by itself.
    One(&'a Measure),
    /// What follows one another in time.
    Parts(&'a str, Vec<&'a Measure>),
    /// One quantity for so much of something: the curve's name and axis.
    Curve(&'a str, &'a str, Vec<&'a Measure>),
}

/// The measures in groups, each where its first member stands.
pub fn groups(measures: &[Measure]) -> Vec<Group<'_>> {
    let mut groups: Vec<Group> = Vec::new();
    for measure in measures {
        if let Some(point) = &measure.point {
            let same = groups.iter_mut().find_map(|group| match group {
                Group::Curve(name, axis, points) => {
                    (*name == point.curve && *axis == point.axis).then_some(points)
                }
                _ => None,
            });
            match same {
                Some(points) => points.push(measure),
                None => groups.push(Group::Curve(&point.curve, &point.axis, vec![measure])),
            }
        } else if let Some(whole) = &measure.part_of {
            let same = groups.iter_mut().find_map(|group| match group {
                Group::Parts(name, parts) => (name == whole).then_some(parts),
                _ => None,
            });
            match same {
                Some(parts) => parts.push(measure),
                None => groups.push(Group::Parts(whole, vec![measure])),
            }
        } else {
            groups.push(Group::One(measure));
        }
    }
    groups
}

/// A table of texts, its first column names.
pub struct Grid {
    /// What the columns are.
    pub head: Vec<String>,
    /// As many cells each.
    pub rows: Vec<Vec<String>>,
}

impl Group<'_> {
    /// Its name with the unit.
    pub fn title(&self) -> String {
        let (name, unit) = match self {
            Group::One(measure) => (measure.name.as_ref(), measure.unit),
            Group::Parts(name, members) | Group::Curve(name, _, members) => {
                (*name, members[0].unit)
            }
        };
        format!("{name}, {}", unit.name())
    }

    /// The table of parts or points: medians of each contestant, and how they compare.
    pub fn grid(&self) -> Grid {
        let (first, members) = match self {
            Group::One(measure) => return summaries(measure),
            Group::Parts(_, members) => ("from one to the next", members),
            Group::Curve(_, axis, members) => (*axis, members),
        };
        let contestants = names(members, |m| m.series.iter().map(|s| s.contestant.as_str()));
        let contestants: Vec<&str> = contestants.into_iter().filter(|c| *c != CONTROL).collect();
        let peers = names(members, |m| m.comparisons.iter().map(|c| c.peer.as_str()));
        let mut head = vec![first.to_owned()];
        head.extend(contestants.iter().map(|name| format!("{name}, median")));
        head.extend(peers.iter().map(|peer| format!("tine / {peer}")));
        let row = |measure: &&Measure| {
            let mut row = vec![match &measure.point {
                Some(point) => text::amount(point.x),
                None => measure.name.to_string(),
            }];
            row.extend(contestants.iter().map(|name| median(measure, name)));
            row.extend(peers.iter().map(|peer| ratio(measure, peer)));
            row
        };
        let rows = members.iter().map(row).collect();
        Grid { head, rows }
    }
}

/// The phases of a start under a tracer.
pub fn phases(profile: &Profile) -> Grid {
    let head = [
        "until",
        "ms under the tracer",
        "calls",
        "minor faults",
        "major faults",
        "most calls",
    ];
    let row = |phase: &Phase| {
        let most = phase
            .most
            .iter()
            .map(|(name, count)| format!("{count} {name}"));
        vec![
            phase.until.to_string(),
            Unit::Millis.number(phase.millis),
            phase.calls.to_string(),
            phase.minor.to_string(),
            phase.major.to_string(),
            most.collect::<Vec<_>>().join(", "),
        ]
    };
    Grid {
        head: head.map(str::to_owned).to_vec(),
        rows: profile.phases.iter().map(row).collect(),
    }
}

fn summaries(measure: &Measure) -> Grid {
    let mut head = vec![format!("{}, {}", measure.name, measure.unit.name())];
    head.extend(text::COLUMNS.map(str::to_owned));
    let row = |series: &crate::compare::Series| {
        let mut row = vec![series.contestant.clone()];
        row.extend(text::cells(&series.summary, measure.unit));
        row
    };
    let rows = measure.series.iter().map(row).collect();
    Grid { head, rows }
}

fn median(measure: &Measure, contestant: &str) -> String {
    let series = measure.series.iter().find(|s| s.contestant == contestant);
    series.map_or("-".to_owned(), |s| measure.unit.number(s.summary.median))
}

fn ratio(measure: &Measure, peer: &str) -> String {
    let comparison = measure.comparisons.iter().find(|c| c.peer == peer);
    comparison.map_or("-".to_owned(), |Comparison { ratio, verdict, .. }| {
        let (low, high) = (ratio.low, ratio.high);
        let verdict = verdict.words(measure.unit);
        format!("{:.3} ({low:.3} to {high:.3}), {verdict}", ratio.value)
    })
}

/// Each name once, in the order they come.
fn names<'a, I: Iterator<Item = &'a str>>(
    measures: &[&'a Measure],
    of: impl Fn(&'a Measure) -> I,
) -> Vec<&'a str> {
    let mut names = Vec::new();
    for name in measures.iter().flat_map(|measure| of(measure)) {
        if !names.contains(&name) {
            names.push(name);
        }
    }
    names
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::contestant::Role;

    fn measure(name: &'static str) -> Measure {
        let rows = [("tine", Role::Subject), (CONTROL, Role::Control)];
        let rows = rows.map(|(name, role)| (name.to_owned(), role, vec![1.0]));
        Measure::of_rows(name, Unit::Millis, rows.into())
    }

    #[test]
    fn members_come_together_where_the_first_of_them_stands() {
        let measures = [
            measure("a").at("curve", "MiB", 1.0),
            measure("b"),
            measure("c").at("curve", "MiB", 2.0),
            measure("d").part_of("whole"),
            measure("e").part_of("whole"),
        ];
        let titles: Vec<_> = groups(&measures).iter().map(Group::title).collect();
        assert_eq!(titles, ["curve, ms", "b, ms", "whole, ms"]);
        let grid = groups(&measures)[0].grid();
        assert_eq!(grid.head, ["MiB", "tine, median"]);
        assert_eq!(grid.rows, [["1", "1.00"], ["2", "1.00"]]);
    }
}
