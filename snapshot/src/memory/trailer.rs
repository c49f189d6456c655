//! The page behind the last page of memory in a layer's file: it says which layer the file is, so
//! that another one in its place is found without reading what is in it.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

use super::PAGE;
use crate::checksum::Checksum;
use crate::dir::io_error;
use crate::error::ReadError;
use crate::id::Id;

const MAGIC: [u8; 8] = *b"TINEMEM\0";
const VERSION: u32 = 1;
/// What of the page is used; the rest is zeroes.
const USED: usize = 48;

/// The page for the layer `id` of a memory of `size` bytes.
pub(crate) fn encode(id: Id, size: u64) -> [u8; PAGE as usize] {
    let mut page = [0; PAGE as usize];
    page[..8].copy_from_slice(&MAGIC);
    page[8..12].copy_from_slice(&VERSION.to_le_bytes());
    page[16..24].copy_from_slice(&size.to_le_bytes());
    page[24..40].copy_from_slice(&id.0);
    let sum = Checksum::of(&page[..40]);
    page[40..USED].copy_from_slice(&sum.0.to_le_bytes());
    page
}

/// Checks that `file`, which is long enough, is the layer `wanted`.
pub(crate) fn check(path: &Path, file: &File, size: u64, wanted: Id) -> Result<(), ReadError> {
    let mut page = [0; PAGE as usize];
    file.read_exact_at(&mut page, size)
        .map_err(|source| io_error(path, source))?;
    let found = Id(page[24..40].try_into().expect("16 bytes"));
    if page == encode(found, size) {
        if found == wanted {
            return Ok(());
        }
        return Err(ReadError::OtherLayer {
            path: path.to_owned(),
            found,
            wanted,
        });
    }
    Err(ReadError::Damaged {
        path: path.to_owned(),
        part: "trailer".to_owned(),
        reason: "the last page is not that of a layer of this size: it is damaged".to_owned(),
    })
}
