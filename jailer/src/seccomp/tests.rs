use seccompiler::sock_filter;

use super::names::{number_of, value_of};
use super::table::{Rule, Test, parse};
use super::*;

fn no_files(_: &str) -> Option<String> {
    None
}

#[test]
fn the_language_of_rules() {
    let text = "\
# nothing
futex   # waits
ioctl: arg1 is KVM_RUN, 0x5421
mmap: arg2 lacks PROT_EXEC, PROT_WRITE; arg0 is 0
rare mremap
refuse clone3 ENOSYS";
    let table = parse(text, false, &no_files).unwrap();
    let tests: Vec<_> = table.rules.iter().map(|rule| rule.tests.clone()).collect();
    assert_eq!(tests[0], []);
    assert_eq!(tests[1], [(1, Test::Is(vec![0xae80, 0x5421]))]);
    assert_eq!(tests[2], [(2, Test::Lacks(6)), (0, Test::Is(vec![0]))]);
    assert!(table.rules[3].rare && !table.rules[2].rare);
    assert_eq!(table.refused, [(435, 38)]);
    let ioctl = number_of("ioctl").unwrap();
    assert!(table.allows(ioctl, &[3, 0xae80, 0, 0, 0, 0]));
    assert!(!table.allows(ioctl, &[3, 0xae81, 0, 0, 0, 0]));
    let wrong = [
        "fute",
        "ioctl: arg6 is 1",
        "ioctl: arg1 is KVM_FLY",
        "ioctl: arg1",
        "ioctl: arg1 was 1",
        "refuse clone3",
        "include other",
    ];
    for line in wrong {
        assert!(parse(line, false, &no_files).is_err(), "{line}");
    }
}

#[test]
fn requests_to_kvm_have_the_kernels_numbers() {
    // From strace, which has them from the kernel's headers.
    for (name, number) in [
        ("KVM_RUN", 0xae80),
        ("KVM_CREATE_VCPU", 0xae41),
        ("KVM_SET_USER_MEMORY_REGION", 0x4020_ae46),
        ("KVM_GET_SREGS", 0x8138_ae83),
        ("KVM_SET_REGS", 0x4090_ae82),
        ("KVM_GET_LAPIC", 0x8400_ae8e),
        ("KVM_SET_MSRS", 0x4008_ae89),
        ("KVM_GET_SUPPORTED_CPUID", 0xc008_ae05),
        ("KVM_IOEVENTFD", 0x4040_ae79),
        ("KVM_GET_XSAVE", 0x9000_aea4),
    ] {
        assert_eq!(value_of(name), Some(number), "{name}");
    }
}

#[test]
fn nothing_is_allowed_that_makes_processes_or_code() {
    let whole = Role::Process.table();
    for name in [
        "fork",
        "vfork",
        "clone3",
        "execve",
        "ptrace",
        "process_vm_writev",
        "io_uring_setup",
        "bpf",
        "keyctl",
        "add_key",
        "unshare",
        "setns",
        "mount",
        "chroot",
        "userfaultfd",
        "kill",
        "mknod",
        "pkey_mprotect",
        "personality",
        "setuid",
        "open_by_handle_at",
        "perf_event_open",
    ] {
        let number = number_of(name).unwrap();
        assert!(
            whole.rules.iter().all(|rule| rule.number != number),
            "{name}"
        );
    }
    let executable = value_of("PROT_EXEC").unwrap();
    for name in ["mmap", "mprotect"] {
        let number = number_of(name).unwrap();
        assert!(
            !whole.allows(number, &[0, 0, executable, 0, 0, 0]),
            "{name}"
        );
    }
    let clone = number_of("clone").unwrap();
    assert!(!whole.allows(clone, &[libc::SIGCHLD as u64, 0, 0, 0, 0, 0]));
}

#[test]
fn a_role_needs_nothing_that_the_process_may_not() {
    let whole = Role::Process.table();
    for role in ROLES {
        for rule in role.table().rules {
            assert!(
                whole.rules.contains(&rule),
                "{}: {}",
                role.name(),
                rule.text
            );
        }
    }
}

/// The goal: fewer calls than Firecracker's 50 (vmm), 31 (api) and 27 (vcpu).
#[test]
fn roles_are_smaller_than_the_known_monitors() {
    for (role, most) in [(Role::Main, 49), (Role::Api, 30), (Role::Vcpu, 15)] {
        let calls = role.calls();
        assert!(calls <= most, "{}: {calls} calls", role.name());
    }
}

/// What a filter makes of a call, as the kernel's own interpreter would find it out
/// (`linux/filter.h`; `linux/seccomp.h` for what is loaded), and how many instructions that took.
pub(super) fn ask(filter: &[sock_filter], number: i64, arguments: &[u64; 6]) -> (u32, usize) {
    ask_of(0xc000_003e, filter, number, arguments)
}

/// The same of a call from a program for another processor.
fn ask_of(
    architecture: u32,
    filter: &[sock_filter],
    number: i64,
    arguments: &[u64; 6],
) -> (u32, usize) {
    let load = |at: u32| match at {
        0 => number as u32,
        4 => architecture,
        8 | 12 => 0,
        _ => {
            let argument = arguments[(at as usize - 16) / 8];
            (argument >> (8 * (at % 8))) as u32
        }
    };
    let (mut accumulator, mut at) = (0, 0);
    for count in 1.. {
        let op = &filter[at];
        at += 1;
        let mut jump = |so: bool| at += usize::from(if so { op.jt } else { op.jf });
        match op.code {
            0x20 => accumulator = load(op.k),
            0x15 => jump(accumulator == op.k),
            0x35 => jump(accumulator >= op.k),
            0x45 => jump(accumulator & op.k != 0),
            0x05 => at += op.k as usize,
            0x06 => return (op.k, count),
            code => panic!("instruction {code:#x}"),
        }
    }
    unreachable!("a filter has an end")
}

#[test]
fn filters_allow_what_their_tables_do_and_find_it_quickly() {
    const ALLOW: u32 = 0x7fff_0000;
    const TRAP: u32 = 0x0003_0000;
    const ERRNO: u32 = 0x0005_0000;
    const KILL: u32 = 0x8000_0000;
    for role in ROLES {
        let (table, filter) = (role.table(), role.filter());
        let mut values = vec![0u64, 1, u64::from(u32::MAX)];
        for (_, test) in table.rules.iter().flat_map(|rule| &rule.tests) {
            match test {
                Test::Is(list) => values.extend(list.iter().map(|value| u64::from(*value))),
                Test::Lacks(bits) => values.push(u64::from(*bits)),
            }
        }
        values.sort_unstable();
        values.dedup();
        let mut longest = 0;
        for number in (0..600).chain([0x4000_0000, i64::from(u32::MAX)]) {
            let name = role.name();
            if let Some((_, error)) = table.refused.iter().find(|(other, _)| *other == number) {
                assert_eq!(
                    ask(filter, number, &[0; 6]).0,
                    ERRNO | error,
                    "{name} {number}"
                );
                continue;
            }
            if table.rules.iter().all(|rule| rule.number != number) {
                let (answer, count) = ask(filter, number, &[0; 6]);
                assert_eq!(answer, TRAP, "{name} {number}");
                longest = longest.max(count);
            }
            for value in &values {
                for place in 0..6 {
                    let mut arguments = [0; 6];
                    arguments[place] = *value;
                    let wanted = match table.allows(number, &arguments) {
                        true => ALLOW,
                        false => TRAP,
                    };
                    let got = ask(filter, number, &arguments).0;
                    assert_eq!(got, wanted, "{name} {number} {arguments:?}");
                }
            }
        }
        // Arguments that a rule allows, and each of them another one.
        for rule in table.rules.iter().flat_map(Rule::alternatives) {
            let mut arguments = [0; 6];
            for (index, test) in &rule.tests {
                if let Test::Is(list) = test {
                    arguments[usize::from(*index)] = u64::from(list[0]);
                }
            }
            assert_eq!(
                ask(filter, rule.number, &arguments).0,
                ALLOW,
                "{}",
                rule.text
            );
            for (index, _) in &rule.tests {
                let mut other = arguments;
                other[usize::from(*index)] ^= 0x8765_4321;
                let wanted = match table.allows(rule.number, &other) {
                    true => ALLOW,
                    false => TRAP,
                };
                assert_eq!(ask(filter, rule.number, &other).0, wanted, "{}", rule.text);
            }
            let of_i386 = ask_of(0x4000_0003, filter, rule.number, &arguments).0;
            assert_eq!(of_i386, KILL, "{}", rule.text);
        }
        // Nearly all calls are none of ours: what it takes to know that is what a filter costs.
        assert!(longest <= 40, "{}: {longest}", role.name());
    }
}
