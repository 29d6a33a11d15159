//! Loops with a reduction whose result has the same bits for any number of engines.
//!
//! The units are cut in chunks of a size that the caller gives. Each chunk is mapped to a value in
//! one go, and the values are combined in a tree whose shape depends only on the number of chunks.
//! A node of level `l` stands for `2^l` neighbouring chunks, the earlier half on the left; a node
//! whose right half is empty is its left half. The distribution of chunks to engines, and its
//! timing, change nothing.
//!
//! Engines take *pieces*: whole subtrees of one level, chosen so that their values fit the caller's
//! scratch. A piece is folded while its chunks are mapped, with one value per level in flight.
//!
//! Must stay true: a piece is a subtree, so the scratch's size does not change the result either.

use crate::error::OffloadError;
use crate::pool::Pool;
use sidecore_engine::Core;
use sidecore_sched::ClassId;
use std::ops::Range;

/// Pieces that [`Pool::reduce`] keeps on its stack: as many values of `T` are there.
pub const PIECES_MAX: usize = 64;

/// A subtree: its place among its kind, and its value once an engine has done it.
#[derive(Debug)]
pub struct Piece<T> {
    index: usize,
    value: Option<T>,
}

impl<T> Piece<T> {
    /// One of the pieces that [`Pool::reduce_with`] wants as scratch.
    pub const EMPTY: Self = Self {
        index: 0,
        value: None,
    };
}

impl Pool {
    /// Maps `0..units` in chunks of `chunk_units` (the last one shorter) and combines the values,
    /// on as many engines as the policy gives this loop. The result has the same bits for any
    /// number of engines, hosts and scratch places: see the module. `None` for no units. Blocks as
    /// [`Self::for_each`] does; allocates nothing: [`PIECES_MAX`] values of `T` lie on the caller's
    /// stack, so a large `T` wants [`Self::reduce_with`].
    ///
    /// ```
    /// use sidecore_offload::{Pool, PoolConfig};
    /// use sidecore_sched::ClassId;
    ///
    /// let pool = Pool::start(PoolConfig { engines: 2, ..PoolConfig::default() })?;
    /// let values: Vec<f64> = (1..=10_000).map(|i| 1.0 / f64::from(i)).collect();
    /// let sum = pool.reduce(
    ///     ClassId(0),
    ///     values.len(),
    ///     256,
    ///     |_core, range| values[range].iter().sum::<f64>(),
    ///     |left, right| left + right,
    /// )?;
    /// assert!((sum.unwrap_or(0.0) - 9.787_606).abs() < 1e-5);
    /// # Ok::<(), sidecore_offload::OffloadError>(())
    /// ```
    ///
    /// # Errors
    /// As [`Self::for_each`].
    pub fn reduce<T: Send>(
        &self,
        class: ClassId,
        units: usize,
        chunk_units: usize,
        map: impl Fn(&mut Core, Range<usize>) -> T + Sync,
        combine: impl Fn(T, T) -> T + Sync,
    ) -> Result<Option<T>, OffloadError> {
        let mut scratch = [const { Piece::EMPTY }; PIECES_MAX];
        self.reduce_with(&mut scratch, class, units, chunk_units, map, combine)
    }

    /// [`Self::reduce`] with the caller's scratch: the more places, the smaller the pieces that
    /// engines take, at least a few for each engine. Old contents do not matter; values are moved
    /// out of it.
    ///
    /// # Errors
    /// As [`Self::for_each`].
    ///
    /// # Panics
    /// If the scratch is empty.
    pub fn reduce_with<T: Send>(
        &self,
        scratch: &mut [Piece<T>],
        class: ClassId,
        units: usize,
        chunk_units: usize,
        map: impl Fn(&mut Core, Range<usize>) -> T + Sync,
        combine: impl Fn(T, T) -> T + Sync,
    ) -> Result<Option<T>, OffloadError> {
        assert!(!scratch.is_empty(), "a reduction needs a place for a value");
        let chunk_units = chunk_units.max(1);
        let chunks = units.div_ceil(chunk_units);
        let level = piece_level(chunks, scratch.len());
        let pieces = &mut scratch[..chunks.div_ceil(1 << level)];
        for (index, piece) in pieces.iter_mut().enumerate() {
            *piece = Piece { index, value: None };
        }
        self.for_each(class, pieces, |core, piece| {
            let first = piece.index << level;
            let last = (first + (1 << level)).min(chunks);
            let values = (first..last).map(|chunk| {
                let begin = chunk * chunk_units;
                map(core, begin..(begin + chunk_units).min(units))
            });
            piece.value = fold(values, &combine);
        })?;
        let values = pieces.iter_mut().filter_map(|piece| piece.value.take());
        Ok(fold(values, &combine))
    }
}

/// The least level at which all subtrees of `chunks` fit in `places`.
fn piece_level(chunks: usize, places: usize) -> u32 {
    let mut level = 0;
    while chunks.div_ceil(1 << level) > places {
        level += 1;
    }
    level
}

/// Combines neighbours in the tree of the module's head, with one value a level in flight.
fn fold<T>(values: impl Iterator<Item = T>, combine: impl Fn(T, T) -> T) -> Option<T> {
    // Entry `l` holds the value of a full subtree of level `l` whose right neighbour is not there
    // yet: a binary counter of the values seen.
    let mut waiting = [const { None }; usize::BITS as usize];
    for value in values {
        let mut value = value;
        for place in &mut waiting {
            match place.take() {
                Some(left) => value = combine(left, value),
                None => {
                    *place = Some(value);
                    break;
                }
            }
        }
    }
    // The remainder: the lower levels are further right.
    waiting
        .into_iter()
        .flatten()
        .reduce(|right, left| combine(left, right))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The tree by its definition.
    fn tree(values: &[f64], combine: &impl Fn(f64, f64) -> f64) -> Option<f64> {
        match values {
            [] => None,
            [value] => Some(*value),
            _ => {
                let half = values.len().next_power_of_two() / 2;
                let (left, right) = values.split_at(half);
                Some(combine(tree(left, combine)?, tree(right, combine)?))
            }
        }
    }

    #[test]
    fn a_fold_is_the_tree_whatever_the_level_of_its_pieces() {
        let combine = |a: f64, b: f64| a * 0.75 + b;
        for count in 0..200 {
            let values: Vec<f64> = (0..count).map(|i| 1.0 / f64::from(i + 3)).collect();
            let expected = tree(&values, &combine).map(f64::to_bits);
            for level in 0..9 {
                let pieces = values
                    .chunks(1 << level)
                    .filter_map(|piece| fold(piece.iter().copied(), combine));
                assert_eq!(fold(pieces, combine).map(f64::to_bits), expected);
            }
        }
    }

    #[test]
    fn pieces_fit_their_places() {
        for (chunks, places, level) in [(0, 1, 0), (64, 64, 0), (65, 64, 1), (1_000, 64, 4)] {
            assert_eq!(piece_level(chunks, places), level, "{chunks} in {places}");
        }
    }
}
