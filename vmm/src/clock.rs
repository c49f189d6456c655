//! Points in time as text: RFC 3339, UTC, microseconds.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// `2026-01-31T12:34:56.000001Z`.
pub fn rfc3339(time: SystemTime) -> String {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
    let (days, seconds) = (since.as_secs() / 86_400, since.as_secs() % 86_400);
    let (year, month, day) = civil(days);
    let (hour, minute, second) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
    let micros = since.subsec_micros();
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{micros:06}Z")
}

/// The Gregorian date of a day counted from 1970-01-01. Years begin in March here, so that the
/// leap day is the last of its year and months follow one formula.
fn civil(days: u64) -> (u64, u64, u64) {
    let days = days + 719_468;
    let (era, day_of_era) = (days / 146_097, days % 146_097);
    let year_of_era =
        (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 {
        month_from_march + 3
    } else {
        month_from_march - 9
    };
    let year = year_of_era + era * 400 + u64::from(month <= 2);
    (year, month, day)
}

/// A duration with its unit: `500ms`, `30s`, `5m`, `1h`; a bare number is seconds.
pub fn parse_duration(text: &str) -> Option<std::time::Duration> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit = match &text[digits.len()..] {
        "ms" => 0.001,
        "" | "s" => 1.0,
        "m" => 60.0,
        "h" => 3600.0,
        _ => return None,
    };
    let number: f64 = digits.parse().ok()?;
    std::time::Duration::try_from_secs_f64(number * unit).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates() {
        let text = |seconds| rfc3339(UNIX_EPOCH + Duration::from_secs(seconds));
        assert_eq!(text(0), "1970-01-01T00:00:00.000000Z");
        assert_eq!(text(951_782_400), "2000-02-29T00:00:00.000000Z");
        assert_eq!(text(1_709_251_199), "2024-02-29T23:59:59.000000Z");
        assert_eq!(text(4_107_542_400), "2100-03-01T00:00:00.000000Z");
        let late = UNIX_EPOCH + Duration::new(1_767_225_599, 999_999_999);
        assert_eq!(rfc3339(late), "2025-12-31T23:59:59.999999Z");
    }
}
