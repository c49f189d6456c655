//! A tar stream as blocks: a head, then as many bytes as it announces, filled up to whole blocks.

use std::io::{self, Read};

use tar::Header;

/// Everything comes in blocks of this size.
const BLOCK: u64 = 512;

/// A tar stream. Between two heads it reads as the content of the entry.
pub struct Blocks<R> {
    reader: R,
    /// Bytes of content still to come.
    content: u64,
    /// Bytes after that up to the next head.
    padding: u64,
}

impl<R: Read> Blocks<R> {
    pub fn new(reader: R) -> Self {
        Self {
            reader,
            content: 0,
            padding: 0,
        }
    }

    /// The next head; `None` at the archive's end. An archive that only stops is broken.
    pub fn next_head(&mut self) -> io::Result<Option<Header>> {
        let rest = self.content.saturating_add(self.padding);
        let skipped = io::copy(&mut (&mut self.reader).take(rest), &mut io::sink())?;
        if skipped < rest {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let mut block = [0; BLOCK as usize];
        self.reader.read_exact(&mut block)?;
        if block == [0; BLOCK as usize] {
            return Ok(None);
        }
        let header = Header::from_byte_slice(&block).clone();
        if header.cksum()? != sum(&block) {
            return Err(io::Error::other("a head's checksum is wrong"));
        }
        self.announce(header.entry_size()?);
        Ok(Some(header))
    }

    /// The entry has this size, whatever its head says.
    pub fn announce(&mut self, size: u64) {
        self.content = size;
        self.padding = (BLOCK - size % BLOCK) % BLOCK;
    }

    /// Bytes of content still to come.
    pub fn left(&self) -> u64 {
        self.content
    }
}

impl<R: Read> Read for Blocks<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let most = self.content.min(buffer.len() as u64) as usize;
        let count = self.reader.read(&mut buffer[..most])?;
        self.content -= count as u64;
        Ok(count)
    }
}

/// The sum of a head's bytes, those of the sum itself taken as blanks.
fn sum(block: &[u8]) -> u32 {
    let all: u32 = block.iter().map(|byte| u32::from(*byte)).sum();
    let own: u32 = block[148..156].iter().map(|byte| u32::from(*byte)).sum();
    all - own + 8 * u32::from(b' ')
}
