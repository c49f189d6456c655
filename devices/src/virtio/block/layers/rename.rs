//! The name, in a qcow2 image's header, of what the image lies over (docs/interop/qcow2.txt of QEMU,
//! "Header"). Nobody follows it here; other tools do.

use std::io;
use std::os::unix::fs::FileExt;

use super::layer::io_error;
use super::{Layer, LayerError};

/// Where the header says where the name is, and after that how long it is.
const NAME: u64 = 8;

impl Layer {
    /// Puts another name in the place of one that is no shorter; the format of what is below stays.
    /// An image without a name stays so. The layer is open to be written, and nobody else has its
    /// header in memory.
    pub(in super::super) fn rename_backing(&self, name: &str) -> Result<(), LayerError> {
        let renamed = self.try_rename(name);
        renamed.map_err(|source| io_error("write the header of", &self.path, source))
    }

    fn try_rename(&self, name: &str) -> io::Result<()> {
        let mut head = [0; 12];
        self.file.read_exact_at(&mut head, NAME)?;
        let (at, length) = head.split_at(8);
        let at = u64::from_be_bytes(at.try_into().expect("8 bytes"));
        let length = u32::from_be_bytes(length.try_into().expect("4 bytes"));
        if at == 0 {
            return Ok(());
        }
        if name.len() > length as usize || at.saturating_add(length.into()) > self.cluster {
            return Err(io::Error::other(
                "there is no room for the name of its base",
            ));
        }
        self.file.write_all_at(name.as_bytes(), at)?;
        let length = name.len() as u32;
        self.file.write_all_at(&length.to_be_bytes(), NAME + 8)
    }
}
