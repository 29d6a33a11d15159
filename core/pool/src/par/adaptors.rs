//! Sources of loops, and the loops that keep some of their items or take them from an iterator.
//!
//! Why here: a filter's results have no places before it has run, and an iterator's items have none
//! at all. So these are loops with ends of their own, not sources.
//! Must stay true: results are in the order of the items, but those of an iterator. An iterator is
//! asked under a lock by one engine at a time, and not again once it has ended, or it or an item
//! failed. Any thread or task, as all of `par.rs`.

use super::{Options, Par, Source, options};
use crate::error::{OffloadError, guarded};
use crate::pool::Pool;
use parking_lot::Mutex;
use sidecore_sched::ClassId;
use std::iter::Sum;
use std::ops::Range;

/// A loop over what a function makes of some items, not yet begun: see [`Par::filter_map`].
#[must_use = "nothing runs before `for_each`, `collect`, `count` or `reduce`"]
pub struct FilterMap<'p, S, F> {
    source: S,
    make: F,
    options: Options<'p>,
}

/// A loop over the items of an iterator, not yet begun: see [`Pool::par_bridge`].
#[must_use = "nothing runs before `for_each`"]
pub struct Bridge<'p, I> {
    items: I,
    options: Options<'p>,
}

impl Pool {
    /// A loop over the items of an iterator, which engines take one by one, in no fixed order. The
    /// iterator is asked under a lock, so it must not use the pool itself. For items that take a
    /// microsecond or more each; a slice or a range costs less.
    ///
    /// ```
    /// use sidecore_offload::prelude::*;
    /// use std::sync::atomic::{AtomicUsize, Ordering};
    ///
    /// let pool = Pool::start(PoolConfig::default())?;
    /// let bytes = AtomicUsize::new(0);
    /// let lines = "one\ntwo\nthree".lines();
    /// pool.par_bridge(lines).for_each(|line| {
    ///     bytes.fetch_add(line.len(), Ordering::Relaxed);
    /// })?;
    /// assert_eq!(bytes.into_inner(), 11);
    /// # Ok::<(), OffloadError>(())
    /// ```
    #[track_caller]
    pub fn par_bridge<I: Iterator + Send>(&self, items: I) -> Bridge<'_, I> {
        Bridge {
            items,
            options: Options::here(self),
        }
    }
}

impl<'p, S: Source> Par<'p, S> {
    /// The items for which `keep` is true.
    ///
    /// ```
    /// use sidecore_offload::prelude::*;
    ///
    /// let pool = Pool::start(PoolConfig::default())?;
    /// let even: Vec<usize> = pool.par_range(0..9).filter(|n| n % 2 == 0).collect()?;
    /// assert_eq!(even, [0, 2, 4, 6, 8]);
    /// # Ok::<(), OffloadError>(())
    /// ```
    pub fn filter(
        self,
        keep: impl Fn(&S::Item) -> bool + Sync,
    ) -> FilterMap<'p, S, impl Fn(S::Item) -> Option<S::Item> + Sync> {
        self.filter_map(move |item| keep(&item).then_some(item))
    }

    /// Makes something of some items.
    pub fn filter_map<R, F: Fn(S::Item) -> Option<R> + Sync>(self, make: F) -> FilterMap<'p, S, F> {
        FilterMap {
            source: self.source,
            make,
            options: self.options,
        }
    }

    /// Each item with its place.
    pub fn enumerate(self) -> Par<'p, Enumerate<S>> {
        Par {
            source: Enumerate(self.source),
            options: self.options,
        }
    }

    /// Goes through another source in step with this one, as far as the shorter one reaches.
    pub fn zip<O: Source>(self, other: O) -> Par<'p, Zip<S, O>> {
        Par {
            source: Zip(self.source, other),
            options: self.options,
        }
    }

    /// The sum of all items, added in the tree of [`Self::reduce`].
    ///
    /// # Errors
    /// As [`Pool::for_each`].
    pub fn sum<T: Sum<S::Item> + Sum<T> + Send>(self) -> Result<T, OffloadError> {
        let source = &self.source;
        let fold = |places: Range<usize>| places.map(|place| source.at(place)).sum::<T>();
        let add = |left: T, right: T| [left, right].into_iter().sum::<T>();
        let all = self.options.combine(source.len(), fold, add)?;
        Ok(all.unwrap_or_else(|| std::iter::empty::<T>().sum::<T>()))
    }
}

impl<'p, S: Source, R, F: Fn(S::Item) -> Option<R> + Sync> FilterMap<'p, S, F> {
    options!();

    /// Runs `unit` on everything that was made.
    ///
    /// # Errors
    /// As [`Pool::for_each`].
    pub fn for_each(self, unit: impl Fn(R) + Sync) -> Result<(), OffloadError> {
        let (source, make) = (&self.source, &self.make);
        // Takes no memory.
        let mut items = vec![(); source.len()];
        self.options.run(&mut items, |first, items| {
            let places = first..first + items.len();
            let made = places.filter_map(|place| make(source.at(place)));
            made.for_each(&unit);
        })
    }

    /// Everything that was made, in the order of the items.
    ///
    /// # Errors
    /// As [`Pool::for_each`].
    pub fn collect<V: From<Vec<R>>>(self) -> Result<V, OffloadError>
    where
        R: Send,
    {
        let (source, make) = (&self.source, &self.make);
        let part = |places: Range<usize>| -> Vec<R> {
            let made = places.filter_map(|place| make(source.at(place)));
            made.collect()
        };
        Ok(self.options.gather(source.len(), part)?.into())
    }

    /// Number of things that were made.
    ///
    /// # Errors
    /// As [`Pool::for_each`].
    pub fn count(self) -> Result<usize, OffloadError> {
        let (source, make) = (&self.source, &self.make);
        let count = |places: Range<usize>| {
            let made = places.filter_map(|place| make(source.at(place)));
            made.count()
        };
        let all = (self.options).combine(source.len(), count, |left, right| left + right)?;
        Ok(all.unwrap_or(0))
    }

    /// Combines everything that was made: see [`Par::reduce`].
    ///
    /// # Errors
    /// As [`Pool::for_each`].
    pub fn reduce(
        self,
        identity: impl Fn() -> R + Sync,
        combine: impl Fn(R, R) -> R + Sync,
    ) -> Result<R, OffloadError>
    where
        R: Send,
    {
        let (source, make) = (&self.source, &self.make);
        let fold = |places: Range<usize>| {
            let made = places.filter_map(|place| make(source.at(place)));
            made.fold(identity(), &combine)
        };
        let all = self.options.combine(source.len(), fold, &combine)?;
        Ok(all.unwrap_or_else(&identity))
    }
}

impl<'p, I: Iterator + Send> Bridge<'p, I>
where
    I::Item: Send,
{
    options!();

    /// Runs `unit` on every item. Where one fails, or the loop is stopped, the iterator is not
    /// asked again.
    ///
    /// # Errors
    /// As [`Pool::for_each`].
    pub fn for_each(self, unit: impl Fn(I::Item) + Sync) -> Result<(), OffloadError> {
        let options = self.options;
        // Each engine asks until there is no more: after the end some iterators begin anew.
        let items = Mutex::new(Some(self.items.fuse()));
        let failed = Mutex::new(None);
        let take = || {
            let mut items = items.lock();
            let item = guarded(|| items.as_mut()?.next());
            if item.is_err() {
                // Under the lock still, so that no other engine asks it.
                *items = None;
            }
            item.transpose()
        };
        // Each engine has one place, in which it takes items until there are no more.
        let mut places = vec![(); options.pool.engines()];
        options.run(&mut places, |_, _| {
            while let Some(item) = take() {
                let done = item.and_then(|item| {
                    options.check()?;
                    guarded(|| unit(item))
                });
                if let Err(reason) = done {
                    *items.lock() = None;
                    *failed.lock() = Some(reason);
                }
            }
        })?;
        failed.into_inner().map_or(Ok(()), Err)
    }
}

/// Items with their places: see [`Par::enumerate`].
pub struct Enumerate<S>(S);

/// Items of two sources: see [`Par::zip`].
pub struct Zip<S, O>(S, O);

impl<S: Source> Source for Enumerate<S> {
    type Item = (usize, S::Item);

    fn len(&self) -> usize {
        self.0.len()
    }

    #[inline]
    fn at(&self, place: usize) -> Self::Item {
        (place, self.0.at(place))
    }
}

impl<S: Source, O: Source> Source for Zip<S, O> {
    type Item = (S::Item, O::Item);

    fn len(&self) -> usize {
        self.0.len().min(self.1.len())
    }

    #[inline]
    fn at(&self, place: usize) -> Self::Item {
        (self.0.at(place), self.1.at(place))
    }
}

/// Chunks of a slice: see [`Pool::par_chunks`].
pub struct Chunks<'a, T> {
    pub(super) items: &'a [T],
    pub(super) chunk_items: usize,
}

/// Results of a function of items: see [`Par::map`].
pub struct Map<S, F> {
    pub(super) source: S,
    pub(super) make: F,
}

impl<'a, T: Sync> Source for &'a [T] {
    type Item = &'a T;

    fn len(&self) -> usize {
        (**self).len()
    }

    #[inline]
    fn at(&self, place: usize) -> &'a T {
        &self[place]
    }
}

impl Source for Range<usize> {
    type Item = usize;

    fn len(&self) -> usize {
        self.end.saturating_sub(self.start)
    }

    #[inline]
    fn at(&self, place: usize) -> usize {
        self.start + place
    }
}

impl<'a, T: Sync> Source for Chunks<'a, T> {
    type Item = &'a [T];

    fn len(&self) -> usize {
        self.items.len().div_ceil(self.chunk_items)
    }

    fn at(&self, place: usize) -> &'a [T] {
        let first = place * self.chunk_items;
        &self.items[first..self.items.len().min(first + self.chunk_items)]
    }
}

impl<S: Source, R, F: Fn(S::Item) -> R + Sync> Source for Map<S, F> {
    type Item = R;

    fn len(&self) -> usize {
        self.source.len()
    }

    #[inline]
    fn at(&self, place: usize) -> R {
        (self.make)(self.source.at(place))
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::PoolConfig;
    use sidecore_sched::Llp;
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
    use std::time::{Duration, Instant};

    fn pools() -> Vec<Pool> {
        let pool = |(engines, dedicated)| {
            let pool = Pool::start(PoolConfig {
                engines,
                dedicated,
                policy: Box::new(Llp::new(64)),
                ..PoolConfig::default()
            });
            pool.expect("a pool")
        };
        [(1, false), (3, false), (2, true)].map(pool).into()
    }

    #[test]
    fn adaptors_give_what_iterators_give() {
        for pool in pools() {
            for count in [0, 1, 2, 100, 5_000] {
                let numbers: Vec<usize> = (0..count).map(|n| n * 7 % 1_001).collect();
                let odd = |n: &&usize| **n % 2 == 1;
                let wanted: Vec<&usize> = numbers.iter().filter(odd).collect();
                let kept: Vec<&usize> = pool.par(&numbers).filter(odd).collect().unwrap();
                assert_eq!(kept, wanted);
                assert_eq!(
                    pool.par(&numbers).filter(odd).count().unwrap(),
                    wanted.len()
                );
                let least = (pool.par(&numbers).filter(odd))
                    .reduce(|| &usize::MAX, |a, b| a.min(b))
                    .unwrap();
                assert_eq!(least, wanted.iter().copied().min().unwrap_or(&usize::MAX));
                let seen = AtomicUsize::new(0);
                let note = |n: &usize| {
                    seen.fetch_add(*n, Ordering::Relaxed);
                };
                pool.par(&numbers).filter(odd).for_each(note).unwrap();
                assert_eq!(seen.into_inner(), wanted.into_iter().sum::<usize>());
                let sum: usize = pool.par(&numbers).map(|n| *n).sum().unwrap();
                assert_eq!(sum, numbers.iter().sum::<usize>());
                let sum: usize = pool.par(&numbers).sum().unwrap();
                assert_eq!(sum, numbers.iter().sum::<usize>());

                let pairs = pool.par(&numbers).enumerate().zip(3..count);
                let pairs: Vec<((usize, &usize), usize)> = pairs.collect().unwrap();
                assert!(
                    pairs
                        .into_iter()
                        .eq(numbers.iter().enumerate().zip(3..count))
                );
            }
        }
    }

    #[test]
    fn an_iterators_items_are_taken_once_each_until_one_fails() {
        for pool in pools() {
            let seen: Vec<AtomicUsize> = (0..2_000).map(|_| AtomicUsize::new(0)).collect();
            let mut left = 0..seen.len();
            let items = std::iter::from_fn(|| left.next());
            let note = |item: usize| {
                seen[item].fetch_add(1, Ordering::Relaxed);
            };
            pool.par_bridge(items).for_each(note).unwrap();
            assert!(seen.iter().all(|times| times.load(Ordering::Relaxed) == 1));

            let asked = AtomicUsize::new(0);
            let endless = std::iter::repeat_with(|| asked.fetch_add(1, Ordering::Relaxed));
            let error = pool
                .par_bridge(endless)
                .for_each(|item| assert_ne!(item, 100, "the end"));
            assert!(error.unwrap_err().to_string().contains("the end"));
            assert!(asked.into_inner() > 100);

            // One that begins anew after its end, and one that fails itself.
            let (mut calls, done) = (0_usize, AtomicUsize::new(0));
            let anew = std::iter::from_fn(|| {
                calls += 1;
                (!calls.is_multiple_of(6)).then_some(calls)
            });
            let note = |_: usize| {
                done.fetch_add(1, Ordering::Relaxed);
            };
            pool.par_bridge(anew).for_each(note).unwrap();
            assert_eq!(done.into_inner(), 5);
            let asked = AtomicUsize::new(0);
            let fails = std::iter::repeat_with(|| {
                let item = asked.fetch_add(1, Ordering::Relaxed);
                assert_ne!(item, 7, "no item");
                item
            });
            let error = pool.par_bridge(fails).for_each(|_| {});
            assert!(error.unwrap_err().to_string().contains("no item"));
            assert_eq!(asked.into_inner(), 8);
        }
    }

    #[test]
    fn a_loop_begins_nothing_after_its_deadline_or_its_flag() {
        for pool in pools() {
            let past = Instant::now();
            let done = AtomicUsize::new(0);
            let note = |_: usize| {
                done.fetch_add(1, Ordering::Relaxed);
            };
            let late = pool.par_range(0..9).deadline(past).for_each(note);
            assert!(matches!(late, Err(OffloadError::Late)), "{late:?}");
            let late = pool.par_range(0..9).deadline(past).sum::<usize>();
            assert!(matches!(late, Err(OffloadError::Late)), "{late:?}");
            let late = pool.par_bridge(0..9_usize).deadline(past).for_each(note);
            assert!(matches!(late, Err(OffloadError::Late)), "{late:?}");
            assert_eq!(done.load(Ordering::Relaxed), 0);
            let soon = Instant::now() + Duration::from_millis(20);
            let endless = pool.par_bridge(0_usize..).deadline(soon).for_each(note);
            assert!(matches!(endless, Err(OffloadError::Late)), "{endless:?}");
            let far = Instant::now() + Duration::from_secs(600);
            pool.par_range(0..9).deadline(far).for_each(note).unwrap();

            // One that is stopped from within, at its tenth item. It has a class of its own: by
            // its place it might share that of a loop of tiny items, and get these in chunks.
            let own = pool.class("stopped");
            let (flag, done) = (AtomicBool::new(false), AtomicUsize::new(0));
            let stop = |_: usize| {
                let before = done.fetch_add(1, Ordering::Relaxed);
                flag.fetch_or(before == 9, Ordering::Relaxed);
                std::thread::sleep(Duration::from_micros(50));
            };
            let stopped = pool.par_range(0..100_000).class(own).cancel_by(&flag);
            let stopped = stopped.for_each(stop);
            assert!(
                matches!(stopped, Err(OffloadError::Cancelled)),
                "{stopped:?}"
            );
            let done = done.into_inner();
            assert!((10..1_000).contains(&done), "{done} items");
            let again = pool
                .par_range(0..9)
                .cancel_by(&flag)
                .collect::<Vec<usize>>();
            assert!(matches!(again, Err(OffloadError::Cancelled)), "{again:?}");
        }
    }
}
