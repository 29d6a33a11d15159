//! newview of four states and four rates without scaling, in both orders, and the likelihoods at a
//! branch.
//!
//! Why here: BEAGLE's clients scale by themselves, and nearly all DNA has this shape. A span is two
//! lines of the cache. With AVX-512 a span is taken at once, and the matrices of both sides stay in
//! registers for all classes. With AVX2 one rate's matrices do, for a block of classes. A large
//! alignment's spans come from memory: they are asked for some spans before they are wanted.
//! Must stay true: the bits of a newview are those of [`super::node`].

use super::lanes::{Batch, CLASSES_MAX, Lanes};
use super::node::Spanned;
use crate::kernel::{Inner, Operand, QUAD, Quad, Tip};
use sidecore_bare::prefetch;

/// Quads of a span.
const SPAN: usize = 4;
/// Batches of a span, at most.
const PARTS: usize = 2;
/// Classes that one rate's matrices of AVX2 are held for: their spans stay in the first-level
/// cache.
const BLOCK: usize = 32;
/// Spans between the one that is read or written and the one that is asked for.
const AHEAD: usize = 32;

/// As [`super::newview`].
#[inline(always)]
pub(super) fn newview<V: Batch>(left: &Operand<'_>, right: &Operand<'_>, values: &mut [Quad]) {
    use Operand::{Inner, Tip};
    match (*left, *right) {
        (Tip(a), Tip(b)) => products::<V, _, _>(a, b, values),
        (Tip(a), Inner(b)) | (Inner(b), Tip(a)) => products::<V, _, _>(a, b, values),
        (Inner(a), Inner(b)) => products::<V, _, _>(a, b, values),
    }
}

/// As [`super::edge_sums`].
#[inline(always)]
pub(super) fn edge_sums<V: Batch>(near: &Tip<'_>, far: &Operand<'_>, sums: &mut [Quad]) {
    match *far {
        Operand::Tip(far) => likelihoods::<V, _>(*near, far, sums),
        Operand::Inner(far) => likelihoods::<V, _>(*near, far, sums),
    }
}

#[inline(always)]
fn likelihoods<V: Batch, B: Whole>(near: Tip<'_>, far: B, sums: &mut [Quad]) {
    let (index, other) = (near.index, far.index());
    assert_eq!(index.len(), other.len(), "operands of one length");
    check(index, near.table);
    check(other, far.quads());
    let (held, rates) = (far.hold::<V>(), rates::<V, B>(far));
    let sums = &mut sums[..index.len().div_ceil(QUAD)];
    let indices = index.chunks(QUAD).zip(other.chunks(QUAD));
    for ((index, other), sums) in indices.zip(sums) {
        let mut rows = [V::Lanes::zero(); QUAD];
        let classes = index.iter().zip(other);
        for ((&class, &other), row) in classes.zip(&mut rows) {
            let (at, from) = (usize::from(class) * SPAN, usize::from(other) * SPAN);
            expect(near.table, at);
            far.expect(from);
            // SAFETY: `check` has seen that each class has a span.
            *row = unsafe {
                if V::CLASSES == PARTS {
                    let x: [V; PARTS] = near.take(&(), at);
                    let y = far.take(&held, from);
                    let sum = x[1].mul_add(y[1], x[0].mul(y[0]));
                    sum.class(0).add(sum.class(1))
                } else {
                    let x: [V; SPAN] = quads_of(&near, &[(); SPAN], at);
                    let y: [V; SPAN] = quads_of(&far, &rates, from);
                    // In the order of the halves of wide registers.
                    let even = x[2].mul_add(y[2], x[0].mul(y[0]));
                    let odd = x[3].mul_add(y[3], x[1].mul(y[1]));
                    even.class(0).add(odd.class(0))
                }
            };
        }
        Lanes::sums(rows).store(sums);
    }
}

/// The values that a side holds for each rate.
#[inline(always)]
fn rates<V: Batch, B: Whole>(side: B) -> [B::Rate<V>; SPAN] {
    // Written out, here and below: see `super::states::quads`.
    [
        side.hold_rate::<V>(0),
        side.hold_rate::<V>(1),
        side.hold_rate::<V>(2),
        side.hold_rate::<V>(3),
    ]
}

/// A span as it arrives, rate by rate.
///
/// # Safety
/// As of [`Whole::take_rate`].
#[inline(always)]
unsafe fn quads_of<V: Batch, B: Whole>(
    side: &B,
    held: &[B::Rate<V>; SPAN],
    at: usize,
) -> [V; SPAN] {
    // SAFETY: the caller's promise.
    unsafe {
        [
            side.take_rate(&held[0], at),
            side.take_rate(&held[1], at + 1),
            side.take_rate(&held[2], at + 2),
            side.take_rate(&held[3], at + 3),
        ]
    }
}

/// As [`super::newview_pre_order`].
#[inline(always)]
pub(super) fn newview_pre_order<V: Batch>(
    parent: &Tip<'_>,
    sibling: &Operand<'_>,
    own: &[Quad],
    values: &mut [Quad],
) {
    match *sibling {
        Operand::Tip(sibling) => descents::<V, _>(*parent, sibling, own, values),
        Operand::Inner(sibling) => descents::<V, _>(*parent, sibling, own, values),
    }
}

/// The products at the parent, moved down the node's own branch.
#[inline(always)]
fn descents<V: Batch, B: Whole>(parent: Tip<'_>, sibling: B, own: &[Quad], values: &mut [Quad]) {
    assert!(V::CLASSES == PARTS, "two quads a batch");
    let (index, other) = (parent.index, sibling.index());
    assert_eq!(index.len(), other.len(), "operands of one length");
    let values = &mut values[..index.len() * SPAN];
    check(index, parent.table);
    check(other, sibling.quads());
    let held = sibling.hold::<V>();
    let own_held: [[V; 4]; PARTS] = columns(own);
    let indices = index.iter().zip(other);
    for ((&class, &other), out) in indices.zip(values.chunks_exact_mut(SPAN)) {
        // SAFETY: as in `spans`.
        unsafe {
            let x: [V; PARTS] = parent.take(&(), usize::from(class) * SPAN);
            let y = sibling.take(&held, usize::from(other) * SPAN);
            product(&own_held[0], x[0].mul(y[0])).put(out, 0);
            product(&own_held[1], x[1].mul(y[1])).put(out, PARTS);
        }
    }
}

/// As [`super::pre_order_sums`]; the weights come first, and all rates have one sum.
#[inline(always)]
pub(super) fn pre_order_sums<V: Batch>(
    near: &Tip<'_>,
    moved: &Operand<'_>,
    still: &Tip<'_>,
    weights: &[f64],
    sums: [&mut [Quad]; 2],
) {
    match *moved {
        Operand::Tip(moved) => meetings::<V, _>(*near, moved, *still, weights, sums),
        Operand::Inner(moved) => meetings::<V, _>(*near, moved, *still, weights, sums),
    }
}

#[inline(always)]
fn meetings<V: Batch, B: Whole>(
    near: Tip<'_>,
    moved: B,
    still: Tip<'_>,
    weights: &[f64],
    [above, below]: [&mut [Quad]; 2],
) {
    assert!(V::CLASSES == PARTS, "two quads a batch");
    let patterns = near.index.len();
    assert!(
        patterns == moved.index().len() && patterns == still.index.len(),
        "operands of one length"
    );
    check(near.index, near.table);
    check(moved.index(), moved.quads());
    check(still.index, still.table);
    let held = moved.hold::<V>();
    let weights = [
        [weights[0]; QUAD],
        [weights[1]; QUAD],
        [weights[2]; QUAD],
        [weights[3]; QUAD],
    ];
    let fours = patterns.div_ceil(QUAD);
    let sums = above[..fours].iter_mut().zip(&mut below[..fours]);
    for (four, (above, below)) in sums.enumerate() {
        let mut rows = [[V::Lanes::zero(); QUAD]; 2];
        let [first, second] = &mut rows;
        let lanes = first.iter_mut().zip(second);
        // The last ones may be less than four.
        let lanes = (four * QUAD..patterns).zip(lanes);
        for (k, (first, second)) in lanes {
            // SAFETY: `check` has seen that each class has a span; there are four weights.
            let (x, y, z, by) = unsafe {
                let x: [V; PARTS] = near.take(&(), usize::from(near.index[k]) * SPAN);
                let y = moved.take(&held, usize::from(moved.index()[k]) * SPAN);
                let z: [V; PARTS] = still.take(&(), usize::from(still.index[k]) * SPAN);
                let by = [V::together(&weights, 0), V::together(&weights, PARTS)];
                (x, y, z, by)
            };
            let x = [x[0].mul(by[0]), x[1].mul(by[1])];
            let sums = [
                x[1].mul_add(y[1], x[0].mul(y[0])),
                x[1].mul_add(z[1], x[0].mul(z[0])),
            ];
            *first = sums[0].class(0).add(sums[0].class(1));
            *second = sums[1].class(0).add(sums[1].class(1));
        }
        Lanes::sums(rows[0]).store(above);
        Lanes::sums(rows[1]).store(below);
    }
}

/// A side with its kind known to the compiler.
trait Whole: Spanned {
    type Held<V: Batch>: Copy;
    fn hold<V: Batch>(&self) -> Self::Held<V>;
    /// A span as it arrives.
    ///
    /// # Safety
    /// The span from `at` on is within [`Spanned::quads`].
    unsafe fn take<V: Batch>(&self, held: &Self::Held<V>, at: usize) -> [V; PARTS];
    /// The values for one rate, in narrow registers.
    type Rate<V: Batch>: Copy;
    fn hold_rate<V: Batch>(&self, rate: usize) -> Self::Rate<V>;
    /// One rate of a span as it arrives, in a narrow register.
    ///
    /// # Safety
    /// The quad at `at` is within [`Spanned::quads`].
    unsafe fn take_rate<V: Batch>(&self, held: &Self::Rate<V>, at: usize) -> V;
    /// Asks for what is some spans beyond `at`.
    fn expect(&self, at: usize);
}

impl Whole for Tip<'_> {
    type Held<V: Batch> = ();
    #[inline(always)]
    fn hold<V: Batch>(&self) {}
    #[inline(always)]
    unsafe fn take<V: Batch>(&self, (): &(), at: usize) -> [V; PARTS] {
        // SAFETY: the caller's promise.
        unsafe {
            [
                V::together(self.table, at),
                V::together(self.table, at + PARTS),
            ]
        }
    }
    type Rate<V: Batch> = ();
    #[inline(always)]
    fn hold_rate<V: Batch>(&self, _: usize) {}
    #[inline(always)]
    unsafe fn take_rate<V: Batch>(&self, (): &(), at: usize) -> V {
        // SAFETY: the caller's promise.
        unsafe { V::together(self.table, at) }
    }
    /// Nothing: a table is small and stays in the cache.
    #[inline(always)]
    fn expect(&self, _: usize) {}
}

impl Whole for Inner<'_> {
    /// By part and state of the child the columns of two rates.
    type Held<V: Batch> = [[V; 4]; PARTS];
    #[inline(always)]
    fn hold<V: Batch>(&self) -> [[V; 4]; PARTS] {
        columns(self.matrix)
    }
    #[inline(always)]
    unsafe fn take<V: Batch>(&self, held: &[[V; 4]; PARTS], at: usize) -> [V; PARTS] {
        // SAFETY: the caller's promise.
        let x: [V; PARTS] = unsafe {
            [
                V::together(self.values, at),
                V::together(self.values, at + PARTS),
            ]
        };
        [product(&held[0], x[0]), product(&held[1], x[1])]
    }
    /// By state of the child the column of the rate.
    type Rate<V: Batch> = [V; 4];
    #[inline(always)]
    fn hold_rate<V: Batch>(&self, rate: usize) -> [V; 4] {
        let matrix = &self.matrix[4 * rate..4 * (rate + 1)];
        [
            V::same(&matrix[0]),
            V::same(&matrix[1]),
            V::same(&matrix[2]),
            V::same(&matrix[3]),
        ]
    }
    #[inline(always)]
    unsafe fn take_rate<V: Batch>(&self, held: &[V; 4], at: usize) -> V {
        // SAFETY: the caller's promise.
        let quad = unsafe { self.values.get_unchecked(at) };
        let x = V::values([quad; CLASSES_MAX]);
        let mut sum = held[0].mul(V::spread::<0>(x));
        sum = held[1].mul_add(V::spread::<1>(x), sum);
        sum = held[2].mul_add(V::spread::<2>(x), sum);
        held[3].mul_add(V::spread::<3>(x), sum)
    }
    #[inline(always)]
    fn expect(&self, at: usize) {
        expect(self.values, at);
    }
}

/// Asks for the lines of a span some spans beyond `at`, which need not be there.
#[inline(always)]
fn expect(quads: &[Quad], at: usize) {
    let span = quads.as_ptr().wrapping_add(at + AHEAD * SPAN);
    prefetch::line(span.cast());
    prefetch::line(span.wrapping_add(PARTS).cast());
}

/// By part and state of the child the columns of two rates.
#[inline(always)]
fn columns<V: Batch>(matrix: &[Quad]) -> [[V; 4]; PARTS] {
    let matrix = &matrix[..4 * SPAN];
    // Written out: see `super::states::quads`.
    [
        [
            column(matrix, 0, 0),
            column(matrix, 0, 1),
            column(matrix, 0, 2),
            column(matrix, 0, 3),
        ],
        [
            column(matrix, 2, 0),
            column(matrix, 2, 1),
            column(matrix, 2, 2),
            column(matrix, 2, 3),
        ],
    ]
}

/// The columns of a state, of the rate and the next one.
#[inline(always)]
fn column<V: Batch>(matrix: &[Quad], rate: usize, state: usize) -> V {
    let (first, second) = (&matrix[4 * rate + state], &matrix[4 * (rate + 1) + state]);
    V::load([first, second, first, first])
}

/// In the order of `states::Dna`.
#[inline(always)]
fn product<V: Batch>(columns: &[V; 4], x: V) -> V {
    let mut sum = columns[0].mul(x.each::<0>());
    sum = columns[1].mul_add(x.each::<1>(), sum);
    sum = columns[2].mul_add(x.each::<2>(), sum);
    columns[3].mul_add(x.each::<3>(), sum)
}

#[inline(always)]
fn products<V: Batch, A: Whole, B: Whole>(a: A, b: B, values: &mut [Quad]) {
    let (a_index, b_index) = (a.index(), b.index());
    assert_eq!(a_index.len(), b_index.len(), "operands of one length");
    let values = &mut values[..a_index.len() * SPAN];
    check(a_index, a.quads());
    check(b_index, b.quads());
    // SAFETY: `check` has seen that each class has a span.
    unsafe {
        if V::CLASSES == PARTS {
            return spans::<V, A, B>(a, b, [a_index, b_index], values);
        }
        let indices = a_index.chunks(BLOCK).zip(b_index.chunks(BLOCK));
        for (out, (a_index, b_index)) in values.chunks_mut(BLOCK * SPAN).zip(indices) {
            let indices = [a_index, b_index];
            // Each asks for lines of the next block, one side's or the result's.
            rate::<V, A, B, 0>(a, b, indices, out);
            rate::<V, A, B, 1>(a, b, indices, out);
            rate::<V, A, B, 2>(a, b, indices, out);
            rate::<V, A, B, 3>(a, b, indices, out);
        }
    }
}

/// Whole spans, one after the other.
///
/// # Safety
/// Each class of the indices has a span in its operand.
#[inline(always)]
unsafe fn spans<V: Batch, A: Whole, B: Whole>(
    a: A,
    b: B,
    [a_index, b_index]: [&[u16]; 2],
    values: &mut [Quad],
) {
    let (a_held, b_held) = (a.hold::<V>(), b.hold::<V>());
    let indices = a_index.iter().zip(b_index);
    for ((&class, &other), out) in indices.zip(values.chunks_exact_mut(SPAN)) {
        let (at, from) = (usize::from(class) * SPAN, usize::from(other) * SPAN);
        a.expect(at);
        b.expect(from);
        expect(out, 0);
        // SAFETY: the caller's promise; `out` is a span.
        unsafe {
            let (x, y) = (a.take(&a_held, at), b.take(&b_held, from));
            x[0].mul(y[0]).put(out, 0);
            x[1].mul(y[1]).put(out, PARTS);
        }
    }
}

/// One rate of a block's spans.
///
/// # Safety
/// As of [`spans`].
#[inline(always)]
unsafe fn rate<V: Batch, A: Whole, B: Whole, const RATE: usize>(
    a: A,
    b: B,
    [a_index, b_index]: [&[u16]; 2],
    values: &mut [Quad],
) {
    let (a_held, b_held) = (a.hold_rate::<V>(RATE), b.hold_rate::<V>(RATE));
    let indices = a_index.iter().zip(b_index);
    for ((&class, &other), out) in indices.zip(values.chunks_exact_mut(SPAN)) {
        let (at, from) = (usize::from(class) * SPAN, usize::from(other) * SPAN);
        match RATE {
            0 => a.expect(at),
            1 => b.expect(from),
            2 => expect(out, 0),
            _ => {}
        }
        // SAFETY: the caller's promise; `out` is a span.
        unsafe {
            let x = a.take_rate(&a_held, at + RATE);
            let y = b.take_rate(&b_held, from + RATE);
            x.mul(y).put(out, RATE);
        }
    }
}

/// All classes have spans.
#[inline(always)]
fn check(index: &[u16], quads: &[Quad]) {
    let last = index.iter().fold(0, |last, &class| last.max(class));
    assert!(
        index.is_empty() || (usize::from(last) + 1) * SPAN <= quads.len(),
        "class {last} is beyond its operand"
    );
}
