//! Bytes in JSON: a string where they are UTF-8, `{"base64": ".."}` where they are not.
//!
//! Arguments, environment values, paths and outputs of Unix programs are bytes; nothing may be lost or replaced on the
//! way. Base64 is the standard alphabet with padding (RFC 4648, section 4).

use std::fmt;

use serde::de::{Error, MapAccess, Visitor};
use serde::ser::SerializeMap;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A byte string that JSON carries without loss.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Octets(pub Vec<u8>);

impl From<&str> for Octets {
    fn from(text: &str) -> Self {
        Self(text.as_bytes().to_vec())
    }
}

impl From<String> for Octets {
    fn from(text: String) -> Self {
        Self(text.into_bytes())
    }
}

impl From<Vec<u8>> for Octets {
    fn from(bytes: Vec<u8>) -> Self {
        Self(bytes)
    }
}

impl From<&[u8]> for Octets {
    fn from(bytes: &[u8]) -> Self {
        Self(bytes.to_vec())
    }
}

impl Serialize for Octets {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if let Ok(text) = std::str::from_utf8(&self.0) {
            return serializer.serialize_str(text);
        }
        let mut map = serializer.serialize_map(Some(1))?;
        map.serialize_entry("base64", &encode_base64(&self.0))?;
        map.end()
    }
}

impl<'de> Deserialize<'de> for Octets {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(OctetsVisitor)
    }
}

struct OctetsVisitor;

impl<'de> Visitor<'de> for OctetsVisitor {
    type Value = Octets;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a string or {\"base64\": \"..\"}")
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Octets, E> {
        Ok(text.into())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Octets, A::Error> {
        let Some((key, text)) = map.next_entry::<String, String>()? else {
            return Err(A::Error::custom("expected the key `base64`"));
        };
        if key != "base64" || map.next_key::<String>()?.is_some() {
            return Err(A::Error::custom("expected the key `base64` alone"));
        }
        decode_base64(&text)
            .map(Octets)
            .ok_or_else(|| A::Error::custom("not valid base64"))
    }
}

const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/// Standard base64 with padding.
pub fn encode_base64(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for group in bytes.chunks(3) {
        let word = group
            .iter()
            .fold(0u32, |word, byte| word << 8 | u32::from(*byte))
            << (8 * (3 - group.len()));
        for digit in 0..4 {
            if digit <= group.len() {
                text.push(ALPHABET[(word >> (18 - 6 * digit)) as usize & 63] as char);
            } else {
                text.push('=');
            }
        }
    }
    text
}

/// The bytes of standard base64 with padding, or `None` if it is not exactly that.
pub fn decode_base64(text: &str) -> Option<Vec<u8>> {
    let text = text.as_bytes();
    if !text.len().is_multiple_of(4) {
        return None;
    }
    let mut bytes = Vec::with_capacity(text.len() / 4 * 3);
    let groups = text.len() / 4;
    for (index, group) in text.chunks_exact(4).enumerate() {
        let padding = group.iter().rev().take_while(|byte| **byte == b'=').count();
        if padding > 2 || (padding > 0 && index + 1 != groups) {
            return None;
        }
        let mut word = 0u32;
        for byte in &group[..4 - padding] {
            word = word << 6 | u32::from(digit(*byte)?);
        }
        word <<= 6 * padding;
        let kept = 3 - padding;
        // Bits that no byte takes must be zero: one spelling for each value.
        if word & (0xff_ffff >> (8 * kept)) != 0 {
            return None;
        }
        bytes.extend_from_slice(&word.to_be_bytes()[1..1 + kept]);
    }
    Some(bytes)
}

fn digit(byte: u8) -> Option<u8> {
    match byte {
        b'A'..=b'Z' => Some(byte - b'A'),
        b'a'..=b'z' => Some(byte - b'a' + 26),
        b'0'..=b'9' => Some(byte - b'0' + 52),
        b'+' => Some(62),
        b'/' => Some(63),
        _ => None,
    }
}
