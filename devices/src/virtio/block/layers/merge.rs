//! One layer of several that lie over one another, for disks that have become deep: what is below
//! and above stays as it is.

use std::io;
use std::ops::{ControlFlow, Range};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use super::create::create;
use super::flatten::PIECE;
use super::layer::io_error;
use super::place::Place;
use super::{Backing, Chain, Format, Layer, LayerError};

/// Which layers of a disk to make one of, so that it has no more than about `most`; `None` where it
/// has no more, or there are no two that could be made one. The lowest and the topmost stay.
///
/// It is the newest ones, down to the first that has more than twice of what is over it: so a part
/// of the disk is copied a number of times that grows with the logarithm of the disk's size, and not
/// with how often it was frozen.
///
/// # Errors
///
/// When a file's size is not to be had.
pub fn to_merge(layers: &[Layer], most: usize) -> Result<Option<Range<usize>>, LayerError> {
    let Some(top) = layers.last().filter(|_| layers.len() > most) else {
        return Ok(None);
    };
    let end = layers.len() - 1;
    let (mut start, mut bytes) = (end, 0);
    while start > 1 {
        let next = &layers[start - 1];
        let alike = next.format() == Format::Qcow2 && next.virtual_size() == top.virtual_size();
        let file = next.file().metadata();
        let room = file.map_err(|err| io_error("look at", next.path(), err))?;
        let room = room.blocks() * 512;
        if !alike || end - start >= 2 && room > 2 * bytes {
            break;
        }
        start -= 1;
        bytes += room;
    }
    Ok((end - start >= 2).then_some(start..end))
}

/// Writes what `layers`, which lie over one another and over `lower`, have into the new qcow2 image
/// `path`, which lies over `lower` alone and is called the one over `backing`, and makes it durable.
/// All are given the lowest first. With it in their place, a disk is as it was. They are not changed,
/// so whatever ends this early, nothing is lost.
///
/// `progress` is told how many bytes of the disk are done, and may stop it.
///
/// # Errors
///
/// When there is nothing below, they are not frozen qcow2 layers of one size, a file cannot be read
/// or written, or it was stopped. Nothing of the new file is left then.
pub fn merge(
    lower: Vec<Layer>,
    layers: Vec<Layer>,
    path: &Path,
    backing: Backing<'_>,
    mut progress: impl FnMut(u64) -> ControlFlow<()>,
) -> Result<Layer, LayerError> {
    let size = layers.last().map_or(0, Layer::virtual_size);
    for layer in &layers {
        let frozen = layer.format() == Format::Qcow2 && !layer.is_writable();
        if !frozen || layer.virtual_size() != size || lower.is_empty() {
            return Err(layer.unfit(
                "only frozen qcow2 layers of one size that lie over another can become one",
            ));
        }
    }
    let from = layers.into_iter().rev().map(Chain::open_alone);
    let from = from.collect::<Result<Vec<_>, _>>()?;
    let made = create(path, size, Some(backing))?;
    let merged = into(&from, lower, made, size, &mut progress);
    if merged.is_err() {
        let _ = std::fs::remove_file(path);
    }
    merged
}

fn into(
    from: &[Chain],
    mut lower: Vec<Layer>,
    made: Layer,
    size: u64,
    progress: &mut impl FnMut(u64) -> ControlFlow<()>,
) -> Result<Layer, LayerError> {
    let path = made.path().to_owned();
    // A cluster that is written in part has to have the rest of it from below.
    lower.push(made);
    let mut to = Chain::open(lower)?;
    let copied = copy(from, &mut to, size, progress).and_then(|()| to.sync());
    copied.map_err(|source| io_error("write", &path, source))?;
    let made = to.freeze()?.pop();
    made.ok_or_else(|| io_error("write", &path, io::ErrorKind::NotFound.into()))
}

/// Copies what any of the layers has, given the topmost first.
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
