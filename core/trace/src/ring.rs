//! The newest records of one thread.
//!
//! Why here: a thread writes a record in some nanoseconds, with no lock and no locked instruction,
//! and another reads the ring at any time, also while its writer goes on.
//!
//! The protocol is a sequence lock over the whole ring, whose sequence is the count of records. A
//! writer that overwrites the oldest record has announced all records before, so a reader that
//! counts again after it has read knows which of its records may be mixed, and drops them.
//!
//! Must stay true: one thread writes at a time (a ring is handed on under the registry's lock);
//! any thread reads. A record that a reader keeps is one that was written. Every access is atomic,
//! so that no order of events is a data race.

use crossbeam_utils::CachePadded;
use sidecore_bare::width::{ToU64, ToUsize};
use sidecore_sync::atomic::{AtomicU64, Ordering, fence};

/// Words of a record: when, what, and two arguments.
pub(crate) type Words = [u64; 4];

/// The records of one thread.
#[derive(Debug)]
pub(crate) struct Ring {
    slots: Box<[[AtomicU64; 4]]>,
    /// Records that were written since the ring was made.
    count: CachePadded<AtomicU64>,
}

impl Ring {
    /// An empty ring of `records`, a power of two. Its memory is touched here, not by the writer.
    pub(crate) fn new(records: usize) -> Self {
        debug_assert!(records.is_power_of_two());
        let slots = (0..records).map(|_| std::array::from_fn(|_| AtomicU64::new(0)));
        Self {
            slots: slots.collect(),
            count: CachePadded::new(AtomicU64::new(0)),
        }
    }

    /// Records that were written.
    pub(crate) fn count(&self) -> u64 {
        self.count.load(Ordering::Relaxed)
    }

    /// Writes a record over the oldest one. Only the thread that has the ring.
    #[inline]
    pub(crate) fn push(&self, words: Words) {
        // Relaxed: only this thread writes it.
        let count = self.count.load(Ordering::Relaxed);
        // Release: partner of the Acquire fence in `read`. A reader that sees a word of this
        // record sees the count before it, at least.
        fence(Ordering::Release);
        let place = count.to_usize() & (self.slots.len() - 1);
        for (word, value) in self.slots[place].iter().zip(words) {
            word.store(value, Ordering::Relaxed);
        }
        // Release: partner of the first Acquire in `read`, publishes the record.
        self.count.store(count + 1, Ordering::Release);
    }

    /// Appends the records from number `since` on that are still there, oldest first. Returns how
    /// many of them were lost.
    pub(crate) fn read(&self, since: u64, into: &mut Vec<Words>) -> u64 {
        let room = self.slots.len().to_u64();
        // Acquire: partner of the Release store in `push`.
        let end = self.count.load(Ordering::Acquire);
        let first = since.max(end.saturating_sub(room)).min(end);
        let place = into.len();
        for number in first..end {
            let slot = &self.slots[number.to_usize() & (self.slots.len() - 1)];
            into.push(std::array::from_fn(|word| {
                slot[word].load(Ordering::Relaxed)
            }));
        }
        // Acquire: partner of the Release fence in `push`.
        fence(Ordering::Acquire);
        let now = self.count.load(Ordering::Relaxed);
        // The writer may be at record `now`, which lies where `now - room` lay.
        let whole = (now + 1).saturating_sub(room).clamp(first, end);
        into.drain(place..place + (whole - first).to_usize());
        whole - since.min(whole)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicBool;

    fn words(number: u64) -> Words {
        [number, number * 3, number * 5, number * 7]
    }

    #[test]
    fn the_newest_records_are_kept_and_the_others_counted() {
        let ring = Ring::new(8);
        let mut found = Vec::new();
        assert_eq!(ring.read(0, &mut found), 0);
        assert!(found.is_empty());
        (0..5).for_each(|number| ring.push(words(number)));
        assert_eq!(ring.read(0, &mut found), 0);
        assert_eq!(found, (0..5).map(words).collect::<Vec<_>>());
        (5..100).for_each(|number| ring.push(words(number)));
        found.clear();
        // One less than there are slots: the writer might be at the oldest.
        assert_eq!(ring.read(0, &mut found), 93);
        assert_eq!(found, (93..100).map(words).collect::<Vec<_>>());
        found.clear();
        assert_eq!(ring.read(98, &mut found), 0);
        assert_eq!(found, [words(98), words(99)]);
    }

    #[test]
    fn a_reader_gets_whole_records_in_order_while_the_writer_goes_on() {
        const ROUNDS: u64 = if cfg!(miri) { 20 } else { 2_000 };
        let (ring, ends) = (Ring::new(16), AtomicBool::new(false));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut number = 0;
                while !ends.load(Ordering::Relaxed) {
                    ring.push(words(number));
                    number += 1;
                }
            });
            let mut found = Vec::new();
            while ring.count() == 0 {
                std::thread::yield_now();
            }
            for _ in 0..ROUNDS {
                found.clear();
                let before = ring.count();
                let lost = ring.read(0, &mut found);
                for (place, record) in found.iter().enumerate() {
                    assert_eq!(*record, words(lost + place.to_u64()));
                }
                assert!(lost + found.len().to_u64() >= before);
            }
            ends.store(true, Ordering::Relaxed);
        });
        // How many a reader keeps meanwhile is the scheduler's business; afterwards it is not.
        let mut found = Vec::new();
        let lost = ring.read(0, &mut found);
        assert_eq!(lost + found.len().to_u64(), ring.count());
        assert!(!found.is_empty());
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;
    use loom::sync::Arc;

    /// Every record that a reader keeps is whole, in order, and the newest are among them.
    #[test]
    fn no_record_is_mixed() {
        loom::model(|| {
            let ring = Arc::new(Ring::new(2));
            ring.push([1; 4]);
            let writer = {
                let ring = Arc::clone(&ring);
                loom::thread::spawn(move || {
                    ring.push([2; 4]);
                    ring.push([3; 4]);
                })
            };
            let mut found = Vec::new();
            let lost = ring.read(0, &mut found);
            for (place, record) in found.iter().enumerate() {
                assert_eq!(*record, [lost + 1 + place.to_u64(); 4]);
            }
            writer.join().expect("the writer ends");
            found.clear();
            assert_eq!(ring.read(0, &mut found), 2);
            assert_eq!(found, [[3; 4]]);
        });
    }
}
