//! The filter that lets the program be executed, and nothing after it.

use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule, TargetArch, apply_filter,
};

use crate::error::{JailError, failed};
use crate::sys::ExecPointers;

/// From now on the calling process can execute something with these pointers only.
pub(crate) fn only_this_execution(pointers: &ExecPointers) -> Result<(), JailError> {
    let filter = filter(pointers).map_err(other)?;
    apply_filter(&filter).map_err(other)
}

fn other<E: std::error::Error + Send + Sync + 'static>(err: E) -> JailError {
    failed("restrict executing")(std::io::Error::other(err))
}

/// Anything that differs in one of the pointers is caught; what is none of its business passes.
fn filter(pointers: &ExecPointers) -> Result<BpfProgram, seccompiler::BackendError> {
    let differs = |index: u8, value: u64| {
        let width = SeccompCmpArgLen::Qword;
        let condition = SeccompCondition::new(index, width, SeccompCmpOp::Ne, value)?;
        SeccompRule::new(vec![condition])
    };
    let rules = vec![
        differs(1, pointers.path)?,
        differs(2, pointers.arguments)?,
        differs(3, pointers.environment)?,
    ];
    SeccompFilter::new(
        [(libc::SYS_execveat, rules)].into(),
        SeccompAction::Allow,
        SeccompAction::Trap,
        TargetArch::x86_64,
    )?
    .try_into()
}
