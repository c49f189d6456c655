//! What tracers write, as events, and events as phases.

use std::collections::HashMap;

use super::Phase;

/// Something that a thread did.
#[derive(Debug, Clone, PartialEq)]
pub struct Event {
    /// When, in milliseconds of a clock of the tracer's.
    at: f64,
    thread: u32,
    kind: Kind,
}

#[derive(Debug, Clone, PartialEq)]
enum Kind {
    /// A system call; of an ioctl of KVM, that one's name.
    Call(String),
    MinorFault,
    MajorFault,
}

/// How many names are told of a phase.
const MOST: usize = 6;

/// Understands `perf trace --syscalls -F all`: `TIME ( DURATION ms): NAME/THREAD call(arguments) = ...` and
/// `... minfault [...]`. What is no event is passed over; a call that is told of in two lines counts by
/// its first.
pub fn of_perf(text: &str) -> Vec<Event> {
    let event = |line: &str| {
        let (time, rest) = line.split_once('(')?;
        let at = time.trim().parse().ok()?;
        let (_, rest) = rest.split_once("): ")?;
        // A thread's name may have blanks in it.
        let (thread, what) = rest.match_indices('/').find_map(|(slash, _)| {
            let (digits, what) = rest[slash + 1..].split_once(' ')?;
            Some((digits.parse().ok()?, what.trim_start()))
        })?;
        let kind = match what {
            what if what.starts_with("minfault ") => Kind::MinorFault,
            what if what.starts_with("majfault ") => Kind::MajorFault,
            what => Kind::Call(call(what)?),
        };
        Some(Event { at, thread, kind })
    };
    sorted(text.lines().filter_map(event).collect())
}

/// Understands `strace -f -ttt`: `THREAD TIME call(arguments) = ...`.
pub fn of_strace(text: &str) -> Vec<Event> {
    let event = |line: &str| {
        let (thread, rest) = line.split_once(' ')?;
        let (time, what) = rest.trim_start().split_once(' ')?;
        let seconds: f64 = time.parse().ok()?;
        Some(Event {
            at: seconds * 1e3,
            thread: thread.parse().ok()?,
            kind: Kind::Call(call(what)?),
        })
    };
    sorted(text.lines().filter_map(event).collect())
}

fn sorted(mut events: Vec<Event>) -> Vec<Event> {
    events.retain(|event| event.at.is_finite());
    events.sort_by(|a, b| a.at.total_cmp(&b.at));
    events
}

/// The name of a call, if this is one.
fn call(what: &str) -> Option<String> {
    let (name, arguments) = what.split_once('(')?;
    let word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    if name.is_empty() || !name.chars().all(word) {
        return None;
    }
    let command = arguments.find("KVM_").filter(|_| name == "ioctl");
    Some(match command {
        Some(at) => arguments[at..].chars().take_while(|c| word(*c)).collect(),
        None => name.to_owned(),
    })
}

/// Takes events apart where a monitor is seen to do what each does. `by_api`: it has a socket.
pub fn phases(events: &[Event], by_api: bool) -> Vec<Phase> {
    let called = |event: &Event, test: &dyn Fn(&str) -> bool| match &event.kind {
        Kind::Call(name) => test(name),
        _ => false,
    };
    let first = |from: usize, test: &dyn Fn(&Event) -> bool| {
        let found = events[from..].iter().position(test);
        found.map(|at| from + at)
    };
    let mut marks: Vec<(usize, &'static str)> = Vec::new();
    let request = first(0, &|event| {
        called(event, &|name| name.starts_with("accept"))
    });
    if let (true, Some(at)) = (by_api, request) {
        marks.push((at, "the first request"));
    }
    let kvm = first(0, &|event| called(event, &|name| name.starts_with("KVM_")));
    marks.extend(kvm.map(|at| (at, "the first call of KVM")));
    if let Some(run) = first(0, &|event| called(event, &|name| name == "KVM_RUN")) {
        marks.push((run, "the vCPU runs"));
        let writes = |name: &str| name == "write" || name == "writev";
        let byte = first(run, &|event| {
            event.thread == events[run].thread && called(event, &writes)
        });
        marks.extend(byte.map(|at| (at + 1, "the guest's first byte is written")));
    }
    marks.sort_by_key(|mark| mark.0);
    marks.push((events.len(), "the end"));
    let mut from = 0;
    let mut phases = Vec::new();
    for (to, until) in marks {
        phases.push(phase(events, from, to, until));
        from = to;
    }
    phases
}

fn phase(events: &[Event], from: usize, to: usize, until: &'static str) -> Phase {
    let part = &events[from..to];
    let at = |index: usize| {
        events
            .get(index)
            .or(events.last())
            .map_or(0.0, |event| event.at)
    };
    let mut names: HashMap<&str, usize> = HashMap::new();
    let (mut minor, mut major) = (0, 0);
    for event in part {
        match &event.kind {
            Kind::Call(name) => *names.entry(name).or_default() += 1,
            Kind::MinorFault => minor += 1,
            Kind::MajorFault => major += 1,
        }
    }
    let mut most: Vec<(String, usize)> = names
        .iter()
        .map(|(name, count)| ((*name).to_owned(), *count))
        .collect();
    most.sort_by(|a, b| b.1.cmp(&a.1).then(a.0.cmp(&b.0)));
    most.truncate(MOST);
    Phase {
        until: until.into(),
        millis: at(to) - at(from),
        calls: names.values().sum(),
        minor,
        major,
        most,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PERF: &str = "\
         ? (         ): firecracker/1  ... [continued]: execve())            = 0
     0.100 ( 0.010 ms): firecracker/1 brk()                                  = 0x5555
     0.200 ( 0.000 ms): firecracker/1 minfault [f+0x1] => /a (b)/c@0x1 (d.)
     0.300 ( 0.010 ms): firecracker/1 accept4(fd: 3)                         = 4
     0.400 ( 0.011 ms): firecracker/1 ioctl(fd: 4, cmd: KVM_CREATE_VM)       = 7
     0.500 ( 0.011 ms): fc/api 2/7 write(fd: 8, count: 8)                    = 8
     0.900 ( 0.019 ms): fc_vcpu 0/3 ioctl(fd: 9, cmd: KVM_RUN) ...
     0.800 ( 0.000 ms): fc_vcpu 0/3 majfault [g+0x0] => //anon@0x7f (d.)
     1.000 ( 0.011 ms): firecracker/1 write(fd: 8, count: 8)                 = 8
     1.100 ( 0.011 ms): fc_vcpu 0/3 write(fd: 1, count: 1)                   = 1
     1.050 ( 0.200 ms): fc_vcpu 0/3  ... [continued]: ioctl())               = 0
     1.200 (         ): firecracker/1 exit_group()                           = ?
nonsense
";

    #[test]
    fn phases_end_where_every_monitor_does_the_same() {
        let events = of_perf(PERF);
        assert_eq!(events.len(), 10, "{events:?}");
        let phases = phases(&events, true);
        let told = phases
            .iter()
            .map(|p| (p.until.as_ref(), p.calls, p.minor, p.major));
        assert_eq!(
            told.collect::<Vec<_>>(),
            [
                ("the first request", 1, 1, 0),
                ("the first call of KVM", 1, 0, 0),
                ("the vCPU runs", 2, 0, 1),
                ("the guest's first byte is written", 3, 0, 0),
                ("the end", 1, 0, 0),
            ]
        );
        assert!((phases[0].millis - 0.2).abs() < 1e-9);
        assert_eq!(phases[2].most[0].0, "KVM_CREATE_VM");
    }

    #[test]
    fn both_tools_tell_of_the_same_calls() {
        let text = "7 100.000100 execve(\"/a\", [\"KVM_RUN\"], 0x1) = 0\n\
                    7 100.000200 ioctl(3</dev/kvm>, KVM_RUN, 0) = 0\n\
                    8 100.000300 <... write resumed>) = 1\n\
                    7 100.000400 write(1, \"\\26\", 1) = 1\n\
                    7 100.000500 +++ exited with 0 +++\n";
        let events = of_strace(text);
        let names: Vec<_> = events.iter().map(|event| event.kind.clone()).collect();
        let call = |name: &str| Kind::Call(name.to_owned());
        assert_eq!(names, [call("execve"), call("KVM_RUN"), call("write")]);
    }

    #[test]
    fn a_trace_without_a_machine_is_one_phase() {
        for text in [
            "",
            "\n\n",
            "1 2",
            "x 1.0 f()",
            "1 NaN read(0)",
            " ( ): /1 f(",
        ] {
            assert_eq!(phases(&of_strace(text), true).len(), 1, "{text:?}");
            assert_eq!(phases(&of_perf(text), false).len(), 1, "{text:?}");
        }
    }
}
