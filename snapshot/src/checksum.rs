//! Checksums: XXH3 with 64 bits (<https://github.com/Cyan4973/xxHash/blob/dev/doc/xxhash_spec.md>),
//! seed 0. They find damage, not malice: who can change a file can change its checksum too.

use std::fmt;
use std::hash::Hasher as _;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use twox_hash::XxHash3_64;

use crate::id::hex;

/// XXH3-64 of some bytes; as text 16 lower-case hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Checksum(pub(crate) u64);

impl Checksum {
    /// Of these bytes.
    pub(crate) fn of(bytes: &[u8]) -> Self {
        Self(XxHash3_64::oneshot(bytes))
    }

    /// From its text.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        hex(text, 16).map(|number| Self(number as u64))
    }
}

/// A checksum over bytes that come in pieces.
pub(crate) struct Summer(XxHash3_64);

impl Summer {
    pub(crate) fn new() -> Self {
        Self(XxHash3_64::new())
    }

    pub(crate) fn update(&mut self, bytes: &[u8]) {
        self.0.write(bytes);
    }

    pub(crate) fn sum(&self) -> Checksum {
        Checksum(self.0.finish())
    }
}

impl fmt::Display for Checksum {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

impl fmt::Debug for Checksum {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Serialize for Checksum {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Checksum {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = std::borrow::Cow::<str>::deserialize(deserializer)?;
        Self::parse(&text)
            .ok_or_else(|| D::Error::custom("a checksum is 16 lower-case hexadecimal digits"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_xxh3_with_64_bits() {
        // The specification's own value for no input and seed 0.
        assert_eq!(Checksum::of(b"").to_string(), "2d06800538d394c2");
    }

    #[test]
    fn pieces_sum_up_to_the_whole() {
        let bytes: Vec<u8> = (0..1000_u32).map(|n| n as u8).collect();
        let mut summer = Summer::new();
        bytes.chunks(7).for_each(|piece| summer.update(piece));
        assert_eq!(summer.sum(), Checksum::of(&bytes));
    }
}
