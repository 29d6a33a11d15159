//! Adaptive waiting: spin briefly, let others of this core run, then block.
//!
//! Why here: an engine that polls costs a core, one that blocks costs its caller a system call for
//! each wake-up, and one that yields loses milliseconds as soon as a foreign process shares the
//! core (measured: 2-4 ms). A [`Waiter`] holds the policy and what it has learned; a [`Doorbell`]
//! is what is waited on. The protocol, with a picture and the argument that no wake-up is lost, is
//! in `mail/README.md`. Must stay true: who makes a condition true rings afterwards; a waiter looks
//! at the condition after it has said that it will sleep. Any number of threads on either side.

use crate::sync::{AtomicU32, Ordering, Word, fence};
use sidecore_sys::clock;
use std::time::Duration;

/// How long to do what before blocking.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WaitOptions {
    /// How often to look while spinning; each look costs about 40 ns where the processor's pause is
    /// long.
    pub spins: u32,
    /// For how long to go on after that, letting other threads of this core run between looks.
    /// After it the waiter blocks and costs nothing.
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
    /// Blocks at once: for who waits long and must not disturb.
    pub const BLOCK: Self = Self {
        spins: 0,
        grace: Duration::ZERO,
    };
}

/// One waiting side's policy and memory. Cheap to make; may be shared, since what it remembers is
/// only advice.
#[derive(Debug)]
pub struct Waiter {
    options: WaitOptions,
    /// How many of the next waits block at once because yielding was found to be slow.
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

    /// Looks at `condition` without blocking for as long as the policy says. Returns what it gave,
    /// if it did.
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

/// What is rung when a condition may have become true.
#[derive(Debug)]
pub struct Doorbell {
    /// Grows with each ring that found a sleeper.
    rings: Word,
    /// How many threads sleep or are about to.
    sleepers: AtomicU32,
}

impl Default for Doorbell {
    fn default() -> Self {
        Self::new()
    }
}

impl Doorbell {
    /// A doorbell nobody waits at.
    #[must_use]
    pub fn new() -> Self {
        Self {
            rings: Word::new(),
            sleepers: AtomicU32::new(0),
        }
    }

    /// Wakes all who wait, to look at their conditions again. Call it after the condition was made
    /// true. Costs a fence when nobody sleeps, a system call when somebody does.
    #[inline]
    pub fn ring(&self) {
        // Partner: the fence in `block`. Either we see the sleeper, or it sees the condition.
        fence(Ordering::SeqCst);
        if self.sleepers.load(Ordering::Relaxed) != 0 {
            // Release, to the Acquire in `block`: who reads the new count sees the condition too.
            self.rings.advance(Ordering::Release);
            self.rings.wake_all();
        }
    }

    /// Waits until `condition` gives a value, at most until `timeout` (for ever if `None`).
    #[inline]
    pub fn wait<T>(
        &self,
        waiter: &Waiter,
        timeout: Option<Duration>,
        mut condition: impl FnMut() -> Option<T>,
    ) -> Option<T> {
        if let Some(value) = condition() {
            return Some(value);
        }
        let deadline_ns = timeout.map_or(u64::MAX, |timeout| {
            clock::now_ns().saturating_add(nanoseconds(timeout))
        });
        if let Some(value) = waiter.poll(deadline_ns, &mut condition) {
            return Some(value);
        }
        self.block(deadline_ns, condition)
    }

    #[cold]
    fn block<T>(&self, deadline_ns: u64, mut condition: impl FnMut() -> Option<T>) -> Option<T> {
        loop {
            self.sleepers.fetch_add(1, Ordering::Relaxed);
            // Partner: the fence in `ring`.
            fence(Ordering::SeqCst);
            // Acquire, from the Release in `ring`.
            let seen = self.rings.load(Ordering::Acquire);
            let value = condition();
            let left = (deadline_ns != u64::MAX)
                .then(|| Duration::from_nanos(deadline_ns.saturating_sub(clock::now_ns())));
            if value.is_none() && left != Some(Duration::ZERO) {
                self.rings.sleep(seen, left);
            }
            self.sleepers.fetch_sub(1, Ordering::Relaxed);
            if value.is_some() || left == Some(Duration::ZERO) {
                return value;
            }
            if let Some(value) = condition() {
                return Some(value);
            }
        }
    }
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// A yield that takes longer than this has given the core to a process that keeps it: yielding does
/// not pay now.
const SLOW_YIELD_NS: u64 = 300_000;
/// How many waits block at once after such a yield, before yielding is tried again.
const BLOCKS_AFTER_SLOW_YIELD: u32 = 200;

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicBool, AtomicU64};

    #[test]
    fn a_wait_that_nobody_ends_times_out() {
        let bell = Doorbell::new();
        for options in [WaitOptions::default(), WaitOptions::BLOCK] {
            let waiter = Waiter::new(options);
            let none = bell.wait(&waiter, Some(Duration::from_millis(2)), || None::<()>);
            assert_eq!(none, None);
            assert_eq!(bell.sleepers.load(Ordering::Relaxed), 0);
        }
    }

    #[test]
    fn two_threads_hand_a_turn_back_and_forth() {
        let (turn, bell) = (AtomicU64::new(0), Doorbell::new());
        std::thread::scope(|scope| {
            for side in 0..2 {
                let (turn, bell) = (&turn, &bell);
                scope.spawn(move || {
                    let waiter = Waiter::new(WaitOptions::BLOCK);
                    for round in 0..5_000 {
                        let mine = round * 2 + side;
                        let ours = || (turn.load(Ordering::Acquire) == mine).then_some(());
                        bell.wait(&waiter, None, ours);
                        turn.store(mine + 1, Ordering::Release);
                        bell.ring();
                    }
                });
            }
        });
        assert_eq!(turn.into_inner(), 10_000);
    }

    #[test]
    fn an_idle_waiter_costs_no_processor_time() {
        let (stop, bell) = (AtomicBool::new(false), Doorbell::new());
        std::thread::scope(|scope| {
            let idle = scope.spawn(|| {
                let before_ns = clock::thread_cpu_ns();
                bell.wait(&Waiter::default(), None, || {
                    stop.load(Ordering::Acquire).then_some(())
                });
                clock::thread_cpu_ns() - before_ns
            });
            std::thread::sleep(Duration::from_millis(200));
            stop.store(true, Ordering::Release);
            bell.ring();
            let used_ns = idle.join().unwrap();
            assert!(used_ns < 200_000_000 / 10, "{used_ns} ns of 200 ms idle");
        });
    }
}
