//! Tables of the page.

use maud::{Markup, html};

use crate::profile::Profiles;
use crate::report::groups::{Grid, Group, phases};

/// Of measures that are shown together.
pub fn of_group(group: &Group) -> Markup {
    let grid = group.grid();
    // The title stands above already.
    let first = match group {
        Group::One(_) => "",
        _ => grid.head[0].as_str(),
    };
    rows(&grid, first)
}

fn rows(grid: &Grid, first: &str) -> Markup {
    html! {
        div.scroll {
            table {
                thead { tr {
                    th scope="col" { (first) }
                    @for head in &grid.head[1..] { th scope="col" { (head) } }
                } }
                tbody {
                    @for row in &grid.rows {
                        tr {
                            th scope="row" { (row[0]) }
                            @for cell in &row[1..] { td { (cell) } }
                        }
                    }
                }
            }
        }
    }
}

/// The project's goals, each with what was found.
pub fn goals(grid: &Grid) -> Markup {
    let class = |verdict: &str| match verdict {
        "met" => "good",
        "missed" => "bad",
        _ => "none",
    };
    html! {
        section {
            h2 { "Goals" }
            article {
                div.scroll { table {
                    thead { tr { @for head in &grid.head { th scope="col" { (head) } } } }
                    tbody {
                        @for row in &grid.rows {
                            tr {
                                th scope="row" { (row[0]) }
                                td { (row[1]) }
                                td { (row[2]) }
                                td { span class={ "badge " (class(&row[3])) } { (row[3]) } }
                            }
                        }
                    }
                } }
            }
        }
    }
}

/// Where the time goes.
pub fn profile(found: &Profiles) -> Markup {
    html! {
        section {
            h2 { "Where the time goes" }
            p.about { "By " (found.tool) ". Counts are those of an untraced start, times are not." }
            @for profile in &found.profiles {
                article {
                    h3 { (profile.of) ", " (profile.contestant) }
                    (rows(&phases(profile), "until"))
                }
            }
        }
    }
}
