//! What the processor says of itself (Intel SDM volume 2, CPUID).
//!
//! On a host that is a virtual machine itself each question leaves that machine and comes back: 11 us
//! where it was measured, as much as some twenty system calls. So nothing is asked before somebody
//! wants to know it, and nothing twice.

use std::arch::x86_64::{__cpuid_count, CpuidResult};
use std::sync::{Mutex, PoisonError};

/// The answers so far, by leaf and sub-leaf.
static ASKED: Mutex<Vec<(u32, u32, CpuidResult)>> = Mutex::new(Vec::new());

/// The answer for a leaf and sub-leaf that does not differ from processor to processor. Above the
/// highest leaf there is, it means nothing.
pub fn answer(leaf: u32, index: u32) -> CpuidResult {
    let mut asked = ASKED.lock().unwrap_or_else(PoisonError::into_inner);
    let known = asked
        .iter()
        .find(|known| (known.0, known.1) == (leaf, index));
    if let Some((_, _, answer)) = known {
        return *answer;
    }
    let answer = __cpuid_count(leaf, index);
    asked.push((leaf, index, answer));
    answer
}

/// The highest leaf of the basic ones.
pub fn highest() -> u32 {
    answer(0, 0).eax
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_answer_is_the_first_one() {
        let first = answer(0, 0);
        assert_eq!(first, answer(0, 0));
        assert_eq!(first, __cpuid_count(0, 0));
        assert_ne!(first, answer(0x8000_0000, 0));
    }
}
