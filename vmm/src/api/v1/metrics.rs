//! `/v1/metrics`: all figures in the Prometheus text format.

use std::fmt::Write;

use crate::api::body::Body;
use crate::api::fault::{Reply, stream};
use crate::api::routes::Call;
use crate::control::{Sample, samples};

/// `GET`.
pub async fn text(call: Call) -> Reply {
    call.only_query(&[])?;
    let text = format(&samples(&call.app.handle));
    stream(Body::whole(text), "text/plain; version=0.0.4")
}

fn format(samples: &[Sample]) -> String {
    let mut text = String::new();
    // All samples of a name stand together, as the format wants it.
    let mut names: Vec<&str> = Vec::new();
    for sample in samples {
        if names.contains(&sample.name) {
            continue;
        }
        names.push(sample.name);
        let (name, help) = (sample.name, sample.help);
        let kind = if sample.counter { "counter" } else { "gauge" };
        // Writing to a string cannot fail.
        let _ = writeln!(text, "# HELP tine_{name} {help}.");
        let _ = writeln!(text, "# TYPE tine_{name} {kind}");
        for one in samples.iter().filter(|one| one.name == name) {
            let _ = match &one.label {
                Some((label, value)) => writeln!(
                    text,
                    "tine_{name}{{{label}=\"{}\"}} {}",
                    escape(value),
                    one.value
                ),
                None => writeln!(text, "tine_{name} {}", one.value),
            };
        }
    }
    text
}

fn escape(value: &str) -> String {
    value
        .replace('\\', "\\\\")
        .replace('"', "\\\"")
        .replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_of_a_name_stand_together_and_labels_are_escaped() {
        let sample = |name, value: &str| Sample {
            name,
            help: "What it is",
            counter: true,
            label: Some(("id", value.to_owned())),
            value: 1.5,
        };
        let text = format(&[sample("a", "x"), sample("b", "y"), sample("a", "q\"\\")]);
        let expected = "# HELP tine_a What it is.\n# TYPE tine_a counter\n\
            tine_a{id=\"x\"} 1.5\ntine_a{id=\"q\\\"\\\\\"} 1.5\n\
            # HELP tine_b What it is.\n# TYPE tine_b counter\ntine_b{id=\"y\"} 1.5\n";
        assert_eq!(text, expected);
    }
}
