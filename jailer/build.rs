//! Compiles the rules of `src/seccomp/rules` to filters.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::{env, fs};

use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule, TargetArch, sock_filter,
};

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

fn compile(table: &Table) -> BpfProgram {
    let mut rules: BTreeMap<i64, Vec<SeccompRule>> = BTreeMap::new();
    let mut any = BTreeSet::new();
    for rule in &table.rules {
        let entry = rules.entry(rule.number).or_default();
        match rule.tests[..] {
            [] => {
                any.insert(rule.number);
            }
            _ => entry.extend(alternatives(rule)),
        }
    }
    for number in any {
        rules.insert(number, Vec::new());
    }
    for (number, _) in &table.refused {
        assert!(
            !rules.contains_key(number),
            "{number} is allowed and refused"
        );
    }
    let groups: Vec<(u32, BpfProgram)> = rules
        .into_iter()
        .collect::<Vec<_>>()
        .chunks(GROUP)
        .map(|group| {
            let rules = group.iter().cloned().collect();
            let arch = TargetArch::x86_64;
            let filter = SeccompFilter::new(rules, SeccompAction::Trap, SeccompAction::Allow, arch);
            let program = filter.expect("the actions differ").try_into();
            let first = u32::try_from(group[0].0).expect("calls have small numbers");
            (first, program.expect("the rules fit into a filter"))
        })
        .collect();
    let mut program = vec![op(LOAD, 0, 0, 0)];
    program.extend(refusals(&table.refused));
    program.extend(search(&groups));
    program
}

/// Calls that are looked for one after the other. The kernel asks a filter, when it is installed, about
/// every call that there is, and takes the longer the more instructions it takes to find one.
const GROUP: usize = 4;

/// `linux/bpf_common.h`: load a word of the call's description, compare, jump, return.
const LOAD: u16 = 0x20;
const JUMP_IF_EQUAL: u16 = 0x15;
const JUMP_IF_NOT_BELOW: u16 = 0x35;
const JUMP: u16 = 0x05;
const RETURN: u16 = 0x06;

fn op(code: u16, jt: u8, jf: u8, k: u32) -> sock_filter {
    sock_filter { code, jt, jf, k }
}

/// Finds the group that a call would be in, by halves, and goes there; each is a filter by itself. The
/// call's number is loaded.
fn search(groups: &[(u32, BpfProgram)]) -> BpfProgram {
    if let [(_, only)] = groups {
        return only.clone();
    }
    let (low, high) = groups.split_at(groups.len() / 2);
    let (first, low) = (high[0].0, search(low));
    let over = u32::try_from(low.len()).expect("a filter is short");
    let mut program = vec![op(JUMP_IF_NOT_BELOW, 0, 1, first), op(JUMP, 0, 0, over)];
    program.extend(low);
    program.extend(search(high));
    program
}

/// Comes before everything else: answers some calls with an error. What comes from another
/// architecture with such a number is refused as well, and that is all that matters here.
fn refusals(refused: &[(i64, u32)]) -> BpfProgram {
    /// `linux/seccomp.h`.
    const SECCOMP_RET_ERRNO: u32 = 0x0005_0000;
    let one = |(number, error): &(i64, u32)| {
        [
            op(JUMP_IF_EQUAL, 0, 1, *number as u32),
            op(RETURN, 0, 0, SECCOMP_RET_ERRNO | error),
        ]
    };
    refused.iter().flat_map(one).collect()
}

/// A filter's rule has one value for each argument, so several values make several rules.
fn alternatives(rule: &Rule) -> Vec<SeccompRule> {
    let condition = |(index, test): &(u8, Test)| {
        let (operator, value) = match test {
            Test::Is(values) => (SeccompCmpOp::Eq, values[0]),
            Test::Lacks(bits) => (SeccompCmpOp::MaskedEq(u64::from(*bits)), 0),
        };
        SeccompCondition::new(*index, SeccompCmpArgLen::Dword, operator, u64::from(value))
            .expect("arguments have indices from 0 to 5")
    };
    let one = |rule: Rule| {
        let conditions = rule.tests.iter().map(condition).collect();
        SeccompRule::new(conditions).expect("there is a condition")
    };
    rule.alternatives().into_iter().map(one).collect()
}
