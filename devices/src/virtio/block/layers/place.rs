//! Where the parts of a disk are: in which file, in none.

use std::io;

use imago::{Mapping, ShallowMapping};

use super::Chain;

/// Where a part of a disk is, as one layer sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
    /// In the layer's file, at this offset.
    File(u64),
    /// It is zeroes, whatever is below.
    Zero,
    /// In this layer, but not as it is: compressed.
    Packed,
    /// Not in this layer; where there is none below, it is zeroes.
    Below,
}

impl Chain {
    /// Where the start of a range is as the top sees it, and how much of the range is alike.
    pub(super) fn place(&self, offset: u64, len: u64) -> io::Result<(Place, u64)> {
        let (mapping, alike) = self.image.get_shallow_mapping(offset, len)?;
        let place = match mapping {
            ShallowMapping::Raw { offset, .. } => Place::File(offset),
            ShallowMapping::Zero { explicit: true, .. } => Place::Zero,
            ShallowMapping::Zero { .. } | ShallowMapping::Eof { .. } => Place::Below,
            ShallowMapping::Special { .. } => Place::Packed,
            ShallowMapping::Indirect { .. } => Place::Below,
            _ => return Err(io::ErrorKind::Unsupported.into()),
        };
        match alike {
            0 => Ok((place, len)),
            alike => Ok((place, alike.min(len))),
        }
    }

    /// The same for all of a range: start, length and place of each part.
    pub(super) fn places(&self, offset: u64, len: u64) -> io::Result<Vec<(u64, u64, Place)>> {
        let mut places = Vec::new();
        let mut at = offset;
        while at < offset + len {
            let (place, alike) = self.place(at, offset + len - at)?;
            places.push((at, alike, place));
            at += alike;
        }
        Ok(places)
    }

    /// Whether the start of a range is known to be zeroes by the layer that has it, and how much of
    /// the range is alike.
    pub(super) fn is_zero(&self, offset: u64, len: u64) -> io::Result<(bool, u64)> {
        let (mapping, alike) = self.image.get_mapping(offset, len)?;
        let zero = matches!(mapping, Mapping::Zero { .. } | Mapping::Eof { .. });
        match alike {
            0 => Ok((zero, len)),
            alike => Ok((zero, alike.min(len))),
        }
    }

    /// Whether all of a range is known to be zeroes.
    pub(super) fn is_all_zero(&self, offset: u64, len: u64) -> io::Result<bool> {
        let mut at = offset;
        while at < offset + len {
            match self.is_zero(at, offset + len - at)? {
                (true, alike) => at += alike,
                (false, _) => return Ok(false),
            }
        }
        Ok(true)
    }

    /// Whether nothing of a range is in the top's file.
    pub(super) fn is_out_of_file(&self, offset: u64, len: u64) -> io::Result<bool> {
        let places = self.places(offset, len)?;
        Ok(places
            .iter()
            .all(|(_, _, place)| matches!(place, Place::Zero | Place::Below)))
    }

    /// Whether all of a range is in the top's file.
    pub(super) fn is_in_file(&self, offset: u64, len: u64) -> io::Result<bool> {
        let places = self.places(offset, len)?;
        Ok(places
            .iter()
            .all(|(_, _, place)| matches!(place, Place::File(_))))
    }
}
