//! What some layers have into another one, for disks that get fewer of them.

use std::io;
use std::ops::ControlFlow;

use super::flatten::PIECE;
use super::layer::io_error;
use super::place::Place;
use super::{Chain, Layer, LayerError};

/// Writes what any of `from`, opened alone and given the topmost first, have of a disk of `size` bytes
/// into the last of the layers `to`, which lie over one another, and makes it durable; gives that one.
/// `progress` is told how many bytes of the disk are done, and may stop it.
///
/// # Errors
///
/// When a file cannot be read or written, or it was stopped.
pub(super) fn copy_into(
    from: &[Chain],
    to: Vec<Layer>,
    size: u64,
    progress: &mut impl FnMut(u64) -> ControlFlow<()>,
) -> Result<Layer, LayerError> {
    let path = to.last().map(|top| top.path().to_owned());
    let path = path.unwrap_or_default();
    let mut to = Chain::open(to)?;
    let copied = copy(from, &mut to, size, progress).and_then(|()| to.sync());
    copied.map_err(|source| io_error("write", &path, source))?;
    let made = to.freeze()?.pop();
    made.ok_or_else(|| io_error("write", &path, io::ErrorKind::NotFound.into()))
}

fn copy(
    from: &[Chain],
    to: &mut Chain,
    size: u64,
    progress: &mut impl FnMut(u64) -> ControlFlow<()>,
) -> io::Result<()> {
    let mut buffer = vec![0; PIECE as usize];
    let mut at = 0;
    while at < size {
        let (has, len) = topmost(from, at, size - at)?;
        let len = match has {
            None => len,
            Some((_, Place::Zero)) => {
                to.write_zeroes(at, len, true)?;
                len
            }
            Some((layer, _)) => {
                let piece = &mut buffer[..len.min(PIECE) as usize];
                layer.read(piece, at)?;
                to.write(piece, at)?;
                piece.len() as u64
            }
        };
        at += len;
        if progress(at).is_break() {
            return Err(io::Error::other("it was stopped"));
        }
    }
    Ok(())
}

/// Which layer has the start of a range, if any has, and how much of the range is alike.
fn topmost(from: &[Chain], at: u64, mut len: u64) -> io::Result<(Option<(&Chain, Place)>, u64)> {
    for layer in from {
        let (place, alike) = layer.place(at, len)?;
        len = alike;
        if place != Place::Below {
            return Ok((Some((layer, place)), len));
        }
    }
    Ok((None, len))
}
