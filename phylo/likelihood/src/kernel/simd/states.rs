//! One rate of a class's CLV entries: four states (DNA) and twenty (protein), in registers.
//!
//! Must stay true: a rate has exactly [`States::QUADS`] quads in every slice that is passed here;
//! reads rely on it without a check.

use super::lanes::{Batch, CLASSES_MAX, Each, Lanes};
use crate::kernel::Quad;

/// Applies a matrix to one rate of a batch's spans.
pub(super) trait States {
    /// Quads of one rate.
    const QUADS: usize;
    /// The part of a matrix that is loaded before a group begins.
    type Columns<V: Batch>: Copy;
    /// A result of one rate.
    type Result<V: Batch>: Copy + AsRef<[V]>;
    /// Loads one rate's matrix.
    fn columns<V: Batch>(matrix: &[Quad]) -> Self::Columns<V>;
    /// The matrix times the spans' one rate; `matrix` is what `columns` was made from.
    fn apply<V: Batch>(
        columns: &Self::Columns<V>,
        matrix: &[Quad],
        x: Each<&[Quad]>,
    ) -> Self::Result<V>;
    /// One rate of a tip's table.
    fn load<V: Batch>(x: Each<&[Quad]>) -> Self::Result<V>;
    /// The product, lane by lane.
    fn times<V: Batch>(a: Self::Result<V>, b: Self::Result<V>) -> Self::Result<V>;
    /// Lane by lane the largest of a rate's values.
    fn largest<V: Batch>(lanes: Self::Result<V>) -> V;
    /// Writes one class's values.
    fn store<V: Batch>(lanes: Self::Result<V>, class: usize, to: &mut [Quad]);
}

/// The quad at `i` of each.
///
/// # Safety
/// All have more than `i`.
#[inline(always)]
pub(super) unsafe fn quads(x: Each<&[Quad]>, i: usize) -> Each<&Quad> {
    // Written out, here and elsewhere: a function that takes a closure is not always inlined, and
    // the closure by itself is compiled without the wide instructions.
    // SAFETY: the caller's promise.
    unsafe {
        [
            x[0].get_unchecked(i),
            x[1].get_unchecked(i),
            x[2].get_unchecked(i),
            x[3].get_unchecked(i),
        ]
    }
}

/// Four states: the matrix stays in four registers.
pub(super) struct Dna;

impl States for Dna {
    const QUADS: usize = 1;
    type Columns<V: Batch> = [V; 4];
    type Result<V: Batch> = [V; 1];

    #[inline(always)]
    fn columns<V: Batch>(matrix: &[Quad]) -> [V; 4] {
        [
            V::same(&matrix[0]),
            V::same(&matrix[1]),
            V::same(&matrix[2]),
            V::same(&matrix[3]),
        ]
    }

    #[inline(always)]
    fn apply<V: Batch>(columns: &[V; 4], _: &[Quad], x: Each<&[Quad]>) -> [V; 1] {
        // SAFETY: every caller passes exactly one quad.
        let x = V::values(unsafe { quads(x, 0) });
        let mut sum = columns[0].mul(V::spread::<0>(x));
        sum = columns[1].mul_add(V::spread::<1>(x), sum);
        sum = columns[2].mul_add(V::spread::<2>(x), sum);
        [columns[3].mul_add(V::spread::<3>(x), sum)]
    }

    #[inline(always)]
    fn load<V: Batch>(x: Each<&[Quad]>) -> [V; 1] {
        // SAFETY: every caller passes exactly one quad.
        [V::load(unsafe { quads(x, 0) })]
    }

    #[inline(always)]
    fn times<V: Batch>(a: [V; 1], b: [V; 1]) -> [V; 1] {
        [a[0].mul(b[0])]
    }

    #[inline(always)]
    fn largest<V: Batch>(lanes: [V; 1]) -> V {
        lanes[0]
    }

    #[inline(always)]
    fn store<V: Batch>(lanes: [V; 1], class: usize, to: &mut [Quad]) {
        // SAFETY: every caller passes exactly one quad.
        lanes[0]
            .class(class)
            .store(unsafe { to.get_unchecked_mut(0) });
    }
}

/// Twenty states: five registers of sums, the columns from the cache.
pub(super) struct Protein;

impl States for Protein {
    const QUADS: usize = 5;
    type Columns<V: Batch> = ();
    type Result<V: Batch> = [V; 5];

    #[inline(always)]
    fn columns<V: Batch>(_: &[Quad]) {}

    #[inline(always)]
    fn apply<V: Batch>(_: &(), matrix: &[Quad], x: Each<&[Quad]>) -> [V; 5] {
        debug_assert!(matrix.len() == 100 && x.iter().all(|x| x.len() == 5));
        let mut sums = [V::same(&[0.0; 4]); 5];
        for quad in 0..5 {
            // SAFETY: every caller passes five quads, and one rate's matrix: 20 columns of five.
            let (x, columns) = unsafe {
                let columns = matrix.as_chunks::<5>().0;
                let columns = columns.get_unchecked(4 * quad..4 * (quad + 1));
                (V::values(quads(x, quad)), columns)
            };
            add_column(&mut sums, &columns[0], V::spread::<0>(x));
            add_column(&mut sums, &columns[1], V::spread::<1>(x));
            add_column(&mut sums, &columns[2], V::spread::<2>(x));
            add_column(&mut sums, &columns[3], V::spread::<3>(x));
        }
        sums
    }

    #[inline(always)]
    fn load<V: Batch>(x: Each<&[Quad]>) -> [V; 5] {
        // SAFETY: every caller passes exactly five quads.
        unsafe {
            [
                V::load(quads(x, 0)),
                V::load(quads(x, 1)),
                V::load(quads(x, 2)),
                V::load(quads(x, 3)),
                V::load(quads(x, 4)),
            ]
        }
    }

    #[inline(always)]
    fn times<V: Batch>(a: [V; 5], b: [V; 5]) -> [V; 5] {
        [
            a[0].mul(b[0]),
            a[1].mul(b[1]),
            a[2].mul(b[2]),
            a[3].mul(b[3]),
            a[4].mul(b[4]),
        ]
    }

    #[inline(always)]
    fn largest<V: Batch>(lanes: [V; 5]) -> V {
        let first = lanes[0].max(lanes[1]).max(lanes[2]);
        first.max(lanes[3]).max(lanes[4])
    }

    #[inline(always)]
    fn store<V: Batch>(lanes: [V; 5], class: usize, to: &mut [Quad]) {
        debug_assert!(to.len() == 5);
        // SAFETY: every caller passes exactly five quads.
        unsafe {
            lanes[0].class(class).store(to.get_unchecked_mut(0));
            lanes[1].class(class).store(to.get_unchecked_mut(1));
            lanes[2].class(class).store(to.get_unchecked_mut(2));
            lanes[3].class(class).store(to.get_unchecked_mut(3));
            lanes[4].class(class).store(to.get_unchecked_mut(4));
        }
    }
}

/// A column of twenty states times each class's value.
#[inline(always)]
fn add_column<V: Batch>(sums: &mut [V; 5], column: &[Quad; 5], value: V) {
    // Written out, here and elsewhere: a loop that is not unrolled keeps its sums in memory.
    sums[0] = V::same(&column[0]).mul_add(value, sums[0]);
    sums[1] = V::same(&column[1]).mul_add(value, sums[1]);
    sums[2] = V::same(&column[2]).mul_add(value, sums[2]);
    sums[3] = V::same(&column[3]).mul_add(value, sums[3]);
    sums[4] = V::same(&column[4]).mul_add(value, sums[4]);
}

/// Two batches in one: sums that do not wait for one another, and one load of what both need.
#[derive(Clone, Copy)]
pub(super) struct Two<V>(V, V);

impl<V: Batch> Two<V> {
    /// The second batch's values of each.
    #[inline(always)]
    fn second<T: Copy>(each: Each<T>) -> Each<T> {
        const { assert!(CLASSES_MAX == 4) };
        let first = V::CLASSES;
        [
            each[first % 4],
            each[(first + 1) % 4],
            each[(first + 2) % 4],
            each[(first + 3) % 4],
        ]
    }
}

impl<V: Batch> Batch for Two<V> {
    type Lanes = V::Lanes;
    type Values<'a> = [V::Values<'a>; 2];
    const CLASSES: usize = 2 * V::CLASSES;

    #[inline(always)]
    fn same(quad: &Quad) -> Self {
        let same = V::same(quad);
        Self(same, same)
    }
    #[inline(always)]
    fn load(quads: Each<&Quad>) -> Self {
        Self(V::load(quads), V::load(Self::second(quads)))
    }
    #[inline(always)]
    unsafe fn together(quads: &[Quad], at: usize) -> Self {
        // SAFETY: the caller's promise.
        unsafe { Self(V::together(quads, at), V::together(quads, at + V::CLASSES)) }
    }
    #[inline(always)]
    unsafe fn put(self, quads: &mut [Quad], at: usize) {
        // SAFETY: the caller's promise.
        unsafe {
            self.0.put(quads, at);
            self.1.put(quads, at + V::CLASSES);
        }
    }
    #[inline(always)]
    fn each<const J: i32>(self) -> Self {
        Self(self.0.each::<J>(), self.1.each::<J>())
    }
    #[inline(always)]
    fn values<'a>(quads: Each<&'a Quad>) -> [V::Values<'a>; 2] {
        [V::values(quads), V::values(Self::second(quads))]
    }
    #[inline(always)]
    fn spread<const J: i32>(values: [V::Values<'_>; 2]) -> Self {
        Self(V::spread::<J>(values[0]), V::spread::<J>(values[1]))
    }
    #[inline(always)]
    fn mul(self, other: Self) -> Self {
        Self(self.0.mul(other.0), self.1.mul(other.1))
    }
    #[inline(always)]
    fn mul_add(self, other: Self, more: Self) -> Self {
        Self(
            self.0.mul_add(other.0, more.0),
            self.1.mul_add(other.1, more.1),
        )
    }
    #[inline(always)]
    fn max(self, other: Self) -> Self {
        Self(self.0.max(other.0), self.1.max(other.1))
    }
    #[inline(always)]
    fn min(self, other: Self) -> Self {
        Self(self.0.min(other.0), self.1.min(other.1))
    }
    #[inline(always)]
    fn class(self, class: usize) -> V::Lanes {
        match class.checked_sub(V::CLASSES) {
            None => self.0.class(class),
            Some(class) => self.1.class(class),
        }
    }
}
