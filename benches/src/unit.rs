//! What numbers count, and how they are written.

use serde::{Deserialize, Serialize};

/// What a number counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Unit {
    /// Milliseconds.
    #[serde(rename = "ms")]
    Millis,
    /// Microseconds.
    #[serde(rename = "us")]
    Micros,
    /// 1024 bytes.
    #[serde(rename = "KiB")]
    Kib,
    /// Things.
    #[serde(rename = "")]
    Count,
    /// 1024 * 1024 bytes a second.
    #[serde(rename = "MiB/s")]
    MibPerSecond,
    /// Things a second.
    #[serde(rename = "1/s")]
    PerSecond,
    /// Milliseconds of processor time for 1024 * 1024 * 1024 bytes.
    #[serde(rename = "ms/GiB")]
    MillisPerGib,
}

impl Unit {
    /// As it stands behind a measure's name.
    pub fn name(self) -> &'static str {
        match self {
            Unit::Millis => "ms",
            Unit::Micros => "µs",
            Unit::Kib => "KiB",
            Unit::Count => "number",
            Unit::MibPerSecond => "MiB/s",
            Unit::PerSecond => "per second",
            Unit::MillisPerGib => "ms per GiB",
        }
    }

    /// Whether it counts what is done, not what it costs.
    pub fn more_is_better(self) -> bool {
        matches!(self, Unit::MibPerSecond | Unit::PerSecond)
    }

    /// A number of it, with the digits that matter.
    pub fn number(self, value: f64) -> String {
        match self {
            Unit::Millis => format!("{value:.2}"),
            // A median may lie between two whole numbers.
            Unit::Micros | Unit::PerSecond | Unit::MibPerSecond | Unit::MillisPerGib => {
                format!("{value:.0}")
            }
            Unit::Kib | Unit::Count => format!("{}", (value * 10.0).round() / 10.0),
        }
    }
}
