//! Reference counts made anew, from what the tables of an image refer to.
//!
//! A process that is killed leaves the tables of its image as they are to be (an entry is written
//! after what it leads to), but reference counts that it still had in memory. They say nothing that
//! the tables do not say, so they are counted again, written behind the end of the file, and taken
//! into use by one write of the header: a kill in between leaves the image as it was.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

use super::check::Checked;
use super::layer::io_error;
use super::{LayerError, check};

/// Where the header says where the table of reference counts is, and in how many clusters.
const REFTABLE: u64 = 48;

/// Makes the reference counts fit, if they do not.
pub(super) fn repair(path: &Path, file: &File, checked: &Checked) -> Result<(), LayerError> {
    if checked.beyond > 0 {
        // What reads as zeroes is there, as zeroes.
        let length = checked.uses.len() as u64 * checked.header.cluster();
        file.set_len(length)
            .map_err(|source| io_error("repair", path, source))?;
    }
    if checked.undercounted == 0 && checked.leaked == 0 {
        return Ok(());
    }
    if checked.header.refcount_order != 4 {
        return Err(LayerError::Unfit {
            path: path.to_owned(),
            reason: "its reference counts are wrong, and not of the usual 16 bits: repair it with \
                     qemu-img check -r all"
                .to_owned(),
        });
    }
    rebuild(file, checked).map_err(|source| io_error("repair", path, source))?;
    let again = check(path, file)?;
    match (again.undercounted, again.leaked) {
        (0, 0) => Ok(()),
        _ => Err(LayerError::Unfit {
            path: path.to_owned(),
            reason: "its reference counts cannot be repaired".to_owned(),
        }),
    }
}

fn rebuild(file: &File, checked: &Checked) -> io::Result<()> {
    let cluster = checked.header.cluster() as usize;
    let in_block = cluster / 2;
    let in_table = cluster / 8;
    let used = checked.uses.len();
    // So many blocks and clusters of table that they count themselves too.
    let (mut blocks, mut tables) = (0, 0);
    loop {
        let all = used + blocks + tables;
        let more = (
            all.div_ceil(in_block),
            all.div_ceil(in_block).div_ceil(in_table),
        );
        if more == (blocks, tables) {
            break;
        }
        (blocks, tables) = more;
    }
    let mut counts = checked.uses.clone();
    counts.resize(used + blocks + tables, 1);
    counts.resize(blocks * in_block, 0);
    let counts: Vec<u8> = counts
        .iter()
        .flat_map(|count| count.to_be_bytes())
        .collect();
    let start = (used * cluster) as u64;
    file.write_all_at(&counts, start)?;
    let block = |n: usize| ((used + n) * cluster) as u64;
    let mut table: Vec<u8> = (0..blocks).flat_map(|n| block(n).to_be_bytes()).collect();
    table.resize(tables * cluster, 0);
    let at = block(blocks);
    file.write_all_at(&table, at)?;
    file.sync_data()?;
    let mut pointer = at.to_be_bytes().to_vec();
    pointer.extend((tables as u32).to_be_bytes());
    file.write_all_at(&pointer, REFTABLE)?;
    file.sync_data()
}
