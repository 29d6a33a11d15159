//! Loops as iterators: over slices, ranges and chunks, in and out, with `map`, `collect`, `reduce`
//! and the adaptors of `adaptors.rs`.
//!
//! Why here: most loops need no local store; their bodies are one line, and their users know the
//! adaptors of other libraries. A loop's class is its place in the source unless it was named, so
//! measurements of one loop do not affect another.
//! Must stay true: results are in the order of the items, on any engines; a reduction's shape
//! depends on the number of items and the minimum length alone. Callers are any threads or tasks;
//! all ends of a chain block as [`Pool::for_each`] does.
//! Source: own.
//!
//! ```
//! use sidecore_offload::prelude::*;
//!
//! let pool = Pool::start(PoolConfig::default())?;
//! let numbers: Vec<u64> = (0..10_000).collect();
//! let squares: Vec<u64> = pool.par(&numbers).map(|n| n * n).collect()?;
//! let sum = pool.par(&squares).map(|n| *n).reduce(|| 0, |a, b| a + b)?;
//! assert_eq!(sum, 333_283_335_000);
//! // Slices in and out, a minimum length for what is tiny, and a name for what is measured.
//! let mut halves = vec![0.0; numbers.len()];
//! let halving = pool.class("halving");
//! pool.par_mut(&mut halves).class(halving).with_min_len(256).zip(&numbers).for_each(|half, n| {
//!     *half = *n as f64 / 2.0;
//! })?;
//! assert_eq!(halves[7], 3.5);
//! # Ok::<(), OffloadError>(())
//! ```

mod adaptors;

pub use adaptors::{Bridge, Chunks, Enumerate, FilterMap, Map, Zip};

use crate::error::{OffloadError, guarded};
use crate::pool::Pool;
use parking_lot::Mutex;
use sidecore_bare::width::ToUsize;
use sidecore_engine::Core;
use sidecore_sched::ClassId;
use sidecore_sched::policy::CLASSES_MAX;
use std::ops::Range;
use std::panic::Location;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

/// Items of a loop by their places: a slice's, a range's, a slice's chunks, or a function of those.
pub trait Source: Sync {
    /// One of them.
    type Item;

    /// Number of items.
    fn len(&self) -> usize;

    /// True if there is none.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The item at a place below [`Self::len`].
    fn at(&self, place: usize) -> Self::Item;
}

/// A loop that only reads, not yet begun.
#[must_use = "nothing runs before `for_each`, `collect` or `reduce`"]
pub struct Par<'p, S> {
    source: S,
    options: Options<'p>,
}

/// A loop over `&mut` items, not yet begun.
#[must_use = "nothing runs before `for_each`"]
pub struct ParMut<'p, 'a, T> {
    items: &'a mut [T],
    options: Options<'p>,
}

/// A loop over `&mut` items and the items zipped with them, not yet begun.
#[must_use = "nothing runs before `for_each`"]
pub struct ParZip<'p, 'a, T, S> {
    items: &'a mut [T],
    source: S,
    options: Options<'p>,
}

/// A loop over `&mut` chunks of a slice, not yet begun.
#[must_use = "nothing runs before `for_each`"]
pub struct ParChunksMut<'p, 'a, T> {
    items: &'a mut [T],
    chunk_items: usize,
    options: Options<'p>,
}

#[derive(Clone, Copy)]
struct Options<'p> {
    pool: &'p Pool,
    class: ClassId,
    least: u32,
    deadline: Option<Instant>,
    cancelled: Option<&'p AtomicBool>,
}

impl Pool {
    /// A loop over a slice.
    #[track_caller]
    pub fn par<'p, 'a, T: Sync>(&'p self, items: &'a [T]) -> Par<'p, &'a [T]> {
        self.par_of(items)
    }

    /// A loop over a range.
    #[track_caller]
    pub fn par_range(&self, range: Range<usize>) -> Par<'_, Range<usize>> {
        self.par_of(range)
    }

    /// A loop over neighbouring chunks of `chunk_items` items, the last one shorter.
    ///
    /// # Panics
    /// If `chunk_items` is 0.
    #[track_caller]
    pub fn par_chunks<'p, 'a, T: Sync>(
        &'p self,
        items: &'a [T],
        chunk_items: usize,
    ) -> Par<'p, Chunks<'a, T>> {
        assert!(chunk_items > 0, "a chunk of no items");
        self.par_of(Chunks { items, chunk_items })
    }

    /// A loop over items of one's own kind.
    #[track_caller]
    pub fn par_of<S: Source>(&self, source: S) -> Par<'_, S> {
        Par {
            source,
            options: Options::here(self),
        }
    }

    /// A loop that changes the items of a slice.
    #[track_caller]
    pub fn par_mut<'p, 'a, T: Send>(&'p self, items: &'a mut [T]) -> ParMut<'p, 'a, T> {
        ParMut {
            items,
            options: Options::here(self),
        }
    }

    /// A loop that changes neighbouring chunks of `chunk_items` items, the last one shorter.
    /// Allocates a reference for each chunk.
    ///
    /// # Panics
    /// If `chunk_items` is 0.
    #[track_caller]
    pub fn par_chunks_mut<'p, 'a, T: Send>(
        &'p self,
        items: &'a mut [T],
        chunk_items: usize,
    ) -> ParChunksMut<'p, 'a, T> {
        assert!(chunk_items > 0, "a chunk of no items");
        ParChunksMut {
            items,
            chunk_items,
            options: Options::here(self),
        }
    }

    /// The class of this name: the same for the same name, of this pool. The first
    /// 16 names have classes of their own; names beyond share one.
    pub fn class(&self, name: &str) -> ClassId {
        let mut names = self.class_names().lock();
        let known = names.iter().position(|known| known == name);
        let number = known.unwrap_or_else(|| {
            if names.len() < NAMED_CLASSES_MAX {
                names.push(name.to_owned());
            }
            names.len() - 1
        });
        ClassId((FIRST_NAMED + number) as u16)
    }
}

impl<'p> Options<'p> {
    #[track_caller]
    fn here(pool: &'p Pool) -> Self {
        // The address of a caller's `Location` differs from place to place; two that collide by
        // chance are measured together.
        let place = std::ptr::from_ref(Location::caller()).addr() / align_of::<Location<'_>>();
        let mixed = place.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (usize::BITS / 2);
        Self {
            pool,
            class: ClassId((FIRST_BY_PLACE + mixed % BY_PLACE) as u16),
            least: 1,
            deadline: None,
            cancelled: None,
        }
    }

    /// The reason to begin no further chunk, if there is one.
    fn check(&self) -> Result<(), OffloadError> {
        // Relaxed: the flag orders nothing.
        if self
            .cancelled
            .is_some_and(|flag| flag.load(Ordering::Relaxed))
        {
            return Err(OffloadError::Cancelled);
        }
        match self.deadline {
            Some(deadline) if Instant::now() >= deadline => Err(OffloadError::Late),
            _ => Ok(()),
        }
    }

    /// Runs `kernel` on chunks of the items.
    fn run<T: Send>(
        self,
        items: &mut [T],
        kernel: impl Fn(usize, &mut [T]) + Sync,
    ) -> Result<(), OffloadError> {
        self.check()?;
        if self.pool.takes_at_once(self.class, items.len()) {
            return guarded(|| kernel(0, items));
        }
        let stopped = Mutex::new(None);
        let on_engine = |_: &mut Core, first: usize, items: &mut [T]| match self.check() {
            Ok(()) => kernel(first, items),
            // The chunks that are left pass here in no time.
            Err(reason) => *stopped.lock() = Some(reason),
        };
        (self.pool).split(self.class, items, self.least, &on_engine)?;
        stopped.into_inner().map_or(Ok(()), Err)
    }

    /// The parts that `make` gives for chunks of this many places, one behind the other.
    fn gather<R: Send>(
        self,
        count: usize,
        make: impl Fn(Range<usize>) -> Vec<R> + Sync,
    ) -> Result<Vec<R>, OffloadError> {
        let parts = Mutex::new(Vec::new());
        // Takes no memory.
        let mut items = vec![(); count];
        self.run(&mut items, |first, items| {
            let part = make(first..first + items.len());
            parts.lock().push((first, part));
        })?;
        let mut parts = parts.into_inner();
        if let [(_, only)] = &mut parts[..] {
            return Ok(std::mem::take(only));
        }
        parts.sort_unstable_by_key(|(first, _)| *first);
        let mut all = Vec::with_capacity(parts.iter().map(|(_, part)| part.len()).sum());
        parts.into_iter().for_each(|(_, part)| all.extend(part));
        Ok(all)
    }

    /// Combines what `fold` makes of each chunk of this many places: see [`Par::reduce`].
    fn combine<R: Send>(
        self,
        count: usize,
        fold: impl Fn(Range<usize>) -> R + Sync,
        combine: impl Fn(R, R) -> R + Sync,
    ) -> Result<Option<R>, OffloadError> {
        self.check()?;
        let chunk = (self.least.to_usize()).max(count.div_ceil(REDUCE_CHUNKS_MAX));
        let stopped = Mutex::new(None);
        let map = |_: &mut Core, places: Range<usize>| match self.check() {
            Ok(()) => Some(fold(places)),
            Err(reason) => {
                *stopped.lock() = Some(reason);
                None
            }
        };
        let both = |left: Option<R>, right: Option<R>| left.zip(right).map(|(a, b)| combine(a, b));
        let all = (self.pool).reduce(self.class, count, chunk, map, both)?;
        match stopped.into_inner() {
            Some(reason) => Err(reason),
            None => Ok(all.flatten()),
        }
    }
}

/// Methods that all loops have.
macro_rules! options {
    () => {
        /// Measures the loop as one of this class: see [`Pool::class`].
        pub fn class(mut self, class: ClassId) -> Self {
            self.options.class = class;
            self
        }

        /// Hands out no fewer neighbouring items at a time. Rarely needed: the cost of items is
        /// measured, and tiny ones are handed out in chunks of about 10 us.
        pub fn with_min_len(mut self, items: usize) -> Self {
            self.options.least = u32::try_from(items).unwrap_or(u32::MAX).max(1);
            self
        }

        /// Begins no further chunk from this moment on: the loop is then [`OffloadError::Late`],
        /// unless all were begun. A chunk takes about 10 us, or one item.
        pub fn deadline(mut self, deadline: std::time::Instant) -> Self {
            self.options.deadline = Some(deadline);
            self
        }

        /// Begins no further chunk once the flag is set: the loop is then
        /// [`OffloadError::Cancelled`], unless all were begun.
        pub fn cancel_by(mut self, flag: &'p std::sync::atomic::AtomicBool) -> Self {
            self.options.cancelled = Some(flag);
            self
        }
    };
}

use options;

impl<'p, S: Source> Par<'p, S> {
    options!();

    /// Makes something of each item.
    pub fn map<R, F: Fn(S::Item) -> R + Sync>(self, make: F) -> Par<'p, Map<S, F>> {
        Par {
            source: Map {
                source: self.source,
                make,
            },
            options: self.options,
        }
    }

    /// Runs `unit` on every item.
    ///
    /// # Errors
    /// As [`Pool::for_each`].
    pub fn for_each(self, unit: impl Fn(S::Item) + Sync) -> Result<(), OffloadError> {
        let source = &self.source;
        // Takes no memory.
        let mut items = vec![(); source.len()];
        self.options.run(&mut items, |first, items| {
            (first..first + items.len()).for_each(|place| unit(source.at(place)));
        })
    }

    /// All items, in their order. Allocates a vector for each chunk, and the result.
    ///
    /// # Errors
    /// As [`Pool::for_each`].
    pub fn collect<R: From<Vec<S::Item>>>(self) -> Result<R, OffloadError>
    where
        S::Item: Send,
    {
        let source = &self.source;
        let make = |places: Range<usize>| -> Vec<S::Item> {
            places.map(|place| source.at(place)).collect()
        };
        Ok(self.options.gather(source.len(), make)?.into())
    }

    /// Combines all items in a tree whose shape depends on their number and the minimum length
    /// alone, so that the result has the same bits for any number of engines. `identity` is the
    /// result of no items, and is combined with those of each chunk.
    ///
    /// # Errors
    /// As [`Pool::for_each`].
    pub fn reduce(
        self,
        identity: impl Fn() -> S::Item + Sync,
        combine: impl Fn(S::Item, S::Item) -> S::Item + Sync,
    ) -> Result<S::Item, OffloadError>
    where
        S::Item: Send,
    {
        let source = &self.source;
        let fold = |places: Range<usize>| {
            let items = places.map(|place| source.at(place));
            items.fold(identity(), &combine)
        };
        let all = self.options.combine(source.len(), fold, &combine)?;
        Ok(all.unwrap_or_else(&identity))
    }
}

impl<'p, 'a, T: Send> ParMut<'p, 'a, T> {
    options!();

    /// Runs `unit` on every item.
    ///
    /// # Errors
    /// As [`Pool::for_each`].
    pub fn for_each(self, unit: impl Fn(&mut T) + Sync) -> Result<(), OffloadError> {
        let all = |_, items: &mut [T]| items.iter_mut().for_each(&unit);
        self.options.run(self.items, all)
    }

    /// Runs `unit` on every item and its place.
    ///
    /// # Errors
    /// As [`Pool::for_each`].
    pub fn for_each_placed(self, unit: impl Fn(usize, &mut T) + Sync) -> Result<(), OffloadError> {
        self.options.run(self.items, |first, items| {
            let places = first..;
            places
                .zip(items)
                .for_each(|(place, item)| unit(place, item));
        })
    }

    /// Goes through another slice in step with this one, as far as the shorter one reaches.
    pub fn zip<U: Sync>(self, other: &'a [U]) -> ParZip<'p, 'a, T, &'a [U]> {
        let count = self.items.len().min(other.len());
        ParZip {
            items: &mut self.items[..count],
            source: other,
            options: self.options,
        }
    }
}

impl<'p, T: Send, S: Source> ParZip<'p, '_, T, S> {
    options!();

    /// Runs `unit` on every item and the item zipped with it.
    ///
    /// # Errors
    /// As [`Pool::for_each`].
    pub fn for_each(self, unit: impl Fn(&mut T, S::Item) + Sync) -> Result<(), OffloadError> {
        let source = &self.source;
        self.options.run(self.items, |first, items| {
            let places = first..;
            places
                .zip(items)
                .for_each(|(place, item)| unit(item, source.at(place)));
        })
    }
}

impl<'p, T: Send> ParChunksMut<'p, '_, T> {
    options!();

    /// Runs `unit` on every chunk and its place among the chunks.
    ///
    /// # Errors
    /// As [`Pool::for_each`].
    pub fn for_each(self, unit: impl Fn(usize, &mut [T]) + Sync) -> Result<(), OffloadError> {
        let mut chunks: Vec<&mut [T]> = self.items.chunks_mut(self.chunk_items).collect();
        self.options.run(&mut chunks, |first, chunks| {
            let places = first..;
            places
                .zip(chunks)
                .for_each(|(place, chunk)| unit(place, chunk));
        })
    }
}

/// Names that have a class each: see [`Pool::class`].
const NAMED_CLASSES_MAX: usize = 16;

/// Classes below are for numbers of the caller's own.
const FIRST_BY_PLACE: usize = 16;
const FIRST_NAMED: usize = CLASSES_MAX - 1 - NAMED_CLASSES_MAX;
/// Classes of loops without a name.
const BY_PLACE: usize = FIRST_NAMED - FIRST_BY_PLACE;

/// Chunks of a reduction, at most.
const REDUCE_CHUNKS_MAX: usize = 1 << 12;

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::PoolConfig;
    use sidecore_sched::Llp;

    fn pools() -> Vec<Pool> {
        let pool = |engines, dedicated| {
            Pool::start(PoolConfig {
                engines,
                dedicated,
                policy: Box::new(Llp::new(64)),
                ..PoolConfig::default()
            })
        };
        let all = [(1, false), (3, false), (2, true)];
        all.into_iter()
            .map(|(engines, dedicated)| pool(engines, dedicated).expect("a pool"))
            .collect()
    }

    #[test]
    fn results_are_those_of_iterators() {
        for pool in pools() {
            for count in [0, 1, 2, 3, 100, 5_000] {
                let numbers: Vec<u64> = (0..count).collect();
                let wanted: Vec<u64> = numbers.iter().map(|n| n * 3).collect();
                let tripled: Vec<u64> = pool.par(&numbers).map(|n| n * 3).collect().unwrap();
                assert_eq!(tripled, wanted);
                let range = 5..count as usize;
                let places: Vec<usize> = pool.par_range(range.clone()).collect().unwrap();
                assert!(places.into_iter().eq(range));
                let sums: Vec<u64> = (pool.par_chunks(&numbers, 7))
                    .map(|chunk| chunk.iter().sum())
                    .collect()
                    .unwrap();
                assert!(
                    sums.into_iter()
                        .eq(numbers.chunks(7).map(|chunk| chunk.iter().sum::<u64>()))
                );
                let sum = pool
                    .par(&wanted)
                    .map(|n| *n)
                    .with_min_len(9)
                    .reduce(|| 0, |a, b| a + b);
                assert_eq!(sum.unwrap(), wanted.iter().sum::<u64>());

                let mut out = vec![0; count as usize];
                let placed = |place, item: &mut u64| *item = place as u64;
                pool.par_mut(&mut out).for_each_placed(placed).unwrap();
                assert_eq!(out, numbers);
                pool.par_mut(&mut out)
                    .with_min_len(40)
                    .for_each(|n| *n += 1)
                    .unwrap();
                let zip = pool.par_mut(&mut out).zip(&wanted);
                zip.for_each(|out, n| *out += n).unwrap();
                assert!(out.iter().copied().eq((0..count).map(|n| 4 * n + 1)));
                let chunks = pool.par_chunks_mut(&mut out, 11);
                let set = |place, chunk: &mut [u64]| chunk.fill(place as u64);
                chunks.for_each(set).unwrap();
                assert!(out.iter().copied().eq((0..count).map(|n| n / 11)));
            }
        }
    }

    #[test]
    fn a_panic_is_an_error_also_where_nobody_is_asked() {
        for pool in pools() {
            let class = pool.class("short");
            for at in 0..300 {
                let mut items = [0, 1, at];
                let loops = pool.par_mut(&mut items).class(class);
                let result = loops.for_each(|item| assert!(*item != 299, "a bad item"));
                assert_eq!(result.is_err(), at == 299);
            }
        }
    }

    #[test]
    fn a_sum_of_floats_has_the_same_bits_on_any_pool() {
        let values: Vec<f64> = (1..40_000).map(|n| 1.0 / f64::from(n)).collect();
        let sums = pools().into_iter().map(|pool| {
            let sum = pool
                .par(&values)
                .map(|value| *value)
                .reduce(|| 0.0, |a, b| a + b);
            sum.unwrap().to_bits()
        });
        let sums: Vec<u64> = sums.collect();
        assert!(sums.iter().all(|bits| *bits == sums[0]), "{sums:?}");
    }

    #[test]
    fn names_and_places_are_classes() {
        let pool = &pools()[0];
        assert_eq!(pool.class("a"), pool.class("a"));
        assert_ne!(pool.class("a"), pool.class("b"));
        let classes: Vec<_> = (0..100).map(|n| pool.class(&n.to_string())).collect();
        assert!(
            classes
                .iter()
                .all(|class| usize::from(class.0) < CLASSES_MAX - 1)
        );
        assert_eq!(classes[90], classes[99], "beyond the last");
        let of = |range: Par<'_, Range<usize>>| usize::from(range.options.class.0);
        let places = [of(pool.par_range(0..1)), of(pool.par_range(0..1))];
        let by_place = FIRST_BY_PLACE..FIRST_NAMED;
        assert!(
            places.iter().all(|class| by_place.contains(class)),
            "{places:?}"
        );
        let again = || of(pool.par_range(0..1));
        assert_eq!(again(), again());
    }
}
