//! Taking a top back into the raw image that it lies over.

use std::ops::ControlFlow;

use super::copy::copy_into;
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
    copy_into(&[Chain::open_alone(top)?], vec![base], size, &mut progress)
}
