//! Blocks of tar archives: POSIX ustar with pax records, and on reading also what GNU tar writes.

use std::collections::HashMap;

/// Everything in an archive comes in blocks of this size.
pub const BLOCK: usize = 512;

/// Most bytes of one pax or long-name entry.
pub const MAX_META: u64 = 1 << 20;

/// Largest number that fits the octal fields of sizes and ids.
const MAX_SIZE: u64 = 0o77_777_777_777;
const MAX_ID: u64 = 0o7_777_777;

/// One entry's head.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Head {
    pub path: Vec<u8>,
    pub kind: u8,
    pub mode: u32,
    pub uid: u64,
    pub gid: u64,
    pub size: u64,
    pub mtime: u64,
    pub link: Vec<u8>,
    pub device: (u32, u32),
}

/// Zero bytes that follow `size` bytes of content.
pub fn padding(size: u64) -> usize {
    (BLOCK - (size % BLOCK as u64) as usize) % BLOCK
}

impl Head {
    /// Appends the head's blocks: a pax entry first if something does not fit the plain block.
    pub fn write(&self, out: &mut Vec<u8>) {
        let mut records = Vec::new();
        if self.path.len() > 100 {
            record("path", &self.path, &mut records);
        }
        if self.link.len() > 100 {
            record("linkpath", &self.link, &mut records);
        }
        for (name, value, most) in [
            ("size", self.size, MAX_SIZE),
            ("uid", self.uid, MAX_ID),
            ("gid", self.gid, MAX_ID),
        ] {
            if value > most {
                record(name, value.to_string().as_bytes(), &mut records);
            }
        }
        if !records.is_empty() {
            let size = records.len() as u64;
            let head = Self {
                path: b"pax".to_vec(),
                kind: b'x',
                size,
                mode: 0o644,
                ..Self::default()
            };
            head.write_block(out);
            out.extend_from_slice(&records);
            out.resize(out.len() + padding(size), 0);
        }
        self.write_block(out);
    }

    fn write_block(&self, out: &mut Vec<u8>) {
        let mut block = [0; BLOCK];
        let mut put = |at: usize, bytes: &[u8], most: usize| {
            let count = bytes.len().min(most);
            block[at..at + count].copy_from_slice(&bytes[..count]);
        };
        put(0, &self.path, 100);
        put(100, format!("{:07o}", self.mode & 0o7777).as_bytes(), 7);
        put(108, format!("{:07o}", self.uid.min(MAX_ID)).as_bytes(), 7);
        put(116, format!("{:07o}", self.gid.min(MAX_ID)).as_bytes(), 7);
        put(
            124,
            format!("{:011o}", self.size.min(MAX_SIZE)).as_bytes(),
            11,
        );
        put(
            136,
            format!("{:011o}", self.mtime.min(MAX_SIZE)).as_bytes(),
            11,
        );
        put(148, b"        ", 8);
        put(156, &[self.kind], 1);
        put(157, &self.link, 100);
        put(257, b"ustar\x0000", 8);
        put(329, format!("{:07o}", self.device.0).as_bytes(), 7);
        put(337, format!("{:07o}", self.device.1).as_bytes(), 7);
        let sum = checksum(&block);
        block[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
        out.extend_from_slice(&block);
    }

    /// Reads a head's block; `None` if it is none.
    pub fn read(block: &[u8; BLOCK]) -> Option<Self> {
        if number(&block[148..156])? != u64::from(checksum(block)) {
            return None;
        }
        let mut path = text(&block[..100]).to_vec();
        let prefix = text(&block[345..500]);
        // GNU's own format, told by the blank behind the word, has other things where the prefix is.
        if block[257..263] == *b"ustar\0" && !prefix.is_empty() {
            path = [prefix, &path].join(&b'/');
        }
        Some(Self {
            path,
            kind: block[156],
            mode: number(&block[100..108])? as u32 & 0o7777,
            uid: number(&block[108..116])?,
            gid: number(&block[116..124])?,
            size: number(&block[124..136])?,
            mtime: number(&block[136..148])?,
            link: text(&block[157..257]).to_vec(),
            device: (
                number(&block[329..337]).unwrap_or_default() as u32,
                number(&block[337..345]).unwrap_or_default() as u32,
            ),
        })
    }

    /// Lets pax records replace what they name.
    pub fn apply(&mut self, records: &HashMap<Vec<u8>, Vec<u8>>) -> Option<()> {
        let decimal = |value: &[u8]| {
            let whole = value.split(|byte| *byte == b'.').next().unwrap_or_default();
            std::str::from_utf8(whole).ok()?.parse::<u64>().ok()
        };
        for (name, value) in records {
            match name.as_slice() {
                b"path" => self.path.clone_from(value),
                b"linkpath" => self.link.clone_from(value),
                b"size" => self.size = decimal(value)?,
                b"uid" => self.uid = decimal(value)?,
                b"gid" => self.gid = decimal(value)?,
                // Before 1970 is as good as then.
                b"mtime" => self.mtime = decimal(value).unwrap_or_default(),
                _ => {}
            }
        }
        Some(())
    }
}

/// Appends a pax record: its own length in decimal, name, value.
fn record(name: &str, value: &[u8], out: &mut Vec<u8>) {
    let rest = name.len() + value.len() + 3;
    let mut length = rest + 1;
    while length != rest + length.to_string().len() {
        length = rest + length.to_string().len();
    }
    out.extend_from_slice(format!("{length} {name}=").as_bytes());
    out.extend_from_slice(value);
    out.push(b'\n');
}

/// Reads pax records; `None` if they are not well-formed.
pub fn records(mut bytes: &[u8]) -> Option<HashMap<Vec<u8>, Vec<u8>>> {
    let mut records = HashMap::new();
    while !bytes.is_empty() {
        let blank = bytes.iter().position(|byte| *byte == b' ')?;
        let length: usize = std::str::from_utf8(&bytes[..blank]).ok()?.parse().ok()?;
        let record = bytes.get(blank + 1..length)?.strip_suffix(b"\n")?;
        let equals = record.iter().position(|byte| *byte == b'=')?;
        records.insert(record[..equals].to_vec(), record[equals + 1..].to_vec());
        bytes = &bytes[length..];
    }
    Some(records)
}

fn checksum(block: &[u8; BLOCK]) -> u32 {
    let blank = |(at, byte): (usize, &u8)| {
        if (148..156).contains(&at) {
            32
        } else {
            (*byte).into()
        }
    };
    block.iter().enumerate().map(blank).sum()
}

/// Up to the first NUL.
pub fn text(field: &[u8]) -> &[u8] {
    field.split(|byte| *byte == 0).next().unwrap_or_default()
}

/// An octal number, or GNU's binary form of large ones.
fn number(field: &[u8]) -> Option<u64> {
    if field[0] & 0x80 != 0 {
        let (first, rest) = field.split_first()?;
        return rest
            .iter()
            .try_fold(u64::from(first & 0x7f), |value, byte| {
                value.checked_mul(256).map(|value| value | u64::from(*byte))
            });
    }
    let digits = std::str::from_utf8(text(field)).ok()?.trim_matches(' ');
    if digits.is_empty() {
        Some(0)
    } else {
        u64::from_str_radix(digits, 8).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn round(head: &Head) -> Head {
        let mut out = Vec::new();
        head.write(&mut out);
        assert_eq!(out.len() % BLOCK, 0);
        let mut read = Head::read(out[..BLOCK].try_into().unwrap()).unwrap();
        if read.kind == b'x' {
            let records = records(&out[BLOCK..BLOCK + read.size as usize]).unwrap();
            read = Head::read(out[out.len() - BLOCK..].try_into().unwrap()).unwrap();
            read.apply(&records).unwrap();
        }
        read
    }

    #[test]
    fn heads_come_back() {
        let mut head = Head {
            path: b"a/b".to_vec(),
            kind: b'0',
            mode: 0o4755,
            uid: 5,
            gid: 6,
            size: 7,
            mtime: 8,
            link: b"l".to_vec(),
            device: (1, 2),
        };
        assert_eq!(round(&head), head);
        head.path = vec![b'x'; 300];
        head.link = vec![0xff; 1000];
        head.size = 1 << 40;
        head.uid = u64::from(u32::MAX);
        assert_eq!(round(&head), head);
    }

    #[test]
    fn nonsense_is_told() {
        assert!(Head::read(&[0; BLOCK]).is_none());
        assert!(Head::read(&[0xff; BLOCK]).is_none());
        assert!(records(b"5 a=b\n").is_none());
        assert!(records(b"99 a=b\n").is_none());
        assert!(records(b"0 \n").is_none());
        assert_eq!(records(b"6 a=b\n").unwrap()[b"a".as_slice()], b"b");
    }
}
