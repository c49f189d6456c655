//! The kernel command line: the machine's own words, then the caller's.
//!
//! Words behind a `--` go to the guest's init. The machine's words come first, so they are
//! never behind one, and where a word is given twice, the caller's, the later one, is what a
//! kernel goes by.

use linux_loader::cmdline::Cmdline;
use tine_devices::GuestMemory;
use vm_memory::{Bytes, GuestAddress};

use crate::layout;

/// Why a command line cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum CmdlineError {
    /// Longer than a kernel takes.
    #[error(
        "the kernel command line is {len} bytes long, and a kernel takes {} at most: shorten the \
         words given by {spare} bytes",
        layout::CMDLINE_CAPACITY - 1
    )]
    TooLong {
        /// Its length in bytes.
        len: usize,
        /// How many bytes are too many.
        spare: usize,
    },
    /// A character that a kernel cannot take.
    #[error("the kernel command line has the character {0:?}, and may have printable ASCII only")]
    BadCharacter(char),
    /// Guest memory does not hold it.
    #[error("cannot write the kernel command line to guest memory: {0}")]
    Memory(#[from] vm_memory::GuestMemoryError),
}

/// Puts the machine's words before the caller's.
pub fn assemble(machine_words: &[&str], caller: &str) -> Result<String, CmdlineError> {
    let words = machine_words.iter().copied().chain([caller]);
    let line = words
        .map(str::trim)
        .filter(|word| !word.is_empty())
        .collect::<Vec<_>>()
        .join(" ");
    check(&line)?;
    Ok(line)
}

fn check(line: &str) -> Result<(), CmdlineError> {
    if let Some(bad) = line.chars().find(|c| !matches!(c, ' '..='~')) {
        return Err(CmdlineError::BadCharacter(bad));
    }
    let mut cmdline = Cmdline::new(layout::CMDLINE_CAPACITY).expect("the capacity is not zero");
    if cmdline.insert_str(line).is_err() {
        let spare = (line.len() + 1).saturating_sub(layout::CMDLINE_CAPACITY);
        return Err(CmdlineError::TooLong {
            len: line.len(),
            spare,
        });
    }
    Ok(())
}

/// Writes the line, and the NUL behind it, to its place in guest memory.
pub(super) fn write(mem: &GuestMemory, line: &str) -> Result<(), CmdlineError> {
    check(line)?;
    let mut bytes = line.as_bytes().to_vec();
    bytes.push(0);
    mem.write_slice(&bytes, GuestAddress(layout::CMDLINE))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn machine_words_come_before_a_callers_double_dash() {
        let line = assemble(&["console=ttyS0", "", "panic=-1"], "debug -- --verbose").unwrap();
        assert_eq!(line, "console=ttyS0 panic=-1 debug -- --verbose");
    }

    #[test]
    fn a_line_over_the_limit_is_refused_with_how_much_is_too_much() {
        let fits = "x".repeat(layout::CMDLINE_CAPACITY - 1);
        assert_eq!(assemble(&[], &fits).unwrap(), fits);
        match assemble(&["abc"], &fits) {
            Err(CmdlineError::TooLong {
                len: 2051,
                spare: 4,
            }) => {}
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn what_is_not_printable_ascii_is_refused() {
        for bad in ["a\nb", "\0", "ä", "\u{7f}"] {
            assert!(
                matches!(assemble(&[], bad), Err(CmdlineError::BadCharacter(_))),
                "{bad:?}"
            );
        }
    }
}
