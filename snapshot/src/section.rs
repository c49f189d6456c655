//! Sections: what a part of a machine keeps over a snapshot, as bytes with a name and a version.
//!
//! A part's state is plain data that implements [`State`]. It is encoded by postcard
//! (<https://postcard.jamesmunns.com/wire-format>), which has no names of its own: a changed type
//! is another version, and the old one stays beside it for as long as old snapshots are read.
//! What comes back is well formed and nothing more; whoever restores it checks what it says.

use serde::Serialize;
use serde::de::DeserializeOwned;

/// The state of one kind of part, in one version of its shape.
pub trait State: Serialize + DeserializeOwned {
    /// What kind of part this is the state of, such as `virtio-block`.
    const KIND: &'static str;
    /// The version of the shape.
    const VERSION: u16;
}

/// Why a section could not be made or read.
#[derive(Debug, thiserror::Error)]
pub enum SectionError {
    /// The state cannot be encoded: a sequence of unknown length, for example.
    #[error("section {name}: the state cannot be encoded: {reason}")]
    Encode {
        /// The section.
        name: String,
        /// What the encoder said.
        reason: String,
    },
    /// The section holds another kind of state.
    #[error("section {name} holds {found:?} where {wanted:?} belongs")]
    Kind {
        /// The section.
        name: String,
        /// What is there.
        found: String,
        /// What should be.
        wanted: &'static str,
    },
    /// The section is of a version that this build does not read.
    #[error("section {name}: version {found} of {kind} is not known here (known: {known})")]
    Version {
        /// The section.
        name: String,
        /// Its kind.
        kind: String,
        /// Its version.
        found: u16,
        /// The version that was asked for.
        known: u16,
    },
    /// The bytes are not the state they should be.
    #[error("section {name}: {reason}")]
    Decode {
        /// The section.
        name: String,
        /// What is wrong with them.
        reason: String,
    },
}

/// One part's state, encoded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Section {
    /// Which part: unique within a snapshot, such as `vcpu0` or `drive/root`.
    pub name: String,
    /// [`State::KIND`] of what is encoded.
    pub kind: String,
    /// [`State::VERSION`] of what is encoded.
    pub version: u16,
    /// The encoded state.
    pub payload: Vec<u8>,
}

impl Section {
    /// Encodes `state` as the section of the part `name`.
    pub fn of<T: State>(name: impl Into<String>, state: &T) -> Result<Self, SectionError> {
        let name = name.into();
        match postcard::to_allocvec(state) {
            Ok(payload) => Ok(Self {
                name,
                kind: T::KIND.to_owned(),
                version: T::VERSION,
                payload,
            }),
            Err(err) => Err(SectionError::Encode {
                name,
                reason: err.to_string(),
            }),
        }
    }

    /// Decodes a state of exactly this type. For a part with several versions, look at
    /// [`Self::version`] first.
    pub fn decode<T: State>(&self) -> Result<T, SectionError> {
        let name = || self.name.clone();
        if self.kind != T::KIND {
            return Err(SectionError::Kind {
                name: name(),
                found: self.kind.clone(),
                wanted: T::KIND,
            });
        }
        if self.version != T::VERSION {
            return Err(SectionError::Version {
                name: name(),
                kind: self.kind.clone(),
                found: self.version,
                known: T::VERSION,
            });
        }
        let decode = |reason: String| SectionError::Decode {
            name: name(),
            reason,
        };
        let (state, rest) =
            postcard::take_from_bytes(&self.payload).map_err(|err| decode(err.to_string()))?;
        match rest.len() {
            0 => Ok(state),
            more => Err(decode(format!("{more} bytes more than the state has"))),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;

    use super::*;

    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    struct Part {
        number: u64,
        words: Vec<String>,
    }

    impl State for Part {
        const KIND: &'static str = "part";
        const VERSION: u16 = 3;
    }

    fn part() -> (Part, Section) {
        let part = Part {
            number: 1 << 40,
            words: vec!["one".to_owned()],
        };
        let section = Section::of("part0", &part).unwrap();
        (part, section)
    }

    #[test]
    fn a_state_comes_back_as_it_was() {
        let (part, section) = part();
        assert_eq!(section.decode::<Part>().unwrap(), part);
    }

    #[test]
    fn another_kind_or_version_is_refused_by_name() {
        let (_, mut section) = part();
        section.version = 4;
        let err = section.decode::<Part>().unwrap_err().to_string();
        assert!(err.contains("part0") && err.contains("version 4"), "{err}");
        section.kind = "other".to_owned();
        assert!(matches!(
            section.decode::<Part>(),
            Err(SectionError::Kind { .. })
        ));
    }

    #[test]
    fn bytes_missing_or_left_over_are_errors() {
        let (_, section) = part();
        for len in 0..section.payload.len() {
            let mut short = section.clone();
            short.payload.truncate(len);
            assert!(short.decode::<Part>().is_err(), "{len} bytes");
        }
        let mut long = section;
        long.payload.push(0);
        assert!(long.decode::<Part>().is_err());
    }

    #[test]
    fn a_length_that_lies_allocates_nothing() {
        let (_, mut section) = part();
        // A number, then a sequence of 2^60 strings.
        section.payload = vec![0, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x10];
        assert!(section.decode::<Part>().is_err());
    }
}
