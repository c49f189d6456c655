//! The guest's processes, read from /proc.

use std::collections::HashMap;

use tine_guest_agent::status::Process;

use super::init::read_small;
use super::{Agent, sys};

/// Clock ticks a second in /proc, which the kernel's interface fixes.
const TICKS: u64 = 100;

/// Most bytes of a command line that are told.
const MAX_COMMAND: usize = 4096;

/// All processes, with the command that each belongs to where that is known. Read on a thread of its own: the command
/// line of a process that is stuck in the kernel may be waited for.
pub async fn list(agent: &Agent) -> Vec<Process> {
    let groups: HashMap<String, String> = (agent.store.all().iter())
        .filter(|exec| exec.is_running())
        .filter_map(|exec| Some((exec.group()?, exec.id.clone())))
        .collect();
    let read = move || pids().filter_map(|pid| process(pid, &groups)).collect();
    tokio::task::spawn_blocking(read).await.unwrap_or_default()
}

fn process(pid: i32, groups: &HashMap<String, String>) -> Option<Process> {
    let stat = Stat::of(pid)?;
    let command = read_small(&format!("/proc/{pid}/cmdline")).replace('\0', " ");
    let command: String = command.trim_end().chars().take(MAX_COMMAND).collect();
    let group = read_small(&format!("/proc/{pid}/cgroup"));
    let group = group.lines().find_map(|line| line.strip_prefix("0::"));
    let group = group.and_then(|path| path.split('/').find_map(|part| groups.get(part)));
    Some(Process {
        pid: pid as u32,
        ppid: stat.number(1) as u32,
        uid: rustix::fs::stat(format!("/proc/{pid}"))
            .map(|stat| stat.st_uid)
            .unwrap_or_default(),
        state: stat.fields.first().cloned().unwrap_or_default(),
        command: if command.is_empty() {
            format!("[{}]", stat.name)
        } else {
            command
        },
        memory_bytes: stat.number(21) * rustix::param::page_size() as u64,
        cpu_ms: (stat.number(11) + stat.number(12)) * 1000 / TICKS,
        request_id: group.cloned(),
    })
}

/// Kills a session's processes: for guests without control groups, where those that left it are not found.
pub fn kill_session(session: i32) {
    for pid in pids().filter(|pid| *pid > 1) {
        if Stat::of(pid).is_some_and(|stat| stat.number(3) == session as u64) {
            let _ = sys::kill(pid, libc::SIGKILL);
        }
    }
}

fn pids() -> impl Iterator<Item = i32> {
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

/// `/proc/PID/stat`: the name, and what follows it (state first).
struct Stat {
    name: String,
    fields: Vec<String>,
}

impl Stat {
    fn of(pid: i32) -> Option<Self> {
        Self::parse(&read_small(&format!("/proc/{pid}/stat")))
    }

    /// The name may hold anything, also brackets and spaces: it ends at the last bracket.
    fn parse(text: &str) -> Option<Self> {
        let (_, rest) = text.split_once('(')?;
        let (name, rest) = rest.rsplit_once(')')?;
        let fields = rest.split_ascii_whitespace().map(Into::into).collect();
        Some(Self {
            name: name.into(),
            fields,
        })
    }

    fn number(&self, index: usize) -> u64 {
        self.fields
            .get(index)
            .and_then(|field| field.parse().ok())
            .unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::Stat;

    #[test]
    fn names_with_brackets() {
        let stat = Stat::parse("7 (a) (b c) S 1 7 7 0\n").unwrap();
        assert_eq!(stat.name, "a) (b c");
        assert_eq!(stat.fields[0], "S");
        assert_eq!(stat.number(3), 7);
        assert!(Stat::parse("").is_none());
    }
}
