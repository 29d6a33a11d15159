//! Adaptive waiting: spin briefly, let others of this core run, then block.
//!
//! Why here: an engine that polls costs a core. One that blocks costs its caller a system call for
//! each wake-up. One that yields loses milliseconds as soon as a foreign process shares the core
//! (measured: 2-4 ms). A [`Waiter`] holds the policy and its history; it waits on an [`EventCount`]
//! (the protocol is in this crate's README). Must stay true: a thread that makes a
//! condition true notifies afterwards. Any number of threads on either side.

use crate::EventCount;
use sidecore_sys::clock;
use std::time::Duration;

/// Polling that precedes blocking.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WaitOptions {
    /// Number of polls while spinning; each takes about 40 ns on processors with a long pause.
    pub spins: u32,
    /// Time for which to go on polling after that, yielding the core between polls. After it the
    /// waiter blocks and costs nothing.
    pub grace: Duration,
}

impl Default for WaitOptions {
    fn default() -> Self {
        Self {
            spins: 100,
            grace: Duration::from_micros(50),
        }
    }
}

impl WaitOptions {
    /// Blocks at once: for long waits that must not disturb others.
    pub const BLOCK: Self = Self {
        spins: 0,
        grace: Duration::ZERO,
    };
}

/// One waiting side's policy and history. Cheap to make; may be shared, since the history is only
/// advice.
#[derive(Debug)]
pub struct Waiter {
    options: WaitOptions,
    /// Number of next waits that block at once because yielding was found to be slow.
    blocks_left: std::sync::atomic::AtomicU32,
}

impl Default for Waiter {
    fn default() -> Self {
        Self::new(WaitOptions::default())
    }
}

impl Waiter {
    /// A waiter with this policy.
    #[must_use]
    pub fn new(options: WaitOptions) -> Self {
        Self {
            options,
            blocks_left: std::sync::atomic::AtomicU32::new(0),
        }
    }

    /// Its policy.
    #[must_use]
    pub fn options(&self) -> WaitOptions {
        self.options
    }

    /// Waits at `events` until `condition` gives a value, at most for `timeout` (for ever if
    /// `None`). Blocks, once the policy's polling is over.
    #[inline]
    pub fn wait<T>(
        &self,
        events: &EventCount,
        timeout: Option<Duration>,
        mut condition: impl FnMut() -> Option<T>,
    ) -> Option<T> {
        if let Some(value) = condition() {
            return Some(value);
        }
        let deadline_ns = timeout.map_or(u64::MAX, |timeout| {
            clock::now_ns().saturating_add(nanoseconds(timeout))
        });
        if let Some(value) = self.poll(deadline_ns, &mut condition) {
            return Some(value);
        }
        events.sleep_until(deadline_ns, condition)
    }

    /// Polls `condition` without blocking within the policy's limit. Returns its value, if it gave
    /// one.
    fn poll<T>(&self, deadline_ns: u64, condition: &mut impl FnMut() -> Option<T>) -> Option<T> {
        use std::sync::atomic::Ordering::Relaxed; // Advice: no memory hangs on it.
        let left = self.blocks_left.load(Relaxed);
        if left > 0 {
            self.blocks_left.store(left - 1, Relaxed);
            return None;
        }
        for _ in 0..self.options.spins {
            std::hint::spin_loop();
            if let Some(value) = condition() {
                return Some(value);
            }
        }
        let grace_ns = nanoseconds(self.options.grace);
        let begun_ns = if grace_ns > 0 { clock::now_ns() } else { 0 };
        let end_ns = begun_ns.saturating_add(grace_ns).min(deadline_ns);
        let mut before_ns = begun_ns;
        while before_ns < end_ns {
            std::thread::yield_now();
            if let Some(value) = condition() {
                return Some(value);
            }
            let after_ns = clock::now_ns();
            if after_ns - before_ns > SLOW_YIELD_NS {
                self.blocks_left.store(BLOCKS_AFTER_SLOW_YIELD, Relaxed);
                break;
            }
            before_ns = after_ns;
        }
        None
    }
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// A yield that takes longer than this has given the core to a process that keeps it: yielding does
/// not pay now.
const SLOW_YIELD_NS: u64 = 300_000;
/// Waits that block at once after such a yield, before yielding is tried again.
const BLOCKS_AFTER_SLOW_YIELD: u32 = 200;

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

    #[test]
    fn a_wait_that_nobody_ends_times_out() {
        let events = EventCount::new();
        for options in [WaitOptions::default(), WaitOptions::BLOCK] {
            let waiter = Waiter::new(options);
            let none = waiter.wait(&events, Some(Duration::from_millis(2)), || None::<()>);
            assert_eq!(none, None);
            assert!(!events.has_waiters());
        }
    }

    /// Counts looks, not processor time, so that the machine's load does not matter. A waiter that
    /// polls on would look millions of times; one that sleeps looks no more.
    #[test]
    fn an_idle_waiter_sleeps() {
        let (stop, looks) = (AtomicBool::new(false), AtomicU64::new(0));
        let events = EventCount::new();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                Waiter::default().wait(&events, None, || {
                    looks.fetch_add(1, Ordering::Relaxed);
                    stop.load(Ordering::Acquire).then_some(())
                });
            });
            while !events.has_waiters() {
                std::thread::yield_now();
            }
            let before = looks.load(Ordering::Relaxed);
            std::thread::sleep(Duration::from_millis(50));
            // One after its announcement; a futex may return for no reason now and then.
            let more = looks.load(Ordering::Relaxed) - before;
            assert!(more <= 10, "{more} looks in 50 ms of sleep");
            stop.store(true, Ordering::Release);
            events.notify_all();
        });
    }
}
