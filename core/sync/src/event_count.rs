//! Event count: any number of threads sleep until something that they look at has changed.
//!
//! Why here: conditions differ (a word in a mailbox, a buffer of a ring, an idle engine), sleeping
//! for them does not. Must stay true: a notifier makes its change first; a waiter looks at the
//! condition between [`EventCount::prepare`] and [`Prepared::wait`]. README.md has the argument
//! that no wake-up is lost. Any number of threads on either side; no memory is allocated.

use crate::atomic::{AtomicU32, Ordering, spin};
use crate::protocol::{self, Changed};
use crate::word::{Futex, Private, Word};
use sidecore_sys::clock;
use std::time::Duration;

/// Sleepers of one condition, or of several that change together.
///
/// 8 bytes. Notifying costs a fence and a load without waiters, and a system call with one.
#[derive(Debug)]
#[repr(C)]
pub struct EventCount<F = Private> {
    /// Advanced by each notification that found a waiter.
    epoch: Word<F>,
    /// Threads that sleep or are about to.
    waiters: AtomicU32,
}

impl<F: Futex> Default for EventCount<F> {
    fn default() -> Self {
        Self::new()
    }
}

impl<F: Futex> EventCount<F> {
    /// An event count without waiters.
    #[must_use]
    pub fn new() -> Self {
        Self {
            epoch: Word::new(0),
            waiters: AtomicU32::new(0),
        }
    }

    /// Announces that this thread is about to sleep. It must look at its condition now, and then
    /// either [`wait`](Prepared::wait) or drop the returned value.
    pub fn prepare(&self) -> Prepared<'_, F> {
        // Relaxed: published by the fence.
        self.waiters.fetch_add(1, Ordering::Relaxed);
        protocol::announce();
        Prepared {
            events: self,
            // Acquire: partner of the Release in `notify_after`. A thread that reads the new epoch
            // sees the change, too.
            epoch: self.epoch.value().load(Ordering::Acquire),
        }
    }

    /// Wakes every waiter to check its condition. To be called after a change; the proof that it
    /// returns may serve further notifications of the same change.
    #[inline]
    pub fn notify_all(&self) -> Changed {
        let changed = Changed::publish();
        self.notify_after(changed, u32::MAX);
        changed
    }

    /// Wakes one sleeper; all that are only about to sleep look again as well. For changes that one
    /// waiter uses up: a woken waiter that does not use the change notifies the next.
    #[inline]
    pub fn notify_one(&self) -> Changed {
        let changed = Changed::publish();
        self.notify_after(changed, 1);
        changed
    }

    /// Wakes at most `count` sleepers of a change that was published before.
    #[inline]
    pub fn notify_after(&self, _: Changed, count: u32) {
        // Relaxed: the fence in `Changed::publish` orders it after the change.
        if self.waiters.load(Ordering::Relaxed) != 0 {
            self.notify_waiters(count);
        }
    }

    #[cold]
    fn notify_waiters(&self, count: u32) {
        // Release: partner of the Acquire in `prepare`.
        self.epoch.value().fetch_add(1, Ordering::Release);
        self.epoch.wake(count);
    }

    /// True while a thread sleeps or is about to, at this moment.
    #[must_use]
    pub fn has_waiters(&self) -> bool {
        self.waiters.load(Ordering::Relaxed) != 0
    }

    /// Waits until `condition` gives a value, at most for `timeout` (for ever if `None`): looks at
    /// once, then `spins` times with the processor's pause between, then sleeps. `None` where the
    /// time was up.
    #[inline]
    pub fn wait_until<T>(
        &self,
        spins: u32,
        timeout: Option<Duration>,
        mut condition: impl FnMut() -> Option<T>,
    ) -> Option<T> {
        if let Some(value) = condition() {
            return Some(value);
        }
        for _ in 0..spins {
            spin();
            if let Some(value) = condition() {
                return Some(value);
            }
        }
        let deadline_ns = timeout.map_or(u64::MAX, |timeout| {
            let timeout_ns = u64::try_from(timeout.as_nanos()).unwrap_or(u64::MAX);
            clock::now_ns().saturating_add(timeout_ns)
        });
        self.sleep_until(deadline_ns, condition)
    }

    /// Sleeps until `condition` gives a value or `deadline_ns` on [`clock::now_ns`] has come
    /// (`u64::MAX`: never). For callers that have spun in a way of their own.
    #[cold]
    pub fn sleep_until<T>(
        &self,
        deadline_ns: u64,
        mut condition: impl FnMut() -> Option<T>,
    ) -> Option<T> {
        loop {
            let prepared = self.prepare();
            if let Some(value) = condition() {
                return Some(value);
            }
            let left_ns = match deadline_ns {
                u64::MAX => None,
                _ => Some(deadline_ns.saturating_sub(clock::now_ns())),
            };
            if left_ns == Some(0) {
                return None;
            }
            prepared.wait(left_ns.map(Duration::from_nanos));
            if let Some(value) = condition() {
                return Some(value);
            }
        }
    }
}

/// A thread that has announced its sleep. Dropping it cancels the announcement.
#[derive(Debug)]
#[must_use = "look at the condition, then wait or drop this"]
pub struct Prepared<'a, F: Futex = Private> {
    events: &'a EventCount<F>,
    epoch: u32,
}

impl<F: Futex> Prepared<'_, F> {
    /// Sleeps until a notification that came after [`EventCount::prepare`], at most for `timeout`.
    /// May return for no reason.
    pub fn wait(self, timeout: Option<Duration>) {
        self.events.epoch.sleep(self.epoch, timeout);
    }
}

impl<F: Futex> Drop for Prepared<'_, F> {
    fn drop(&mut self) {
        // Relaxed: a count that errs upwards for a moment costs a system call, nothing else.
        self.events.waiters.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicBool, AtomicU64};

    #[test]
    fn a_wait_that_nobody_ends_times_out_and_leaves_nothing_behind() {
        let events = EventCount::<Private>::new();
        for spins in [0, 50] {
            let timeout = Some(Duration::from_millis(2));
            assert_eq!(events.wait_until(spins, timeout, || None::<()>), None);
            assert!(!events.has_waiters());
        }
        let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            events.wait_until(0, None, || -> Option<()> {
                assert!(!events.has_waiters(), "the look after the announcement");
                None
            })
        }));
        assert!(panicked.is_err() && !events.has_waiters());
    }

    #[test]
    fn two_threads_hand_a_turn_back_and_forth() {
        const ROUNDS: u64 = if cfg!(miri) { 10 } else { 5_000 };
        fn rounds<F: Futex>() {
            let (turn, events) = (AtomicU64::new(0), EventCount::<F>::new());
            std::thread::scope(|scope| {
                for side in 0..2 {
                    let (turn, events) = (&turn, &events);
                    scope.spawn(move || {
                        for round in 0..ROUNDS {
                            let mine = round * 2 + side;
                            let ours = || (turn.load(Ordering::Acquire) == mine).then_some(());
                            events.wait_until(0, None, ours);
                            turn.store(mine + 1, Ordering::Release);
                            events.notify_all();
                        }
                    });
                }
            });
            assert_eq!(turn.into_inner(), 2 * ROUNDS);
        }
        rounds::<Private>();
        rounds::<crate::Shared>();
    }

    #[test]
    fn one_of_several_is_woken_for_each_token() {
        const EACH: u64 = if cfg!(miri) { 5 } else { 500 };
        let (tokens, done) = (AtomicU64::new(0), AtomicU64::new(0));
        let events = EventCount::<Private>::new();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..EACH {
                        events.wait_until(0, None, || {
                            let less = |tokens: u64| tokens.checked_sub(1);
                            tokens
                                .fetch_update(Ordering::AcqRel, Ordering::Acquire, less)
                                .ok()
                        });
                        done.fetch_add(1, Ordering::Relaxed);
                    }
                });
            }
            for _ in 0..4 * EACH {
                tokens.fetch_add(1, Ordering::AcqRel);
                events.notify_one();
            }
        });
        assert_eq!(done.into_inner(), 4 * EACH);
    }

    /// Counts looks, not processor time: holds on a machine of any load.
    #[test]
    fn a_sleeper_does_not_look_while_nobody_notifies() {
        let (stop, looks) = (AtomicBool::new(false), AtomicU64::new(0));
        let events = EventCount::<Private>::new();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                events.wait_until(10, None, || {
                    looks.fetch_add(1, Ordering::Relaxed);
                    stop.load(Ordering::Acquire).then_some(())
                })
            });
            while !events.has_waiters() {
                std::thread::yield_now();
            }
            std::thread::sleep(Duration::from_millis(50));
            // 1 at once, 10 spinning, 1 announced; a futex may return for no reason now and then.
            assert!(looks.load(Ordering::Relaxed) <= 20, "{looks:?} looks");
            stop.store(true, Ordering::Release);
            events.notify_all();
        });
    }
}
