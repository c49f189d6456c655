//! Names of the processor features that a program may depend on, as Linux prints them, and which of
//! them a guest was shown or this host has (Intel SDM volume 2, CPUID; AMD APM volume 3, appendix E).

use std::arch::x86_64::CpuidResult;

use kvm_bindings::kvm_cpuid_entry2;

use super::processor::{self, answer};

/// A register of an answer of CPUID.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Register {
    Eax,
    Ebx,
    Ecx,
    Edx,
}

use Register::{Eax, Ebx, Ecx, Edx};

/// A register with features in it: leaf, sub-leaf, and the name of each bit that has one. Features
/// that KVM itself provides, or that a kernel alone can see, are not listed: a guest's programs
/// do not depend on the host for them.
type Row = (u32, u32, Register, &'static [(u8, &'static str)]);

#[rustfmt::skip]
const TABLE: [Row; 8] = [
    (1, 0, Edx, &[
        (0, "fpu"), (4, "tsc"), (8, "cx8"), (15, "cmov"), (19, "clflush"), (23, "mmx"), (24, "fxsr"),
        (25, "sse"), (26, "sse2"),
    ]),
    (1, 0, Ecx, &[
        (0, "pni"), (1, "pclmulqdq"), (9, "ssse3"), (12, "fma"), (13, "cx16"), (19, "sse4_1"),
        (20, "sse4_2"), (22, "movbe"), (23, "popcnt"), (25, "aes"), (26, "xsave"), (28, "avx"),
        (29, "f16c"), (30, "rdrand"),
    ]),
    (7, 0, Ebx, &[
        (0, "fsgsbase"), (3, "bmi1"), (4, "hle"), (5, "avx2"), (7, "smep"), (8, "bmi2"), (9, "erms"),
        (10, "invpcid"), (11, "rtm"), (16, "avx512f"), (17, "avx512dq"), (18, "rdseed"), (19, "adx"),
        (20, "smap"), (21, "avx512ifma"), (23, "clflushopt"), (24, "clwb"), (28, "avx512cd"),
        (29, "sha_ni"), (30, "avx512bw"), (31, "avx512vl"),
    ]),
    (7, 0, Ecx, &[
        (1, "avx512vbmi"), (2, "umip"), (3, "pku"), (5, "waitpkg"), (6, "avx512_vbmi2"), (8, "gfni"),
        (9, "vaes"), (10, "vpclmulqdq"), (11, "avx512_vnni"), (12, "avx512_bitalg"),
        (14, "avx512_vpopcntdq"), (22, "rdpid"), (25, "cldemote"), (27, "movdiri"),
        (28, "movdir64b"),
    ]),
    (7, 0, Edx, &[
        (2, "avx512_4vnniw"), (3, "avx512_4fmaps"), (4, "fsrm"), (8, "avx512_vp2intersect"),
        (14, "serialize"), (22, "amx_bf16"), (23, "avx512_fp16"), (24, "amx_tile"), (25, "amx_int8"),
    ]),
    (7, 1, Eax, &[
        (4, "avx_vnni"), (5, "avx512_bf16"), (10, "fzrm"), (11, "fsrs"), (12, "fsrc"),
        (21, "amx_fp16"), (23, "avx_ifma"),
    ]),
    (0x8000_0001, 0, Ecx, &[
        (0, "lahf_lm"), (5, "abm"), (6, "sse4a"), (7, "misalignsse"), (8, "3dnowprefetch"),
        (11, "xop"), (16, "fma4"), (21, "tbm"),
    ]),
    (0x8000_0001, 0, Edx, &[
        (11, "syscall"), (20, "nx"), (22, "mmxext"), (26, "pdpe1gb"), (27, "rdtscp"), (29, "lm"),
    ]),
];

/// The features that `shown`, what CPUID told a guest, has.
pub fn shown(shown: &[kvm_cpuid_entry2]) -> Vec<&'static str> {
    named(|leaf, index| {
        let entry = shown
            .iter()
            .find(|entry| entry.function == leaf && entry.index == index)?;
        Some(CpuidResult {
            eax: entry.eax,
            ebx: entry.ebx,
            ecx: entry.ecx,
            edx: entry.edx,
        })
    })
}

/// The features that this processor has.
pub fn here() -> Vec<&'static str> {
    let most = processor::highest();
    let subleaves = match most >= 7 {
        true => answer(7, 0).eax,
        false => 0,
    };
    named(|leaf, index| match leaf {
        7 if most < 7 || index > subleaves => None,
        leaf => Some(answer(leaf, index)),
    })
}

/// Who made this processor, such as `GenuineIntel`.
pub fn vendor() -> String {
    let leaf = answer(0, 0);
    let bytes = [leaf.ebx, leaf.edx, leaf.ecx].map(u32::to_le_bytes);
    printable(bytes.as_flattened())
}

/// This processor's own name.
pub fn model() -> String {
    let bytes = [0x8000_0002, 0x8000_0003, 0x8000_0004].map(|leaf| {
        let part = answer(leaf, 0);
        [part.eax, part.ebx, part.ecx, part.edx].map(u32::to_le_bytes)
    });
    printable(bytes.as_flattened().as_flattened())
}

fn printable(bytes: &[u8]) -> String {
    let text = bytes.iter().take_while(|byte| **byte != 0);
    let text = text.filter(|byte| byte.is_ascii_graphic() || **byte == b' ');
    let text: String = text.map(|byte| char::from(*byte)).collect();
    text.trim().to_owned()
}

fn named(mut ask: impl FnMut(u32, u32) -> Option<CpuidResult>) -> Vec<&'static str> {
    let mut names = Vec::with_capacity(96);
    for (leaf, index, register, bits) in TABLE {
        let Some(answer) = ask(leaf, index) else {
            continue;
        };
        let value = match register {
            Eax => answer.eax,
            Ebx => answer.ebx,
            Ecx => answer.ecx,
            Edx => answer.edx,
        };
        let set = bits.iter().filter(|(bit, _)| value >> bit & 1 == 1);
        names.extend(set.map(|(_, name)| *name));
    }
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_processor_has_what_linux_says_it_has() {
        let cpuinfo = std::fs::read_to_string("/proc/cpuinfo").unwrap();
        let flags = cpuinfo.lines().find(|line| line.starts_with("flags"));
        let flags: Vec<&str> = flags.unwrap().split_whitespace().collect();
        let here = here();
        for feature in ["fpu", "sse2", "cmov", "lm", "syscall", "nx"] {
            assert!(here.contains(&feature), "{feature}: {here:?}");
        }
        // Linux may hide some of a processor's features, and never invents one of these.
        for (.., bits) in TABLE {
            for (_, name) in bits {
                assert!(!flags.contains(name) || here.contains(name), "{name}");
            }
        }
        assert!(cpuinfo.contains(&vendor()) && cpuinfo.contains(&model()));
    }

    #[test]
    fn what_a_guest_was_shown_is_read_from_its_own_answers() {
        let entry = kvm_cpuid_entry2 {
            function: 7,
            ebx: 1 << 5 | 1 << 16,
            ..Default::default()
        };
        assert_eq!(shown(&[entry]), ["avx2", "avx512f"]);
        assert!(shown(&[]).is_empty());
    }
}
