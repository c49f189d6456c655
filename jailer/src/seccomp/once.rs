//! The filter of the whole process, which lets the program be executed and nothing after it.

use seccompiler::{apply_filter, sock_filter};

use super::Role;
use super::code::{IF_EQUAL, LOAD, NUMBER, RETURN, TRAP, argument, op};
use crate::error::{JailError, failed};
use crate::sys::ExecPointers;

/// Restricts the calling process, before it becomes a monitor, to what a monitor needs. From now on it
/// can execute something with these pointers only.
pub(crate) fn restrict_process(pointers: &ExecPointers) -> Result<(), JailError> {
    apply_filter(&filter(pointers))
        .map_err(|err| failed("restrict its system calls")(std::io::Error::other(err)))
}

/// One filter and not two: the kernel translates each, and runs it for each call that there is, to learn
/// which are always allowed.
fn filter(pointers: &ExecPointers) -> Vec<sock_filter> {
    let all = Role::Process.filter();
    let mut program = Vec::with_capacity(all.len() + 2 + 2 * 6 + 1);
    program.push(op(LOAD, 0, 0, NUMBER));
    let values = [
        (1, pointers.path),
        (2, pointers.arguments),
        (3, pointers.environment),
    ];
    let halves = values.map(|(index, value)| {
        let at = argument(index);
        [(at, value as u32), (at + 4, (value >> 32) as u32)]
    });
    let halves = halves.as_flattened();
    let tests = 2 * halves.len() as u8;
    // Whatever is executed has to pass all tests; one that fails leads to the end of them.
    program.push(op(IF_EQUAL, 0, tests + 1, libc::SYS_execveat as u32));
    for (number, (at, value)) in (1..).zip(halves) {
        let last = u8::from(number == halves.len() as u8);
        program.push(op(LOAD, 0, 0, *at));
        program.push(op(IF_EQUAL, last, tests - 2 * number, *value));
    }
    program.push(op(RETURN, 0, 0, TRAP));
    program.extend_from_slice(all);
    program
}

#[cfg(test)]
mod tests {
    use super::super::code::ALLOW;
    use super::super::tests::ask;
    use super::*;

    #[test]
    fn three_pointers_are_executed_with_and_no_others() {
        let pointers = ExecPointers {
            path: 0x1234_5678_9abc,
            arguments: 0x2345_6789_abcd,
            environment: 0x3456_789a_bcde,
        };
        let filter = filter(&pointers);
        let right = [
            7,
            pointers.path,
            pointers.arguments,
            pointers.environment,
            0x1000,
            9,
        ];
        assert_eq!(ask(&filter, libc::SYS_execveat, &right).0, ALLOW);
        for place in 1..4 {
            for bit in 0..64 {
                let mut other = right;
                other[place] ^= 1 << bit;
                let answer = ask(&filter, libc::SYS_execveat, &other).0;
                assert_eq!(answer, TRAP, "argument {place}, bit {bit}");
            }
        }
        // Everything else is as it is without.
        for number in (0..600).filter(|number| *number != libc::SYS_execveat) {
            for arguments in [[0; 6], right] {
                let wanted = ask(Role::Process.filter(), number, &arguments).0;
                assert_eq!(ask(&filter, number, &arguments).0, wanted, "{number}");
            }
        }
    }
}
