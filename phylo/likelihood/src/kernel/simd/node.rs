//! newview: a node's CLV from its children's.
//!
//! How: classes are taken in groups of [`GROUP`], and each group rate by rate, so that one rate's
//! matrices stay in registers (DNA) or in the first-level cache (protein) for all spans of the
//! group. A rate whose entries are all below the threshold is scaled by itself. In a large tree the
//! slow and the fast rate are hundreds of orders of magnitude apart, and one scaler for all rates
//! would lose one of them.

use super::lanes::{Batch, CLASSES_MAX, Each, Lanes, Two};
use crate::kernel::{Operand, Quad, SCALE, Shape, THRESHOLD};

/// Classes that are processed together.
pub(super) const GROUP: usize = 16;

#[inline(always)]
pub(super) fn newview<V: Batch>(
    shape: Shape,
    left: &Operand<'_>,
    right: &Operand<'_>,
    values: &mut [Quad],
    scalers: &mut [u16],
    scale: bool,
) -> bool {
    match shape.states {
        4 => sides::<V, Dna>(shape.rates, left, right, values, scalers, scale),
        // Five sums alone would be one dependent chain each.
        _ => sides::<Two<V>, Protein>(shape.rates, left, right, values, scalers, scale),
    }
}

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

/// One operand of a group: where each class's span begins, in quads.
#[derive(Clone, Copy)]
pub(super) struct Starts([usize; GROUP]);

impl Starts {
    /// The starts of the classes that `index` names (at most [`GROUP`], at least one), after
    /// checking that their spans are there. Places beyond them repeat the first.
    #[inline(always)]
    pub(super) fn new(index: &[u16], span: usize, quads: usize) -> Self {
        let mut classes = [index[0]; GROUP];
        match <&[u16; GROUP]>::try_from(index) {
            Ok(whole) => classes = *whole,
            Err(_) => classes[..index.len()].copy_from_slice(index),
        }
        let last = classes.iter().fold(0, |last, &class| last.max(class));
        assert!(
            (usize::from(last) + 1) * span <= quads,
            "class {last} is beyond its operand"
        );
        let mut starts = [0; GROUP];
        for k in 0..GROUP {
            starts[k] = usize::from(classes[k]) * span;
        }
        Self(starts)
    }

    /// Start of one rate, `offset` quads into their spans, of the batch that begins with the
    /// group's class `k`.
    ///
    /// # Safety
    /// `k` is below [`GROUP`], and a batch's begin.
    #[inline(always)]
    pub(super) unsafe fn at<V: Batch>(&self, k: usize, offset: usize) -> Each<usize> {
        const { assert!(GROUP.is_multiple_of(V::CLASSES)) };
        // SAFETY: the caller's promise; a group is a whole number of batches.
        unsafe {
            [
                *self.0.get_unchecked(k) + offset,
                *self.0.get_unchecked(k + 1 % V::CLASSES) + offset,
                *self.0.get_unchecked(k + 2 % V::CLASSES) + offset,
                *self.0.get_unchecked(k + 3 % V::CLASSES) + offset,
            ]
        }
    }
}

/// A side with its kind known to the compiler.
pub(super) trait Side<S: States>: Copy {
    /// The part that is loaded before a group's rate begins.
    type Held<V: Batch>: Copy;
    fn index(&self) -> &[u16];
    fn quads(&self) -> &[Quad];
    /// Empty where no entry was scaled.
    fn scalers(&self) -> &[u16];
    fn hold<V: Batch>(&self, rate: usize) -> Self::Held<V>;
    /// One rate of the spans, which begins at `at` quads.
    ///
    /// # Safety
    /// Each of `at` and the quads of one rate after it are within [`Side::quads`].
    unsafe fn take<V: Batch>(
        &self,
        held: &Self::Held<V>,
        rate: usize,
        at: Each<usize>,
    ) -> S::Result<V>;
}

/// One rate of each span.
///
/// # Safety
/// Each of `at` and the quads of one rate after it are within `quads`.
#[inline(always)]
pub(super) unsafe fn rates_at<S: States>(quads: &[Quad], at: Each<usize>) -> Each<&[Quad]> {
    // SAFETY: the caller's promise.
    unsafe {
        [
            quads.get_unchecked(at[0]..at[0] + S::QUADS),
            quads.get_unchecked(at[1]..at[1] + S::QUADS),
            quads.get_unchecked(at[2]..at[2] + S::QUADS),
            quads.get_unchecked(at[3]..at[3] + S::QUADS),
        ]
    }
}

#[derive(Clone, Copy)]
pub(super) struct Tip<'a> {
    pub(super) table: &'a [Quad],
    pub(super) index: &'a [u16],
}

impl<S: States> Side<S> for Tip<'_> {
    type Held<V: Batch> = ();
    #[inline(always)]
    fn index(&self) -> &[u16] {
        self.index
    }
    #[inline(always)]
    fn quads(&self) -> &[Quad] {
        self.table
    }
    #[inline(always)]
    fn scalers(&self) -> &[u16] {
        &[]
    }
    #[inline(always)]
    fn hold<V: Batch>(&self, _: usize) {}
    #[inline(always)]
    unsafe fn take<V: Batch>(&self, (): &(), _: usize, at: Each<usize>) -> S::Result<V> {
        // SAFETY: the caller's promise.
        S::load(unsafe { rates_at::<S>(self.table, at) })
    }
}

#[derive(Clone, Copy)]
pub(super) struct Inner<'a> {
    pub(super) matrix: &'a [Quad],
    pub(super) values: &'a [Quad],
    pub(super) scalers: &'a [u16],
    pub(super) index: &'a [u16],
}

impl<S: States> Side<S> for Inner<'_> {
    type Held<V: Batch> = S::Columns<V>;
    #[inline(always)]
    fn index(&self) -> &[u16] {
        self.index
    }
    #[inline(always)]
    fn quads(&self) -> &[Quad] {
        self.values
    }
    #[inline(always)]
    fn scalers(&self) -> &[u16] {
        self.scalers
    }
    #[inline(always)]
    fn hold<V: Batch>(&self, rate: usize) -> S::Columns<V> {
        S::columns(self.block(rate))
    }
    #[inline(always)]
    unsafe fn take<V: Batch>(
        &self,
        held: &S::Columns<V>,
        rate: usize,
        at: Each<usize>,
    ) -> S::Result<V> {
        // SAFETY: the caller's promise.
        let x = unsafe { rates_at::<S>(self.values, at) };
        S::apply(held, self.rate_block::<S>(rate), x)
    }
}

impl Inner<'_> {
    #[inline(always)]
    fn block(&self, rate: usize) -> &[Quad] {
        // Four columns of DNA; the protein's is not read through this.
        &self.matrix[4 * rate..][..4]
    }

    #[inline(always)]
    fn rate_block<S: States>(&self, rate: usize) -> &[Quad] {
        let quads = 4 * S::QUADS * S::QUADS;
        &self.matrix[quads * rate..][..quads]
    }
}

#[inline(always)]
fn sides<V: Batch, S: States>(
    rates: usize,
    left: &Operand<'_>,
    right: &Operand<'_>,
    values: &mut [Quad],
    scalers: &mut [u16],
    scale: bool,
) -> bool {
    // One instance of the loop for each kind of children; the two mixed cases share one, as the
    // product commutes.
    use Operand as O;
    match (*left, *right) {
        (
            O::Tip { table, index },
            O::Tip {
                table: other,
                index: at,
            },
        ) => {
            let (a, b) = (
                Tip { table, index },
                Tip {
                    table: other,
                    index: at,
                },
            );
            groups::<V, S, _, _>(rates, a, b, values, scalers, scale)
        }
        (
            O::Tip { table, index },
            O::Inner {
                matrix,
                values: x,
                scalers: y,
                index: at,
            },
        )
        | (
            O::Inner {
                matrix,
                values: x,
                scalers: y,
                index: at,
            },
            O::Tip { table, index },
        ) => {
            let b = Inner {
                matrix,
                values: x,
                scalers: y,
                index: at,
            };
            groups::<V, S, _, _>(rates, Tip { table, index }, b, values, scalers, scale)
        }
        (
            O::Inner {
                matrix,
                values: x,
                scalers: y,
                index,
            },
            O::Inner {
                matrix: m,
                values: v,
                scalers: s,
                index: at,
            },
        ) => {
            let a = Inner {
                matrix,
                values: x,
                scalers: y,
                index,
            };
            let b = Inner {
                matrix: m,
                values: v,
                scalers: s,
                index: at,
            };
            groups::<V, S, _, _>(rates, a, b, values, scalers, scale)
        }
    }
}

#[inline(always)]
fn groups<V: Batch, S: States, A: Side<S>, B: Side<S>>(
    rates: usize,
    a: A,
    b: B,
    values: &mut [Quad],
    scalers: &mut [u16],
    scale: bool,
) -> bool {
    let span = rates * S::QUADS;
    let (a_index, b_index) = (a.index(), b.index());
    assert_eq!(a_index.len(), b_index.len(), "operands of one length");
    let classes = a_index.len();
    let values = &mut values[..classes * span];
    let scalers = &mut scalers[..classes * rates];
    let mut scaled = join_counts::<V::Lanes>(
        rates,
        scalers,
        [a_index, b_index],
        [a.scalers(), b.scalers()],
    );
    let limit = V::Lanes::splat(THRESHOLD);
    for (group, out) in values.chunks_mut(GROUP * span).enumerate() {
        let first = group * GROUP;
        let count = out.len() / span;
        let a_at = Starts::new(&a_index[first..][..count], span, a.quads().len());
        let b_at = Starts::new(&b_index[first..][..count], span, b.quads().len());
        for rate in 0..rates {
            let (a_held, b_held) = (a.hold::<V>(rate), b.hold::<V>(rate));
            let offset = rate * S::QUADS;
            // Lane by lane the group's minimum of the classes' largest entries: if it is not below
            // the limit, no class of the group is.
            let mut least = V::same(&[f64::INFINITY; 4]);
            for k in (0..count).step_by(V::CLASSES) {
                // SAFETY: `k` is below GROUP; Starts::new has checked that a whole span follows
                // each start, and `offset` is within a span.
                let (x, y) = unsafe {
                    let (from, other) = (a_at.at::<V>(k, offset), b_at.at::<V>(k, offset));
                    (a.take(&a_held, rate, from), b.take(&b_held, rate, other))
                };
                let product = S::times(x, y);
                if scale {
                    // A class beyond the last repeats the group's first.
                    least = S::largest(product).min(least);
                }
                for class in 0..V::CLASSES {
                    if k + class >= count {
                        break;
                    }
                    let at = (k + class) * span + offset;
                    // SAFETY: `out` holds `count` spans.
                    let to = unsafe { out.get_unchecked_mut(at..at + S::QUADS) };
                    S::store(product, class, to);
                }
            }
            let least = (1..V::CLASSES).fold(least.class(0), |all, class| {
                Lanes::min(least.class(class), all)
            });
            if scale && least.all_below(limit) {
                for (k, span) in out.chunks_exact_mut(span).enumerate() {
                    let values = &mut span[offset..offset + S::QUADS];
                    if raise::<V::Lanes, S>(values, limit) {
                        count_scaling(scalers, (first + k) * rates + rate, &mut scaled);
                    }
                }
            }
        }
    }
    scaled
}

/// Counts one scaling; the counts are all 0 until the first.
#[cold]
#[inline(never)]
pub(super) fn count_scaling(scalers: &mut [u16], at: usize, scaled: &mut bool) {
    if !std::mem::replace(scaled, true) {
        scalers.fill(0);
    }
    scalers[at] = scalers[at].saturating_add(1);
}

/// The scalers of both sides, added, class by class. False, with nothing written, where neither
/// side has any.
#[inline(always)]
pub(super) fn join_counts<V: Lanes>(
    rates: usize,
    counts: &mut [u16],
    index: [&[u16]; 2],
    sides: [&[u16]; 2],
) -> bool {
    // No closures here: they would not get the caller's instructions.
    let only = match [sides[0].is_empty(), sides[1].is_empty()] {
        [true, true] => return false,
        [false, false] => None,
        [left_empty, _] => Some(usize::from(left_empty)),
    };
    // The usual number of rates: arrays of fixed size are added in one instruction.
    if rates == 4 {
        let counts = counts.as_chunks_mut::<4>().0;
        let (left, right) = (sides[0].as_chunks::<4>().0, sides[1].as_chunks::<4>().0);
        match only {
            Some(side) => {
                let from = if side == 0 { left } else { right };
                for (to, &class) in counts.iter_mut().zip(index[side]) {
                    *to = from[usize::from(class)];
                }
            }
            None => {
                for ((to, &a), &b) in counts.iter_mut().zip(index[0]).zip(index[1]) {
                    *to = V::add_counts(&left[usize::from(a)], &right[usize::from(b)]);
                }
            }
        }
        return true;
    }
    counts.fill(0);
    for (index, scalers) in index
        .into_iter()
        .zip(sides)
        .filter(|(_, side)| !side.is_empty())
    {
        for (to, &class) in counts.chunks_mut(rates).zip(index) {
            let from = &scalers[usize::from(class) * rates..][..rates];
            for (to, from) in to.iter_mut().zip(from) {
                *to = to.saturating_add(*from);
            }
        }
    }
    true
}

/// Adds the scalers of a third side to those of [`join_counts`], which were written if `counted`.
#[inline(always)]
pub(super) fn add_counts(
    rates: usize,
    counts: &mut [u16],
    counted: bool,
    index: &[u16],
    side: &[u16],
) -> bool {
    if side.is_empty() {
        return counted;
    }
    // The memory still holds old counts.
    if !counted {
        counts.fill(0);
    }
    for (to, &class) in counts.chunks_exact_mut(rates).zip(index) {
        let from = &side[usize::from(class) * rates..][..rates];
        for (to, from) in to.iter_mut().zip(from) {
            *to = to.saturating_add(*from);
        }
    }
    true
}

/// Scales one rate's entries if all are below the limit; true if it did.
#[inline(always)]
fn raise<V: Lanes, S: States>(values: &mut [Quad], limit: V) -> bool {
    let lanes = S::load::<V>([&*values; CLASSES_MAX]);
    let below = S::largest(lanes).all_below(limit);
    if below {
        S::store(S::times(lanes, raised::<V, S>()), 0, values);
    }
    below
}

/// The scale in every lane.
#[inline(always)]
fn raised<V: Lanes, S: States>() -> S::Result<V> {
    const RAISED: [Quad; 5] = [[SCALE; 4]; 5];
    S::load([&RAISED[..S::QUADS]; CLASSES_MAX])
}
