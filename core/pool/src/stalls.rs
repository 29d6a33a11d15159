//! Detects, cheaply, that a thread lost its core.
//!
//! Why here: an engine stands still for milliseconds when another process takes its core, and only
//! the clock shows it. Comparing the clock with the thread's processor time costs a system call, so
//! it is done once a millisecond at most. The time taken is the elapsed time, less the thread's
//! processor time, less its voluntary sleep.
//!
//! Must stay true: only its own thread uses one.

use sidecore_sys::clock;
use std::time::Duration;

/// Time that one thread lost to preemption.
#[derive(Debug)]
pub(crate) struct Stalls {
    looked_cycles: u64,
    looked_ns: u64,
    used_ns: u64,
    slept_ns: u64,
}

impl Stalls {
    pub(crate) fn new() -> Self {
        Self {
            looked_cycles: clock::cycles(),
            looked_ns: clock::now_ns(),
            used_ns: clock::thread_cpu_ns(),
            slept_ns: 0,
        }
    }

    /// Runs `sleep`, whose time does not count as lost.
    pub(crate) fn sleeping<R>(&mut self, sleep: impl FnOnce() -> R) -> R {
        let before_ns = clock::now_ns();
        let result = sleep();
        self.slept_ns += clock::now_ns() - before_ns;
        result
    }

    /// Nanoseconds that the thread lost since the last look, if they amount to a stall. Looks once
    /// a millisecond at most and costs a cycle count otherwise.
    pub(crate) fn look(&mut self) -> Option<u64> {
        let cycles = clock::cycles();
        if cycles.wrapping_sub(self.looked_cycles) < LOOK_EVERY_CYCLES {
            return None;
        }
        let (now_ns, used_ns) = (clock::now_ns(), clock::thread_cpu_ns());
        let lost_ns = lost(
            now_ns - self.looked_ns,
            used_ns - self.used_ns,
            std::mem::take(&mut self.slept_ns),
        );
        self.looked_cycles = cycles;
        self.looked_ns = now_ns;
        self.used_ns = used_ns;
        lost_ns
    }
}

/// Time taken from a thread, given the time that passed, was used and was slept, if it is worth
/// a word.
fn lost(passed_ns: u64, used_ns: u64, slept_ns: u64) -> Option<u64> {
    let lost_ns = passed_ns.saturating_sub(used_ns).saturating_sub(slept_ns);
    (lost_ns > STALL_NS).then_some(lost_ns)
}

/// Shortest time between two looks: about a millisecond, at whatever rate the counter runs.
const LOOK_EVERY_CYCLES: u64 = 1 << 21;
/// Shortest gap that counts; a shorter one is an interrupt.
const STALL_NS: u64 = Duration::from_micros(100).as_nanos() as u64;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_neither_used_nor_slept_was_taken() {
        assert_eq!(lost(1_000_000, 990_000, 0), None);
        assert_eq!(lost(1_000_000, 500_000, 490_000), None);
        assert_eq!(lost(4_000_000, 900_000, 100_000), Some(3_000_000));
        // The two clocks need not agree to the last nanosecond.
        assert_eq!(lost(1_000_000, 1_000_100, 5), None);
    }

    #[test]
    fn a_thread_that_sleeps_of_its_own_will_loses_nothing() {
        let mut stalls = Stalls::new();
        stalls.sleeping(|| std::thread::sleep(Duration::from_millis(20)));
        let slept_ns = stalls.slept_ns;
        assert!(slept_ns >= 20_000_000);
        stalls.look();
        assert_eq!(stalls.slept_ns, 0);
        // A sleep that was not announced is a loss.
        std::thread::sleep(Duration::from_millis(20));
        assert!(stalls.look().is_some_and(|lost_ns| lost_ns >= 10_000_000));
    }
}
