//! The keys that leave a command's terminal: ctrl-p, then ctrl-q, as container tools have them.

/// Ctrl-p.
const FIRST: u8 = 0x10;
/// Ctrl-q.
const SECOND: u8 = 0x11;

/// Looks for the keys in what is typed.
#[derive(Debug, Default)]
pub struct DetachKeys {
    /// The first key has been held back.
    first: bool,
}

impl DetachKeys {
    /// What of `typed` goes to the command, and whether the keys were in it. A first key that
    /// nothing follows is held back until it is known what does.
    pub fn filter(&mut self, typed: &[u8]) -> (Vec<u8>, bool) {
        let mut passed = Vec::with_capacity(typed.len() + 1);
        for byte in typed {
            if self.first {
                if *byte == SECOND {
                    return (passed, true);
                }
                passed.push(FIRST);
            }
            self.first = *byte == FIRST;
            if !self.first {
                passed.push(*byte);
            }
        }
        (passed, false)
    }

    /// What has been held back when nothing more is typed.
    pub fn rest(&self) -> &'static [u8] {
        if self.first { &[FIRST] } else { &[] }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filter(parts: &[&[u8]]) -> (Vec<u8>, bool) {
        let mut keys = DetachKeys::default();
        let mut all = Vec::new();
        for part in parts {
            let (passed, detached) = keys.filter(part);
            all.extend(passed);
            if detached {
                return (all, true);
            }
        }
        all.extend(keys.rest());
        (all, false)
    }

    #[test]
    fn the_keys_are_found_wherever_they_are_cut() {
        assert_eq!(filter(&[b"ab\x10\x11cd"]), (b"ab".to_vec(), true));
        assert_eq!(filter(&[b"ab\x10", b"\x11"]), (b"ab".to_vec(), true));
        assert_eq!(filter(&[b"\x10\x10\x11"]), (b"\x10".to_vec(), true));
    }

    #[test]
    fn other_keys_pass_unchanged() {
        for typed in [&b"a\x10b\x11"[..], b"\x10\x10", b"\x11\x10", b"", b"\x10"] {
            assert_eq!(filter(&[typed]), (typed.to_vec(), false), "{typed:?}");
        }
    }
}
