//! The sleep/wake protocol for one sleeper, in one word of any memory.
//!
//! Why here: between processes a side sleeps on a word of a wire format (0 awake, 1 asleep), and a
//! host thread of tasks has one word for all conditions of its tasks. One sleeper needs no epoch:
//! only the sleeper sets the word, so a waker that clears it cannot be overtaken.
//!
//! Must stay true: one thread at a time sleeps at a word. A waker clears the word first, so a
//! sleeper that is not quite asleep does not fall asleep. A hostile other side can make a sleeper
//! sleep to its timeout or wake for nothing, no more. README.md.
#![cfg_attr(not(loom), allow(unsafe_code))] // Says that the word may lie over shared memory.

use crate::atomic::{AtomicU32, Ordering};
use crate::protocol::{self, Changed};
use crate::word::{Futex, Private, Word};
use std::time::Duration;

/// Values of the word: part of the wire formats that hold one.
const AWAKE: u32 = 0;
const ASLEEP: u32 = 1;

/// State of one sleeper: awake, or asleep (or about to be).
#[derive(Debug)]
#[cfg_attr(not(loom), repr(transparent))]
pub struct SleepWord<F = Private>(Word<F>);

impl<F: Futex> Default for SleepWord<F> {
    fn default() -> Self {
        Self::new()
    }
}

impl<F: Futex> SleepWord<F> {
    /// The value that sleepers of this word expect in it: for threads that sleep on several words
    /// at once.
    pub const ASLEEP: u32 = ASLEEP;

    /// A word whose sleeper is awake.
    #[must_use]
    pub fn new() -> Self {
        Self(Word::new(AWAKE))
    }

    /// Sleeper: announces that it is about to sleep. It looks at its condition next, then calls
    /// [`Self::sleep`] or not, then [`Self::cancel_sleep`].
    #[inline]
    pub fn announce_sleep(&self) {
        Self::announce_sleep_at([self]);
    }

    /// Sleeper: announces itself at several words, with one fence.
    #[inline]
    pub fn announce_sleep_at<'a>(words: impl IntoIterator<Item = &'a Self>)
    where
        F: 'a,
    {
        for word in words {
            // A read-modify-write, as the wakers' are, so that it has its place among theirs.
            word.0.value().swap(ASLEEP, Ordering::Relaxed);
        }
        protocol::announce();
    }

    /// Sleeper: sleeps until woken, at most for `timeout`. May return for no reason.
    pub fn sleep(&self, timeout: Option<Duration>) {
        self.0.sleep(ASLEEP, timeout);
    }

    /// Sleeper: marks itself awake.
    #[inline]
    pub fn cancel_sleep(&self) {
        // Acquire: partner of the AcqRel in `claim_after`; a woken thread sees all writes before
        // the wake-up.
        self.0.value().swap(AWAKE, Ordering::Acquire);
    }

    /// Sleeper: sleeps until woken, at most for `timeout`, unless `is_ready` then.
    pub fn sleep_unless(&self, timeout: Option<Duration>, is_ready: impl FnOnce() -> bool) {
        self.announce_sleep();
        if !is_ready() {
            self.sleep(timeout);
        }
        self.cancel_sleep();
    }

    /// Waker: wakes the sleeper if it sleeps or is about to; true if it did. To be called after the
    /// change. Costs a fence, and a system call if the other side sleeps.
    #[inline]
    pub fn notify(&self) -> bool {
        self.notify_after(Changed::publish())
    }

    /// Waker: as [`Self::notify`], for a change that was published before.
    #[inline]
    pub fn notify_after(&self, changed: Changed) -> bool {
        let asleep = self.claim_after(changed);
        if asleep {
            self.0.wake(1);
        }
        asleep
    }

    /// Waker: takes it upon itself to wake the sleeper, where that sleeps in something else than a
    /// futex; true if it must be woken.
    #[inline]
    #[must_use = "the sleeper counts on being woken"]
    pub fn claim_after(&self, _: Changed) -> bool {
        // Relaxed: the fence in `Changed::publish` orders it after the change. A look first, so
        // that the line stays shared while the sleeper is awake.
        self.0.value().load(Ordering::Relaxed) == ASLEEP
            && self.0.value().swap(AWAKE, Ordering::AcqRel) == ASLEEP
    }

    /// The underlying word, for sleeping on several at once.
    #[must_use]
    pub fn as_atomic(&self) -> &AtomicU32 {
        self.0.value()
    }
}

// SAFETY: transparent over one atomic of the standard library; any bits are valid.
#[cfg(not(loom))]
unsafe impl<F: Futex> sidecore_sys::Overlay for SleepWord<F> {}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::Shared;
    use sidecore_sys::{SharedMap, Sharing};
    use std::sync::atomic::AtomicU32;

    #[test]
    fn only_a_sleeper_is_woken_and_only_once() {
        let word = SleepWord::<Private>::new();
        assert!(!word.notify());
        word.announce_sleep();
        assert!(word.notify() && !word.notify());
        // Cleared already, so it does not fall asleep, whatever its timeout.
        word.sleep(None);
        word.cancel_sleep();
        word.sleep_unless(None, || true);
        word.sleep_unless(Some(Duration::from_millis(1)), || false);
        assert!(!word.notify());
    }

    #[test]
    #[cfg_attr(miri, ignore = "Miri maps no files")]
    fn a_sleeper_of_another_mapping_is_woken() {
        let map = SharedMap::create("test", 4096, Sharing::ReadWrite).unwrap();
        let file = map.file().try_clone_to_owned().unwrap();
        let other = SharedMap::open(file, 4096, Sharing::ReadWrite).unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let word: &SleepWord<Shared> = map.slice().overlay(128).unwrap();
                let turn: &AtomicU32 = map.slice().overlay(0).unwrap();
                for round in 1..=1_000 {
                    while turn.load(Ordering::Acquire) != round {
                        let is_ready = || turn.load(Ordering::Acquire) == round;
                        word.sleep_unless(None, is_ready);
                    }
                    turn.store(0, Ordering::Release);
                }
            });
            let word: &SleepWord<Shared> = other.slice().overlay(128).unwrap();
            let turn: &AtomicU32 = other.slice().overlay(0).unwrap();
            for round in 1..=1_000 {
                turn.store(round, Ordering::Release);
                word.notify();
                while turn.load(Ordering::Acquire) != 0 {
                    std::thread::yield_now();
                }
            }
        });
    }
}
