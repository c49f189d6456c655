//! What does a command in a running machine cost, beside what the guest's kernel takes for
//! starting the same program?
//!
//! Both are measured in turn on one machine. The rest is taken apart by doing less and less of the
//! way: past the machine's API, with a request that the agent refuses, with bytes that a small
//! program sends back.

use std::collections::HashMap;
use std::time::Duration;

use super::linux::http::Connection;
use super::linux::machine::{self, Machine, PROGRAMS};
use crate::compare::{Measure, Unit};
use crate::contestant::Role;
use crate::questions::{Bench, Question};
use crate::report::Answer;

/// The question.
pub const QUESTION: Question = Question {
    name: "exec",
    for_root: false,
    answer,
};

const ABOUT: &str = "A Linux guest that runs (1 vCPU, 192 MiB). From before `tine exec` is started \
    until it has been waited for, and from before a request on a kept connection of the machine's \
    socket is sent until its answer is read; against starting the same static program, and waiting \
    for its end, in a small program inside the guest, by the guest's clock. The tiny program ends \
    with its first instructions; `true` is busybox.";

/// Rounds when nobody says otherwise. A round takes seconds where guests are interpreted.
const RUNS: usize = 20;

/// Bytes of an exec's request and answer, for the round trip without work.
const THERE: u32 = 104;
const BACK: u32 = 412;

/// The turns of a round.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Turn {
    /// `tine exec`.
    Cli(u8),
    /// A request to the machine's socket.
    Api(u8),
    /// The same once more.
    ApiAgain(u8),
    /// A request to the agent, past the API.
    Agent(u8),
    /// By the guest itself.
    Fork(u8),
    Vfork(u8),
    /// A request to the agent for what is not there.
    Refused,
    /// Bytes to the helper and back.
    Echo,
}

/// What a turn took.
struct Sample {
    took: Duration,
    /// Processor time of the client's process, where it is one of its own.
    client: Duration,
    /// Processor time of the monitor's threads.
    threads: HashMap<String, Duration>,
}

/// Connections that are kept.
struct Lines {
    api: Connection,
    agent: Connection,
    spawner: Connection,
    echo: Connection,
}

fn turns() -> Vec<Turn> {
    let each = [0, 1].into_iter().flat_map(|program| {
        [
            Turn::Cli(program),
            Turn::Api(program),
            Turn::ApiAgain(program),
            Turn::Agent(program),
            Turn::Fork(program),
            Turn::Vfork(program),
        ]
    });
    each.chain([Turn::Refused, Turn::Echo]).collect()
}

fn answer(bench: &Bench) -> anyhow::Result<Answer> {
    let mut machine = Machine::start(bench.dir(), bench.tine())?;
    let mut lines = Lines {
        api: machine.api()?,
        agent: machine.agent()?,
        spawner: machine.helper(b's')?,
        echo: machine.helper(b'e')?,
    };
    let turns = turns();
    let samples = bench.rounds(QUESTION.name, &turns, RUNS, |turn| {
        once(&mut machine, &mut lines, *turn)
    })?;
    let samples: HashMap<Turn, Vec<Sample>> = turns.into_iter().zip(samples).collect();
    let mut measures = Vec::new();
    for (program, [cli, api]) in [
        ["tine exec, tiny program", "API exec, tiny program"],
        ["tine exec, true", "API exec, true"],
    ]
    .into_iter()
    .enumerate()
    {
        let program = program as u8;
        measures.push(against_guest(
            cli,
            &samples,
            Turn::Cli(program),
            None,
            program,
        ));
        let again = Some(Turn::ApiAgain(program));
        measures.push(against_guest(
            api,
            &samples,
            Turn::Api(program),
            again,
            program,
        ));
    }
    measures.push(on_the_way(&samples));
    measures.push(host_time(&samples));
    Ok(Answer {
        question: QUESTION.name.into(),
        about: ABOUT.into(),
        measures,
    })
}

fn once(machine: &mut Machine, lines: &mut Lines, turn: Turn) -> anyhow::Result<Sample> {
    let name = |program: u8| PROGRAMS[usize::from(program)];
    let before = machine.threads()?;
    let mut client = Duration::ZERO;
    let took = match turn {
        Turn::Cli(program) => {
            let (took, spent) = machine.tine_exec(name(program))?;
            client = spent;
            took
        }
        Turn::Api(program) | Turn::ApiAgain(program) => {
            machine.exec(&mut lines.api, name(program))?
        }
        Turn::Agent(program) => machine.exec(&mut lines.agent, name(program))?,
        Turn::Fork(program) => machine::start_in_guest(&mut lines.spawner, b'f', program)?,
        Turn::Vfork(program) => machine::start_in_guest(&mut lines.spawner, b'v', program)?,
        Turn::Refused => {
            let begun = std::time::Instant::now();
            lines.agent.call("GET", "/v1/nothing", b"")?;
            begun.elapsed()
        }
        Turn::Echo => machine::echo(&mut lines.echo, THERE, BACK)?,
    };
    let mut threads = machine.threads()?;
    for (name, time) in &mut threads {
        *time = time.saturating_sub(before.get(name).copied().unwrap_or_default());
    }
    Ok(Sample {
        took,
        client,
        threads,
    })
}

fn millis(samples: &[Sample]) -> Vec<f64> {
    samples
        .iter()
        .map(|sample| sample.took.as_secs_f64() * 1e3)
        .collect()
}

fn against_guest(
    name: &'static str,
    samples: &HashMap<Turn, Vec<Sample>>,
    subject: Turn,
    control: Option<Turn>,
    program: u8,
) -> Measure {
    let row = |name: &str, role, turn| (name.to_owned(), role, millis(&samples[&turn]));
    let mut rows = vec![
        row("tine", Role::Subject, subject),
        row("fork+exec in the guest", Role::Peer, Turn::Fork(program)),
        row("vfork+exec in the guest", Role::Peer, Turn::Vfork(program)),
    ];
    rows.extend(control.map(|turn| row("tine again", Role::Control, turn)));
    Measure::of_rows(name, Unit::Millis, rows)
}

/// What is left when less is done. Differences of times that vary more than they differ by are
/// worth little: the host's part is better seen in its processor time.
fn on_the_way(samples: &HashMap<Turn, Vec<Sample>>) -> Measure {
    let rows = [
        ("tine exec", Turn::Cli(0)),
        ("API", Turn::Api(0)),
        ("agent, past the API", Turn::Agent(0)),
        ("agent, refused", Turn::Refused),
        ("bytes there and back", Turn::Echo),
        ("vfork+exec in the guest", Turn::Vfork(0)),
    ];
    let rows = rows.map(|(name, turn)| (name.to_owned(), Role::Peer, millis(&samples[&turn])));
    Measure::of_rows(
        "less and less of the way, tiny program",
        Unit::Millis,
        rows.into(),
    )
}

/// Processor time of one `tine exec` on the host, thread by thread.
fn host_time(samples: &HashMap<Turn, Vec<Sample>>) -> Measure {
    let micros = |time: Duration| time.as_secs_f64() * 1e6;
    let of = |turn: Turn, thread: &str| -> Vec<f64> {
        let spent = samples[&turn]
            .iter()
            .map(|sample| sample.threads.get(thread));
        spent
            .map(|time| micros(time.copied().unwrap_or_default()))
            .collect()
    };
    let client = samples[&Turn::Cli(0)]
        .iter()
        .map(|sample| micros(sample.client));
    let rows = [
        ("tine exec: its process", client.collect()),
        ("tine exec: api thread", of(Turn::Cli(0), "api")),
        ("tine exec: devices thread", of(Turn::Cli(0), "devices")),
        ("API: api thread", of(Turn::Api(0), "api")),
        ("API: devices thread", of(Turn::Api(0), "devices")),
        (
            "bytes there and back: devices thread",
            of(Turn::Echo, "devices"),
        ),
    ];
    let rows = rows.map(|(name, values)| (name.to_owned(), Role::Peer, values));
    Measure::of_rows("processor time on the host", Unit::Micros, rows.into())
}
