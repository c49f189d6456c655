//! Names of system calls and of what stands in their arguments. Used twice: when the rules are
//! compiled, and when a call is to be named.
//!
//! Numbers come from libc. Those of KVM are put together as the kernel does it (linux/kvm.h,
//! asm-generic/ioctl.h): the request's place, and the size of what is handed over.

macro_rules! named {
    ($(#[$doc:meta])* $list:ident: $kind:ty; $($name:ident)*) => {
        $(#[$doc])*
        pub const $list: &[(&str, $kind)] = &[$((stringify!($name), libc::$name as $kind)),*];
    };
}

named! {
    /// Every system call that libc knows here.
    SYSCALLS: i64;
    SYS_read SYS_write SYS_open SYS_close SYS_stat SYS_fstat SYS_lstat SYS_poll SYS_lseek
    SYS_mmap SYS_mprotect SYS_munmap SYS_brk SYS_rt_sigaction SYS_rt_sigprocmask
    SYS_rt_sigreturn SYS_ioctl SYS_pread64 SYS_pwrite64 SYS_readv SYS_writev SYS_access SYS_pipe
    SYS_select SYS_sched_yield SYS_mremap SYS_msync SYS_mincore SYS_madvise SYS_shmget SYS_shmat
    SYS_shmctl SYS_dup SYS_dup2 SYS_pause SYS_nanosleep SYS_getitimer SYS_alarm SYS_setitimer
    SYS_getpid SYS_sendfile SYS_socket SYS_connect SYS_accept SYS_sendto SYS_recvfrom
    SYS_sendmsg SYS_recvmsg SYS_shutdown SYS_bind SYS_listen SYS_getsockname SYS_getpeername
    SYS_socketpair SYS_setsockopt SYS_getsockopt SYS_clone SYS_fork SYS_vfork SYS_execve
    SYS_exit SYS_wait4 SYS_kill SYS_uname SYS_semget SYS_semop SYS_semctl SYS_shmdt SYS_msgget
    SYS_msgsnd SYS_msgrcv SYS_msgctl SYS_fcntl SYS_flock SYS_fsync SYS_fdatasync SYS_truncate
    SYS_ftruncate SYS_getdents SYS_getcwd SYS_chdir SYS_fchdir SYS_rename SYS_mkdir SYS_rmdir
    SYS_creat SYS_link SYS_unlink SYS_symlink SYS_readlink SYS_chmod SYS_fchmod SYS_chown
    SYS_fchown SYS_lchown SYS_umask SYS_gettimeofday SYS_getrlimit SYS_getrusage SYS_sysinfo
    SYS_times SYS_ptrace SYS_getuid SYS_syslog SYS_getgid SYS_setuid SYS_setgid SYS_geteuid
    SYS_getegid SYS_setpgid SYS_getppid SYS_getpgrp SYS_setsid SYS_setreuid SYS_setregid
    SYS_getgroups SYS_setgroups SYS_setresuid SYS_getresuid SYS_setresgid SYS_getresgid
    SYS_getpgid SYS_setfsuid SYS_setfsgid SYS_getsid SYS_capget SYS_capset SYS_rt_sigpending
    SYS_rt_sigtimedwait SYS_rt_sigqueueinfo SYS_rt_sigsuspend SYS_sigaltstack SYS_utime
    SYS_mknod SYS_personality SYS_ustat SYS_statfs SYS_fstatfs SYS_getpriority SYS_setpriority
    SYS_sched_setparam SYS_sched_getparam SYS_sched_setscheduler SYS_sched_getscheduler
    SYS_sched_get_priority_max SYS_sched_get_priority_min SYS_sched_rr_get_interval SYS_mlock
    SYS_munlock SYS_mlockall SYS_munlockall SYS_vhangup SYS_modify_ldt SYS_pivot_root SYS_prctl
    SYS_arch_prctl SYS_adjtimex SYS_setrlimit SYS_chroot SYS_sync SYS_acct SYS_settimeofday
    SYS_mount SYS_umount2 SYS_swapon SYS_swapoff SYS_reboot SYS_sethostname SYS_setdomainname
    SYS_iopl SYS_ioperm SYS_init_module SYS_delete_module SYS_quotactl SYS_gettid SYS_readahead
    SYS_setxattr SYS_lsetxattr SYS_fsetxattr SYS_getxattr SYS_lgetxattr SYS_fgetxattr
    SYS_listxattr SYS_llistxattr SYS_flistxattr SYS_removexattr SYS_lremovexattr
    SYS_fremovexattr SYS_tkill SYS_time SYS_futex SYS_sched_setaffinity SYS_sched_getaffinity
    SYS_io_setup SYS_io_destroy SYS_io_getevents SYS_io_submit SYS_io_cancel SYS_epoll_create
    SYS_remap_file_pages SYS_getdents64 SYS_set_tid_address SYS_restart_syscall SYS_semtimedop
    SYS_fadvise64 SYS_timer_create SYS_timer_settime SYS_timer_gettime SYS_timer_getoverrun
    SYS_timer_delete SYS_clock_settime SYS_clock_gettime SYS_clock_getres SYS_clock_nanosleep
    SYS_exit_group SYS_epoll_wait SYS_epoll_ctl SYS_tgkill SYS_utimes SYS_mbind
    SYS_set_mempolicy SYS_get_mempolicy SYS_mq_open SYS_mq_unlink SYS_mq_timedsend
    SYS_mq_timedreceive SYS_mq_notify SYS_mq_getsetattr SYS_kexec_load SYS_waitid SYS_add_key
    SYS_request_key SYS_keyctl SYS_ioprio_set SYS_ioprio_get SYS_inotify_init
    SYS_inotify_add_watch SYS_inotify_rm_watch SYS_migrate_pages SYS_openat SYS_mkdirat
    SYS_mknodat SYS_fchownat SYS_futimesat SYS_newfstatat SYS_unlinkat SYS_renameat SYS_linkat
    SYS_symlinkat SYS_readlinkat SYS_fchmodat SYS_faccessat SYS_pselect6 SYS_ppoll SYS_unshare
    SYS_set_robust_list SYS_get_robust_list SYS_splice SYS_tee SYS_sync_file_range SYS_vmsplice
    SYS_move_pages SYS_utimensat SYS_epoll_pwait SYS_signalfd SYS_timerfd_create SYS_eventfd
    SYS_fallocate SYS_timerfd_settime SYS_timerfd_gettime SYS_accept4 SYS_signalfd4 SYS_eventfd2
    SYS_epoll_create1 SYS_dup3 SYS_pipe2 SYS_inotify_init1 SYS_preadv SYS_pwritev
    SYS_rt_tgsigqueueinfo SYS_perf_event_open SYS_recvmmsg SYS_fanotify_init SYS_fanotify_mark
    SYS_prlimit64 SYS_name_to_handle_at SYS_open_by_handle_at SYS_clock_adjtime SYS_syncfs
    SYS_sendmmsg SYS_setns SYS_getcpu SYS_process_vm_readv SYS_process_vm_writev SYS_kcmp
    SYS_finit_module SYS_sched_setattr SYS_sched_getattr SYS_renameat2 SYS_seccomp SYS_getrandom
    SYS_memfd_create SYS_kexec_file_load SYS_bpf SYS_execveat SYS_userfaultfd SYS_membarrier
    SYS_mlock2 SYS_copy_file_range SYS_preadv2 SYS_pwritev2 SYS_pkey_mprotect SYS_pkey_alloc
    SYS_pkey_free SYS_statx SYS_rseq SYS_pidfd_send_signal SYS_io_uring_setup SYS_io_uring_enter
    SYS_io_uring_register SYS_open_tree SYS_move_mount SYS_fsopen SYS_fsconfig SYS_fsmount
    SYS_fspick SYS_pidfd_open SYS_clone3 SYS_close_range SYS_openat2 SYS_pidfd_getfd
    SYS_faccessat2 SYS_process_madvise SYS_epoll_pwait2 SYS_mount_setattr SYS_quotactl_fd
    SYS_landlock_create_ruleset SYS_landlock_add_rule SYS_landlock_restrict_self
    SYS_memfd_secret SYS_process_mrelease SYS_futex_waitv SYS_set_mempolicy_home_node
    SYS_fchmodat2 SYS_mseal
}

named! {
    /// Constants that rules speak of.
    CONSTANTS: u64;
    AF_UNIX SOL_SOCKET SOCK_STREAM SOCK_DGRAM
    PROT_EXEC PROT_WRITE MAP_ANONYMOUS MAP_PRIVATE MAP_SHARED MAP_FIXED
    F_GETFD F_SETFD F_GETFL F_SETFL F_DUPFD_CLOEXEC F_ADD_SEALS F_GET_SEALS F_OFD_SETLK F_SETLK
    FIONBIO FIONREAD TCGETS
    TUNSETIFF TUNGETIFF TUNSETOFFLOAD TUNSETVNETHDRSZ TUNGETFEATURES
    PR_SET_NAME PR_SET_DUMPABLE PR_SET_NO_NEW_PRIVS
    CLONE_THREAD CLONE_VM SIGSYS SIGABRT
    MADV_DONTNEED MADV_FREE MADV_POPULATE_READ MADV_POPULATE_WRITE MADV_HUGEPAGE MADV_REMOVE
    MADV_WILLNEED MADV_DONTFORK MADV_DONTDUMP
    RLIMIT_STACK
    FUTEX_WAIT FUTEX_WAKE FUTEX_PRIVATE_FLAG
    SECCOMP_SET_MODE_FILTER
    ENOSYS EPERM
}

/// What the C library makes a thread with.
const PTHREAD_FLAGS: i32 = libc::CLONE_VM
    | libc::CLONE_FS
    | libc::CLONE_FILES
    | libc::CLONE_SIGHAND
    | libc::CLONE_THREAD
    | libc::CLONE_SYSVSEM
    | libc::CLONE_SETTLS
    | libc::CLONE_PARENT_SETTID
    | libc::CLONE_CHILD_CLEARTID;

const fn io(number: u64) -> u64 {
    0xae << 8 | number
}

const fn iow(number: u64, size: u64) -> u64 {
    1 << 30 | size << 16 | io(number)
}

const fn ior(number: u64, size: u64) -> u64 {
    2 << 30 | size << 16 | io(number)
}

const fn iowr(number: u64, size: u64) -> u64 {
    3 << 30 | size << 16 | io(number)
}

/// Requests to KVM.
pub const KVM: &[(&str, u64)] = &[
    ("KVM_GET_API_VERSION", io(0x00)),
    ("KVM_CREATE_VM", io(0x01)),
    ("KVM_GET_MSR_INDEX_LIST", iowr(0x02, 4)),
    ("KVM_CHECK_EXTENSION", io(0x03)),
    ("KVM_GET_VCPU_MMAP_SIZE", io(0x04)),
    ("KVM_GET_SUPPORTED_CPUID", iowr(0x05, 8)),
    ("KVM_CREATE_VCPU", io(0x41)),
    ("KVM_GET_DIRTY_LOG", iow(0x42, 16)),
    ("KVM_SET_USER_MEMORY_REGION", iow(0x46, 32)),
    ("KVM_SET_TSS_ADDR", io(0x47)),
    ("KVM_CREATE_IRQCHIP", io(0x60)),
    ("KVM_IRQ_LINE", iow(0x61, 8)),
    ("KVM_GET_IRQCHIP", iowr(0x62, 520)),
    ("KVM_SET_IRQCHIP", ior(0x63, 520)),
    ("KVM_IRQFD", iow(0x76, 32)),
    ("KVM_IOEVENTFD", iow(0x79, 64)),
    ("KVM_SET_CLOCK", iow(0x7b, 48)),
    ("KVM_GET_CLOCK", ior(0x7c, 48)),
    ("KVM_RUN", io(0x80)),
    ("KVM_GET_REGS", ior(0x81, 144)),
    ("KVM_SET_REGS", iow(0x82, 144)),
    ("KVM_GET_SREGS", ior(0x83, 312)),
    ("KVM_SET_SREGS", iow(0x84, 312)),
    ("KVM_TRANSLATE", iowr(0x85, 24)),
    ("KVM_GET_MSRS", iowr(0x88, 8)),
    ("KVM_SET_MSRS", iow(0x89, 8)),
    ("KVM_GET_FPU", ior(0x8c, 416)),
    ("KVM_SET_FPU", iow(0x8d, 416)),
    ("KVM_GET_LAPIC", ior(0x8e, 1024)),
    ("KVM_SET_LAPIC", iow(0x8f, 1024)),
    ("KVM_SET_CPUID2", iow(0x90, 8)),
    ("KVM_GET_CPUID2", iowr(0x91, 8)),
    ("KVM_GET_MP_STATE", ior(0x98, 4)),
    ("KVM_SET_MP_STATE", iow(0x99, 4)),
    ("KVM_GET_VCPU_EVENTS", ior(0x9f, 64)),
    ("KVM_SET_VCPU_EVENTS", iow(0xa0, 64)),
    ("KVM_GET_DEBUGREGS", ior(0xa1, 128)),
    ("KVM_SET_DEBUGREGS", iow(0xa2, 128)),
    ("KVM_SET_TSC_KHZ", io(0xa2)),
    ("KVM_GET_TSC_KHZ", io(0xa3)),
    ("KVM_ENABLE_CAP", iow(0xa3, 104)),
    ("KVM_GET_XSAVE", ior(0xa4, 4096)),
    ("KVM_SET_XSAVE", iow(0xa5, 4096)),
    ("KVM_GET_XCRS", ior(0xa6, 392)),
    ("KVM_SET_XCRS", iow(0xa7, 392)),
    ("KVM_KVMCLOCK_CTRL", io(0xad)),
    ("KVM_GET_XSAVE2", ior(0xcf, 4096)),
];

/// The number of a system call.
pub fn number_of(name: &str) -> Option<i64> {
    let known = SYSCALLS.iter();
    known
        .clone()
        .find(|(word, _)| word.strip_prefix("SYS_") == Some(name))
        .map(|(_, number)| *number)
}

/// The name of a system call.
pub fn name_of(number: i64) -> Option<&'static str> {
    let found = SYSCALLS.iter().find(|(_, other)| *other == number);
    found.and_then(|(word, _)| word.strip_prefix("SYS_"))
}

/// The value of a constant, or of a number in digits.
pub fn value_of(word: &str) -> Option<u64> {
    if let Some(digits) = word.strip_prefix("0x") {
        return u64::from_str_radix(digits, 16).ok();
    }
    let own = [
        ("PTHREAD_FLAGS", PTHREAD_FLAGS as u64),
        // `linux/prctl.h`; libc lacks it.
        ("PR_GET_AUXV", 0x4155_5856),
        // `linux/sockios.h`.
        ("SIOCGIFINDEX", 0x8933),
        // `linux/fs.h`: which pages of a mapping are whose.
        ("PAGEMAP_SCAN", 0xc060_6610),
        // A file that shares all of another one's blocks.
        ("FICLONE", 0x4004_9409),
        // `linux/userfaultfd.h`.
        ("UFFDIO_UNREGISTER", 0x8010_aa01),
    ];
    let known = CONSTANTS.iter().chain(KVM).chain(&own);
    let found = known.clone().find(|(name, _)| *name == word);
    found.map(|(_, value)| *value).or_else(|| word.parse().ok())
}
