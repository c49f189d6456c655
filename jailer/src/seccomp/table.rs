//! The language of the rules: what a thread may call, one line for each.
//!
//! ```text
//! futex                                   a call, with any arguments
//! ioctl: arg1 is KVM_RUN, KVM_GET_REGS    one of several values
//! mmap: arg2 lacks PROT_EXEC              a flag that must not be set
//! socket: arg0 is AF_UNIX; arg2 is 0      both
//! rare mremap                             one that no test can bring about; the comment says when
//! debug fcntl: arg1 is F_GETFD            one that only a build with debug assertions makes
//! refuse io_uring_setup ENOSYS            not allowed, and answered instead of ended
//! include thread                          all lines of another file
//! ```
//!
//! `#` begins a comment. Used twice: when the rules are compiled, and when tests hold them against
//! what was called.

use super::names::{number_of, value_of};

/// A condition on one argument, of which the lower 32 bits count: nothing that is distinguished
/// here has more.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Test {
    /// One of these.
    Is(Vec<u32>),
    /// None of these bits.
    Lacks(u32),
}

/// A call that is allowed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rule {
    /// As it was written.
    pub text: String,
    /// The call.
    pub number: i64,
    /// All have to hold, each of the argument with this index.
    pub tests: Vec<(u8, Test)>,
    /// No test brings it about.
    pub rare: bool,
    /// Only builds with debug assertions need it.
    pub debug: bool,
}

impl Rule {
    /// Whether a call is one that the rule allows.
    pub fn allows(&self, number: i64, arguments: &[u64; 6]) -> bool {
        let holds = |(index, test): &(u8, Test)| {
            let value = arguments[usize::from(*index)] as u32;
            match test {
                Test::Is(values) => values.contains(&value),
                Test::Lacks(bits) => value & bits == 0,
            }
        };
        number == self.number && self.tests.iter().all(holds)
    }
}

impl Rule {
    /// The rule taken apart: one for each value of each list.
    pub fn alternatives(&self) -> Vec<Rule> {
        for (place, (index, test)) in self.tests.iter().enumerate() {
            if let Test::Is(values) = test
                && values.len() > 1
            {
                let one = |value: &u32| {
                    let mut rule = self.clone();
                    rule.tests[place] = (*index, Test::Is(vec![*value]));
                    rule.text = format!("{} [arg{index} is {value:#x}]", self.text);
                    rule.alternatives()
                };
                return values.iter().flat_map(one).collect();
            }
        }
        vec![self.clone()]
    }
}

/// The rules of a role.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Table {
    /// What is allowed.
    pub rules: Vec<Rule>,
    /// What is answered with an error number.
    pub refused: Vec<(i64, u32)>,
}

impl Table {
    /// Adds what another table allows and refuses.
    pub fn add(&mut self, other: &Table) {
        for rule in &other.rules {
            if !self.rules.contains(rule) {
                self.rules.push(rule.clone());
            }
        }
        for refused in &other.refused {
            if !self.refused.contains(refused) {
                self.refused.push(*refused);
            }
        }
    }

    /// Whether a call is allowed.
    pub fn allows(&self, number: i64, arguments: &[u64; 6]) -> bool {
        self.rules.iter().any(|rule| rule.allows(number, arguments))
    }
}

/// Reads the rules of a role, with those for builds with debug assertions if `debug`. `file` gives
/// the text of an included one.
pub fn parse(
    text: &str,
    debug: bool,
    file: &dyn Fn(&str) -> Option<String>,
) -> Result<Table, String> {
    let mut table = Table::default();
    read(text, debug, file, 0, &mut table)?;
    Ok(table)
}

fn read(
    text: &str,
    debug: bool,
    file: &dyn Fn(&str) -> Option<String>,
    depth: usize,
    table: &mut Table,
) -> Result<(), String> {
    for line in text.lines() {
        let line = line.split('#').next().unwrap_or_default().trim();
        let words: Vec<&str> = line.split_whitespace().collect();
        match words[..] {
            [] => {}
            ["include", name] => {
                let text = file(name).filter(|_| depth < 4);
                let text = text.ok_or_else(|| format!("{line}: no such file"))?;
                read(&text, debug, file, depth + 1, table)?;
            }
            ["refuse", call, error] => {
                let number = number_of(call).ok_or_else(|| format!("{line}: no such call"))?;
                let error = value_of(error).ok_or_else(|| format!("{line}: no such error"))?;
                table.refused.push((number, error as u32));
            }
            ["debug", ..] => {
                let rule = rule(line.trim_start_matches("debug").trim())?;
                if debug {
                    table.rules.push(Rule {
                        debug: true,
                        ..rule
                    });
                }
            }
            ["rare", ..] => {
                let rest = line.trim_start_matches("rare").trim();
                let rule = rule(rest)?;
                table.rules.push(Rule { rare: true, ..rule });
            }
            _ => table.rules.push(rule(line)?),
        }
    }
    Ok(())
}

fn rule(line: &str) -> Result<Rule, String> {
    let (call, tests) = line.split_once(':').unwrap_or((line, ""));
    let number = number_of(call.trim()).ok_or_else(|| format!("{line}: no such call"))?;
    let tests = tests
        .split(';')
        .map(str::trim)
        .filter(|test| !test.is_empty());
    Ok(Rule {
        text: line.to_owned(),
        number,
        tests: tests
            .map(|text| test(line, text))
            .collect::<Result<_, _>>()?,
        rare: false,
        debug: false,
    })
}

fn test(line: &str, text: &str) -> Result<(u8, Test), String> {
    let wrong = || format!("{line}: `argN is VALUE, VALUE` or `argN lacks FLAG, FLAG` is needed");
    let mut words = text.splitn(3, ' ');
    let (Some(argument), Some(verb), Some(values)) = (words.next(), words.next(), words.next())
    else {
        return Err(wrong());
    };
    let index = argument
        .strip_prefix("arg")
        .and_then(|digits| digits.parse().ok());
    let index: u8 = index.filter(|index| *index < 6).ok_or_else(wrong)?;
    let mut numbers = Vec::new();
    for word in values.split(',').map(str::trim) {
        let value = value_of(word).and_then(|value| u32::try_from(value).ok());
        numbers.push(value.ok_or_else(|| format!("{line}: {word} is no known number"))?);
    }
    match verb {
        "is" => Ok((index, Test::Is(numbers))),
        "lacks" => Ok((
            index,
            Test::Lacks(numbers.into_iter().fold(0, |all, bits| all | bits)),
        )),
        _ => Err(wrong()),
    }
}
