//! Partition of a loop: gives each item of a borrowed slice to exactly one of the engines that
//! share a loop.
//!
//! Every engine has a share: a run of neighbouring items, the first engine's a little larger
//! (`sidecore_sched::Split`). It takes them in chunks of about [`CHUNK_CYCLES`] each, by the
//! measured cost of its items: the first chunk is one item, and towards the end of a share chunks
//! are halved, so that engines end together. An engine that has finished its own share takes items
//! of others' shares in the same way. So an engine that was woken late, or lost its core, simply
//! does fewer. Items are `&mut`, so a kernel's outputs are borrowed, not copied.
//!
//! Why `unsafe` is here: the borrow checker cannot see that the counters hand out every index once.
//! Must stay true: shares are disjoint, and no share's counter returns the same index twice.
#![allow(unsafe_code)]

use sidecore_bare::width::{ToU64, ToUsize};
use sidecore_sched::Split;
use std::marker::PhantomData;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// The most shares: further engines only take items that others left.
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
    /// 64 bits: engines that find a share empty still increment it, but only a few times each.
    next: AtomicU64,
    end: u64,
}

/// One engine's part in a partition.
pub(crate) struct Worker {
    /// Its number among those that joined; the first is 0.
    number: usize,
    /// The share that it takes from now.
    share: usize,
    /// Items of its next chunk, and the least that are worth a look at the others' shares.
    chunk: u64,
    least: u64,
    /// Least number, set by its caller.
    floor: u64,
}

impl Worker {
    /// Sizes the next chunk from the last one: its items and the cycles that they took.
    pub(crate) fn learn(&mut self, items: usize, cycles: u64) {
        let items = items.max(1).to_u64();
        let fitting = |cycles_wanted: u64| cycles_wanted.saturating_mul(items) / cycles.max(1);
        // A first chunk may have been quicker than others will be: grow in steps.
        let most = (items * GROWTH_MAX).max(self.floor);
        self.chunk = fitting(CHUNK_CYCLES).clamp(self.floor, most);
        self.least = fitting(LEAST_CYCLES).clamp(self.floor, self.chunk);
    }
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
                    next: AtomicU64::new(range.start.into()),
                    end: range.end.into(),
                }
            }),
            count: count.to_usize(),
            joined: AtomicU32::new(0),
            taken_over: [AtomicU32::new(0), AtomicU32::new(0)],
            slice: PhantomData,
        }
    }

    /// An engine joins; the first one to do so has the first share. Its chunks have `least` items
    /// or more, but where a share ends.
    pub(crate) fn join(&self, least: u32) -> Worker {
        let number = self.joined.fetch_add(1, Ordering::Relaxed).to_usize();
        Worker {
            number,
            share: number % self.count,
            chunk: least.max(1).into(),
            least: least.max(1).into(),
            floor: least.max(1).into(),
        }
    }

    /// The next chunk for this engine, with the place of its first item; `None` when all are given
    /// out or [`Self::stop`] was called.
    #[expect(
        clippy::mut_from_ref,
        reason = "each item is given out once, to one engine"
    )]
    pub(crate) fn next(&self, worker: &mut Worker) -> Option<(usize, &mut [T])> {
        for _ in 0..self.count {
            let share = &self.shares[worker.share];
            // A look first: counters of shares that are done must not grow without end.
            let left = share.end.saturating_sub(share.next.load(Ordering::Relaxed));
            if left > 0 {
                let wanted = worker.chunk.min((left / 2).max(worker.least));
                // Relaxed: the counter only divides; the job's gate published the items' contents.
                let begin = share.next.fetch_add(wanted, Ordering::Relaxed);
                if begin < share.end {
                    let count = wanted.min(share.end - begin).to_usize();
                    if worker.share != worker.number {
                        let whose = usize::from(worker.number != 0);
                        self.taken_over[whose].fetch_add(count as u32, Ordering::Relaxed);
                    }
                    // SAFETY: shares are disjoint ranges of the slice (`Split::share`; the test
                    // below), `begin..begin + count` lies in this one, and `fetch_add` returned
                    // none of it to another engine: `stop` can only skip items, never repeat one.
                    let chunk = unsafe {
                        std::slice::from_raw_parts_mut(self.first.add(begin.to_usize()), count)
                    };
                    return Some((begin.to_usize(), chunk));
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

/// Time of a chunk: about 10 us, so that its bookkeeping is lost in it.
const CHUNK_CYCLES: u64 = 30_000;

/// Time below which chunks are not halved any further: as long as a line takes to cross a few
/// times.
const LEAST_CYCLES: u64 = 1_500;

/// Most by which a chunk grows beyond the one before.
const GROWTH_MAX: u64 = 16;

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
            order in prop::collection::vec((0usize..40, 0u64..100_000), 0..1_000),
            least in 0u32..50,
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
            let mut workers: Vec<Worker> = (0..40).map(|_| partition.join(least)).collect();
            let mut dealt = 0;
            let deal = |worker: &mut Worker, cycles: u64| {
                let (first, chunk) = partition.next(worker)?;
                worker.learn(chunk.len(), cycles);
                for (at, item) in (first as u32 + 1..).zip(&mut *chunk) {
                    *item += at;
                }
                Some(chunk.len())
            };
            for (engine, cycles) in order {
                dealt += deal(&mut workers[engine], cycles).unwrap_or(0);
            }
            while let Some(count) = deal(&mut workers[0], 1) {
                dealt += count;
            }
            prop_assert_eq!(dealt, len);
            prop_assert!(!partition.has_more());
            prop_assert!(items.iter().copied().eq(1..=len as u32));
        }
    }

    #[test]
    fn a_partition_that_was_stopped_gives_out_no_more() {
        let mut items = [0; 20];
        let partition = LoopPartition::new(&mut items, 3, &Split::default());
        let (mut first, mut second) = (partition.join(1), partition.join(1));
        assert!(partition.next(&mut first).is_some() && partition.next(&mut second).is_some());
        assert!(partition.has_more());
        partition.stop();
        assert!(!partition.has_more());
        assert!(partition.next(&mut first).is_none() && partition.next(&mut second).is_none());
        assert_eq!(partition.taken_over(), (0, 0));
    }

    #[test]
    fn chunks_grow_by_what_items_cost_and_are_halved_at_the_end() {
        let mut items = vec![0_u8; 100_000];
        let partition = LoopPartition::new(&mut items, 1, &Split::default());
        let mut worker = partition.join(1);
        let mut sizes = Vec::new();
        while let Some((_, chunk)) = partition.next(&mut worker) {
            sizes.push(chunk.len());
            // 60 cycles an item.
            worker.learn(chunk.len(), 60 * chunk.len() as u64);
        }
        assert_eq!(sizes[..4], [1, 16, 256, 500]);
        assert!(sizes.len() < 220, "{} chunks", sizes.len());
        assert_eq!(sizes.iter().sum::<usize>(), 100_000);
        let last = &sizes[sizes.len() - 2..];
        assert!(last.iter().all(|&size| size <= 50), "{last:?}");
        // One that turns out to be long is not followed by many.
        worker.learn(500, 500 * 3_000_000);
        assert_eq!((worker.chunk, worker.least), (1, 1));
    }

    #[test]
    fn no_chunk_but_the_last_of_a_share_is_shorter_than_was_asked() {
        let mut items = vec![0_u8; 1_000];
        let partition = LoopPartition::new(&mut items, 1, &Split::default());
        let mut worker = partition.join(30);
        let mut sizes = Vec::new();
        while let Some((_, chunk)) = partition.next(&mut worker) {
            sizes.push(chunk.len());
            // Long ones, of which one would be a chunk.
            worker.learn(chunk.len(), u64::from(u32::MAX));
        }
        assert_eq!(sizes, [vec![30; 33], vec![10]].concat());
    }
}
