//! Partition of a loop: gives each item of a borrowed slice to exactly one of the engines that
//! share a loop.
//!
//! Every engine has a share: a run of neighbouring items, the first engine's a little larger
//! (`sidecore_sched::Split`). Who has done its own takes what is left of others' shares, one item
//! at a time; so an engine that was woken late, or lost its core, simply does fewer. Items are
//! `&mut`, so a kernel's outputs are borrowed, not copied.
//!
//! Why `unsafe` is here: the borrow checker cannot see that the counters hand out every index once.
//! Must stay true: shares are disjoint, and no share's counter returns the same index twice.
#![allow(unsafe_code)]

use sidecore_sched::Split;
use std::marker::PhantomData;
use std::sync::atomic::{AtomicU32, Ordering};

/// The most shares: further engines only take what others left.
const SHARES_MAX: usize = 16;

/// A loop's items, divided among the engines that share it.
pub(crate) struct LoopPartition<'a, T> {
    first: *mut T,
    shares: [Share; SHARES_MAX],
    /// Number of shares in use.
    count: usize,
    /// Engines that have joined.
    joined: AtomicU32,
    /// Items that engines took of others' shares: the first engine, all others.
    taken_over: [AtomicU32; 2],
    slice: PhantomData<&'a mut [T]>,
}

/// A run of items: the next one to hand out, and the end.
struct Share {
    next: AtomicU32,
    end: u32,
}

/// One engine's part in a partition.
pub(crate) struct Worker {
    /// Its number among those that joined; the first is 0.
    number: usize,
    /// The share that it takes from now.
    share: usize,
}

// SAFETY: sharing a `LoopPartition` only lets threads take distinct `&mut T`, which is sending each
// `T`'s borrow to one thread: sound for `T: Send`.
unsafe impl<T: Send> Sync for LoopPartition<'_, T> {}

impl<'a, T> LoopPartition<'a, T> {
    /// A partition among `width` engines. At most 2^32 - 1 items.
    pub(crate) fn new(items: &'a mut [T], width: u32, split: &Split) -> Self {
        let len = u32::try_from(items.len()).unwrap_or(u32::MAX);
        let count = width.clamp(1, SHARES_MAX as u32);
        Self {
            first: items.as_mut_ptr(),
            shares: std::array::from_fn(|index| {
                let range = match (index as u32) < count {
                    true => split.share(len, count, index as u32),
                    false => len..len,
                };
                Share {
                    next: AtomicU32::new(range.start),
                    end: range.end,
                }
            }),
            count: count as usize,
            joined: AtomicU32::new(0),
            taken_over: [AtomicU32::new(0), AtomicU32::new(0)],
            slice: PhantomData,
        }
    }

    /// An engine joins; the first one to do so has the first share.
    pub(crate) fn join(&self) -> Worker {
        let number = self.joined.fetch_add(1, Ordering::Relaxed) as usize;
        Worker {
            number,
            share: number % self.count,
        }
    }

    /// The next item for this engine, or `None` when all are given out or [`Self::stop`] was
    /// called.
    #[expect(
        clippy::mut_from_ref,
        reason = "each item is given out once, to one engine"
    )]
    pub(crate) fn next(&self, worker: &mut Worker) -> Option<&mut T> {
        for _ in 0..self.count {
            let share = &self.shares[worker.share];
            // A look first: counters of shares that are done must not grow without end.
            if share.next.load(Ordering::Relaxed) < share.end {
                // Relaxed: the counter only divides; what an item holds was published by the job's
                // gate.
                let index = share.next.fetch_add(1, Ordering::Relaxed);
                if index < share.end {
                    if worker.share != worker.number {
                        let whose = usize::from(worker.number != 0);
                        self.taken_over[whose].fetch_add(1, Ordering::Relaxed);
                    }
                    // SAFETY: shares are disjoint ranges of the slice (`Split::share`; the test
                    // below), `index` lies in this one, and `fetch_add` returned it to nobody else:
                    // a store of `end` in `stop` can only skip items, never repeat one.
                    return Some(unsafe { &mut *self.first.add(index as usize) });
                }
            }
            worker.share = (worker.share + 1) % self.count;
        }
        None
    }

    /// True while an item is left to give out, at this moment.
    pub(crate) fn has_more(&self) -> bool {
        let has_more = |share: &Share| share.next.load(Ordering::Relaxed) < share.end;
        self.shares[..self.count].iter().any(has_more)
    }

    /// Gives out no more.
    pub(crate) fn stop(&self) {
        for share in &self.shares[..self.count] {
            share.next.fetch_max(share.end, Ordering::Relaxed);
        }
    }

    /// Items that the first engine, and that all others, took of others' shares.
    pub(crate) fn taken_over(&self) -> (u32, u32) {
        let [first, others] = &self.taken_over;
        (
            first.load(Ordering::Relaxed),
            others.load(Ordering::Relaxed),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use sidecore_sched::split::SplitRun;

    proptest! {
        #[test]
        fn every_item_is_dealt_once_in_whatever_order_engines_ask(
            len in 0usize..300,
            width in 1u32..40,
            late_ns in 0f64..1e6,
            order in prop::collection::vec(0usize..40, 0..1_000),
        ) {
            let mut split = Split::default();
            split.learn(&SplitRun {
                units: 100,
                width: 4,
                elapsed_ns: 1e6,
                first_idle_ns: late_ns,
                others_idle_ns: 0.0,
            });
            let mut items = vec![0u32; len];
            let partition = LoopPartition::new(&mut items, width, &split);
            let mut workers: Vec<Worker> = (0..40).map(|_| partition.join()).collect();
            let mut dealt = 0;
            for engine in order {
                if let Some(item) = partition.next(&mut workers[engine]) {
                    *item += 1;
                    dealt += 1;
                }
            }
            while let Some(item) = partition.next(&mut workers[0]) {
                *item += 1;
                dealt += 1;
            }
            prop_assert_eq!(dealt, len);
            prop_assert!(!partition.has_more());
            prop_assert!(items.iter().all(|&count| count == 1));
        }
    }

    #[test]
    fn a_partition_that_was_stopped_gives_out_no_more() {
        let mut items = [0; 20];
        let partition = LoopPartition::new(&mut items, 3, &Split::default());
        let (mut first, mut second) = (partition.join(), partition.join());
        assert!(partition.next(&mut first).is_some() && partition.next(&mut second).is_some());
        assert!(partition.has_more());
        partition.stop();
        assert!(!partition.has_more());
        assert!(partition.next(&mut first).is_none() && partition.next(&mut second).is_none());
        assert_eq!(partition.taken_over(), (0, 0));
    }
}
