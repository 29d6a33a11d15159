//! Ranges of grains that are being written: those that overlap take turns.
//!
//! Why here: a write of a part of a grain reads the rest first; of two at once, one would be lost.
//! Must stay true: a range is held by one writer until its guard is dropped; each writer holds one
//! range.

use parking_lot::{Condvar, Mutex};
use std::ops::Range;

/// Ranges in use.
#[derive(Default)]
pub(super) struct Ranges {
    held: Mutex<Vec<Range<u64>>>,
    freed: Condvar,
}

/// A range in use.
pub(super) struct Held<'r> {
    ranges: &'r Ranges,
    range: Range<u64>,
}

impl Ranges {
    /// Takes `range`; waits for the holders of overlapping ranges.
    pub(super) fn hold(&self, range: Range<u64>) -> Held<'_> {
        let mut held = self.held.lock();
        while held
            .iter()
            .any(|it| it.start < range.end && range.start < it.end)
        {
            self.freed.wait(&mut held);
        }
        held.push(range.clone());
        Held {
            ranges: self,
            range,
        }
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        let mut held = self.ranges.held.lock();
        if let Some(at) = held.iter().position(|it| *it == self.range) {
            held.swap_remove(at);
        }
        drop(held);
        self.ranges.freed.notify_all();
    }
}
