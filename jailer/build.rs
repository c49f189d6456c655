//! Compiles the rules of `src/seccomp/rules` to filters.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::{env, fs};

use seccompiler::sock_filter;

#[allow(dead_code, reason = "the library uses more of it")]
#[path = "src/seccomp"]
mod seccomp {
    pub mod code;
    pub mod names;
    pub mod table;
}

use seccomp::code::*;
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

/// A place in a filter that comes later than what jumps there: how many instructions there are from it
/// to the end.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Place(usize);

/// A filter in the making, from its end to its beginning: all jumps lead towards the end.
struct Backwards {
    /// The last instruction first.
    program: Vec<sock_filter>,
    /// The nearest answers.
    allow: Place,
    trap: Place,
}

/// How far a comparison can jump.
const FAR: usize = u8::MAX as usize;
/// What is done about one call is shorter.
const LONGEST: usize = 120;

impl Backwards {
    fn new() -> Self {
        let nowhere = Place(0);
        let mut new = Self {
            program: Vec::new(),
            allow: nowhere,
            trap: nowhere,
        };
        new.answers();
        new
    }

    fn answers(&mut self) {
        self.trap = self.push(op(RETURN, 0, 0, TRAP));
        self.allow = self.push(op(RETURN, 0, 0, ALLOW));
    }

    /// Makes sure that what is next has both answers near.
    fn call(&mut self) {
        if self.program.len() + LONGEST - self.trap.0 > FAR {
            self.answers();
        }
    }

    fn push(&mut self, instruction: sock_filter) -> Place {
        self.program.push(instruction);
        Place(self.program.len())
    }

    fn load(&mut self, at: u32) -> Place {
        self.push(op(LOAD, 0, 0, at))
    }

    fn jump(&mut self, code: u16, k: u32, yes: Place, no: Place) -> Place {
        let here = self.program.len();
        // As much as there is between this and that.
        let far = |place: Place| here - place.0;
        let near = |place: Place| u8::try_from(far(place)).ok();
        match (near(yes), near(no)) {
            (Some(yes), Some(no)) => self.push(op(code, yes, no, k)),
            (None, _) => {
                let far = u32::try_from(far(yes)).expect("a filter is short");
                let yes = self.push(op(JUMP, 0, 0, far));
                self.jump(code, k, yes, no)
            }
            (_, None) => {
                let far = u32::try_from(far(no)).expect("a filter is short");
                let no = self.push(op(JUMP, 0, 0, far));
                self.jump(code, k, yes, no)
            }
        }
    }
}

/// Calls of which the same becomes: one, or several that follow one another and are always allowed.
struct Calls<'a> {
    first: u32,
    last: u32,
    /// None if they are always allowed.
    rules: Vec<&'a Rule>,
}

/// The filter of a table. The kernel translates a filter when it is installed, and runs it for each call
/// that there is, to learn which are always allowed: that was a fifth of a jail's price with filters that
/// look for a call one after the other. Calls are found by halves here, and all share a few answers.
fn compile(table: &Table) -> Vec<sock_filter> {
    let mut by_number: BTreeMap<i64, Vec<&Rule>> = BTreeMap::new();
    for rule in &table.rules {
        by_number.entry(rule.number).or_default().push(rule);
    }
    let refused = table.refused.iter();
    for (number, _) in refused.clone() {
        let both = by_number.contains_key(number);
        assert!(!both, "{number} is allowed and refused");
    }
    let mut calls: Vec<Calls<'_>> = Vec::new();
    for (number, mut rules) in by_number {
        let number = word(number);
        if rules.iter().any(|rule| rule.tests.is_empty()) {
            rules.clear();
        }
        match calls.last_mut() {
            Some(last) if last.last + 1 == number && last.rules.is_empty() && rules.is_empty() => {
                last.last = number;
            }
            _ => calls.push(Calls {
                first: number,
                last: number,
                rules,
            }),
        }
    }
    let mut filter = Backwards::new();
    let mut search = search(&mut filter, &calls, 0);
    for (number, error) in refused {
        let answer = filter.push(op(RETURN, 0, 0, ERRNO | error));
        search = filter.jump(IF_EQUAL, word(*number), answer, search);
    }
    filter.load(NUMBER);
    let known = Place(filter.program.len());
    let foreign = filter.push(op(RETURN, 0, 0, KILL_PROCESS));
    filter.jump(IF_EQUAL, X86_64, known, foreign);
    filter.load(ARCHITECTURE);
    filter.program.reverse();
    filter.program
}

fn word(number: i64) -> u32 {
    u32::try_from(number).expect("calls have small numbers")
}

/// Finds a call by halves, and does what is to be done about it. Its number is loaded, and is `known` to
/// be no lower.
fn search(filter: &mut Backwards, calls: &[Calls<'_>], known: u32) -> Place {
    if let [only] = calls {
        filter.call();
        return one_of(filter, only, known);
    }
    let (low, high) = calls.split_at(calls.len() / 2);
    let first = high[0].first;
    let high = search(filter, high, first);
    let low = search(filter, low, known);
    filter.jump(IF_NOT_BELOW, first, high, low)
}

/// What is to be done about these calls, if it is one of them.
fn one_of(filter: &mut Backwards, calls: &Calls<'_>, known: u32) -> Place {
    let mut otherwise = filter.trap;
    for tests in ways(&calls.rules) {
        filter.call();
        otherwise = one(filter, &tests, otherwise);
    }
    let found = match calls.rules.is_empty() {
        true => filter.allow,
        false => otherwise,
    };
    if calls.first == calls.last {
        return filter.jump(IF_EQUAL, calls.first, found, filter.trap);
    }
    let not_above = filter.jump(IF_NOT_BELOW, calls.last + 1, filter.trap, found);
    match known < calls.first {
        true => filter.jump(IF_NOT_BELOW, calls.first, not_above, filter.trap),
        false => not_above,
    }
}

/// Tests that all have to hold.
type Tests = Vec<(u8, Test)>;

/// The ways for a call to be allowed. Lists of values of one argument are one list.
fn ways(rules: &[&Rule]) -> Vec<Tests> {
    let mut ways: Vec<Tests> = Vec::new();
    for rule in rules {
        let same = ways
            .iter_mut()
            .find_map(|way| match (&mut way[..], &rule.tests[..]) {
                ([(index, Test::Is(values))], [(other, Test::Is(more))]) if index == other => {
                    Some((values, more))
                }
                _ => None,
            });
        match same {
            Some((values, more)) => values.extend(more),
            None => ways.push(rule.tests.clone()),
        }
    }
    ways
}

/// Allows what passes all tests; the rest is for what is done `otherwise`.
fn one(filter: &mut Backwards, tests: &[(u8, Test)], otherwise: Place) -> Place {
    let mut passed = filter.allow;
    for (index, test) in tests.iter().rev() {
        match test {
            Test::Lacks(bits) => {
                filter.jump(IF_ANY_BIT, *bits, otherwise, passed);
            }
            Test::Is(values) => {
                let mut not = otherwise;
                for value in values.iter().rev() {
                    not = filter.jump(IF_EQUAL, *value, passed, not);
                }
            }
        }
        passed = filter.load(argument(*index));
    }
    passed
}
