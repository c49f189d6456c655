//! Compiles the rules of `src/seccomp/rules` to filters.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::{env, fs};

use seccompiler::sock_filter;

#[allow(dead_code, reason = "the library uses more of it")]
#[path = "src/seccomp"]
mod seccomp {
    pub mod names;
    pub mod table;
}

use seccomp::table::{Rule, Table, Test, parse};

const RULES: &str = "src/seccomp/rules";

fn main() {
    println!("cargo::rerun-if-changed={RULES}");
    println!("cargo::rerun-if-changed=build.rs");
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    let mut code = String::new();
    let debug = env::var_os("CARGO_CFG_DEBUG_ASSERTIONS").is_some();
    let mut every = Table::default();
    for role in [
        "main", "devices", "vcpu", "api", "worker", "writer", "fork", "prefetch", "starter",
        "process",
    ] {
        let read = |name: &str| {
            let path = Path::new(RULES).join(name).with_extension("rules");
            fs::read_to_string(path).ok()
        };
        let text = read(role).unwrap_or_else(|| panic!("there are no rules for {role}"));
        let table = parse(&text, debug, &read).unwrap_or_else(|err| panic!("{role}: {err}"));
        every.add(&table);
        let whole = if role == "process" { &every } else { &table };
        let program = compile(whole);
        code += &format!(
            "pub static {}: [sock_filter; {}] = {program:?};\n",
            role.to_uppercase(),
            program.len()
        );
    }
    fs::write(out.join("filters.rs"), code).expect("the output directory can be written to");
}

/// Words of a call's description (`linux/seccomp.h`): its number, its architecture, and the lower half of
/// its first argument.
const NUMBER: u32 = 0;
const ARCHITECTURE: u32 = 4;
const ARGUMENTS: u32 = 16;
/// `linux/audit.h`.
const X86_64: u32 = 0xc000_003e;

/// Instructions (`linux/bpf_common.h`): load a word, compare it, return.
const LOAD: u16 = 0x20;
const JUMP: u16 = 0x05;
const JUMP_IF_EQUAL: u16 = 0x15;
const JUMP_IF_NOT_BELOW: u16 = 0x35;
const JUMP_IF_ANY_BIT: u16 = 0x45;
const RETURN: u16 = 0x06;

/// What is returned (`linux/seccomp.h`).
const KILL_PROCESS: u32 = 0x8000_0000;
const TRAP: u32 = 0x0003_0000;
const ERRNO: u32 = 0x0005_0000;
const ALLOW: u32 = 0x7fff_0000;

/// How far a comparison can jump.
const FAR: usize = u8::MAX as usize;

fn op(code: u16, jt: usize, jf: usize, k: u32) -> sock_filter {
    let near = |jump: usize| u8::try_from(jump).expect("a comparison jumps over 255 at most");
    let (jt, jf) = (near(jt), near(jf));
    sock_filter { code, jt, jf, k }
}

/// The filter of a table. seccompiler, which makes those that are made when a jail is, goes through all
/// calls one after the other, and takes five instructions for each value of an argument. The kernel
/// translates all of them when a filter is installed, and runs it for each call that there is, to
/// learn which are always allowed: that was a fifth of a jail's price.
fn compile(table: &Table) -> Vec<sock_filter> {
    let mut calls: BTreeMap<i64, Vec<&Rule>> = BTreeMap::new();
    for rule in &table.rules {
        calls.entry(rule.number).or_default().push(rule);
    }
    let mut program = vec![
        op(LOAD, 0, 0, ARCHITECTURE),
        op(JUMP_IF_EQUAL, 1, 0, X86_64),
        op(RETURN, 0, 0, KILL_PROCESS),
        op(LOAD, 0, 0, NUMBER),
    ];
    for (number, error) in &table.refused {
        assert!(
            !calls.contains_key(number),
            "{number} is allowed and refused"
        );
        program.push(op(JUMP_IF_EQUAL, 0, 1, word(*number)));
        program.push(op(RETURN, 0, 0, ERRNO | error));
    }
    let calls: Vec<(u32, Vec<sock_filter>)> = calls
        .into_iter()
        .map(|(number, rules)| (word(number), call(word(number), &rules)))
        .collect();
    program.extend(search(&calls));
    program
}

fn word(number: i64) -> u32 {
    u32::try_from(number).expect("calls have small numbers")
}

/// Finds a call by halves, and does what is to be done about it. Its number is loaded.
fn search(calls: &[(u32, Vec<sock_filter>)]) -> Vec<sock_filter> {
    if let [(_, only)] = calls {
        return only.clone();
    }
    let (low, high) = calls.split_at(calls.len() / 2);
    let (first, low) = (high[0].0, search(low));
    let mut program = match low.len() {
        near @ ..=FAR => vec![op(JUMP_IF_NOT_BELOW, near, 0, first)],
        far => vec![
            op(JUMP_IF_NOT_BELOW, 0, 1, first),
            op(JUMP, 0, 0, u32::try_from(far).expect("a filter is short")),
        ],
    };
    program.extend(low);
    program.extend(search(high));
    program
}

/// What is to be done about one call, if it is that one.
fn call(number: u32, rules: &[&Rule]) -> Vec<sock_filter> {
    let mut program = vec![op(JUMP_IF_EQUAL, 1, 0, number), op(RETURN, 0, 0, TRAP)];
    if rules.iter().any(|rule| rule.tests.is_empty()) {
        program.push(op(RETURN, 0, 0, ALLOW));
        return program;
    }
    rules.iter().for_each(|rule| program.extend(one(rule)));
    program.push(op(RETURN, 0, 0, TRAP));
    program
}

/// Allows what a rule allows; what comes after it is about the rest.
fn one(rule: &Rule) -> Vec<sock_filter> {
    let mut program = vec![op(RETURN, 0, 0, ALLOW)];
    // From the last test to the first, as each jumps over those after it.
    for (index, test) in rule.tests.iter().rev() {
        let rest = program.len();
        let mut tested = vec![op(LOAD, 0, 0, ARGUMENTS + 8 * u32::from(*index))];
        match test {
            Test::Lacks(bits) => tested.push(op(JUMP_IF_ANY_BIT, rest, 0, *bits)),
            Test::Is(values) => {
                let others = (0..values.len()).rev();
                tested.extend(values.iter().zip(others).map(|(value, left)| {
                    // The last one's other way is over all that is left of the rule.
                    let not = if left == 0 { rest } else { 0 };
                    op(JUMP_IF_EQUAL, left, not, *value)
                }));
            }
        }
        tested.extend(program);
        program = tested;
    }
    program
}
