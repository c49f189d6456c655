//! Looking at all of a qcow2 image before it is written: every table, every entry, every reference
//! count. Two entries for one place in the file would let a guest write over the image's own
//! tables, so such an image is refused; reference counts that are too small would do it later, so
//! they are told, and `repair` makes them anew. (QEMU's docs/interop/qcow2.txt, "Host cluster
//! management" and "Cluster mapping".)

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

use super::LayerError;
use super::header::Header;
use super::layer::io_error;

/// Where the offset stands in an entry of L1, L2 or the table of reference counts.
const OFFSET: u64 = 0x00ff_ffff_ffff_fe00;
/// What the entry leads to is used by it alone. Without snapshots inside there is nothing else.
const COPIED: u64 = 1 << 63;
/// The entry of L2 reads as zeroes, whatever it leads to.
const ZERO: u64 = 1;
/// The entry of L2 is of a compressed cluster.
const PACKED: u64 = 1 << 62;
/// More clusters than this are not looked at: 4 TiB in clusters of 64 KiB.
const MAX_CLUSTERS: u64 = 1 << 26;
/// So many clusters behind the end of the file may be referred to. A crash of the host leaves that:
/// the file's new length may be lost where what refers to the new part is not.
const MAX_BEYOND: usize = 1 << 16;

/// What is known of an image once all of it was looked at.
#[derive(Debug)]
pub struct Checked {
    pub(super) header: Header,
    /// How often each cluster of the file is used, but for the reference counts' own. It may be
    /// longer than the file.
    pub(super) uses: Vec<u16>,
    /// Clusters that are used and behind the end of the file. They read as zeroes.
    pub beyond: u64,
    /// Clusters that are used and counted too low: the next writer would take them for free.
    pub undercounted: u64,
    /// Clusters that are counted and not used: room that is lost.
    pub leaked: u64,
    /// Clusters that hold compressed data.
    pub packed: u64,
}

/// Looks at all of the image in `file`; `path` is for messages. The cost is in proportion to the
/// image's tables, not to its data.
///
/// # Errors
///
/// When it cannot be read, is none, or says of one place in the file that it is two things.
pub fn check(path: &Path, file: &File) -> Result<Checked, LayerError> {
    let read = |source| io_error("read", path, source);
    let unfit = |reason: String| LayerError::Unfit {
        path: path.to_owned(),
        reason: format!("{reason}; it is damaged (qemu-img check says more)"),
    };
    let header = Header::read(file)
        .map_err(read)?
        .map_err(|reason| LayerError::Unfit {
            path: path.to_owned(),
            reason,
        })?;
    let length = file.metadata().map_err(read)?.len();
    let clusters = length.div_ceil(header.cluster());
    if clusters > MAX_CLUSTERS {
        return Err(unfit(format!(
            "{length} bytes are more than an image can have here"
        )));
    }
    let mut walk = Walk {
        file,
        uses: vec![0; clusters as usize],
        most: clusters as usize + MAX_BEYOND,
        header: &header,
        packed: 0,
    };
    walk.all().map_err(|stop| match stop {
        Stop::Io(source) => read(source),
        Stop::Damage(reason) => unfit(reason),
    })?;
    let Walk { uses, packed, .. } = walk;
    let mut checked = Checked {
        header,
        beyond: uses.len() as u64 - clusters,
        uses,
        undercounted: 0,
        leaked: 0,
        packed,
    };
    checked.compare(file).map_err(read)?;
    Ok(checked)
}

enum Stop {
    Io(io::Error),
    Damage(String),
}

impl From<io::Error> for Stop {
    fn from(source: io::Error) -> Self {
        Self::Io(source)
    }
}

/// Counts what refers to each cluster.
struct Walk<'a> {
    file: &'a File,
    header: &'a Header,
    uses: Vec<u16>,
    /// Clusters at most.
    most: usize,
    packed: u64,
}

impl Walk<'_> {
    fn all(&mut self) -> Result<(), Stop> {
        let cluster = self.header.cluster();
        self.take(0, "the header")?;
        let l1_bytes = self.header.l1_len * 8;
        for n in 0..l1_bytes.div_ceil(cluster) {
            self.take(self.header.l1_offset + n * cluster, "L1")?;
        }
        let l1 = read_table(self.file, self.header.l1_offset, l1_bytes)?;
        for entry in &l1 {
            self.take_entry(*entry, 0, "an L2 table")?;
        }
        for entry in l1.into_iter().filter(|entry| *entry != 0) {
            for entry in read_table(self.file, entry & OFFSET, cluster)? {
                match entry & PACKED {
                    0 => self.take_entry(entry, ZERO, "a cluster of data")?,
                    _ => self.take_packed(entry)?,
                }
            }
        }
        Ok(())
    }

    /// Notes what an entry leads to, if it does; besides that it may have these flags.
    fn take_entry(&mut self, entry: u64, flags: u64, what: &str) -> Result<(), Stop> {
        match entry & !flags {
            0 => Ok(()),
            rest if rest & !OFFSET == COPIED && rest != COPIED => self.take(rest & OFFSET, what),
            _ => Err(Stop::Damage(format!("{entry:#x} is no entry for {what}"))),
        }
    }

    /// Notes that something is in the cluster at `offset`, and in it alone.
    fn take(&mut self, offset: u64, what: &str) -> Result<(), Stop> {
        let damage = |reason: &str| Err(Stop::Damage(format!("{what} at {offset:#x} {reason}")));
        if !offset.is_multiple_of(self.header.cluster()) {
            return damage("is not at the start of a cluster");
        }
        let n = (offset >> self.header.cluster_bits) as usize;
        if n >= self.most {
            return damage("is beyond the end of the file");
        }
        self.uses.resize(self.uses.len().max(n + 1), 0);
        match std::mem::replace(&mut self.uses[n], 1) {
            0 => Ok(()),
            _ => damage("lies where something else is"),
        }
    }

    /// The same for compressed data, which may share its clusters with other compressed data.
    fn take_packed(&mut self, entry: u64) -> Result<(), Stop> {
        let bits = 62 - (self.header.cluster_bits - 8);
        let offset = entry & ((1 << bits) - 1);
        let sectors = (entry & (PACKED - 1)) >> bits;
        let end = (offset & !511) + (sectors + 1) * 512;
        let cluster = self.header.cluster_bits;
        if entry & COPIED != 0 {
            return Err(Stop::Damage(format!(
                "{entry:#x} is no entry for compressed data"
            )));
        }
        self.packed += 1;
        for n in offset >> cluster..=(end - 1) >> cluster {
            match self.uses.get_mut(n as usize) {
                Some(uses) if *uses < u16::MAX => *uses += 1,
                // Its last sectors may be missing: the length is rounded up.
                None if n > offset >> cluster => {}
                _ => {
                    return Err(Stop::Damage(format!(
                        "compressed data at {offset:#x} is not there"
                    )));
                }
            }
        }
        Ok(())
    }
}

impl Checked {
    /// Compares the reference counts with what they should be.
    fn compare(&mut self, file: &File) -> io::Result<()> {
        let cluster = self.header.cluster();
        let table_bytes = self.header.reftable_clusters * cluster;
        let table = read_table(file, self.header.reftable_offset, table_bytes)?;
        // The structure's own clusters, as it says itself. What lies in a place where something is
        // already is made anew elsewhere.
        let mut uses = self.uses.clone();
        let mut take = |offset: u64| {
            let place = usize::try_from(offset >> self.header.cluster_bits).ok();
            let place = place.and_then(|place| uses.get_mut(place));
            let free = place.filter(|uses| offset.is_multiple_of(cluster) && **uses == 0);
            free.map(|uses| *uses = 1).is_some()
        };
        let own =
            (0..self.header.reftable_clusters).map(|n| self.header.reftable_offset + n * cluster);
        let mut misplaced = own.filter(|offset| !take(*offset)).count();
        let mut blocks = vec![0; table.len()];
        for (n, offset) in table
            .into_iter()
            .enumerate()
            .filter(|(_, offset)| *offset != 0)
        {
            match take(offset) {
                true => blocks[n] = offset,
                false => misplaced += 1,
            }
        }
        self.undercounted += misplaced as u64;
        let bits = 1_u64 << self.header.refcount_order;
        let in_block = (cluster * 8 / bits) as usize;
        let mut block = vec![0; cluster as usize];
        for n in 0..blocks.len().max(uses.len().div_ceil(in_block)) {
            match blocks.get(n) {
                Some(offset) if *offset != 0 => read_some(file, &mut block, *offset)?,
                // What it should count is behind the last that is used.
                _ if n * in_block >= uses.len() => continue,
                _ => block.fill(0),
            }
            for at in 0..in_block {
                let uses = uses.get(n * in_block + at).copied().unwrap_or(0);
                let counted = count_at(&block, at, bits);
                self.undercounted += u64::from(counted < u64::from(uses));
                self.leaked += u64::from(counted > u64::from(uses));
            }
        }
        Ok(())
    }
}

/// The count at `at` in a block of counts of `bits` bits.
fn count_at(block: &[u8], at: usize, bits: u64) -> u64 {
    match bits {
        // Within a byte, the lowest bits come first.
        1 | 2 | 4 => {
            let bit = at * bits as usize;
            u64::from(block[bit / 8]) >> (bit % 8) & ((1 << bits) - 1)
        }
        _ => {
            let bytes = bits as usize / 8;
            let count = &block[at * bytes..(at + 1) * bytes];
            count
                .iter()
                .fold(0, |count, byte| count << 8 | u64::from(*byte))
        }
    }
}

/// A table of big-endian numbers.
fn read_table(file: &File, offset: u64, len: u64) -> io::Result<Vec<u64>> {
    let mut bytes = vec![0; len as usize];
    read_some(file, &mut bytes, offset)?;
    let number = |bytes: &[u8]| u64::from_be_bytes(bytes.try_into().expect("8 bytes"));
    Ok(bytes.chunks_exact(8).map(number).collect())
}

/// Fills the buffer; with zeroes behind the end of the file.
pub(super) fn read_some(file: &File, buffer: &mut [u8], offset: u64) -> io::Result<()> {
    let mut filled = 0;
    while filled < buffer.len() {
        match file.read_at(&mut buffer[filled..], offset + filled as u64) {
            Ok(0) => break,
            Ok(count) => filled += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    buffer[filled..].fill(0);
    Ok(())
}
