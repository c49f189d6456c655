//! Taking a top back into the raw image that it lies over.

use std::io;
use std::ops::ControlFlow;

use super::flatten::PIECE;
use super::layer::io_error;
use super::place::Place;
use super::{Chain, Format, Layer, LayerError};

/// Writes everything that `top` has into `base`, which it lies over, and makes it durable. When
/// this returns, `base` alone is the disk, and the caller may delete the top.
///
/// The top is not changed. Whatever ends this early, the two together are the disk as before, as
/// the top still has all that was written to the base: it can be done again.
///
/// `progress` is told how many bytes of the disk are done, and may stop it.
///
/// # Errors
///
/// When `base` is not a raw image opened to be written, is smaller than the disk, or a file cannot
/// be read or written; or when it was stopped.
pub fn commit(
    top: Layer,
    base: Layer,
    mut progress: impl FnMut(u64) -> ControlFlow<()>,
) -> Result<Layer, LayerError> {
    let size = top.virtual_size();
    if base.format() != Format::Raw || !base.is_writable() || base.virtual_size() < size {
        return Err(base.unfit(format!(
            "only a raw image of at least {size} bytes, open to be written, can take a layer back"
        )));
    }
    if top.is_writable() || top.format() != Format::Qcow2 {
        return Err(top.unfit("only a frozen qcow2 layer can be taken back"));
    }
    let path = base.path().to_owned();
    let from = Chain::open_alone(top)?;
    let mut to = Chain::open(vec![base])?;
    let copied = copy(&from, &mut to, &mut progress).and_then(|()| to.sync());
    copied.map_err(|source| io_error("write", &path, source))?;
    let base = to.freeze()?.pop();
    base.ok_or_else(|| io_error("write", &path, io::ErrorKind::NotFound.into()))
}

fn copy(
    from: &Chain,
    to: &mut Chain,
    progress: &mut impl FnMut(u64) -> ControlFlow<()>,
) -> io::Result<()> {
    let size = from.virtual_size();
    let mut buffer = vec![0; PIECE as usize];
    let mut at = 0;
    while at < size {
        let (place, alike) = from.place(at, size - at)?;
        let len = match place {
            Place::Below => alike,
            Place::Zero => {
                to.write_zeroes(at, alike, true)?;
                alike
            }
            Place::File(_) | Place::Packed => {
                let piece = &mut buffer[..alike.min(PIECE) as usize];
                from.read(piece, at)?;
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
