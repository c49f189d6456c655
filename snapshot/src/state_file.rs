//! The file `state`: sections, each with its length and checksum (`FORMAT.md`, "state"). Its bytes
//! can go other ways than through a file, too.

use std::path::Path;

use crate::checksum::{Checksum, Summer};
use crate::error::ReadError;
use crate::header::{Kind, damaged, u16_at, u32_at, u64_at};
use crate::id::Id;
use crate::section::Section;

/// A state is no longer than this, in bytes.
pub const MAX_STATE: u64 = 64 << 20;
/// Sections in a state at most.
pub(crate) const MAX_SECTIONS: usize = 4096;
/// A section's name and kind have at most so many bytes.
pub(crate) const MAX_NAME: usize = 64;

const KIND: Kind = Kind {
    magic: *b"TINESTAT",
    version: 1,
    length: HEADER,
    name: "the state of a Tine machine",
};
const HEADER: usize = 48;
const SECTION: usize = 24;

/// Puts sections into the bytes of a file.
///
/// # Errors
///
/// In words, which section cannot be in it and why.
pub fn encode(id: Id, sections: &[Section]) -> Result<Vec<u8>, String> {
    if sections.len() > MAX_SECTIONS {
        return Err(format!("{} sections are too many", sections.len()));
    }
    let mut bytes = vec![0; HEADER];
    for (n, section) in sections.iter().enumerate() {
        let name = &section.name;
        for (text, what) in [(name, "name"), (&section.kind, "kind")] {
            if !is_name(text.as_bytes()) {
                return Err(format!(
                    "section {name:?}: its {what} is not 1 to 64 bytes of ASCII"
                ));
            }
        }
        if sections[..n].iter().any(|other| other.name == *name) {
            return Err(format!("there are two sections {name:?}"));
        }
        let mut head = Vec::with_capacity(SECTION + 2 * MAX_NAME);
        head.extend((name.len() as u16).to_le_bytes());
        head.extend((section.kind.len() as u16).to_le_bytes());
        head.extend(section.version.to_le_bytes());
        head.extend(0_u16.to_le_bytes());
        head.extend((section.payload.len() as u64).to_le_bytes());
        let sum = section_sum(
            &head,
            name.as_bytes(),
            section.kind.as_bytes(),
            &section.payload,
        );
        head.extend(sum.0.to_le_bytes());
        head.extend(name.as_bytes());
        head.extend(section.kind.as_bytes());
        bytes.extend(head);
        bytes.extend(&section.payload);
        if bytes.len() as u64 > MAX_STATE {
            return Err(format!(
                "section {name:?} makes the state longer than {MAX_STATE} bytes"
            ));
        }
    }
    let total = bytes.len() as u64;
    bytes[..8].copy_from_slice(&KIND.magic);
    bytes[8..12].copy_from_slice(&KIND.version.to_le_bytes());
    bytes[12..16].copy_from_slice(&(sections.len() as u32).to_le_bytes());
    bytes[16..24].copy_from_slice(&total.to_le_bytes());
    bytes[24..40].copy_from_slice(&id.0);
    let sum = Checksum::of(&bytes[..40]);
    bytes[40..HEADER].copy_from_slice(&sum.0.to_le_bytes());
    Ok(bytes)
}

/// Takes the sections, and the id of the snapshot, out of the bytes of a file; `path` is for messages.
///
/// # Errors
///
/// When they are not as they were written.
pub fn decode(path: &Path, bytes: &[u8]) -> Result<(Id, Vec<Section>), ReadError> {
    let damaged = |part: String, reason: &str| damaged(path, part, reason);
    let header = |reason: &str| damaged("header".to_owned(), reason);
    let (head, mut rest) = KIND.split(path, bytes)?;
    if u64_at(head, 40) != Checksum::of(&head[..40]).0 {
        return Err(header("its checksum does not fit: it is damaged"));
    }
    if u32_at(head, 8) != KIND.version {
        return Err(header("there is no such version"));
    }
    let count = u32_at(head, 12) as usize;
    if count > MAX_SECTIONS {
        return Err(header("more sections than a state can have"));
    }
    let id = Id(head[24..40].try_into().expect("16 bytes"));
    let mut sections: Vec<Section> = Vec::new();
    for n in 0..count {
        let unnamed = || match sections.last() {
            Some(last) => format!("section {n}, behind {:?}", last.name),
            None => format!("section {n}"),
        };
        let end = "the file ends within it: it was cut off";
        let head = take(&mut rest, SECTION as u64).ok_or_else(|| damaged(unnamed(), end))?;
        let (name_len, kind_len) = (u16_at(head, 0), u16_at(head, 2));
        let lengths = [name_len, kind_len].map(usize::from);
        if lengths.iter().any(|len| !(1..=MAX_NAME).contains(len)) {
            return Err(damaged(
                unnamed(),
                "its name or kind has an impossible length",
            ));
        }
        let name = take(&mut rest, name_len.into()).ok_or_else(|| damaged(unnamed(), end))?;
        let named = || format!("section {:?}", String::from_utf8_lossy(name));
        let kind = take(&mut rest, kind_len.into()).ok_or_else(|| damaged(named(), end))?;
        let payload = take(&mut rest, u64_at(head, 8)).ok_or_else(|| damaged(named(), end))?;
        if section_sum(&head[..16], name, kind, payload).0 != u64_at(head, 16) {
            return Err(damaged(named(), "its checksum does not fit: it is damaged"));
        }
        if u16_at(head, 6) != 0 || !is_name(name) || !is_name(kind) {
            return Err(damaged(named(), "its head is not well formed"));
        }
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let section = Section {
            name: text(name),
            kind: text(kind),
            version: u16_at(head, 4),
            payload: payload.to_vec(),
        };
        if sections.iter().any(|other| other.name == section.name) {
            return Err(damaged(named(), "there is another of this name"));
        }
        sections.push(section);
    }
    if !rest.is_empty() || u64_at(head, 16) != bytes.len() as u64 {
        return Err(damaged(
            "end".to_owned(),
            "there is more behind the last section",
        ));
    }
    Ok((id, sections))
}

/// Over everything of a section but the checksum itself.
fn section_sum(head: &[u8], name: &[u8], kind: &[u8], payload: &[u8]) -> Checksum {
    let mut summer = Summer::new();
    for bytes in [head, name, kind, payload] {
        summer.update(bytes);
    }
    summer.sum()
}

/// Printable ASCII, so that messages and tools can show it.
fn is_name(bytes: &[u8]) -> bool {
    (1..=MAX_NAME).contains(&bytes.len()) && bytes.iter().all(u8::is_ascii_graphic)
}

/// The next `len` bytes, if there are so many.
fn take<'a>(rest: &mut &'a [u8], len: u64) -> Option<&'a [u8]> {
    let (taken, behind) = rest.split_at_checked(usize::try_from(len).ok()?)?;
    *rest = behind;
    Some(taken)
}
