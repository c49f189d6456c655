//! Rate limits for drives and network devices: token buckets for bytes and for operations.
//!
//! A device asks [`RateLimiter::take`] before each operation. Where the answer is no, the operation
//! stays where it is (in the guest's ring, in the host's tap) and [`RateLimiter::event`] becomes
//! readable when asking again makes sense: limits delay, they never drop.
//!
//! A limiter is a handle: its clones are the same limiter, so the machine keeps one and changes the
//! limits of a running device with [`RateLimiter::set`].

mod bucket;
mod state;

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
    timerfd_settime,
};
use serde::{Deserialize, Serialize};

pub use bucket::Bucket;
pub use state::RateLimiterState;

use crate::bus::lock;

/// One token bucket. A size or refill time of zero means no limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BucketConfig {
    /// How many tokens it holds, and holds at first: bytes, or operations.
    pub size: u64,
    /// Tokens on top of that, once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub one_time_burst: Option<u64>,
    /// Milliseconds in which an empty bucket fills.
    pub refill_time: u64,
}

/// The limits of one direction of a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RateLimiterConfig {
    /// Bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bandwidth: Option<BucketConfig>,
    /// Operations: requests to a drive, frames.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ops: Option<BucketConfig>,
}

/// New limits for a limiter in use: what is `None` stays as it is.
pub type RateLimiterUpdate = RateLimiterConfig;

/// The limits of one direction of a device, and the time since they were last used up.
#[derive(Clone)]
pub struct RateLimiter(Arc<Inner>);

struct Inner {
    /// There is a limit at all: without one asking costs nothing.
    limited: AtomicBool,
    buckets: Mutex<Buckets>,
    timer: OwnedFd,
    refused: AtomicU64,
}

struct Buckets {
    bandwidth: Option<Bucket>,
    ops: Option<Bucket>,
    /// When the timer runs out, if it runs.
    armed: Option<Instant>,
}

impl RateLimiter {
    /// A limiter as configured; `None` limits nothing.
    pub fn new(config: Option<&RateLimiterConfig>) -> io::Result<Self> {
        let flags = TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC;
        let timer = timerfd_create(TimerfdClockId::Monotonic, flags)?;
        let limiter = Self(Arc::new(Inner {
            limited: AtomicBool::new(false),
            buckets: Mutex::new(Buckets {
                bandwidth: None,
                ops: None,
                armed: None,
            }),
            timer,
            refused: AtomicU64::new(0),
        }));
        if let Some(config) = config {
            limiter.set(config);
        }
        Ok(limiter)
    }

    /// Takes the tokens for one operation of `bytes` bytes. `false`: it has to wait, and
    /// [`Self::event`] tells until when.
    ///
    /// An operation larger than a whole bucket waits for a full one and leaves it in debt, so it is
    /// possible, and not faster than the limit in the long run.
    pub fn take(&self, bytes: u64) -> bool {
        if !self.0.limited.load(Ordering::Relaxed) {
            return true;
        }
        let now = Instant::now();
        let mut buckets = lock(&self.0.buckets);
        let wait = |bucket: &mut Option<Bucket>, n| match bucket {
            Some(bucket) => bucket.wait(n, now),
            None => Duration::ZERO,
        };
        let wait = wait(&mut buckets.bandwidth, bytes).max(wait(&mut buckets.ops, 1));
        if wait.is_zero() {
            if let Some(bucket) = &mut buckets.bandwidth {
                bucket.take(bytes);
            }
            if let Some(bucket) = &mut buckets.ops {
                bucket.take(1);
            }
            return true;
        }
        self.0.refused.fetch_add(1, Ordering::Relaxed);
        // An earlier timer stays: whoever waits for it asks again then.
        let at = now.checked_add(wait);
        if buckets
            .armed
            .is_none_or(|armed| at.is_some_and(|at| at < armed))
        {
            buckets.armed = at;
            self.arm(wait);
        }
        false
    }

    /// Changes the limits. What is `None` stays, a bucket of size zero takes a limit away, and a
    /// new bucket is full. Whoever waits asks again.
    pub fn set(&self, update: &RateLimiterUpdate) {
        let now = Instant::now();
        let mut buckets = lock(&self.0.buckets);
        if let Some(config) = &update.bandwidth {
            buckets.bandwidth = Bucket::new(config, now);
        }
        if let Some(config) = &update.ops {
            buckets.ops = Bucket::new(config, now);
        }
        let limited = buckets.bandwidth.is_some() || buckets.ops.is_some();
        self.0.limited.store(limited, Ordering::Relaxed);
        if buckets.armed.is_some() {
            buckets.armed = Some(now);
            self.arm(Duration::from_nanos(1));
        }
    }

    /// Readable when someone was refused and should ask again.
    pub fn event(&self) -> BorrowedFd<'_> {
        self.0.timer.as_fd()
    }

    /// Whether the event announced something; takes it back if so.
    pub fn take_due(&self) -> bool {
        let mut buckets = lock(&self.0.buckets);
        let due = buckets.armed.is_some_and(|at| at <= Instant::now());
        if due {
            buckets.armed = None;
            self.arm(Duration::ZERO);
        }
        due
    }

    /// Takes back what the event announced, and what it would announce.
    pub fn quiet(&self) {
        let mut buckets = lock(&self.0.buckets);
        if buckets.armed.take().is_some() {
            // Disarming makes it unreadable too.
            self.arm(Duration::ZERO);
        }
    }

    /// How often an operation had to wait.
    pub fn refused(&self) -> u64 {
        self.0.refused.load(Ordering::Relaxed)
    }

    fn arm(&self, after: Duration) {
        let spec = Itimerspec {
            it_interval: Timespec::default(),
            it_value: Timespec {
                tv_sec: i64::try_from(after.as_secs()).unwrap_or(i64::MAX),
                tv_nsec: after.subsec_nanos().into(),
            },
        };
        let _ = timerfd_settime(&self.0.timer, TimerfdTimerFlags::empty(), &spec);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn readable(fd: BorrowedFd, timeout_ms: i64) -> bool {
        let mut fds = [rustix::event::PollFd::from_borrowed_fd(
            fd,
            rustix::event::PollFlags::IN,
        )];
        let timeout = Timespec {
            tv_sec: timeout_ms / 1000,
            tv_nsec: timeout_ms % 1000 * 1_000_000,
        };
        rustix::event::poll(&mut fds, Some(&timeout)).unwrap() == 1
    }

    fn bucket(size: u64, refill_time: u64) -> Option<BucketConfig> {
        Some(BucketConfig {
            size,
            one_time_burst: None,
            refill_time,
        })
    }

    #[test]
    fn without_limits_everything_passes() {
        let limiter = RateLimiter::new(None).unwrap();
        assert!((0..1000).all(|_| limiter.take(u64::MAX)));
        let none = RateLimiterConfig {
            bandwidth: bucket(0, 100),
            ops: bucket(100, 0),
        };
        let limiter = RateLimiter::new(Some(&none)).unwrap();
        assert!((0..1000).all(|_| limiter.take(u64::MAX)));
        assert!(!readable(limiter.event(), 0));
    }

    #[test]
    fn who_was_refused_is_told_when_to_ask_again() {
        let config = RateLimiterConfig {
            bandwidth: bucket(1000, 100),
            ops: None,
        };
        let limiter = RateLimiter::new(Some(&config)).unwrap();
        assert!(limiter.take(1000));
        assert!(!readable(limiter.event(), 0));
        assert!(!limiter.take(500));
        assert!(!readable(limiter.event(), 0));
        assert!(readable(limiter.event(), 5_000));
        limiter.quiet();
        assert!(!readable(limiter.event(), 0));
        assert!(limiter.take(500));
        assert_eq!(limiter.refused(), 1);
    }

    #[test]
    fn an_operation_takes_from_both_buckets_or_from_none() {
        let config = RateLimiterConfig {
            bandwidth: bucket(1 << 40, 3_600_000_000),
            ops: bucket(1, 3_600_000),
        };
        let limiter = RateLimiter::new(Some(&config)).unwrap();
        assert!(limiter.take(1 << 39));
        assert!((0..10).all(|_| !limiter.take(1 << 39)));
        limiter.set(&RateLimiterConfig {
            bandwidth: None,
            ops: bucket(0, 0),
        });
        assert!(readable(limiter.event(), 0), "the waiter is woken");
        assert!(limiter.take(1 << 39));
    }

    #[test]
    fn configuration_reads_as_in_the_api_and_refuses_unknown_fields() {
        let text = r#"{"bandwidth":{"size":10,"one_time_burst":5,"refill_time":100}}"#;
        let config: RateLimiterConfig = serde_json::from_str(text).unwrap();
        assert_eq!(config.bandwidth.unwrap().one_time_burst, Some(5));
        assert_eq!(serde_json::to_string(&config).unwrap(), text);
        let unknown = r#"{"ops":{"size":1,"refill_time":1,"burst":1}}"#;
        assert!(serde_json::from_str::<RateLimiterConfig>(unknown).is_err());
    }
}
