//! The report as one page of HTML: plots beside their tables, nothing loaded from anywhere, no
//! script. Peers' names and paths come from outside: every text goes through the template, which
//! escapes it, and the page forbids itself everything but its own style.

mod curve;
mod dots;
mod parts;
mod ratios;
mod scale;
mod tables;
#[cfg(test)]
mod tests;
mod tone;

use maud::{DOCTYPE, Markup, PreEscaped, html};

use super::groups::{Group, groups};
use super::{Answer, Report, goals, text};
use crate::compare::{Measure, Verdict};
use crate::guard::Guard;
use tone::Tones;

/// Set in the page itself.
const STYLE: &str = include_str!("style.css");
/// What the page may load: nothing.
const POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'";

/// The whole report.
pub fn render(report: &Report) -> String {
    let tones = Tones::of(report);
    let page = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta http-equiv="Content-Security-Policy" content=(POLICY);
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="color-scheme" content="light dark";
                title { "What Tine costs: " (report.host.date) }
                // A file of this crate, with no character that would end it.
                style { (PreEscaped(STYLE)) }
            }
            body {
                (header(report))
                main {
                    @if let Some(guard) = &report.guard { (baseline(guard)) }
                    @if let Some(grid) = goals::grid(report) { (tables::goals(&grid)) }
                    (ratios::glance(report))
                    @for (number, answer) in report.answers.iter().enumerate() {
                        (question(number, answer, &tones))
                    }
                    @if let Some(found) = &report.profile { (tables::profile(found)) }
                }
                (footer())
            }
        }
    };
    page.into_string()
}

fn header(report: &Report) -> Markup {
    let host = &report.host;
    let memory = |mib: u64| format!("{:.0} GiB", mib as f64 / 1024.0);
    html! {
        header {
            p.over { "tine-bench" }
            h1 { "What Tine costs" }
            p.kind { strong { (host.kind.name()) } ": " (host.kind.meaning()) "." }
            dl.facts {
                div { dt { "When" } dd { (host.date) } }
                div { dt { "Processor" } dd { (host.cpu) ", " (host.cores) " cores" } }
                @if host.memory > 0 { div { dt { "Memory" } dd { (memory(host.memory)) } } }
                div { dt { "Kernel" } dd { "Linux " (host.kernel) } }
                div { dt { "Load" } dd {
                    (format!("{:.2} at the start", host.load))
                    @if let Some(load) = host.load_after { (format!(", {load:.2} at the end")) }
                } }
                @if host.real_time { div { dt { "Priority" } dd { "real-time" } } }
                @for monitor in &report.monitors {
                    div {
                        dt { (monitor.name) }
                        dd {
                            (monitor.version.as_deref().unwrap_or("version unknown"))
                            @if let Some(program) = &monitor.program { br; code { (program) } }
                        }
                    }
                }
            }
            @for warning in host.warnings() { p.warning { (warning) } }
            nav aria-label="Questions" {
                @for (number, answer) in report.answers.iter().enumerate() {
                    a href=(format!("#q{number}")) { (answer.question) }
                }
            }
        }
    }
}

fn baseline(guard: &Guard) -> Markup {
    let class = if guard.slower.is_empty() {
        "good"
    } else {
        "bad"
    };
    let lines = guard.lines();
    html! {
        section {
            h2 { "Against the baseline" }
            @for (number, line) in lines.iter().enumerate() {
                @if number == 0 { p { span class={ "badge " (class) } { (line) } } }
                @else { p.remark { (line) } }
            }
        }
    }
}

fn question(number: usize, answer: &Answer, tones: &Tones) -> Markup {
    html! {
        section id=(format!("q{number}")) {
            h2 { (answer.question) }
            p.about { (answer.about) }
            @for group in groups(&answer.measures) {
                article {
                    h3 { (group.title()) }
                    div.pair {
                        div.plot { (plot(&group, tones)) }
                        div.numbers {
                            (tables::of_group(&group))
                            @if let Group::One(measure) = &group { (remarks(measure)) }
                        }
                    }
                }
            }
        }
    }
}

fn plot(group: &Group, tones: &Tones) -> Markup {
    match group {
        Group::One(measure) => dots::plot(measure, tones),
        Group::Parts(name, members) => parts::plot(name, members, tones),
        Group::Curve(name, axis, members) => curve::plot(name, axis, members, tones),
    }
}

fn remarks(measure: &Measure) -> Markup {
    html! {
        @for comparison in &measure.comparisons {
            p.remark {
                "tine / " (comparison.peer) ": " b { (format!("{:.3}", comparison.ratio.value)) }
                (format!(", 95% within {:.3} to {:.3} ", comparison.ratio.low, comparison.ratio.high))
                (badge(comparison.verdict, measure))
            }
        }
        @if let Some(noise) = &measure.noise { p.remark { (text::noise(noise)) } }
    }
}

fn badge(verdict: Verdict, measure: &Measure) -> Markup {
    let class = match verdict.good(measure.unit) {
        Some(true) => "good",
        Some(false) => "bad",
        None => "none",
    };
    html! { span class={ "badge " (class) } { (verdict.words(measure.unit)) } }
}

fn footer() -> Markup {
    html! {
        footer {
            h2 { "How to read this" }
            ul {
                li { "All contestants took turns, in an order shuffled anew in every round, after rounds \
                      of warm-up that do not count. A dot is one round; the bar in it is the median, the \
                      line reaches from the smallest value to the 95th percentile." }
                li { "A ratio is the median of the ratios round by round, within a 95% bootstrap interval." }
                li { "Tine takes part twice. What it differs from itself by is the noise: there is no \
                      verdict where the interval includes 1, where the difference is not larger than the \
                      noise, or with fewer than 6 rounds." }
                li { "Parts of a whole are medians, each by itself: their sum is about the median of the \
                      whole." }
                li { "Figures of ordinary and of software KVM say nothing about each other, and are never \
                      in one report." }
            }
        }
    }
}
