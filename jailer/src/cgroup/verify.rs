//! Whether what a cgroup's file says is what was written to it.
//!
//! The kernel says it in its own words: `64M` becomes bytes, bytes are cut down to whole pages,
//! `0,1` becomes `0-1`, and a line of several keys is filled up.

/// What the kernel rounds memory down to.
const PAGE: u64 = 4096;

/// Whether `found` holds what was `wanted`.
pub(super) fn holds(wanted: &str, found: &str) -> bool {
    let found = found.trim();
    if found == wanted || same_size(wanted, found) || same_list(wanted, found) {
        return true;
    }
    // `8:0 rbps=1000` in `8:0 rbps=1000 wbps=max ...`; `50000` in `50000 100000`.
    let mut wanted_words = wanted.split_whitespace();
    let Some(first) = wanted_words.next() else {
        return false;
    };
    found.lines().any(|line| {
        let mut words = line.split_whitespace();
        words.next() == Some(first) && {
            let rest: Vec<&str> = words.collect();
            wanted_words.clone().all(|word| rest.contains(&word))
        }
    })
}

fn same_size(wanted: &str, found: &str) -> bool {
    match (size(wanted), size(found)) {
        (Some(wanted), Some(found)) => wanted == found || wanted - wanted % PAGE == found,
        // Version 1 says "no limit" with a number.
        _ => false,
    }
}

/// A number with a suffix that the kernel's `memparse` knows.
fn size(text: &str) -> Option<u64> {
    let (digits, shift) = match text.as_bytes().last()? {
        b'k' | b'K' => (&text[..text.len() - 1], 10),
        b'm' | b'M' => (&text[..text.len() - 1], 20),
        b'g' | b'G' => (&text[..text.len() - 1], 30),
        _ => (text, 0),
    };
    digits.parse::<u64>().ok()?.checked_mul(1 << shift)
}

fn same_list(wanted: &str, found: &str) -> bool {
    match (list(wanted), list(found)) {
        (Some(wanted), Some(found)) => wanted == found,
        _ => false,
    }
}

/// A list of numbers and ranges, as sorted ranges that do not touch.
fn list(text: &str) -> Option<Vec<(u32, u32)>> {
    let mut ranges = Vec::new();
    for part in text.split(',') {
        let (from, to) = part.split_once('-').unwrap_or((part, part));
        ranges.push((from.trim().parse().ok()?, to.trim().parse().ok()?));
    }
    ranges.sort_unstable();
    let mut joined: Vec<(u32, u32)> = Vec::new();
    for (from, to) in ranges {
        match joined.last_mut() {
            Some(last) if from <= last.1.saturating_add(1) => last.1 = last.1.max(to),
            _ => joined.push((from, to)),
        }
    }
    Some(joined)
}

#[cfg(test)]
mod tests {
    use super::holds;

    #[test]
    fn the_kernels_own_words_are_understood() {
        for (wanted, found) in [
            ("64", "64\n"),
            ("64M", "67108864"),
            ("1000000", "999424"),
            ("0,1", "0-1"),
            ("0-3,5", "0-3,5\n"),
            ("max", "max"),
            ("50000", "50000 100000"),
            (
                "8:0 rbps=1000",
                "8:16 rbps=1\n8:0 rbps=1000 wbps=max riops=max wiops=max",
            ),
        ] {
            assert!(holds(wanted, found), "{wanted} {found}");
        }
    }

    #[test]
    fn what_was_not_taken_is_noticed() {
        for (wanted, found) in [
            ("64", "63"),
            ("64", "640"),
            ("64M", "max"),
            ("64M", "9223372036854771712"),
            ("0-1", "0"),
            ("max", "64"),
            ("50000 100000", "50000 20000"),
            ("8:0 rbps=1000", "8:0 rbps=max"),
            ("1", ""),
        ] {
            assert!(!holds(wanted, found), "{wanted} {found}");
        }
    }
}
