//! One file of many layers.

use std::fs::File;
use std::io;
use std::ops::ControlFlow;
use std::os::unix::fs::FileExt;
use std::path::Path;

use super::create::create;
use super::layer::io_error;
use super::{Chain, Format, Layer, LayerError};

/// What is looked at, read and written at a time.
pub(super) const PIECE: u64 = 1 << 20;

/// Writes the disk that the layers are, the lowest first, into the new file `path`, which needs
/// nothing below it, and makes it durable. Zeroes become holes. `progress` is told how many bytes of
/// the disk are done, and may stop it.
///
/// # Errors
///
/// When a layer cannot be read or the file not written, or it was stopped. Nothing of the file is
/// left then.
pub fn flatten(
    layers: Vec<Layer>,
    path: &Path,
    format: Format,
    mut progress: impl FnMut(u64) -> ControlFlow<()>,
) -> Result<Layer, LayerError> {
    let from = Chain::open(layers)?;
    let size = from.virtual_size();
    let mut to = match format {
        Format::Raw => Target::Raw(new_file(path, size)?),
        Format::Qcow2 => Target::Qcow2(Chain::open(vec![create(path, size, None)?])?),
    };
    let copied = copy(&from, &mut to, &mut progress);
    let done = copied.and_then(|()| to.sync());
    let done = done.map_err(|source| io_error("write", path, source));
    match done.and_then(|()| to.into_layer(path)) {
        Ok(layer) => Ok(layer),
        Err(error) => {
            let _ = std::fs::remove_file(path);
            Err(error)
        }
    }
}

enum Target {
    Raw(File),
    Qcow2(Chain),
}

impl Target {
    fn write(&mut self, bytes: &[u8], offset: u64) -> io::Result<()> {
        match self {
            Self::Raw(file) => file.write_all_at(bytes, offset),
            Self::Qcow2(chain) => chain.write(bytes, offset),
        }
    }

    fn sync(&mut self) -> io::Result<()> {
        match self {
            Self::Raw(file) => file.sync_data(),
            Self::Qcow2(chain) => chain.sync(),
        }
    }

    fn into_layer(self, path: &Path) -> Result<Layer, LayerError> {
        match self {
            Self::Raw(file) => Layer::new(path, file, Format::Raw, false),
            Self::Qcow2(chain) => {
                let layer = chain.freeze()?.pop();
                layer.ok_or_else(|| io_error("write", path, io::ErrorKind::NotFound.into()))
            }
        }
    }
}

fn new_file(path: &Path, size: u64) -> Result<File, LayerError> {
    let file = File::create_new(path).map_err(|source| io_error("make", path, source))?;
    // Opened again to be read: the file is going to be a layer.
    let file = file
        .set_len(size)
        .and_then(|()| File::options().read(true).write(true).open(path));
    file.map_err(|source| io_error("make", path, source))
}

/// Copies what is not zeroes.
fn copy(
    from: &Chain,
    to: &mut Target,
    progress: &mut impl FnMut(u64) -> ControlFlow<()>,
) -> io::Result<()> {
    let size = from.virtual_size();
    let mut buffer = vec![0; PIECE as usize];
    let mut at = 0;
    while at < size {
        let (zero, alike) = from.is_zero(at, size - at)?;
        if zero {
            at += alike;
        } else {
            let piece = &mut buffer[..alike.min(PIECE) as usize];
            from.read(piece, at)?;
            write_data(piece, at, |bytes, at| to.write(bytes, at))?;
            at += piece.len() as u64;
        }
        if progress(at).is_break() {
            return Err(io::Error::other("it was stopped"));
        }
    }
    Ok(())
}

/// Writes the pages of a piece that are not zeroes, as few writes as there are runs of them.
pub(super) fn write_data(
    piece: &[u8],
    offset: u64,
    mut write: impl FnMut(&[u8], u64) -> io::Result<()>,
) -> io::Result<()> {
    const PAGE: usize = 4096;
    static ZEROES: [u8; PAGE] = [0; PAGE];
    let pages: Vec<&[u8]> = piece.chunks(PAGE).collect();
    let zero = |page: &&[u8]| **page == ZEROES[..page.len()];
    let mut at = 0;
    for run in pages.chunk_by(|a, b| zero(a) == zero(b)) {
        let len: usize = run.iter().map(|page| page.len()).sum();
        if !zero(&run[0]) {
            write(&piece[at..at + len], offset + at as u64)?;
        }
        at += len;
    }
    Ok(())
}
