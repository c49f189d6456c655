//! How long the start took, for a caller that says when it began: a metric, and a line of the log.

use std::sync::atomic::Ordering::Relaxed;

use rustix::time::{ClockId, clock_gettime};
use tine::control::Handle;
use tine::logger::{self, Level};

/// What the one who started this process says of that, in microseconds.
#[derive(Debug, Clone, Copy)]
pub struct Startup {
    /// When this process was started, of the monotonic clock: the start's time becomes a metric.
    pub start_time_us: Option<u64>,
    /// Processor time that this process had used by then.
    pub start_time_cpu_us: Option<u64>,
    /// Processor time of its parent, which counts too.
    pub parent_cpu_time_us: Option<u64>,
}

impl Startup {
    /// The socket can be asked from now on.
    pub fn done(&self, handle: &Handle) {
        if let Some(start) = self.start_time_us {
            let took = now_us(ClockId::Monotonic).saturating_sub(start);
            handle.counters().startup_us.store(took, Relaxed);
            logger::log(Level::Info, format_args!("started in {took} us"));
        }
        if let Some(start) = self.start_time_cpu_us {
            let parent = self.parent_cpu_time_us.unwrap_or_default();
            let used = now_us(ClockId::ProcessCPUTime).saturating_sub(start);
            let used = used.saturating_add(parent);
            handle.counters().startup_cpu_us.store(used, Relaxed);
            logger::log(Level::Info, format_args!("the start used {used} us"));
        }
    }
}

fn now_us(clock: ClockId) -> u64 {
    let now = clock_gettime(clock);
    let seconds = u64::try_from(now.tv_sec).unwrap_or_default();
    seconds * 1_000_000 + u64::try_from(now.tv_nsec).unwrap_or_default() / 1000
}
