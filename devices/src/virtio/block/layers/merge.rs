//! One layer of several that lie over one another, for disks that have become deep: what is below
//! and above stays as it is.

use std::ops::{ControlFlow, Range};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use super::copy::copy_into;
use super::create::create;
use super::layer::io_error;
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
    // A cluster that is written in part has to have the rest of it from below.
    let mut to = lower;
    to.push(made);
    let merged = copy_into(&from, to, size, &mut progress);
    if merged.is_err() {
        let _ = std::fs::remove_file(path);
    }
    merged
}
