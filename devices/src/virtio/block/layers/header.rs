//! The header of a qcow2 image, as far as it says whether the image can be used here
//! (docs/interop/qcow2.txt of QEMU, "Header").

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use super::check::read_some;

/// Tables of the first level are no longer than this: enough for 2 TiB in clusters of 64 KiB, and
/// as QEMU has it.
const MAX_L1: u64 = 32 << 20;
/// The same for tables of reference counts.
const MAX_REFTABLE: u64 = 8 << 20;

/// What bit 0 of the incompatible features says: reference counts may be old.
const DIRTY: u64 = 1;
/// The header's length in version 3, at least.
const LENGTH: usize = 104;
/// What is read of it: to where it says how data is compressed.
const READ: usize = 112;

/// The extension that names features, in entries of [`NAME`] bytes.
const NAMES: u32 = 0x6803_f857;
const NAME: u64 = 48;
/// Most extensions. QEMU writes up to five.
const MAX_EXTENSIONS: usize = 64;

/// A header whose numbers are within their bounds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Header {
    pub cluster_bits: u32,
    /// Of the disk, in bytes.
    pub virtual_size: u64,
    pub l1_offset: u64,
    /// In entries.
    pub l1_len: u64,
    pub reftable_offset: u64,
    /// In clusters.
    pub reftable_clusters: u64,
    /// Bits of a reference count are 2 to the power of this.
    pub refcount_order: u32,
    /// It names something that it lies over.
    pub has_backing: bool,
    pub dirty: bool,
    /// Where its extensions begin, if it is of a version that has them.
    extensions: Option<u64>,
}

impl Header {
    /// Reads and checks it. The error says what is wrong, or what is not done here.
    pub fn read(file: &File) -> io::Result<Result<Self, String>> {
        let mut bytes = [0; READ];
        let mut filled = 0;
        while filled < READ {
            match file.read_at(&mut bytes[filled..], filled as u64)? {
                0 => break,
                count => filled += count,
            }
        }
        let header = match Self::parse(&bytes[..filled]) {
            Ok(header) => header,
            refused => return Ok(refused),
        };
        Ok(header.look_at_extensions(file)?.map(|()| header))
    }

    /// What they say is of no use here, but imago reads them, and believes that they are whole.
    fn look_at_extensions(&self, file: &File) -> io::Result<Result<(), String>> {
        let refuse = |reason: &str| Ok(Err(reason.to_owned()));
        let Some(mut at) = self.extensions else {
            return Ok(Ok(()));
        };
        for _ in 0..MAX_EXTENSIONS {
            let mut head = [0; 8];
            read_some(file, &mut head, at)?;
            let (kind, len) = (word(&head, 0), u64::from(word(&head, 4)));
            if at + 8 + len > self.cluster() {
                return refuse("its header does not end in its first cluster");
            }
            match kind {
                0 => return Ok(Ok(())),
                NAMES if !len.is_multiple_of(NAME) => {
                    return refuse("the names of features in its header are damaged");
                }
                _ => at += 8 + len.next_multiple_of(8),
            }
        }
        refuse("its header has too many extensions")
    }

    fn parse(bytes: &[u8]) -> Result<Self, String> {
        let refuse = |reason: &str| Err(reason.to_owned());
        if bytes.len() < 72 || bytes[..4] != *b"QFI\xfb" {
            return refuse("it is not a qcow2 image");
        }
        let version = word(bytes, 4);
        let features = match version {
            2 => 0,
            3 if bytes.len() < LENGTH => return refuse("it ends within its header"),
            3 => long(bytes, 72),
            _ => return Err(format!("qcow2 version {version} is not known here")),
        };
        let mut header = Self {
            cluster_bits: word(bytes, 20),
            virtual_size: long(bytes, 24),
            l1_offset: long(bytes, 40),
            l1_len: word(bytes, 36).into(),
            reftable_offset: long(bytes, 48),
            reftable_clusters: word(bytes, 56).into(),
            refcount_order: if version == 2 { 4 } else { word(bytes, 96) },
            has_backing: long(bytes, 8) != 0,
            dirty: features & DIRTY != 0,
            extensions: None,
        };
        if !(9..=21).contains(&header.cluster_bits) || header.refcount_order > 6 {
            return refuse("impossible sizes in its header");
        }
        if word(bytes, 32) != 0 {
            return refuse("it is encrypted, which is not supported; convert it with qemu-img");
        }
        if word(bytes, 60) != 0 {
            return refuse(
                "it has snapshots inside, which are not supported; remove them with qemu-img",
            );
        }
        let length = if version == 2 {
            LENGTH
        } else {
            word(bytes, 100) as usize
        };
        if length < LENGTH || !length.is_multiple_of(8) || length > header.cluster() as usize {
            return refuse("its header has an impossible length");
        }
        let packer = if length > LENGTH {
            bytes.get(LENGTH).copied()
        } else {
            Some(0)
        };
        if features & !DIRTY != 0 || packer != Some(0) {
            return refuse(
                "it has features that are not supported (a data file of its own, extended L2 \
                 entries, another compression) or is marked as corrupt; convert it with qemu-img",
            );
        }
        let cluster = header.cluster();
        let aligned = |offset: u64| offset.is_multiple_of(cluster) && offset <= i64::MAX as u64;
        let tables = [header.l1_offset, header.reftable_offset, long(bytes, 64)];
        if !tables.into_iter().all(aligned) {
            return refuse("its tables are where none can be");
        }
        // Each entry of L1 is a table of one cluster, of entries of 8 bytes, of one cluster each.
        let covered = u128::from(header.l1_len) * u128::from(cluster / 8) * u128::from(cluster);
        if header.virtual_size > i64::MAX as u64 || u128::from(header.virtual_size) > covered {
            return refuse("its tables do not cover its size");
        }
        if header.l1_len * 8 > MAX_L1 || header.reftable_clusters * cluster > MAX_REFTABLE {
            return refuse("its tables are too large");
        }
        header.extensions = (version > 2).then_some(length as u64);
        Ok(header)
    }

    /// Bytes in a cluster.
    pub fn cluster(&self) -> u64 {
        1 << self.cluster_bits
    }
}

fn word(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes(bytes[at..at + 4].try_into().expect("4 bytes"))
}

fn long(bytes: &[u8], at: usize) -> u64 {
    u64::from_be_bytes(bytes[at..at + 8].try_into().expect("8 bytes"))
}
