//! `/proc/PID/smaps`, as far as a monitor's own memory needs it (proc(5)).

use std::fs;

use anyhow::{Context, bail};

/// One mapping of a process. Sizes are in KiB.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mapping {
    /// Size of the range of addresses.
    pub size: u64,
    /// Whether the process may write to it.
    pub writable: bool,
    /// The file, or a name in brackets, or nothing.
    pub name: String,
    /// Pages of its own that it wrote to: what the process costs beyond files that are shared.
    pub private_dirty: u64,
}

/// The mappings of process `pid`.
pub fn of_process(pid: i32) -> anyhow::Result<Vec<Mapping>> {
    let path = format!("/proc/{pid}/smaps");
    let text = fs::read(&path).with_context(|| format!("cannot read {path}"))?;
    parse(&String::from_utf8_lossy(&text)).with_context(|| format!("cannot understand {path}"))
}

/// What a process has of memory, in KiB: its share of what others have as well (PSS), and what it
/// alone wrote to.
pub fn sums_of_process(pid: u32) -> anyhow::Result<(u64, u64)> {
    let path = format!("/proc/{pid}/smaps_rollup");
    let text = fs::read_to_string(&path).with_context(|| format!("cannot read {path}"))?;
    let field = |key: &str| -> anyhow::Result<u64> {
        let value = text.lines().find_map(|line| line.strip_prefix(key));
        kib(value.with_context(|| format!("no {key} in {path}"))?)
    };
    Ok((field("Pss:")?, field("Private_Dirty:")?))
}

/// Understands the whole file. Fields that are not needed are passed over; a needed one that
/// makes no sense is an error, since a sum without it would be wrong in silence.
pub fn parse(text: &str) -> anyhow::Result<Vec<Mapping>> {
    let mut mappings: Vec<Mapping> = Vec::new();
    for line in text.lines() {
        if let Some(mapping) = header(line) {
            mappings.push(mapping);
            continue;
        }
        let Some((key, value)) = line.split_once(':') else {
            bail!("neither a mapping nor a field: {line:?}");
        };
        let Some(mapping) = mappings.last_mut() else {
            bail!("a field before the first mapping: {line:?}");
        };
        if key == "Private_Dirty" {
            mapping.private_dirty = kib(value).with_context(|| format!("in {line:?}"))?;
        }
    }
    Ok(mappings)
}

/// The first line of a mapping: `START-END PERMISSIONS OFFSET DEVICE INODE [NAME]`. A name may
/// have blanks and colons in it; line breaks are escaped by the kernel.
fn header(line: &str) -> Option<Mapping> {
    let mut rest = line;
    let mut word = || {
        let (word, behind) = rest.split_once(' ').unwrap_or((rest, ""));
        rest = behind.trim_start_matches(' ');
        (!word.is_empty()).then_some(word)
    };
    let (start, end) = word()?.split_once('-')?;
    let permissions = word()?;
    let (_offset, _device, _inode) = (word()?, word()?, word()?);
    let hex = |digits| u64::from_str_radix(digits, 16).ok();
    Some(Mapping {
        size: hex(end)?.checked_sub(hex(start)?)? / 1024,
        writable: permissions.as_bytes().get(1) == Some(&b'w'),
        name: rest.to_owned(),
        private_dirty: 0,
    })
}

fn kib(value: &str) -> anyhow::Result<u64> {
    let number = value.trim().strip_suffix("kB").context("not in kB")?;
    Ok(number.trim_end().parse()?)
}

/// The kernel merges anonymous mappings that lie side by side, so guest memory may look a little
/// larger than it is. In KiB.
const MERGED: u64 = 8 << 10;

/// KiB of private dirty memory in all mappings but the guest's memory, which is `memory` MiB.
pub fn monitor_private_dirty(mappings: &[Mapping], memory: u64) -> anyhow::Result<u64> {
    let size = memory << 10;
    let range = size..size + MERGED;
    let is_guest = |m: &&Mapping| m.writable && range.contains(&m.size);
    match mappings.iter().filter(is_guest).count() {
        1 => {}
        0 => bail!("there is no mapping of {memory} MiB: which is the guest's memory?"),
        many => bail!("there are {many} mappings of {memory} MiB: which is the guest's memory?"),
    }
    let own = mappings.iter().filter(|m| !is_guest(m));
    Ok(own.map(|m| m.private_dirty).sum())
}

#[cfg(test)]
mod tests {
    use super::*;

    const USUAL: &str = "\
5595a000-5595b000 r-xp 00000000 08:01 12345                      /usr/bin/tine
Size:                  4 kB
Private_Clean:         4 kB
Private_Dirty:         0 kB
VmFlags: rd ex mr mw me sd
5595b000-5595d000 rw-p 00000000 00:00 0                          [heap]
Size:                  8 kB
Private_Dirty:         8 kB
THPeligible:           0
7f0000000000-7f0008000000 rw-s 00000000 00:01 1034               /memfd:tine-memory (deleted)
Private_Dirty:        64 kB
7f0009000000-7f0009002000 rw-p 00000000 00:00 0 
Private_Dirty:         4 kB
";

    #[test]
    fn guest_memory_is_left_out_of_the_sum() {
        let mappings = parse(USUAL).unwrap();
        assert_eq!(mappings.len(), 4);
        assert_eq!(mappings[2].size, 128 << 10);
        assert_eq!(mappings[2].name, "/memfd:tine-memory (deleted)");
        assert_eq!(mappings[3].name, "");
        assert_eq!(monitor_private_dirty(&mappings, 128).unwrap(), 12);
    }

    #[test]
    fn memory_that_cannot_be_told_apart_is_an_error() {
        let mappings = parse(USUAL).unwrap();
        assert!(monitor_private_dirty(&mappings, 64).is_err());
        let twice = parse(&format!("{USUAL}{USUAL}")).unwrap();
        assert!(monitor_private_dirty(&twice, 128).is_err());
        assert!(monitor_private_dirty(&[], 128).is_err());
    }

    #[test]
    fn names_may_look_like_anything() {
        let text = "1000-3000 rw-p 0 08:01 5   /tmp/a b: 5 kB\\012Private_Dirty: 9 kB\n\
                    Private_Dirty: 4 kB\n\
                    ffffffffff600000-ffffffffff601000 --xp 0 00:00 0 [vsyscall]\n";
        let mappings = parse(text).unwrap();
        assert_eq!(mappings[0].name, "/tmp/a b: 5 kB\\012Private_Dirty: 9 kB");
        assert_eq!(mappings[0].private_dirty, 4);
        assert!(mappings[0].writable && !mappings[1].writable);
    }

    #[test]
    fn unknown_fields_are_passed_over() {
        let text = "1000-2000 rw-p 0 08:01 5\nNew-Field: what ever\nPrivate_Dirty: 4 kB\n";
        assert_eq!(parse(text).unwrap()[0].private_dirty, 4);
    }

    #[test]
    fn nonsense_is_an_error() {
        for text in [
            "Private_Dirty: 4 kB\n",
            "1000-2000 rw-p 0 08:01 5\nPrivate_Dirty: lots kB\n",
            "1000-2000 rw-p 0 08:01 5\nPrivate_Dirty: -4 kB\n",
            "1000-2000 rw-p 0 08:01 5\nPrivate_Dirty: 99999999999999999999 kB\n",
            "1000-2000 rw-p 0 08:01 5\nPrivate_Dirty: 4\n",
            "2000-1000 rw-p 0 08:01 5\n",
            "1000-20000000000000000 rw-p 0 08:01 5\n",
            "1000-2000 rw-p\n",
            "\n",
        ] {
            assert!(parse(text).is_err(), "{text:?}");
        }
        assert!(parse("").unwrap().is_empty());
    }

    #[test]
    fn the_kernel_itself_is_understood() {
        let (pss, dirty) = sums_of_process(std::process::id()).unwrap();
        assert!(0 < dirty && dirty <= pss, "{pss} {dirty}");
        let mappings = of_process(std::process::id() as i32).unwrap();
        assert!(
            mappings
                .iter()
                .any(|m| m.name == "[stack]" && m.private_dirty > 0)
        );
    }
}
