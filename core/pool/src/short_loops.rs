//! Bypass of the policy for loops that are shorter than a call of the policy.
//!
//! Why here: a call of the policy takes longer than a loop of a few tens of nanoseconds. `RUN`
//! consecutive calls of a class with about as many units, each on the caller's core and over within
//! a few microseconds, start the bypass. The next `LEFT` calls run there without the policy and
//! without measurement; then one is measured again.
//! Must stay true: one longer call ends the bypass for as many measured calls as it took to begin.
//! So a class with long calls among short ones is measured all the time. Any thread; counts of two
//! threads at once may be lost, which moves a bound a little. Source: own.

use sidecore_bare::width::ToUsize;
use sidecore_sched::ClassId;
use sidecore_sched::policy::CLASSES_MAX;
use std::sync::atomic::{AtomicU32, Ordering};

/// Runs of short calls, by class and power of two of units.
pub(crate) struct ShortLoops(Box<[AtomicU32]>);

impl Default for ShortLoops {
    fn default() -> Self {
        let words = (0..CLASSES_MAX * BUCKETS).map(|_| AtomicU32::new(0));
        Self(words.collect())
    }
}

impl ShortLoops {
    /// True if a call of this many units is to be run at once, on this core.
    #[inline]
    pub(crate) fn take(&self, class: ClassId, units: usize) -> bool {
        let Some(word) = self.word(class, units) else {
            return false;
        };
        // Relaxed, and not one operation: these are counts alone, and lost ones do not matter.
        let seen = word.load(Ordering::Relaxed);
        let is_left = seen & LEFT_MASK != 0;
        if is_left {
            word.store(seen - 1, Ordering::Relaxed);
        }
        is_left
    }

    /// True if calls of this length are run at once when there are many.
    pub(crate) fn are(elapsed_ns: u64) -> bool {
        elapsed_ns < SHORT_NS
    }

    /// A measured call has ended; `here`: one core did all of it, the caller's.
    pub(crate) fn note(&self, class: ClassId, units: u32, here: bool, elapsed_ns: u64) {
        let Some(word) = self.word(class, units.to_usize()) else {
            return;
        };
        let run = match here && Self::are(elapsed_ns) {
            true => (word.load(Ordering::Relaxed) / RUN_ONE + 1).min(RUN),
            false => 0,
        };
        let left = if run == RUN { LEFT } else { 0 };
        word.store(run * RUN_ONE + left, Ordering::Relaxed);
    }

    #[inline]
    fn word(&self, class: ClassId, units: usize) -> Option<&AtomicU32> {
        let bucket = units.checked_ilog2()?.to_usize();
        let is_few = bucket < BUCKETS;
        is_few.then(|| &self.0[class.index() * BUCKETS + bucket])
    }
}

/// Powers of two of units: more than that take longer.
const BUCKETS: usize = 12;

/// Time of a call that is short.
const SHORT_NS: u64 = 4_000;

/// Short calls in a row that it takes, and calls that are then run at once.
const RUN: u32 = 64;
const LEFT: u32 = 64;

/// A word: the run above, the calls left below.
const LEFT_MASK: u32 = 0xffff;
const RUN_ONE: u32 = LEFT_MASK + 1;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_of_short_calls_is_followed_by_some_that_nobody_asks_about() {
        let (short_loops, class) = (ShortLoops::default(), ClassId(3));
        for _ in 0..RUN {
            assert!(!short_loops.take(class, 9));
            short_loops.note(class, 9, true, 100);
        }
        let taken = |units| {
            (0..1_000)
                .take_while(|_| short_loops.take(class, units))
                .count()
        };
        assert_eq!(taken(16), 0, "others than about as many");
        assert_eq!(taken(15), LEFT as usize);
        short_loops.note(class, 8, true, 100);
        assert_eq!(taken(8), LEFT as usize, "one that is measured, between");
        // One that is long, or that was split, begins a new run.
        for (here, elapsed_ns) in [(true, SHORT_NS), (false, 100)] {
            short_loops.note(class, 8, here, elapsed_ns);
            for _ in 1..RUN {
                short_loops.note(class, 8, true, 100);
                assert_eq!(taken(8), 0);
            }
            short_loops.note(class, 8, true, 100);
            assert_eq!(taken(8), LEFT as usize);
        }
        assert!(!short_loops.take(class, 0) && !short_loops.take(class, usize::MAX));
        assert!(!short_loops.take(ClassId(4), 9));
    }
}
