//! Names for snapshots and their layers: 128 random bits, so that a file of another snapshot is
//! told from the one that belongs in its place.

use std::fmt;
use std::str::FromStr;

use rustix::rand::GetRandomFlags;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// 128 random bits, as text 32 lower-case hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Id(pub(crate) [u8; 16]);

impl Id {
    /// A new one, from the kernel's generator.
    ///
    /// # Errors
    ///
    /// When the kernel gives no random bytes.
    pub fn random() -> std::io::Result<Self> {
        let mut bytes = [0; 16];
        let mut filled = 0;
        while filled < bytes.len() {
            filled += rustix::rand::getrandom(&mut bytes[filled..], GetRandomFlags::empty())?;
        }
        Ok(Self(bytes))
    }
}

impl fmt::Display for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", u128::from_be_bytes(self.0))
    }
}

impl fmt::Debug for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for Id {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let number = hex(text, 32).ok_or("an id is 32 lower-case hexadecimal digits")?;
        Ok(Self(number.to_be_bytes()))
    }
}

impl Serialize for Id {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Id {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = std::borrow::Cow::<str>::deserialize(deserializer)?;
        text.parse().map_err(D::Error::custom)
    }
}

/// Exactly `digits` lower-case hexadecimal digits: one spelling for each number.
pub(crate) fn hex(text: &str, digits: usize) -> Option<u128> {
    let fits = text.len() == digits
        && text
            .bytes()
            .all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    fits.then(|| u128::from_str_radix(text, 16).ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_reads_back_as_it_was_written() {
        let id = Id::random().unwrap();
        assert_eq!(id.to_string().parse(), Ok(id));
        assert_ne!(id, Id::random().unwrap());
    }

    #[test]
    fn only_one_spelling_is_an_id() {
        for text in [
            "",
            "0",
            "0123456789ABCDEF0123456789abcdef",
            "+123456789abcdef0123456789abcdef",
            "0123456789abcdef0123456789abcdef0",
        ] {
            assert!(text.parse::<Id>().is_err(), "{text}");
        }
    }
}
