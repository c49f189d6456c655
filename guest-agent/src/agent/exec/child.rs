//! Starting a program: one `clone3` that shares the agent's memory until the program takes over.
//!
//! Copying the agent's page tables, as `fork` does, is the costliest thing that the agent could do in a guest whose
//! kernel is interpreted. So the child runs in the agent's memory, on a stack of its own, while the calling thread is
//! suspended (`CLONE_VM | CLONE_VFORK`), and is born in its control group. Until `execve` it makes raw system calls and
//! nothing else: no allocation, no lock, no libc function that keeps state.

use std::arch::asm;
use std::ffi::CString;
use std::mem::{size_of, zeroed};
use std::os::fd::RawFd;
use std::ptr::null;
use std::sync::atomic::{AtomicI32, Ordering};

#[cfg(not(target_arch = "x86_64"))]
compile_error!("starting programs is written for x86_64");

/// `libc` has it in a type that it does not fit.
const CLONE_INTO_CGROUP: u64 = 0x2_0000_0000;

/// Bytes of the child's stack; its code needs a few hundred.
const STACK: usize = 16 * 1024;

/// Everything about a program that is to be started, made before there is a child.
pub struct Plan {
    /// Paths to try in turn.
    pub candidates: Vec<CString>,
    pub argv: Vec<CString>,
    pub env: Vec<CString>,
    pub cwd: Option<CString>,
    pub identity: Option<Identity>,
    /// Descriptors that become 0, 1 and 2; none of them may be one of these.
    pub stdio: [RawFd; 3],
    /// Descriptor 0 is a terminal and becomes the controlling one.
    pub terminal: bool,
    /// Directory descriptor of the control group to be born in.
    pub cgroup: Option<RawFd>,
}

/// Whom the program runs as.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    pub uid: u32,
    pub gid: u32,
    pub groups: Vec<u32>,
}

/// What the child was doing when a call failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    Clone,
    Stdio,
    Identity,
    Cwd,
    Exec,
}

/// Why there is no program.
#[derive(Debug, Clone, Copy)]
pub struct Failure {
    pub step: Step,
    pub errno: i32,
    /// For [`Step::Exec`]: which candidate the error is about.
    pub candidate: usize,
}

/// What the child gets to see; it lives in the suspended caller's frame.
struct Context<'a> {
    plan: &'a Plan,
    argv: *const *const libc::c_char,
    env: *const *const libc::c_char,
    failure: Option<Failure>,
}

/// Starts the program. Blocks until it runs or has failed. `born` receives the child's number before the child runs.
pub fn start(plan: &Plan, born: &AtomicI32) -> Result<i32, Failure> {
    let argv = pointers(&plan.argv);
    let env = pointers(&plan.env);
    let mut context = Context {
        plan,
        argv: argv.as_ptr(),
        env: env.as_ptr(),
        failure: None,
    };
    let mut stack = vec![0u128; STACK / 16];
    // SAFETY: all zero is the documented "not used" of every field.
    let mut args: libc::clone_args = unsafe { zeroed() };
    args.flags = (libc::CLONE_VM | libc::CLONE_VFORK | libc::CLONE_PARENT_SETTID) as u64;
    args.exit_signal = libc::SIGCHLD as u64;
    args.parent_tid = born.as_ptr() as u64;
    args.stack = stack.as_mut_ptr() as u64;
    args.stack_size = STACK as u64;
    if let Some(cgroup) = plan.cgroup {
        args.flags |= CLONE_INTO_CGROUP;
        args.cgroup = cgroup as u64;
    }
    // SAFETY: the kernel suspends this thread until the child has executed a program or ended, so the stack, the
    // context and all it points to outlive the child's use of them; the child's stack top is 16-byte aligned as the
    // ABI asks, and the child never returns from `in_child`. Signals are blocked in every thread of the agent.
    let result = unsafe { clone3(&args, &raw mut context) };
    // SAFETY: the child wrote through the raw pointer; it is gone from this memory by now.
    let failure = unsafe { (&raw const context.failure).read_volatile() };
    drop(stack);
    match failure {
        _ if result < 0 => Err(Failure {
            step: Step::Clone,
            errno: -result as i32,
            candidate: 0,
        }),
        Some(failure) => Err(failure),
        None => {
            born.store(result as i32, Ordering::Relaxed);
            Ok(result as i32)
        }
    }
}

fn pointers(strings: &[CString]) -> Vec<*const libc::c_char> {
    strings
        .iter()
        .map(|string| string.as_ptr())
        .chain([null()])
        .collect()
}

/// The system call, and the child's jump into [`in_child`] on its new stack.
///
/// # Safety
/// `args` must describe a child with a stack of its own and `CLONE_VFORK`; `context` must be valid until it ends.
unsafe fn clone3(args: &libc::clone_args, context: *mut Context<'_>) -> isize {
    let result: isize;
    // SAFETY: the child's path never comes back here; the parent's path changes only the named registers.
    unsafe {
        asm!(
            "syscall",
            "test rax, rax",
            "jnz 2f",
            "xor ebp, ebp",
            "mov rdi, r12",
            "call r13",
            "ud2",
            "2:",
            inlateout("rax") libc::SYS_clone3 as isize => result,
            in("rdi") args,
            in("rsi") size_of::<libc::clone_args>(),
            in("r12") context,
            in("r13") in_child as unsafe extern "C" fn(*mut Context<'_>) -> !,
            out("rcx") _,
            out("r11") _,
        );
    }
    result
}

/// The child's whole life.
///
/// # Safety
/// Runs in the child of [`clone3`] alone.
unsafe extern "C" fn in_child(context: *mut Context<'_>) -> ! {
    // SAFETY: the parent is suspended, so this is the only user of the context; the calls are raw, their pointers come
    // from the plan, and the last one ends the process.
    unsafe {
        let failure = prepare_and_exec(&*context);
        (&raw mut (*context).failure).write_volatile(Some(failure));
        loop {
            libc::syscall(libc::SYS_exit_group, 127);
        }
    }
}

/// # Safety
/// As [`in_child`].
unsafe fn prepare_and_exec(context: &Context<'_>) -> Failure {
    let plan = context.plan;
    let failed = |step| Failure {
        step,
        errno: errno(),
        candidate: 0,
    };
    // SAFETY: raw system calls on the plan's own data, which nobody changes now.
    unsafe {
        libc::syscall(libc::SYS_setsid);
        for (target, source) in plan.stdio.iter().enumerate() {
            if libc::syscall(libc::SYS_dup2, *source, target) < 0 {
                return failed(Step::Stdio);
            }
        }
        if plan.terminal && libc::syscall(libc::SYS_ioctl, 0, libc::TIOCSCTTY, 0) < 0 {
            return failed(Step::Stdio);
        }
        if let Some(identity) = &plan.identity {
            let groups = &identity.groups;
            // The libc functions of these names would change every thread of the agent.
            if libc::syscall(libc::SYS_setgroups, groups.len(), groups.as_ptr()) < 0
                || libc::syscall(libc::SYS_setgid, identity.gid) < 0
                || libc::syscall(libc::SYS_setuid, identity.uid) < 0
            {
                return failed(Step::Identity);
            }
        }
        if let Some(cwd) = &plan.cwd
            && libc::syscall(libc::SYS_chdir, cwd.as_ptr()) < 0
        {
            return failed(Step::Cwd);
        }
        let none: u64 = 0;
        let set = &raw const none;
        libc::syscall(
            libc::SYS_rt_sigprocmask,
            libc::SIG_SETMASK,
            set,
            0,
            size_of::<u64>(),
        );
        exec_first(context)
    }
}

/// Tries the candidates as a shell does: the first that is there decides, except that one without permission lets the
/// search go on and is remembered.
///
/// # Safety
/// As [`in_child`].
unsafe fn exec_first(context: &Context<'_>) -> Failure {
    let candidates = &context.plan.candidates;
    let mut failure = Failure {
        step: Step::Exec,
        errno: libc::ENOENT,
        candidate: 0,
    };
    for (candidate, path) in candidates.iter().enumerate() {
        // SAFETY: terminated strings and arrays that live as long as the context.
        unsafe {
            // A failing execve is dear, as it first makes an address space; ask before when there is a choice.
            if candidates.len() > 1 && libc::syscall(libc::SYS_access, path.as_ptr(), 0) < 0 {
                continue;
            }
            libc::syscall(libc::SYS_execve, path.as_ptr(), context.argv, context.env);
        }
        failure = Failure {
            step: Step::Exec,
            errno: errno(),
            candidate,
        };
        if failure.errno != libc::EACCES {
            break;
        }
    }
    failure
}

fn errno() -> i32 {
    // SAFETY: the thread-local belongs to the suspended parent thread, whose pointer this child shares.
    unsafe { *libc::__errno_location() }
}
