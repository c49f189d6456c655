//! Instructions of a guest's kernel that software KVM does not know. On hardware KVM the processor
//! runs them, and the results are the same: these tests hold the monitor to it.

use tine_tests::{boot, succeed};

/// What a guest notes of an exception (guests/rings.inc): vector, error code.
const NO_CODE: u64 = u64::MAX;
const GENERAL_PROTECTION: [u64; 2] = [13, 0];
/// The same with the address.
const PAGE_FAULT: u64 = 14;

/// Flags.
const PF: u64 = 1 << 2;
const ZF: u64 = 1 << 6;
const AC: u64 = 1 << 18;

/// The results of a guest, taken one after the other.
struct Results(std::vec::IntoIter<u64>);

impl Results {
    fn of(guest: &str) -> Self {
        let bytes = succeed(boot(guest));
        assert_eq!(bytes.len() % 8, 0);
        let words = bytes.chunks_exact(8);
        let words = words.map(|word| u64::from_le_bytes(word.try_into().expect("eight bytes")));
        Self(words.collect::<Vec<_>>().into_iter())
    }

    fn next(&mut self) -> u64 {
        self.0.next().expect("more results")
    }

    #[track_caller]
    fn expect(&mut self, what: &str, expected: &[u64]) {
        let found: Vec<_> = self.0.by_ref().take(expected.len()).collect();
        assert!(found == expected, "{what}: {found:x?}, not {expected:x?}");
    }

    #[track_caller]
    fn end(mut self) {
        assert_eq!(self.0.next(), None);
    }
}

#[test]
fn integer_and_flag_instructions_do_as_the_manual_says() {
    let mut results = Results::of("integer");
    results.expect("popcnt, 64 bits", &[33, 0]);
    results.expect("popcnt, 32 bits", &[8]);
    results.expect("popcnt, 16 bits", &[0xffff_ffff_ffff_0004]);
    results.expect("popcnt of zero", &[0, ZF]);
    let [low, high] = [0x1111_1111_1111_1111, 0x2222_2222_2222_2222];
    // The flags but ZF stay as they were.
    results.expect("cmpxchg16b, different", &[low, high, 0]);
    results.expect("cmpxchg16b, the same", &[ZF | PF, 3, 4]);
    results.expect("cmpxchg16b, not aligned", &GENERAL_PROTECTION);
    assert_eq!(results.next() & AC, AC, "stac");
    assert_eq!(results.next() & AC, 0, "clac");
    results.expect("int3", &[3, NO_CODE, 0]);
    results.expect("fwait with an exception pending", &[16, NO_CODE]);
    results.expect("xgetbv 0", &[1]);
    results.expect("xgetbv 7", &GENERAL_PROTECTION);
    results.expect("xgetbv, switched off", &[6, NO_CODE]);
    results.end();
}

#[test]
fn registers_of_programs_are_saved_and_restored() {
    const FIRST: [u64; 4] = [0x11, 0x12, 0x13, 0x14];
    const SECOND: [u64; 4] = [0x2100, 0x2200, 0x2300, 0x2400];
    let times = |words: [u64; 4], by: u64| words.map(|word| word * by);
    let mut results = Results::of("xsave");
    assert_eq!(results.next() & 6, 6, "SSE and AVX are in use");
    results.expect("MXCSR", &[0x1fa0]);
    let (two, three) = (times(FIRST, 2), times(FIRST, 3));
    results.expect("XMM0", &FIRST[..2]);
    results.expect("XMM1", &two[..2]);
    results.expect("XMM15", &three[..2]);
    results.expect("upper half of YMM0", &FIRST[2..]);
    results.expect("upper half of YMM1", &two[2..]);
    results.expect("upper half of YMM15", &three[2..]);

    results.expect("YMM0 again", &FIRST);
    results.expect("YMM1 again", &two);
    results.expect("YMM15 again", &three);
    let mixed = [FIRST[0], FIRST[1], SECOND[2], SECOND[3]];
    results.expect("AVX of the second state", &mixed);
    results.expect("AVX initialized", &[SECOND[0], SECOND[1], 0, 0]);
    results.expect("MXCSR loaded", &[0x1f00]);

    // A processor may think of AVX as in use for longer, and then writes zeros.
    match (results.next(), results.next()) {
        (2, 0x77) | (6, 0) => {}
        other => panic!("xsaveopt: {other:x?}"),
    }
    if results.next() == 0xe0 {
        let wide: Vec<u64> = (0x11..=0x18).collect();
        let doubled: Vec<u64> = wide.iter().map(|word| word * 2).collect();
        results.expect("ZMM1", &wide);
        results.expect("ZMM31", &doubled);
        results.expect("K5", &[0x1234_5678_9abc_def0]);
    }
    results.end();
}

#[test]
fn operands_of_xsave_follow_the_page_tables() {
    const WINDOW: u64 = 0x4000_0000;
    const PATTERN: u64 = 0x5a5a_5a5a_1234_5678;
    let mut results = Results::of("xfault");
    results.expect("saved across a border of pages", &[PATTERN, 2]);
    results.expect("restored from there", &[PATTERN]);
    results.expect("accessed and dirty", &[0x60]);
    results.expect("xsave, missing page", &[PAGE_FAULT, 2, WINDOW + 0x2000]);
    results.expect("xrstor, missing page", &[PAGE_FAULT, 0, WINDOW + 0x2000]);
    results.expect("xsave, read-only", &[PAGE_FAULT, 3, WINDOW + 0x3000]);
    results.expect("xsave, read-only, without CR0.WP", &[0x1f80]);
    results.expect("demand paging", &[PAGE_FAULT, 2, WINDOW + 0x4000, PATTERN]);
    results.expect("not aligned", &GENERAL_PROTECTION);
    results.expect("not canonical", &GENERAL_PROTECTION);
    results.expect("not switched on", &GENERAL_PROTECTION);
    results.expect("reserved in the header", &GENERAL_PROTECTION);
    results.expect("reserved in MXCSR", &GENERAL_PROTECTION);
    results.expect("task switched", &[7, NO_CODE]);
    results.end();
}
