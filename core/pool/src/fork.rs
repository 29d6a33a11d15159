//! Work that divides itself: two halves at once, and sorts made of them.
//!
//! Why here: recursion has no list of items that a loop could deal. Each fork looks for an idle
//! engine at that moment and asks no policy, so a fork that finds none costs one look at the
//! claims. The caller does the first half; the second is done by whichever comes first, the engine
//! that was asked or the caller.
//! Must stay true: a half is taken out of its place once, under its lock. The job is closed, with
//! the engine out of it, before either borrow ends. Code inside an engine waits only for an engine
//! that has begun, never for an idle one, so forks within forks cannot wait for one another.
//! Source: own; the shape of the calls is rayon's.

use crate::claims::Preferred;
use crate::command::Command;
use crate::error::{OffloadError, guarded};
use crate::packet::Driver;
use crate::pool::Pool;
use crate::shared::Claim;
use crate::task;
use parking_lot::Mutex;
use std::cmp::Ordering;

impl Pool {
    /// Runs both, at once where an engine is idle, and returns both results. Pays for halves of
    /// some microseconds or more. Blocks; borrows are as free as in plain code, and calls may be
    /// nested to any depth that the stack allows ([`PoolConfig::stack_bytes`]).
    ///
    /// ```
    /// use sidecore_offload::prelude::*;
    ///
    /// fn sum(pool: &Pool, values: &[u64]) -> Result<u64, OffloadError> {
    ///     if values.len() < 10_000 {
    ///         return Ok(values.iter().sum());
    ///     }
    ///     let (left, right) = values.split_at(values.len() / 2);
    ///     let (left, right) = pool.join(|| sum(pool, left), || sum(pool, right))?;
    ///     Ok(left? + right?)
    /// }
    ///
    /// let pool = Pool::start(PoolConfig::default())?;
    /// let values: Vec<u64> = (1..=100_000).collect();
    /// assert_eq!(sum(&pool, &values)?, 5_000_050_000);
    /// # Ok::<(), OffloadError>(())
    /// ```
    ///
    /// # Errors
    /// [`OffloadError::Panicked`] when one of them panicked; the other one is then finished if it
    /// was begun. [`OffloadError::Cancelled`] in a cancelled task.
    ///
    /// [`PoolConfig::stack_bytes`]: crate::PoolConfig::stack_bytes
    pub fn join<A: Send, B: Send>(
        &self,
        left: impl FnOnce() -> A + Send,
        right: impl FnOnce() -> B + Send,
    ) -> Result<(A, B), OffloadError> {
        if task::count_drives(0) == 0 {
            // Outside the engines: one is needed, as for any other work.
            return self.off_load(|_| self.fork(left, right))?;
        }
        if task::is_cancelled() {
            return Err(OffloadError::Cancelled);
        }
        self.fork(left, right)
    }

    /// [`Self::join`] inside an engine.
    fn fork<A: Send, B: Send>(
        &self,
        left: impl FnOnce() -> A + Send,
        right: impl FnOnce() -> B + Send,
    ) -> Result<(A, B), OffloadError> {
        let shared = self.shared();
        if shared.claims.idle_count() == 0 || shared.has_urgent_waiters() {
            return guarded(|| (left(), right()));
        }
        let mut left = Some(left);
        let right = Mutex::new(Some(right));
        let right_done = Mutex::new(None);
        let do_right = || {
            // A statement of its own: the lock must not be held while the half runs.
            let taken = right.lock().take();
            if let Some(right) = taken {
                let done = guarded(right);
                *right_done.lock() = Some(done);
            }
        };
        let body = |_: &mut Driver| do_right();
        let opened = shared.jobs.with_open(&body, |ticket| {
            let left = left.take()?;
            if let Some(engine) = shared.claims.claim(Preferred::But(shared.near())) {
                Claim { shared, engine }.send_command(Command::Help(ticket));
            }
            let done = guarded(left);
            if done.is_ok() {
                do_right();
            } else {
                // Not begun by the engine yet: then it never is.
                drop(right.lock().take());
            }
            Some(done)
        });
        let Some(left_done) = opened.flatten() else {
            // No slot is free: all here, one after the other.
            let (left, right) = (left.take(), right.into_inner());
            return match left.zip(right) {
                Some((left, right)) => guarded(|| (left(), right())),
                None => unreachable!("without a slot neither half was taken"),
            };
        };
        let left = left_done?;
        match right_done.into_inner() {
            Some(right) => Ok((left, right?)),
            None => unreachable!("the second half is done by its engine or by the caller"),
        }
    }

    /// Sorts a slice and keeps equal items in their order: runs are sorted on the engines, then
    /// merged in pairs. Takes memory for half of the items. Blocks.
    ///
    /// ```
    /// use sidecore_offload::prelude::*;
    ///
    /// let pool = Pool::start(PoolConfig::default())?;
    /// let mut words = ["pear", "fig", "apple", "date"];
    /// pool.par_sort_by_key(&mut words, |word| word.len())?;
    /// assert_eq!(words, ["fig", "pear", "date", "apple"]);
    /// # Ok::<(), OffloadError>(())
    /// ```
    ///
    /// # Errors
    /// As [`Self::join`]. All items are still there then, in some order.
    pub fn par_sort<T: Ord + Send>(&self, items: &mut [T]) -> Result<(), OffloadError> {
        self.par_sort_by(items, T::cmp)
    }

    /// [`Self::par_sort`] by a comparison.
    ///
    /// # Errors
    /// As [`Self::par_sort`].
    pub fn par_sort_by<T: Send>(
        &self,
        items: &mut [T],
        compare: impl Fn(&T, &T) -> Ordering + Sync,
    ) -> Result<(), OffloadError> {
        let sort = |items: &mut [T]| items.sort_by(&compare);
        self.sort_runs(items, &sort, &sort)
    }

    /// [`Self::par_sort`] by a key, which is computed at each comparison.
    ///
    /// # Errors
    /// As [`Self::par_sort`].
    pub fn par_sort_by_key<T: Send, K: Ord>(
        &self,
        items: &mut [T],
        key: impl Fn(&T) -> K + Sync,
    ) -> Result<(), OffloadError> {
        self.par_sort_by(items, |a, b| key(a).cmp(&key(b)))
    }

    /// Sorts a slice without keeping equal items in their order: its runs are sorted in place.
    ///
    /// # Errors
    /// As [`Self::par_sort`].
    pub fn par_sort_unstable<T: Ord + Send>(&self, items: &mut [T]) -> Result<(), OffloadError> {
        self.par_sort_unstable_by(items, T::cmp)
    }

    /// [`Self::par_sort_unstable`] by a comparison.
    ///
    /// # Errors
    /// As [`Self::par_sort`].
    pub fn par_sort_unstable_by<T: Send>(
        &self,
        items: &mut [T],
        compare: impl Fn(&T, &T) -> Ordering + Sync,
    ) -> Result<(), OffloadError> {
        let sort = |items: &mut [T]| items.sort_unstable_by(&compare);
        // The standard library's stable sort finds the two runs and merges them.
        let merge = |items: &mut [T]| items.sort_by(&compare);
        self.sort_runs(items, &sort, &merge)
    }

    /// Sorts as many runs as there are engines by `sort`; `merge` sorts two neighbouring ones.
    fn sort_runs<T: Send>(
        &self,
        items: &mut [T],
        sort: &(impl Fn(&mut [T]) + Sync),
        merge: &(impl Fn(&mut [T]) + Sync),
    ) -> Result<(), OffloadError> {
        let runs = self.engines().next_power_of_two();
        let longest = items.len().div_ceil(runs).max(SORT_RUN_MIN);
        self.off_load(|_| self.sort_halves(items, longest, sort, merge))?
    }

    fn sort_halves<T: Send, S: Fn(&mut [T]) + Sync, M: Fn(&mut [T]) + Sync>(
        &self,
        items: &mut [T],
        longest: usize,
        sort: &S,
        merge: &M,
    ) -> Result<(), OffloadError> {
        if items.len() <= longest {
            sort(items);
            return Ok(());
        }
        // Rounded up: halves of halves are then no longer than a run of equal parts.
        let (left, right) = items.split_at_mut(items.len().div_ceil(2));
        let (left, right) = self.join(
            || self.sort_halves(left, longest, sort, merge),
            || self.sort_halves(right, longest, sort, merge),
        )?;
        left?;
        right?;
        merge(items);
        Ok(())
    }
}

/// Items below which a sort is not divided: some tens of microseconds.
const SORT_RUN_MIN: usize = 2_048;

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::{PoolConfig, TaskOptions, TasksOptions};
    use sidecore_engine::Core;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::{Duration, Instant};

    /// So long a thing that must happen may take.
    const PATIENCE: Duration = Duration::from_secs(120);

    fn pool_with(config: PoolConfig) -> Pool {
        Pool::start(config).expect("a pool")
    }

    /// The last helper may still be on its way out.
    fn wait_until_idle(pool: &Pool) {
        let begun = Instant::now();
        while pool.engines_idle() < pool.engines() {
            assert!(begun.elapsed() < PATIENCE, "an engine never comes back");
            std::thread::sleep(Duration::from_micros(500));
        }
    }

    #[test]
    fn both_halves_are_done_once_at_any_depth() {
        fn leaves(pool: &Pool, from: u64, to: u64) -> Result<u64, OffloadError> {
            if to - from == 1 {
                return Ok(from);
            }
            let middle = from.midpoint(to);
            let (left, right) =
                pool.join(|| leaves(pool, from, middle), || leaves(pool, middle, to))?;
            Ok(left? + right?)
        }
        for (engines, dedicated) in [(1, false), (2, false), (4, false), (2, true)] {
            let pool = pool_with(PoolConfig {
                engines,
                dedicated,
                ..PoolConfig::default()
            });
            for count in [1, 2, 3, 1_000] {
                let sum = leaves(&pool, 0, count).expect("no panic");
                assert_eq!(sum, count * (count - 1) / 2);
            }
            // From several threads at once, and from tasks.
            std::thread::scope(|scope| {
                for _ in 0..4 {
                    scope.spawn(|| assert_eq!(leaves(&pool, 0, 300).expect("no panic"), 44_850));
                }
            });
            let tasks = pool.tasks(TasksOptions::default(), |scope| {
                let spawn = |_| scope.spawn(TaskOptions::default(), |_| leaves(&pool, 0, 300));
                let handles: Vec<_> = (0..8).map(spawn).collect();
                for handle in handles {
                    let sum = handle.join().expect("no panic").expect("no panic");
                    assert_eq!(sum, 44_850);
                }
            });
            tasks.expect("hosts");
            wait_until_idle(&pool);
        }
    }

    #[test]
    fn a_join_uses_two_engines_and_returns_a_panic_of_either() {
        let pool = pool_with(PoolConfig {
            engines: 2,
            ..PoolConfig::default()
        });
        let meet = AtomicUsize::new(0);
        // Each half ends only if the other one was begun.
        let half = || {
            meet.fetch_add(1, Ordering::SeqCst);
            let begun = Instant::now();
            while meet.load(Ordering::SeqCst) < 2 && begun.elapsed() < PATIENCE {
                std::thread::yield_now();
            }
            std::thread::current().id()
        };
        let (left, right) = pool.join(half, half).expect("no panic");
        assert_ne!(left, right);
        let panics = |here: bool| move || assert!(!here, "a half fails on purpose");
        for (left, right) in [(true, false), (false, true), (true, true)] {
            let error = pool.join(panics(left), panics(right));
            let error = error.expect_err("one panicked").to_string();
            assert!(error.contains("fails on purpose"), "{error}");
        }
        wait_until_idle(&pool);
    }

    #[test]
    fn sorts_give_what_the_standard_library_gives() {
        for (engines, dedicated) in [(1, false), (3, false), (2, true)] {
            let pool = pool_with(PoolConfig {
                engines,
                dedicated,
                ..PoolConfig::default()
            });
            for count in [0_u64, 1, 2, 2_049, 50_000] {
                let mixed = (0..count).map(|n| n.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 54);
                let items: Vec<(u64, u64)> = mixed.zip(0..).collect();
                let (mut stable, mut wanted) = (items.clone(), items.clone());
                pool.par_sort_by_key(&mut stable, |item| item.0)
                    .expect("no panic");
                wanted.sort_by_key(|item| item.0);
                assert_eq!(stable, wanted, "equal items keep their order");
                let (mut whole, mut unstable) = (items.clone(), items);
                pool.par_sort(&mut whole).expect("no panic");
                pool.par_sort_unstable(&mut unstable).expect("no panic");
                wanted.sort();
                assert_eq!((&whole, &unstable), (&wanted, &wanted));
                pool.par_sort_unstable_by(&mut unstable, |a, b| b.cmp(a))
                    .expect("no panic");
                assert!(unstable.iter().eq(wanted.iter().rev()));
            }
            let mut items: Vec<u32> = (0..10_000).rev().collect();
            let sorted = pool.par_sort_by(&mut items, |a, b| {
                assert!(*a != 5_000 && *b != 5_000, "an item fails on purpose");
                a.cmp(b)
            });
            sorted.expect_err("a comparison panicked");
            items.sort_unstable();
            assert!(items.into_iter().eq(0..10_000_u32), "no item is lost");
        }
    }

    #[test]
    fn engines_threads_have_the_name_and_the_stack_that_were_asked_for() {
        // More than the 2 MiB that a thread has by default.
        fn deep(left: usize) -> usize {
            let room = std::hint::black_box([1_u8; 64 << 10]);
            match left {
                0 => 0,
                _ => usize::from(room[left]) + deep(left - 1),
            }
        }
        let pool = pool_with(PoolConfig {
            engines: 1,
            dedicated: true,
            name: "codec\0".to_owned(),
            stack_bytes: 32 << 20,
            ..PoolConfig::default()
        });
        let work = |_: &mut Core| {
            let name = std::thread::current().name().map(str::to_owned);
            (name, deep(40))
        };
        let (name, depth) = pool.off_load(work).expect("no panic");
        assert_eq!((name.as_deref(), depth), (Some("codec-0"), 40));
    }
}
