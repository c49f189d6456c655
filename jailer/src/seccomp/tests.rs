use super::names::{number_of, value_of};
use super::table::{Test, parse};
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
