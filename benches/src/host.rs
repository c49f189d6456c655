//! The conditions that figures were measured under.

use std::fs;
use std::time::{SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};
use tine::host::HostKind;

/// What runs guest code. Figures of the two say nothing about each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Kind {
    /// The processor's virtualization extensions.
    #[serde(rename = "ordinary KVM")]
    Ordinary,
    /// A KVM without them, which interprets guest kernels.
    #[serde(rename = "software KVM")]
    Software,
}

impl Kind {
    /// What it is called.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Ordinary => "ordinary KVM",
            Kind::Software => "software KVM",
        }
    }

    /// What that means to whoever reads figures.
    pub fn meaning(self) -> &'static str {
        match self {
            Kind::Ordinary => "guest code runs on the processor's virtualization extensions",
            Kind::Software => {
                "the processor has no virtualization extensions here: guest kernels are \
                 interpreted, under every monitor alike"
            }
        }
    }
}

/// What is said of the machine beside its figures.
#[derive(Debug, Serialize, Deserialize)]
pub struct Facts {
    /// When the run started, UTC.
    pub date: String,
    /// What runs guest code.
    pub kind: Kind,
    /// The host's kernel.
    pub kernel: String,
    /// The processor's name.
    pub cpu: String,
    /// Processors this program may use.
    pub cores: usize,
    /// Memory in MiB; 0 where nobody said.
    #[serde(default)]
    pub memory: u64,
    /// Load average over the last minute, at the start.
    pub load: f64,
    /// The same at the end, which has the benchmark's own part in it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub load_after: Option<f64>,
    /// Whether this program, and with it every monitor, has a real-time priority.
    pub real_time: bool,
    /// Whether the benchmark, and so most likely the Tine beside it, is a debug build.
    #[serde(default)]
    pub debug: bool,
}

impl Facts {
    /// Asks the machine. What it does not tell is "unknown": no figure depends on it.
    pub fn gather() -> Self {
        let read = |path| fs::read_to_string(path).unwrap_or_default();
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        Self {
            date: date(now.map_or(0, |since| since.as_secs())),
            kind: match HostKind::detect() {
                HostKind::Hardware => Kind::Ordinary,
                HostKind::Software => Kind::Software,
            },
            kernel: or_unknown(read("/proc/sys/kernel/osrelease").trim()),
            cpu: or_unknown(cpu_name(&read("/proc/cpuinfo"))),
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            memory: memory(&read("/proc/meminfo"), "MemTotal:"),
            load: load(&read("/proc/loadavg")),
            load_after: None,
            real_time: real_time(&read("/proc/self/stat")),
            debug: cfg!(debug_assertions),
        }
    }

    /// Notes how busy the machine is at the end.
    pub fn end(&mut self) {
        let loadavg = fs::read_to_string("/proc/loadavg");
        self.load_after = loadavg.ok().map(|text| load(&text));
    }

    /// What makes figures of this run worth less.
    pub fn warnings(&self) -> Vec<String> {
        let mut warnings = Vec::new();
        if self.load > self.cores as f64 / 2.0 && !self.real_time {
            warnings.push(format!(
                "the machine is busy (load {:.2} on {} cores): expect noise, \
                 or try `chrt --fifo 1 tine-bench`",
                self.load, self.cores
            ));
        }
        if self.debug {
            warnings.push("this is a debug build: the Tine beside it is slow".to_owned());
        }
        warnings
    }
}

impl std::fmt::Display for Facts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "{}, {}, Linux {}, {}, {} cores, load {:.2} at the start",
            self.date,
            self.kind.name(),
            self.kernel,
            self.cpu,
            self.cores,
            self.load
        )?;
        if let Some(load) = self.load_after {
            write!(f, " and {load:.2} at the end")?;
        }
        match self.real_time {
            true => f.write_str(", monitors at real-time priority"),
            false => Ok(()),
        }
    }
}

fn or_unknown(text: &str) -> String {
    if text.is_empty() { "unknown" } else { text }.to_owned()
}

fn cpu_name(cpuinfo: &str) -> &str {
    let line = cpuinfo.lines().find(|line| line.starts_with("model name"));
    line.and_then(|line| line.split_once(':'))
        .map_or("", |(_, name)| name.trim())
}

/// MiB that the line `key` of `/proc/meminfo` tells of.
fn memory(meminfo: &str, key: &str) -> u64 {
    let line = meminfo.lines().find_map(|line| line.strip_prefix(key));
    let kib = line.and_then(|line| line.trim().strip_suffix(" kB")?.parse::<u64>().ok());
    kib.unwrap_or_default() / 1024
}

/// MiB that programs can still have.
pub fn available_memory() -> u64 {
    let meminfo = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    memory(&meminfo, "MemAvailable:")
}

fn load(loadavg: &str) -> f64 {
    let first = loadavg.split_whitespace().next();
    first.and_then(|load| load.parse().ok()).unwrap_or(0.0)
}

/// Reads the scheduling policy, field 41 of proc_pid_stat(5); the second field, the program's
/// name, ends with the last parenthesis.
fn real_time(stat: &str) -> bool {
    let behind_name = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
    let policy = behind_name.split_whitespace().nth(41 - 3);
    // SCHED_FIFO and SCHED_RR, sched(7).
    matches!(policy, Some("1" | "2"))
}

/// Date and time of day of a number of seconds since 1970, as in "2026-11-29 18:03 UTC".
fn date(seconds: u64) -> String {
    let (mut days, second) = (seconds / 86_400, seconds % 86_400);
    let leap =
        |year: u64| year.is_multiple_of(4) && !year.is_multiple_of(100) || year.is_multiple_of(400);
    let mut year = 1970;
    while days >= 365 + u64::from(leap(year)) {
        days -= 365 + u64::from(leap(year));
        year += 1;
    }
    let mut months = [31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
    months[1] += u64::from(leap(year));
    let mut month = 0;
    while days >= months[month] {
        days -= months[month];
        month += 1;
    }
    let (hour, minute) = (second / 3600, second / 60 % 60);
    format!(
        "{year}-{:02}-{:02} {hour:02}:{minute:02} UTC",
        month + 1,
        days + 1
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_those_of_the_calendar() {
        assert_eq!(date(0), "1970-01-01 00:00 UTC");
        assert_eq!(date(951_782_400), "2000-02-29 00:00 UTC");
        assert_eq!(date(1_764_374_399), "2025-11-28 23:59 UTC");
    }

    #[test]
    fn a_real_time_policy_is_seen() {
        let stat = |policy| format!("7 (a) b) S {}{policy} 0 0", "0 ".repeat(37));
        assert!(real_time(&stat(1)) && real_time(&stat(2)));
        assert!(!real_time(&stat(0)) && !real_time("") && !real_time("7 (a"));
    }

    #[test]
    fn odd_files_tell_nothing_and_break_nothing() {
        assert_eq!(
            cpu_name("processor : 0\nmodel name\t: A CPU: fast\n"),
            "A CPU: fast"
        );
        assert_eq!(cpu_name("model name"), "");
        assert_eq!(
            memory("MemTotal:       24 kB\nMemFree: 2048 kB\n", "MemFree:"),
            2
        );
        assert_eq!(memory("MemTotal: lots", "MemTotal:"), 0);
        assert_eq!(load(""), 0.0);
        assert_eq!(load("1.25 0.5 0.1 1/2 3"), 1.25);
    }
}
