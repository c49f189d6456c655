//! The protocol of free page hinting: who is at which run (section 5.5.6.5).
//!
//! The machine starts a run by a new number in the configuration space. The driver repeats the
//! number on its queue, then hints at free blocks, which it keeps from being used, and ends with
//! [`STOP`]. When the machine says [`DONE`] the driver uses the blocks again. So a hint is good
//! only while both are at the same run: what comes later may be in use already.

/// The run has ended; the driver keeps the blocks.
pub(super) const STOP: u32 = 0;
/// The driver may use its blocks again.
pub(super) const DONE: u32 = 1;
const FIRST: u32 = 2;

/// Where a run of free page hinting is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HintingStatus {
    /// What the machine asked for last: 0 to stop, 1 to go on, more is the number of a run.
    pub host_cmd: u32,
    /// What the guest answered last, if it has answered.
    pub guest_cmd: Option<u32>,
}

/// The state of the protocol.
#[derive(Debug)]
pub(super) struct Hinting {
    pub status: HintingStatus,
    /// The run that was started last.
    pub last: u32,
    /// The driver gets its blocks back as soon as it has hinted at all.
    pub acknowledge_on_stop: bool,
}

impl Hinting {
    pub fn new() -> Self {
        Self {
            status: HintingStatus {
                host_cmd: STOP,
                guest_cmd: None,
            },
            last: FIRST - 1,
            acknowledge_on_stop: false,
        }
    }

    /// Starts a run.
    pub fn start(&mut self, acknowledge_on_stop: bool) {
        self.last = self.last.checked_add(1).unwrap_or(FIRST);
        self.status.host_cmd = self.last;
        self.acknowledge_on_stop = acknowledge_on_stop;
    }

    /// Ends the run and gives the driver its blocks back.
    pub fn stop(&mut self) {
        self.status.host_cmd = DONE;
    }

    /// Takes the driver's word; `true` if the configuration space has changed.
    pub fn answered(&mut self, command: u32) -> bool {
        let was_in_run = self.is_in_run();
        self.status.guest_cmd = Some(command);
        let over = command == STOP && was_in_run && self.acknowledge_on_stop;
        if over {
            self.stop();
        }
        over
    }

    /// Whether the numbers are some that the calls above can lead to.
    pub fn is_possible(&self) -> bool {
        let host = self.status.host_cmd;
        self.last >= FIRST - 1 && (host < FIRST || host == self.last)
    }

    /// Whether a hint that comes now is good.
    pub fn is_in_run(&self) -> bool {
        self.status.host_cmd >= FIRST && self.status.guest_cmd == Some(self.status.host_cmd)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hint_is_good_only_while_both_are_at_the_same_run() {
        let mut hinting = Hinting::new();
        assert!(!hinting.is_in_run());
        hinting.answered(STOP);
        hinting.answered(2);
        assert!(!hinting.is_in_run(), "nobody asked");
        hinting.start(true);
        assert!(!hinting.answered(1) && !hinting.is_in_run());
        assert!(!hinting.answered(2) && hinting.is_in_run());
        assert!(hinting.answered(STOP) && !hinting.is_in_run());
        assert_eq!(hinting.status.host_cmd, DONE);
        hinting.start(false);
        assert!(!hinting.is_in_run());
        hinting.answered(3);
        hinting.stop();
        assert!(!hinting.is_in_run(), "too late");
    }

    #[test]
    fn numbers_of_runs_never_mean_anything_else() {
        let mut hinting = Hinting::new();
        hinting.last = u32::MAX - 1;
        hinting.start(false);
        hinting.start(false);
        assert_eq!(hinting.status.host_cmd, FIRST);
    }
}
