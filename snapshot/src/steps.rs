//! The steps of writing, as a place where tests can end the process: what a kill leaves must be
//! nothing, or a whole snapshot. In a program this does nothing.

#[cfg(not(test))]
pub(crate) fn step() {}

#[cfg(test)]
pub(crate) use counted::step;

#[cfg(test)]
pub(crate) mod counted {
    use std::sync::LazyLock;
    use std::sync::atomic::{AtomicU64, Ordering};

    /// At which step to die, from the environment of a test's child process.
    pub(crate) const VARIABLE: &str = "TINE_TEST_DIE_AT_STEP";

    static LAST: LazyLock<Option<u64>> =
        LazyLock::new(|| std::env::var(VARIABLE).ok()?.parse().ok());
    static COUNT: AtomicU64 = AtomicU64::new(0);

    pub(crate) fn step() {
        let count = COUNT.fetch_add(1, Ordering::Relaxed) + 1;
        if *LAST == Some(count) {
            let this = rustix::process::getpid();
            rustix::process::kill_process(this, rustix::process::Signal::KILL).unwrap();
            // Other threads may run on for a moment; this one is not to reach the next step.
            loop {
                std::thread::park();
            }
        }
    }
}
